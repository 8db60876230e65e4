r"""Girgis, Data, Diggavi, Suresh, Kairouz 2021, "On the Rényi Differential Privacy of the Shuffle Model".

n reports, each ε0-LDP with discrete outputs, shuffled; replace-one neighbours; no sampling. Theorem numbers
are those of Girgis's thesis, chapter 5. Everything is computed in logarithms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from shuffle_plugins.accounting.numerics.binomial import log_sum
from shuffle_plugins.accounting.numerics.orders import Vector
from shuffle_plugins.accounting.published.subsampled_rdp import subsampled_rdp_lower_bound
from shuffle_plugins.core import checks

_ROUNDING = 1e-9  # relative; gammaln and log_sum stay below it up to order 1e5
_LARGEST_LOCAL_EPSILON = 300.0  # e^2ε0 still fits a double
_PAPER_SPLIT = 0.5
_LARGEST_SPLIT = 1 - 1e-9
_SPLIT_FACTORS = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0)  # around a first guess: within 2 % of the best of 120 splits
_SPARE_TERMS = 128  # summed past where terms begin to halve


def first_shuffle_rdp(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, split: float | None = None
) -> Vector:
    r"""Rényi divergence of one shuffle at most: Theorem 5.3.1.

    With n̄ = ⌊(1 − c)(n − 1)/e^ε0⌋ + 1, at whole α ≥ 2,

        ε(α) ≤ log(1 + C(α, 2)·(e^ε0 − 1)²/(n̄·e^ε0)
                     + Σ_{i=3..α} C(α, i)·i·Γ(i/2)·((e^2ε0 − 1)²/(2n̄·e^2ε0))^{i/2}
                     + exp(ε0·α − c²(n − 1)/(2e^ε0))) / (α − 1).

    c splits Chernoff's bound on the number of clones: the theorem prints c = 1/2, Remark 5.3.3 allows any;
    by default every order takes the best of a few. Between whole orders (α − 1)·ε(α) is bounded by its chord
    (Remark 5.3.2), from zero at α = 1. Stated, and returned, without the trivial cap at ε0.

    At small divergences it is (e^ε0 + 1)/2 times the binary blanket pair's with c → 0, twice that at c = 1/2.
    Composed at ε0 = 0.5, n = 10⁶, T = 10⁵, δ = 10⁻⁸ it gives ε = 1.14, and 1.64 at c = 1/2; the pair, 0.91.

    Args:
        split: c in (0, 1), or None for the best one.

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,), rounded up.
    """
    alpha = _check(orders=orders, local_epsilon=local_epsilon, cohort=cohort, smallest=1.0, split=split)
    below, above = np.floor(alpha), np.ceil(alpha)
    share = above - alpha
    moments = {
        order: 0.0 if order == 1 else _log_moment_1(order, local_epsilon, cohort, split)
        for order in np.unique(np.concatenate([below, above])).tolist()
    }
    lower, upper = (np.array([moments[order] for order in ends.tolist()]) for ends in (below, above))
    log_moment = np.where(share == 0, upper, share * lower + (1 - share) * upper)
    return log_moment / (alpha - 1) * (1 + _ROUNDING)


def second_shuffle_rdp(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, split: float | None = None
) -> Vector:
    r"""Rényi divergence of one shuffle at most: Theorem 5.3.2, simpler than the first and looser.

        ε(α) ≤ log(exp(α²(e^ε0 − 1)²/n̄) + exp(ε0·α − c²(n − 1)/(2e^ε0))) / (α − 1)

    with n̄ and c as in :func:`first_shuffle_rdp`; 4e^ε0 times as large at α = 2, 2e^ε0 times at large α.

    Args:
        orders: real α ≥ 2, shape (m,). Theorem 5.3.2 says α > 1, the statement proved (5.3.6) says α ≥ 2.
        local_epsilon, cohort, split: as of :func:`first_shuffle_rdp`, whose result this one's is like.
    """
    alpha = _check(orders=orders, local_epsilon=local_epsilon, cohort=cohort, smallest=2.0, split=split)
    best = np.full(alpha.shape, math.inf)
    for index, order in enumerate(alpha.tolist()):
        second = 2 * math.log(order) + 2 * _log_expm1(local_epsilon)
        for c in _splits(order, local_epsilon, cohort, split, log_second=second - local_epsilon):
            exponent = math.exp(min(second - _log_clones(local_epsilon, cohort, c), 700.0))
            moment = float(np.logaddexp(exponent, _log_few(order, local_epsilon, cohort, c)))
            best[index] = min(best[index], moment)
    return best / (alpha - 1) * (1 + _ROUNDING)


def shuffle_rdp_corollary(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    r"""Corollary 5.3.1: ε(α) ≤ log(1 + C(α, 2)·4(e^ε0 − 1)²/n)/(α − 1) where α⁴·e^5ε0 < n/9.

    About 2(e^ε0 + 1) times the exact blanket pair's divergence.

    Args:
        orders: whole α ≥ 2, shape (m,).

    Raises:
        ValueError: if an order is outside the regime.
    """
    alpha = _check(orders=orders, local_epsilon=local_epsilon, cohort=cohort, smallest=2.0)
    if not np.all(alpha == np.floor(alpha)):
        raise ValueError("Corollary 5.3.1 holds at whole orders from 2 on")
    if np.any(4 * np.log(alpha) + 5 * local_epsilon >= math.log(cohort / 9)):
        raise ValueError(
            f"Corollary 5.3.1 needs order^4·e^(5·local_epsilon) < cohort/9; the largest order is "
            f"{alpha.max():.6g} at local_epsilon={local_epsilon:.3g} and {cohort} reports"
        )
    log_second = np.log(alpha * (alpha - 1) / 2) + math.log(4 / cohort) + 2 * _log_expm1(local_epsilon)
    return np.logaddexp(0.0, log_second) / (alpha - 1) * (1 + _ROUNDING)


def shuffle_rdp_lower_bound(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    """Rényi divergence of one shuffle at least, in the worst case over randomizers: Theorem 5.3.3.

    The exact divergence of binary randomized response when every other client holds 0. A lower bound on a
    Rényi curve is **not** a lower bound on ε at any δ.

    Args:
        orders: whole α ≥ 2, shape (m,).
    """
    return subsampled_rdp_lower_bound(
        orders=orders, local_epsilon=local_epsilon, population=cohort, cohort=cohort
    )


def simple_shuffle_rdp_lower_bound(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    r"""Rényi divergence of one shuffle at least: Corollary 5.3.2, the first term of Theorem 5.3.3.

        ε(α) ≥ log(1 + C(α, 2)·(e^ε0 − 1)²/(n·e^ε0))/(α − 1)

    4e^ε0 times below Corollary 5.3.1, and close to :func:`shuffle_rdp_lower_bound` where the divergence is
    small. It is a lower bound on a Rényi curve, **not** on ε at any δ.

    Args:
        orders: whole α ≥ 2, shape (m,).
    """
    alpha = _check(orders=orders, local_epsilon=local_epsilon, cohort=cohort, smallest=2.0)
    if not np.all(alpha == np.floor(alpha)):
        raise ValueError("Corollary 5.3.2 holds at whole orders from 2 on")
    log_second = np.log(alpha * (alpha - 1) / 2) + 2 * _log_expm1(local_epsilon) - local_epsilon
    return np.logaddexp(0.0, log_second - math.log(cohort)) / (alpha - 1) * (1 - _ROUNDING)


def _log_moment_1(order: float, local_epsilon: float, cohort: int, split: float | None) -> float:
    """log of the sum in Theorem 5.3.1 at a whole order, the smallest over the splits tried."""
    log_pairs = math.log(order * (order - 1) / 2) + 2 * _log_expm1(local_epsilon) - local_epsilon
    log_scale = 2 * (local_epsilon + math.log(-math.expm1(-2 * local_epsilon))) - math.log(2)

    def first_two(c: float) -> float:
        second = log_pairs - _log_clones(local_epsilon, cohort, c)
        return float(np.logaddexp(second, _log_few(order, local_epsilon, cohort, c)))

    best = math.inf
    splits = _splits(order, local_epsilon, cohort, split, log_second=log_pairs)
    for c in {splits[0], min(splits, key=first_two)}:
        log_clones = _log_clones(local_epsilon, cohort, c)
        log_terms = _log_higher_terms(order, log_scale - log_clones)
        few = _log_few(order, local_epsilon, cohort, c)
        best = min(best, log_sum(np.append(log_terms, [0.0, log_pairs - log_clones, few])))
    return best


def _log_higher_terms(order: float, log_y: float) -> Vector:
    """log of C(α, i)·i·Γ(i/2)·y^{i/2} for i from 3, and of a bound on those left out.

    The ratio of neighbouring terms is at most α·√(y/2i) (Gautschi), a half or less where the sum is cut, so
    the rest weighs no more than the last term.
    """
    last = order
    if 2 * math.log(order) + log_y < math.log(1e9):
        last = min(order, math.ceil(2 * order**2 * math.exp(log_y)) + _SPARE_TERMS)
    i = np.arange(3, last + 1, dtype=np.float64)
    terms = (
        gammaln(order + 1)
        - gammaln(i + 1)
        - gammaln(order - i + 1)
        + np.log(i)
        + gammaln(i / 2)
        + i / 2 * log_y
    )
    return terms if last == order else np.append(terms, terms[-1])


def _splits(
    order: float, local_epsilon: float, cohort: int, split: float | None, *, log_second: float
) -> list[float]:
    """Splits to try: the paper's, and some around the one whose tail is as small as the second-order term."""
    if split is not None:
        return [split]
    log_mean = math.log(max(cohort - 1, 0.5)) - local_epsilon
    wanted = local_epsilon * order - min(log_second - log_mean, 0.0)
    log_square = math.log(2 * wanted) - log_mean
    if log_square > 1:
        return [_PAPER_SPLIT]
    level = math.exp(log_square / 2)
    return [_PAPER_SPLIT, *(min(factor * level, _LARGEST_SPLIT) for factor in _SPLIT_FACTORS)]


def _log_clones(local_epsilon: float, cohort: int, split: float) -> float:
    """log n̄."""
    return math.log(math.floor((1 - split) * (cohort - 1) * math.exp(-local_epsilon)) + 1)


def _log_few(order: float, local_epsilon: float, cohort: int, split: float) -> float:
    """log of what few clones add."""
    return local_epsilon * order - split**2 * (cohort - 1) * math.exp(-local_epsilon) / 2


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def _check(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, smallest: float, split: float | None = None
) -> Vector:
    """The orders as a vector, once all arguments are in range."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or alpha.size == 0 or not np.all(np.isfinite(alpha)):
        raise ValueError("orders must be a vector of finite numbers")
    if np.any(alpha < smallest) or np.any(alpha <= 1):
        raise ValueError(f"orders must be at least {smallest:g} and above 1, got {alpha.min():g}")
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    checks.whole("cohort", cohort)
    if split is not None:
        checks.number("split", split, above=0, below=1)
    return alpha
