r"""Published Rényi divergences: of one shuffle of n ε0-LDP reports, and of a mechanism on a random sample.

- Girgis, Data, Diggavi, Suresh, Kairouz 2021, "On the Rényi Differential Privacy of the Shuffle Model" (CCS),
  discrete outputs; theorem numbers 5.3.x are those of Girgis's thesis.
- Girgis, Data, Diggavi 2021, "Rényi Differential Privacy of the Subsampled Shuffle Model" (NeurIPS), discrete
  outputs, k of n clients without replacement.
- Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and Analytical Moments
  Accountant"; Zhu, Wang 2019, "Poisson Subsampled Rényi Differential Privacy": of any mechanism's curve.

Orders have shape (m,), and so have the divergences, in nats: rounded up, lower bounds down. They are not
capped at ε0. Everything is computed in logarithms. A lower bound on a Rényi curve is **not** a lower bound on
ε at any δ: converting it gives a number that bounds nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from shuffle_plugins.accounting.losses import real_orders
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.numerics.sums import Floats, log_probability, log_sum
from shuffle_plugins.core import checks

_ROUNDING = 1e-9  # relative; gammaln and log_sum stay below it up to order 1e5 and cohort 1e9


# -- one shuffle ---------------------------------------------------------------------------------------------


def first_shuffle_rdp(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, split: float | None = None
) -> Floats:
    r"""Theorem 5.3.1. With n̄ = ⌊(1 − c)(n − 1)/e^ε0⌋ + 1, at whole α ≥ 2,

        ε(α) ≤ log(1 + C(α, 2)·(e^ε0 − 1)²/(n̄·e^ε0)
                     + Σ_{i=3..α} C(α, i)·i·Γ(i/2)·((e^2ε0 − 1)²/(2n̄·e^2ε0))^{i/2}
                     + exp(ε0·α − c²(n − 1)/(2e^ε0))) / (α − 1).

    c, ``split``, splits Chernoff's bound on the number of clones: the theorem prints c = 1/2, Remark 5.3.3
    allows any; by default every order takes the best of a few. Between whole orders (α − 1)·ε(α) is bounded
    by its chord (Remark 5.3.2), from zero at α = 1. Composed at ε0 = 0.5, n = 10⁶, T = 10⁵, δ = 10⁻⁸ it
    gives ε = 1.14, and 1.64 at c = 1/2; the binary blanket pair, 0.91.
    """
    alpha = _check(orders, local_epsilon, cohort, split=split)
    below, above = np.floor(alpha), np.ceil(alpha)
    share = above - alpha
    moments = {
        order: 0.0 if order == 1 else _log_moment(order, local_epsilon, cohort, split)
        for order in np.unique(np.concatenate([below, above])).tolist()
    }
    lower, upper = (np.array([moments[order] for order in ends.tolist()]) for ends in (below, above))
    log_moment = np.where(share == 0, upper, share * lower + (1 - share) * upper)
    return log_moment / (alpha - 1) * (1 + _ROUNDING)


def second_shuffle_rdp(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, split: float | None = None
) -> Floats:
    r"""Theorem 5.3.2, simpler than the first and looser; n̄ and c as of :func:`first_shuffle_rdp`.

        ε(α) ≤ log(exp(α²(e^ε0 − 1)²/n̄) + exp(ε0·α − c²(n − 1)/(2e^ε0))) / (α − 1)

    2e^ε0 to 4e^ε0 times the first. The theorem says α > 1, the statement proved (5.3.6) α ≥ 2: below, its
    value at 2 is valid, as divergences never decrease with the order.
    """
    alpha: Floats = np.maximum(_check(orders, local_epsilon, cohort, split=split), 2.0)
    best: Floats = np.full(alpha.shape, math.inf)
    for index, order in enumerate(alpha.tolist()):
        second = 2 * math.log(order) + 2 * _log_expm1(local_epsilon)
        for c in _splits(order, local_epsilon, cohort, split, log_second=second - local_epsilon):
            exponent = math.exp(min(second - _log_clones(local_epsilon, cohort, c), 700.0))
            moment = float(np.logaddexp(exponent, _log_few(order, local_epsilon, cohort, c)))
            best[index] = min(best[index], moment)
    return best / (alpha - 1) * (1 + _ROUNDING)


def shuffle_rdp_corollary(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Floats:
    r"""Corollary 5.3.1: ε(α) ≤ log(1 + C(α, 2)·4(e^ε0 − 1)²/n)/(α − 1) at whole α where α⁴·e^5ε0 < n/9.

    About 2(e^ε0 + 1) times the exact blanket pair's divergence.
    """
    alpha = _check_whole(orders, local_epsilon, cohort).astype(np.float64)
    if np.any(4 * np.log(alpha) + 5 * local_epsilon >= math.log(cohort / 9)):
        raise ValueError(
            f"Corollary 5.3.1 needs order^4·e^(5·local_epsilon) < cohort/9; the largest order is "
            f"{alpha.max():.6g} at local_epsilon={local_epsilon:.3g} and {cohort} reports"
        )
    log_second = np.log(alpha * (alpha - 1) / 2) + math.log(4 / cohort) + 2 * _log_expm1(local_epsilon)
    return np.logaddexp(0.0, log_second) / (alpha - 1) * (1 + _ROUNDING)


def simple_shuffle_rdp_lower_bound(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Floats:
    r"""At least, at whole α ≥ 2: Corollary 5.3.2, the first term of Theorem 5.3.3.

        ε(α) ≥ log(1 + C(α, 2)·(e^ε0 − 1)²/(n·e^ε0))/(α − 1)

    4e^ε0 times below Corollary 5.3.1, and close to Theorem 5.3.3 where it is small.
    """
    alpha = _check_whole(orders, local_epsilon, cohort).astype(np.float64)
    log_second = np.log(alpha * (alpha - 1) / 2) + 2 * _log_expm1(local_epsilon) - local_epsilon
    return np.logaddexp(0.0, log_second - math.log(cohort)) / (alpha - 1) * (1 - _ROUNDING)


def erlingsson_rdp(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Floats:
    r"""Erlingsson et al. 2019, Remark 1: ε(α) = 2·α·e^4ε0·(e^ε0 − 1)²/n, for ε0 in (0, 100].

    At small divergences 2(e^ε0 + 1)·e^4ε0 times the binary blanket pair's.
    """
    alpha = real_orders(orders)
    checks.number("local_epsilon", local_epsilon, above=0, at_most=100.0)  # e^6ε0 fits a double
    checks.whole("cohort", cohort)
    return 2 * alpha * math.exp(4 * local_epsilon) * math.expm1(local_epsilon) ** 2 / cohort


def _log_moment(order: float, local_epsilon: float, cohort: int, split: float | None) -> float:
    """log of the sum in Theorem 5.3.1 at a whole order, the smallest over the splits tried."""
    log_pairs = math.log(order * (order - 1) / 2) + 2 * _log_expm1(local_epsilon) - local_epsilon
    log_scale = 2 * _log_spread(local_epsilon) - math.log(2)

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


def _log_higher_terms(order: float, log_y: float) -> Floats:
    """log of C(α, i)·i·Γ(i/2)·y^{i/2} for i from 3, and of a bound on those left out.

    The ratio of neighbouring terms is at most α·√(y/2i) (Gautschi), a half or less where the sum is cut.
    """
    last = order
    if 2 * math.log(order) + log_y < math.log(1e9):
        last = min(order, math.ceil(2 * order**2 * math.exp(log_y)) + 128)  # past where terms begin to halve
    i = np.arange(3, last + 1, dtype=np.float64)
    terms = _log_choose(order, i) + np.log(i) + gammaln(i / 2) + i / 2 * log_y
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
        return [0.5]
    level = math.exp(log_square / 2)
    # within 2 % of the best of 120 splits
    return [0.5, *(min(factor * level, 1 - 1e-9) for factor in (0.7, 0.85, 1.0, 1.2, 1.5, 2.0))]


def _log_clones(local_epsilon: float, cohort: int, split: float) -> float:
    """log n̄, the clones that are counted on: a share 1 − split of those expected, and one more."""
    return math.log(math.floor((1 - split) * (cohort - 1) * math.exp(-local_epsilon)) + 1)


def _log_few(order: float, local_epsilon: float, cohort: int, split: float) -> float:
    """log of what few clones add."""
    return local_epsilon * order - split**2 * (cohort - 1) * math.exp(-local_epsilon) / 2


# -- a sampled shuffle ---------------------------------------------------------------------------------------


def log_ternary_chi(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Floats:
    r"""log ζ(α)^α of a shuffle of k reports, natural: Girgis, Data, Diggavi 2021, Theorem 4, upper bound.

    With k̄ = ⌊(k − 1)/(2e^ε0)⌋ + 1, every ternary \|χ\|^α divergence of mutually adjacent datasets is at most

        4(e^ε0 − 1)²/(k̄e^ε0) + tail                                 at α = 2,
        α·Γ(α/2)·(2(e^2ε0 − 1)²/(k̄e^2ε0))^{α/2} + tail               at real α > 2,
        tail = (e^ε0 − e^−ε0)^α · e^{−(k−1)/(8e^ε0)}.

    About 8e^ε0 times the value of binary randomized response at α = 2 and a large cohort.
    """
    alpha = _check(orders, local_epsilon, cohort, smallest=2.0)
    e = math.exp(local_epsilon)
    log_clones = math.log(math.floor((cohort - 1) / (2 * e)) + 1)
    log_spread = _log_spread(local_epsilon)
    log_second = math.log(4) + 2 * math.log(2 * math.sinh(local_epsilon / 2)) - log_clones
    log_higher = np.log(alpha) + gammaln(alpha / 2) + alpha / 2 * (math.log(2) + 2 * log_spread - log_clones)
    tail = alpha * log_spread - (cohort - 1) / (8 * e)
    return np.logaddexp(np.where(alpha == 2, log_second, log_higher), tail)


def subsample_ternary_chi(*, orders: ArrayLike, log_chi: ArrayLike, sampling_rate: float) -> Floats:
    r"""Of a subsampled mechanism from its ternary divergences: Girgis, Data, Diggavi 2021, Lemma 2.

        ε(λ) = log(1 + Σ_{α=2..λ} C(λ, α)·γ^α·ζ(α)^α) / (λ − 1)

    Args:
        orders: whole λ ≥ 2.
        log_chi: log ζ(α)^α at α = 2, 3, …, at least up to the largest order.
        sampling_rate: γ in (0, 1].
    """
    whole = whole_orders(orders, theorems="the subsampled-shuffle theorems")
    log_terms = np.asarray(log_chi, dtype=np.float64)
    if log_terms.ndim != 1 or log_terms.size < int(whole.max()) - 1:
        raise ValueError("log_chi must hold every order from 2 to the largest one asked for")
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    alpha = np.arange(2, int(whole.max()) + 1, dtype=np.float64)
    log_terms = log_terms[: alpha.size] + alpha * math.log(sampling_rate) - gammaln(alpha + 1)
    log_factorial = gammaln(np.arange(int(whole.max()) + 1) + 1.0)
    log_sums = [
        log_factorial[order] + log_sum(log_terms[: order - 1] - log_factorial[order - 2 :: -1])
        for order in whole
    ]
    return np.logaddexp(0.0, log_sums) / (whole - 1) * (1 + _ROUNDING)


def subsampled_rdp_bound(*, orders: ArrayLike, local_epsilon: float, population: int, cohort: int) -> Floats:
    """Of one round of k of n clients, at whole λ ≥ 2: Girgis, Data, Diggavi 2021, Theorem 1.

    Theorem 4 put into Lemma 2. At the settings of the paper's figures the composed ε comes out 4 to 8 times
    above the exact blanket pair's.
    """
    whole = _check_whole(orders, local_epsilon, cohort)
    checks.whole("population", population, at_least=cohort)
    every = np.arange(2, int(whole.max()) + 1)
    log_chi = log_ternary_chi(orders=every, local_epsilon=local_epsilon, cohort=cohort)
    return subsample_ternary_chi(orders=whole, log_chi=log_chi, sampling_rate=cohort / population)


def subsampled_rdp_lower_bound(
    *, orders: ArrayLike, local_epsilon: float, cohort: int, population: int | None = None
) -> Floats:
    r"""At least, in the worst case over randomizers, at whole λ ≥ 2: Girgis, Data, Diggavi 2021, Theorem 2.

    The exact divergence of binary randomized response when every other client holds 0: with
    h ~ Bin(k, 1/(e^ε0 + 1)),

        ε(λ) = log E[(1 + γ·(e^2ε0 − 1)/(k·e^ε0)·(h − k/(e^ε0 + 1)))^λ] / (λ − 1),

    which the paper writes as a sum of binomial moments. Where all clients report (no ``population``) it is
    Theorem 5.3.3 of one shuffle.
    """
    whole = _check_whole(orders, local_epsilon, cohort)
    population = cohort if population is None else checks.whole("population", population, at_least=cohort)
    success = 1.0 / (math.exp(local_epsilon) + 1.0)
    step = 2 * math.sinh(local_epsilon) / population
    log_sums = []
    for order in whole:
        hits = _relevant_hits(trials=cohort, success=success, step=step, order=int(order))
        centred = step * (hits - cohort * success)
        log_sums.append(
            log_sum(
                log_probability(successes=hits, trials=cohort, success=success)
                + _log_power_remainder(centred, order=int(order))
            )
        )
    return np.logaddexp(0.0, log_sums) / (whole - 1) * (1 - _ROUNDING)


def _log_power_remainder(x: Floats, *, order: int) -> Floats:
    """log((1 + x)^λ − 1 − λx) for x > −1, without cancellation or overflow; −∞ at x = 0."""
    exponent = order * np.log1p(x)
    with np.errstate(divide="ignore"):
        small = np.log(np.maximum(np.expm1(np.minimum(exponent, 50.0)) - order * x, 0.0))
        large = exponent + np.log1p(-(1 + order * x) * np.exp(-np.maximum(exponent, 50.0)))
        tiny = np.clip(x, -1e-5 / order, 1e-5 / order)
        series = math.log(order * (order - 1) / 2) + 2 * np.log(np.abs(tiny)) + (order - 2) * tiny / 3
    return np.where(order * np.abs(x) < 1e-5, series, np.where(exponent > 50, large, small))


def _relevant_hits(*, trials: int, success: float, step: float, order: int) -> Floats:
    """Counts that carry E[(1 + x)^λ]: around the mean and around the mode under the weight (1 + x)^λ."""
    mean = trials * success

    def slope(count: float) -> float:  # of log pmf + λ·log(1 + x); it falls, from positive at the mean
        odds = (trials - count + 0.5) / (count + 0.5) * success / (1 - success)
        return math.log(odds) + order * step / (1 + step * (count - mean))

    mode = mean if slope(mean) <= 0 else float(trials)
    if slope(mean) > 0 > slope(trials):
        mode = zero_between(slope, mean, trials, xtol=1e-3)
    reach = 14 * math.sqrt(trials) / 2 + 14  # a count further from its mean weighs less than 1e-40
    windows = [
        np.arange(max(0, math.floor(centre - reach)), min(trials, math.ceil(centre + reach)) + 1)
        for centre in (mean, mode)
    ]
    return np.unique(np.concatenate(windows)).astype(np.float64)


# -- any mechanism on a sample -------------------------------------------------------------------------------


def without_replacement(
    *, orders: ArrayLike, rdp: ArrayLike, sampling_rate: float, pure_epsilon: float = math.inf
) -> Floats:
    r"""Under k-of-n sampling: Wang, Balle, Kasiviswanathan 2019, Theorem 9, replace-one.

        ε'(λ) = log(1 + C(λ, 2)·γ²·min(4(e^ε(2) − 1), e^ε(2)·min(2, (e^ε(∞) − 1)²))
                      + Σ_{j=3..λ} C(λ, j)·γ^j·e^((j−1)ε(j))·min(2, (e^ε(∞) − 1)^j)) / (λ − 1)

    On a shuffle's exact curve (k = 1000 of n = 10⁶, T = 10⁵, δ = 10⁻⁸) the composed ε is 3 times that of the
    subsampled binary blanket pair at ε0 = 2 and 6 times at ε0 = 1.

    Args:
        orders: whole λ ≥ 2.
        rdp: ε(j) of the mechanism on its sample at j = 2, 3, …, at least up to the largest order.
        pure_epsilon: ε(∞) > 0 of the mechanism; infinite if it is not pure.
    """
    curve = _curve(rdp)
    if not pure_epsilon > 0:
        raise ValueError(f"pure_epsilon must be positive, got {pure_epsilon!r}")
    j = np.arange(2, curve.size + 2, dtype=np.float64)
    log_chi = (j - 1) * curve + np.minimum(math.log(2), j * _log_expm1(pure_epsilon))
    log_chi[0] = min(math.log(4) + _log_expm1(float(curve[0])), float(log_chi[0]))
    return subsample_ternary_chi(orders=orders, log_chi=log_chi, sampling_rate=sampling_rate)


def poisson(*, orders: ArrayLike, rdp: ArrayLike, sampling_rate: float) -> Floats:
    r"""Under Poisson sampling: Zhu and Wang 2019, Theorem 5, for **add/remove** neighbours.

        ε'(λ) = log((1−γ)^(λ−1)·(1 + (λ−1)γ) + C(λ, 2)·γ²(1−γ)^(λ−2)·e^ε(2)
                    + 3·Σ_{l=3..λ} C(λ, l)·(1−γ)^(λ−l)·γ^l·e^((l−1)ε(l))) / (λ − 1)

    **Not a bound for replace-one neighbours**, to whose curve the thesis applies it; kept to draw that
    figure. There it is about a quarter of :func:`without_replacement` where every γ²-term dominates, and does
    fall below exact divergences. Arguments are those of :func:`without_replacement`.
    """
    curve = _curve(rdp)
    whole = whole_orders(orders, theorems="subsampled Rényi theorems")
    if curve.size < int(whole.max()) - 1:
        raise ValueError("rdp must hold every order from 2 to the largest one asked for")
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    if sampling_rate == 1:
        return curve[whole - 2] * (1 + _ROUNDING)
    log_in, log_out = math.log(sampling_rate), math.log1p(-sampling_rate)
    values = []
    for order in whole:
        absent = (order - 1) * log_out + math.log1p((order - 1) * sampling_rate)
        sizes = np.arange(2, order + 1, dtype=np.float64)
        log_terms = _log_choose(order, sizes) + sizes * log_in + (order - sizes) * log_out
        log_terms += (sizes - 1) * curve[: order - 1]
        log_terms[1:] += math.log(3)
        log_present = log_sum(log_terms)
        if log_present < 30:  # so small that it can be added without logarithms, which keeps its digits
            values.append(math.log1p(max(math.expm1(absent) + math.exp(log_present), 0.0)))
        else:
            values.append(float(np.logaddexp(absent, log_present)))
    return np.array(values) / (whole - 1) * (1 + _ROUNDING)


def _curve(rdp: ArrayLike) -> Floats:
    curve = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if curve.ndim != 1 or curve.size == 0 or not np.all(curve >= 0):
        raise ValueError("rdp must be a vector of divergences, none of them negative")
    return curve


def _log_choose(order: float, sizes: Floats) -> Floats:
    return np.asarray(gammaln(order + 1) - gammaln(sizes + 1) - gammaln(order - sizes + 1))


def _log_expm1(x: float) -> float:
    """log(e^x − 1) for x ≥ 0."""
    return x + math.log(-math.expm1(-x)) if x else -math.inf


def _log_spread(local_epsilon: float) -> float:
    """log(e^ε0 − e^−ε0), the most that likelihood ratios of two reports differ by."""
    return local_epsilon + math.log(-math.expm1(-2 * local_epsilon))


def _check(
    orders: ArrayLike, local_epsilon: float, cohort: int, *, smallest: float = 1.0, split: float | None = None
) -> Floats:
    """The orders as a vector, once all arguments are in range."""
    alpha = real_orders(orders)
    if alpha.size == 0 or np.any(alpha < smallest):
        raise ValueError(f"orders must be at least {smallest:g}, one or more, got {orders!r}")
    checks.number("local_epsilon", local_epsilon, above=0, at_most=300.0)  # e^2ε0 still fits a double
    checks.whole("cohort", cohort)
    if split is not None:
        checks.number("split", split, above=0, below=1)
    return alpha


def _check_whole(orders: ArrayLike, local_epsilon: float, cohort: int) -> NDArray[np.int64]:
    _check(orders, local_epsilon, cohort)
    return whole_orders(orders, theorems="the theorems of sampled and shuffled reports")


def whole_orders(orders: ArrayLike, *, theorems: str) -> NDArray[np.int64]:
    """Rényi orders as a vector of whole numbers.

    Args:
        orders: from 2 on.
        theorems: which ones ask for it, for the message.
    """
    values = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if values.ndim != 1 or values.size == 0:
        raise ValueError("orders must be a vector with at least one order")
    if not (np.all(values >= 2) and np.all(np.isfinite(values)) and np.all(values == np.floor(values))):
        raise ValueError(f"{theorems} hold at whole orders from 2 on")
    return values.astype(np.int64)
