r"""Published bounds on ε of one shuffle of n ε0-LDP reports, at a δ, in closed form or by a pair.

- Feldman, McMillan, Talwar 2021, "Hiding Among the Clones" (arXiv 2012.12803); 2022, "Stronger Privacy
  Amplification by Shuffling" (arXiv 2208.04591).
- Balle, Bell, Gascón, Nissim 2019, "The Privacy Blanket of the Shuffle Model" (CRYPTO 2019).
- Balle, Kairouz, McMahan, Thakkar, Thakurta 2020, "Privacy Amplification via Random Check-Ins".
- Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta 2019, "Amplification by Shuffling" (SODA).
- Cheu, Smith, Ullman, Zeber, Zhilyaev 2019, "Distributed Differential Privacy via Shuffling" (EUROCRYPT).

**Erratum** of "Stronger": its own errata withdraws Theorems 3.1, 3.2, 5.2 and Corollary 4.3 for adaptive
randomizers, as the proof of Lemma 3.5 is wrong. Here Claims 2 and 6 of ``docs/proofs/accounting.md`` carry
the pair of its numerical bound, clones with probability 2/(e^ε0 + 1), for fixed and for adaptive randomizers;
its closed forms hold because they lie above that pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, xlogy

from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses import BoundKind, PrivacyLossDistribution, real_orders
from shuffle_plugins.accounting.numerics.search import narrowed, zero_between
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, binomial_window
from shuffle_plugins.accounting.pairs.noise import delta_of_gaussian
from shuffle_plugins.accounting.pairs.reports import Blanket
from shuffle_plugins.accounting.pairs.shuffle import PairMixture, blanket_pair, pair_losses
from shuffle_plugins.core import checks

_ROUNDING = 1e-9
_LARGEST_LOCAL_EPSILON = 100.0  # e^3ε0 still fits a double
_LARGEST_STEP = 300.0  # ε0 of a step, up to which e^ε0 does


# -- clones --------------------------------------------------------------------------------------------------


def clone_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""Feldman et al. 2021, Theorem 3.1; randomizers may be chosen adaptively along the permutation.

        ε = log(1 + (e^ε0 − 1)/(e^ε0 + 1) · (8·√(e^ε0·log(4/δ))/√n + 8·e^ε0/n)),   ε0 ≤ log(n/(16·log(2/δ)))

    At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies about 4 to 6 times above the exact blanket pair.
    """
    _check(local_epsilon, cohort, delta)
    reach = math.log(cohort / (16 * math.log(2 / delta)))
    _within("Theorem 3.1", reach, local_epsilon, cohort, delta)
    e = math.exp(local_epsilon)
    spread = 8 * math.sqrt(e * math.log(4 / delta) / cohort) + 8 * e / cohort
    return math.log1p(math.tanh(local_epsilon / 2) * spread)


def stronger_clone_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""Feldman et al. 2022, Theorem 3.2, of one randomizer for all (see the module's erratum).

        ε = log(1 + (e^ε0 − 1)·(4·√(2·log(4/δ)/((e^ε0 + 1)·n)) + 4/n)),   ε0 ≤ log(n/(8·log(2/δ)) − 1)

    At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies 2.3 to 4.7 times above the pair it bounds.
    """
    _check(local_epsilon, cohort, delta)
    room = cohort / (8 * math.log(2 / delta)) - 1
    _within("Theorem 3.2", math.log(room) if room > 0 else -math.inf, local_epsilon, cohort, delta)
    scale = (math.exp(local_epsilon) + 1) * cohort
    spread = 4 * math.sqrt(2 * math.log(4 / delta) / scale) + 4 / cohort
    return math.log1p(math.expm1(local_epsilon) * spread)


def local_delta_cost(*, local_epsilon: float, local_delta: float, cohort: int, epsilon: float) -> float:
    """What (ε0, δ0) instead of ε0 adds to δ of one shuffle: (e^ε + 1)·(1 + e^−ε0/2)·n·δ0.

    Feldman et al. 2021, Theorem 3.8. A Gaussian mechanism's own blanket is far cheaper.
    """
    _check(local_epsilon, cohort)
    checks.fraction("local_delta", local_delta)
    checks.number("epsilon", epsilon, at_least=0)
    if local_delta == 0:
        return 0.0
    log_cost = float(np.logaddexp(epsilon, 0.0)) + math.log1p(math.exp(-local_epsilon) / 2)
    log_cost += math.log(cohort) + math.log(local_delta)
    return math.exp(min(log_cost, 700.0)) * (1 + _ROUNDING)


def specific_randomizer(*, distance: float, shared: float, cohort: int, delta: float) -> float:
    r"""Of a randomizer with a known decomposition: Feldman et al. 2021, Theorem 4.1.

    If R(x1) = a·Q1 + (1 − a)·Q2, R(x1') = a·Q1' + (1 − a)·Q2 and every other R(x) = p·(Q1 + Q1' + Q2) + rest,
    then for p ≥ 8·log(2/δ)/n

        ε = log(1 + a·(4·√(2·log(4/δ)/(p·n)) + 4/(p·n))).

    with a, ``distance``, at least the total variation between R(x1) and R(x1'), and p, ``shared``, in
    (0, 1/3]. Q2 must be in everybody's report too: merging it with the others' rests instead, the "variation
    ratio" shortcut, is not valid.
    """
    checks.number("distance", distance, above=0, at_most=1)
    checks.number("shared", shared, above=0, at_most=1 / 3)
    _check(1.0, cohort, delta)
    clones = shared * cohort
    if clones < 8 * math.log(2 / delta):
        raise ValueError(
            f"Theorem 4.1 needs shared·cohort >= {8 * math.log(2 / delta):.4g} at delta={delta:.3g}, "
            f"got {clones:.4g}"
        )
    return math.log1p(distance * (4 * math.sqrt(2 * math.log(4 / delta) / clones) + 4 / clones))


def k_ary_response_bound(*, local_epsilon: float, categories: int, cohort: int, delta: float) -> float:
    r"""Of K-ary randomized response: Feldman et al. 2021, Corollary 4.2.

    Theorem 4.1 at a = (e^ε0 − 1)/(e^ε0 + K − 1), p = K/((K + 1)(e^ε0 + K − 1)). 2.5 to 5.3 times the exact
    blanket's ε at K = 10, ε0 = 0.5…4, n = 10⁴…10⁶.
    """
    _check(local_epsilon, cohort, delta)
    checks.whole("categories", categories, at_least=2)
    # e^ε0 − 1 over e^ε0 + K − 1, and so on, in powers of e^−ε0: nothing overflows
    scale = 1 + (categories - 1) * math.exp(-local_epsilon)
    return specific_randomizer(
        distance=-math.expm1(-local_epsilon) / scale,
        shared=categories / (categories + 1) * math.exp(-local_epsilon) / scale,
        cohort=cohort,
        delta=delta,
    )


def noisy_sgd_pass(*, noise_multiplier: float, records: int, delta: float) -> float:
    r"""One pass of noisy SGD over n records in secret random order: Feldman et al. 2021, Proposition 5.3.

    Each step adds Gaussian noise to a clipped gradient, ``noise_multiplier`` over its radius, and is
    (ε0, δ0)-DP for the exact δ0(ε0) of that noise (the proposition takes the classical formula). A pass is a
    shuffle of n such adaptive reports, so Theorem 3.8 applies: ε is that of :func:`clone_bound` at δ/2, for
    the least ε0 whose δ0 costs at most the other half. It is 1 to 5 times :func:`noisy_sgd_with_replacement`
    at n = 10⁶ and noise multipliers of 2 to 10; 0.78 times at n = 10⁷ and 1.6.
    """
    checks.whole("records", records)
    checks.delta(delta)
    checks.number("noise_multiplier", noise_multiplier, above=0)

    def epsilon(local_epsilon: float) -> float:
        return clone_bound(local_epsilon=local_epsilon, cohort=records, delta=delta / 2)

    def costs_too_much(local_epsilon: float) -> bool:
        cost = local_delta_cost(
            local_epsilon=local_epsilon,
            local_delta=delta_of_gaussian(local_epsilon, mu=2 / noise_multiplier),
            cohort=records,
            epsilon=epsilon(local_epsilon),
        )
        return cost > delta / 2

    largest = math.log(records / (16 * math.log(4 / delta))) * (1 - _ROUNDING)
    if largest <= 0 or costs_too_much(largest):
        raise ValueError(
            f"Proposition 5.3 needs more noise or more than {records} records: no ε0 up to "
            f"{max(largest, 0):.3g}, where Theorem 3.1 ends, has a small enough δ0 at "
            f"noise_multiplier={noise_multiplier:.3g}"
        )
    return epsilon(narrowed(costs_too_much, largest * _ROUNDING, largest, precision=1e-12)[1])


def noisy_sgd_with_replacement(*, noise_multiplier: float, records: int, delta: float) -> float:
    r"""n steps of noisy SGD, each on one record drawn with replacement (Bassily, Smith, Thakurta 2014).

    What the clones paper compares Proposition 5.3 with, its (13): with (ε0, δ0) of a step as in
    :func:`noisy_sgd_pass` and δ0 = δ/2,

        ε1 = log(1 + (e^ε0 − 1)/n),   ε = √(2n·log(2/δ))·ε1 + n·ε1·(e^ε1 − 1).
    """
    checks.whole("records", records)
    checks.delta(delta)
    checks.number("noise_multiplier", noise_multiplier, above=0)

    def leaks_too_much(local_epsilon: float) -> bool:
        return delta_of_gaussian(local_epsilon, mu=2 / noise_multiplier) > delta / 2

    if leaks_too_much(_LARGEST_STEP):
        raise ValueError(
            f"this needs more noise: noise_multiplier={noise_multiplier:.3g} leaves ε0 above 300"
        )
    local_epsilon = narrowed(leaks_too_much, _ROUNDING, _LARGEST_STEP, precision=1e-12)[1]
    step = math.log1p(math.expm1(local_epsilon) / records)
    return math.sqrt(2 * records * math.log(2 / delta)) * step + records * step * math.expm1(step)


@dataclass(frozen=True, kw_only=True)
class ClonePair:
    r"""The pair of count laws that the clone analyses reduce a shuffle of n reports to; symmetric in P and Q.

    Every other report is a *clone* of the differing client's with probability p, and then as likely one of
    its first record as of its second. With C ~ Bin(n − 1, p), A ~ Bin(C, 1/2) and
    Δ ~ Bernoulli(e^ε0/(e^ε0 + 1)),

        P = (A + Δ, C − A + 1 − Δ)        Q = (A + 1 − Δ, C − A + Δ).

    It is the pair of a blanket of mass p, and evaluated as such; its bounds are within some 3·10⁻⁴ of it.

    Attributes:
        blanket: of two weights: :meth:`Blanket.clones` or :meth:`Blanket.generic`.
        cohort: n.
    """

    blanket: Blanket
    cohort: int

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the hockey-stick divergence of P and Q at ε ≥ 0."""
        return self._composed("lower").delta(epsilon), self._composed("upper").delta(epsilon)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the ε of the pair at δ in (0, 1)."""
        return self._composed("lower").epsilon(delta), self.upper_epsilon(delta)

    def upper_epsilon(self, delta: float) -> float:
        """The upper end of :meth:`epsilon` alone, at half the cost."""
        return min(self._composed("upper").epsilon(delta), self.blanket.local_epsilon)

    def rdp(self, orders: ArrayLike) -> Floats:
        """Rényi divergence of P and Q at real orders α > 1, rounded up, in nats and at most ε0; shape (m,).

        It is the pair's own to a few parts in 10⁴, and up to a fifth above where rare outcomes decide.
        """
        alpha = real_orders(orders)
        law, largest = self._losses("upper"), self.blanket.local_epsilon
        told = law.loss > 0
        loss, p = law.loss[told], law.p[told]
        # Losses beyond those of the law: of m = C + 1 reports more than a share (1 + x)/2 are for one record.
        # Chernoff, then the mean over C; at the far ends of cells of loss.
        last = min(float(loss[-1]), largest)
        far = np.geomspace(last, largest, 1000)
        x = np.minimum(np.tanh(far[:-1] / 2) / math.tanh(largest / 2), 1.0)
        rate = (xlogy(1 + x, 1 + x) + xlogy(1 - x, 1 - x)) / 2
        log_far = math.log(2) - rate + (self.cohort - 1) * np.log1p(self.blanket.mass * np.expm1(-rate))
        # Of each outcome p·E^(α−1) + q·E^(1−α) − p − q, of what the law left out α(α−1)∫ E^(α−2)·δ dE, and as
        # much for what E^(−α−1) adds.
        a = alpha[:, None]
        excess = p * np.expm1(-a * loss) * np.expm1((1 - a) * loss)
        with np.errstate(divide="ignore"):
            each = [np.log(excess) + (a - 1) * loss, np.log(2 * a * law.missing) + (a - 1) * last]
        if last < largest:
            each.append(log_far + (a - 1) * far[1:])
        moment = np.logaddexp(0.0, logsumexp(np.concatenate(each, axis=1), axis=1))
        found = moment / (alpha - 1) * (1 + 1e-9) + law.loss_error * alpha / (alpha - 1)
        return np.asarray(np.minimum(found, largest), dtype=np.float64)

    def _losses(self, kind: BoundKind) -> PrivacyLossDistribution:
        pair = blanket_pair(self.blanket, population=self.cohort, slots=self.cohort, participation=1.0)
        return pair_losses(PairMixture(pairs=(pair,)), kind=kind)

    def _composed(self, kind: BoundKind) -> LossComposition:
        return LossComposition([self._losses(kind)], [1])


@lru_cache(maxsize=256)
def clone_pair(*, local_epsilon: float, cohort: int) -> ClonePair:
    """The pair of Feldman et al. 2021, Theorem 3.2: every other report is a clone with probability e^−ε0.

    Its ε (Appendix F) and its Rényi divergence (Section 6.1) bound those of one shuffle of any ε0-LDP
    randomizers, adaptively chosen or not. Its ε is 12 to 46 % above the binary blanket pair's.
    """
    _check(local_epsilon, cohort)
    return ClonePair(blanket=Blanket.clones(local_epsilon), cohort=cohort)


@lru_cache(maxsize=256)
def binary_pair(*, local_epsilon: float, cohort: int) -> ClonePair:
    """The pair of Feldman et al. 2022: every other report is a clone with probability 2/(e^ε0 + 1).

    It is the blanket pair of binary randomized response at full participation. Its ε and its Rényi divergence
    are bounds for every ε0-LDP randomizer that the round's clients share; its ε is 1 to 19 % above that of
    the best mechanism known (3-ary response).
    """
    _check(local_epsilon, cohort)
    return ClonePair(blanket=Blanket.generic(local_epsilon), cohort=cohort)


def binary_response_lower(*, local_epsilon: float, cohort: int, delta: float) -> float:
    """ε at least, of binary randomized response with everybody else at 0 (Feldman et al. 2021, Appendix G).

    3-ary response gives a larger one from ε0 = log 2 on.
    """
    _check(local_epsilon, cohort, most=_LARGEST_LOCAL_EPSILON)
    checks.delta(delta)
    success = math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    first, mass = binomial_window(cohort, success)
    ones = first + np.arange(mass.size)
    # the ratio of the two datasets' laws, and the same less one
    ratio = (ones * math.exp(local_epsilon) + (cohort - ones) * math.exp(-local_epsilon)) / cohort
    excess = 2 * math.sinh(local_epsilon) * (ones - cohort * success) / cohort
    ulps = 8 * np.finfo(np.float64).eps

    def more(epsilon: float, *, reverse: bool) -> float:
        price = math.expm1(epsilon) * (ratio if reverse else 1.0)
        gain = (-excess if reverse else excess) - price - ulps * (np.abs(excess) + price)
        value = float((mass * np.maximum(gain, 0.0)).sum())
        return value * (1 - _ROUNDING) - TAIL * math.exp(epsilon) - delta

    found = 0.0
    for reverse in (False, True):
        spent = partial(more, reverse=reverse)
        if spent(0.0) <= 0:
            continue
        root = zero_between(spent, 0.0, local_epsilon, xtol=1e-300, rtol=1e-12)
        step = 1e-11
        while spent(root * (1 - step)) < 0 and step < 1:
            step *= 8
        found = max(found, root * (1 - min(step, 1.0)))
    return found


# -- the privacy blanket -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class AmplificationVariable:
    r"""What the inequalities of Balle et al. 2019 need of L = γ·(R_x(W) − e^ε·R_x'(W))/ω(W), at one ε.

    ω is the part that every R_x shares, γ its mass, W ~ ω/γ. With independent copies of L and M ~ Bin(n, γ)
    the shuffle's hockey-stick divergence is at most E[(L_1 + … + L_M)₊]/(γ·n) (Lemma 5.3).
    """

    blanket: float  # γ, or less: a part of a blanket is one too
    deficit: float  # −E[L] = e^ε − 1
    largest: float  # at least the largest L
    spread: float  # at least max L − min L
    second_moment: float  # at least E[L²]


VariableAt = Callable[[float], AmplificationVariable]
Inequality = Callable[[AmplificationVariable, int], float]


def generic_variable(epsilon: float, *, local_epsilon: float) -> AmplificationVariable:
    r"""L of any ε0-LDP randomizer (Lemma 5.5): γ ≥ e^−ε0, and at most 1 where more is worse.

    L ≤ e^ε0(1 − e^(ε−2ε0)), range (e^ε + 1)(e^ε0 − e^−ε0), E[L²] ≤ e^ε0(e^2ε + 1) − 2e^(ε−3ε0), for ε in
    [0, ε0) and ε0 in (0, 100].
    """
    _check_point(epsilon, local_epsilon)
    e0, e = math.exp(local_epsilon), math.exp(epsilon)
    return AmplificationVariable(
        blanket=1 / e0,
        deficit=math.expm1(epsilon),
        largest=e0 * -math.expm1(epsilon - 2 * local_epsilon),
        spread=(e + 1) * 2 * math.sinh(local_epsilon),
        second_moment=e0 * (e**2 + 1) - 2 * math.exp(epsilon - 3 * local_epsilon),
    )


def k_ary_response_variable(
    epsilon: float, *, local_epsilon: float, categories: int
) -> AmplificationVariable:
    r"""L of K-ary randomized response, exactly: γ(1 − e^ε) + (1 − γ)K·{1, −e^ε, 0}, γ = K/(e^ε0 + K − 1)."""
    _check_point(epsilon, local_epsilon)
    checks.whole("categories", categories, at_least=2)
    e, size = math.exp(epsilon), math.exp(local_epsilon) + categories - 1
    blanket, deficit = categories / size, math.expm1(epsilon)
    telling = math.expm1(local_epsilon) / size * categories
    return AmplificationVariable(
        blanket=blanket,
        deficit=deficit,
        largest=telling - blanket * deficit,
        spread=telling * (e + 1),
        second_moment=blanket * (2 - blanket) * deficit**2 + telling**2 / categories * (e**2 + 1),
    )


def laplace_variable(epsilon: float, *, local_epsilon: float) -> AmplificationVariable:
    r"""L of the Laplace mechanism with scale 1/ε0 on [0, 1], at the records 0 and 1: γ = e^{−ε0/2}."""
    _check_point(epsilon, local_epsilon)
    e, half = math.exp(epsilon), math.exp(local_epsilon / 2)
    squares, products = (2 * half + half**-2) / 3, 2 / half - half**-2
    return AmplificationVariable(
        blanket=1 / half,
        deficit=math.expm1(epsilon),
        largest=half * -math.expm1(epsilon - local_epsilon),
        spread=(e + 1) * 2 * math.sinh(local_epsilon / 2),
        second_moment=(e**2 + 1) * squares - 2 * e * products,
    )


def hoeffding(variable: AmplificationVariable, cohort: int) -> float:
    r"""log of a bound on δ by Hoeffding's inequality, b²/(4γna)·(1 − γ(1 − e^{−2a²/b²}))^n.

    a is the deficit, b the spread; infinite at ε = 0.
    """
    if variable.deficit == 0:
        return math.inf
    square = (variable.deficit / variable.spread) ** 2
    log_factor = 2 * math.log(variable.spread) - math.log(4 * variable.deficit)
    log_power = cohort * math.log1p(variable.blanket * math.expm1(-2 * square))
    return log_factor + log_power - math.log(variable.blanket * cohort)


def bennett(variable: AmplificationVariable, cohort: int) -> float:
    r"""log of a bound on δ by Bennett's inequality, b/(γn·log(1 + u))·((1 − γ + γe^−κ)^n − (1 − γ)^n).

    b is the largest L, c the second moment, u = ab/c, κ = (c/b²)((1 + u)log(1 + u) − u). Infinite at ε = 0.
    """
    if variable.deficit == 0:
        return math.inf
    b, c = variable.largest, variable.second_moment
    u = variable.deficit * b / c
    # (1 + u)·log(1 + u) − u; a series where that would cancel, cut so that it is a bound from below
    phi = u**2 / 2 - u**3 / 6 + u**4 / 12 - u**5 / 20 if u < 1e-2 else (1 + u) * math.log1p(u) - u
    rate = c / b**2 * phi
    log_factor = math.log(b) - math.log(math.log1p(u)) - math.log(variable.blanket * cohort)
    log_some = cohort * math.log1p(variable.blanket * math.expm1(-rate))
    if variable.blanket == 1:
        return log_factor + log_some
    # less M = 0, which contributes nothing: the ratio of the two powers is (1 + γe^−κ/(1 − γ))^n
    log_odds = math.log(variable.blanket) - rate - math.log1p(-variable.blanket)
    growth = cohort * math.log1p(math.exp(log_odds))
    share = math.log(-math.expm1(-growth)) if growth > 1e-290 else math.log(cohort) + log_odds
    return log_factor + log_some + share


def blanket_bound(
    *,
    inequality: Inequality,
    variable_at: VariableAt | None = None,
    local_epsilon: float,
    cohort: int,
    delta: float,
) -> float:
    """Balle et al. 2019: the least ε at which :func:`hoeffding` or :func:`bennett` says δ, or ε0 in (0, 100].

    For every ε0-LDP randomizer Bennett's is 3.6 to 5 times the binary blanket pair (ε0 = 0.5…2,
    n = 10⁴…10⁶) and gives nothing where e^−ε0·n is small; Hoeffding's is better at small ε0 and useless at
    large. For 10-ary response and for Laplace's mechanism Bennett's is 12 to 23 % above their own exact
    blanket (ε0 = 0.5…4, n = 10⁴…10⁶). ``variable_at`` gives L as a function of ε in [0, ε0); by default
    the generic one.
    """
    _check(local_epsilon, cohort, delta)
    _check_point(0.0, local_epsilon)
    variable_at = variable_at or partial(generic_variable, local_epsilon=local_epsilon)
    largest, smallest = local_epsilon * (1 - 1e-9), local_epsilon * 1e-12

    def excess(epsilon: float) -> float:
        found = inequality(variable_at(epsilon), cohort) - math.log(delta)
        return min(max(found, -1e6), 1e6)

    if excess(largest) > 0:
        return local_epsilon
    if excess(smallest) <= 0:
        return smallest
    root = zero_between(excess, smallest, largest, xtol=1e-13 * local_epsilon, rtol=1e-12)
    step = 1e-10  # past the root, to where the inequality holds in floating point too
    while excess(min(root * (1 + step), largest)) > 0:
        step *= 8
    return min(root * (1 + step), largest)


def _check_point(epsilon: float, local_epsilon: float) -> None:
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    if not 0 <= epsilon < local_epsilon:
        raise ValueError(f"epsilon must be in [0, local_epsilon), got {epsilon!r}")


# -- steps of a permutation ----------------------------------------------------------------------------------


def check_in_shuffle_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""Balle et al. 2020, Theorem 5.1, of randomizers that are adaptive from report to report.

        ε = e^3ε0·(e^ε0 − 1)²/(2n) + e^{3ε0/2}·(e^ε0 − 1)·√(2·log(1/δ)/n)

    3.9 times the binary blanket pair's ε at ε0 = 0.5, 60 times at ε0 = 2 (n = 10⁶, δ = 10⁻⁸). ε0 in (0, 100];
    it may exceed ε0.
    """
    _check(local_epsilon, cohort, delta, most=_LARGEST_LOCAL_EPSILON)
    spread = math.exp(1.5 * local_epsilon) * math.expm1(local_epsilon) / math.sqrt(cohort)
    return spread**2 / 2 + spread * math.sqrt(2 * math.log(1 / delta))


def erlingsson_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""Erlingsson et al. 2019, Theorem 7: ε = 12·ε0·√(log(1/δ)/n) for ε0 ≤ 1/2, n ≥ 1000, δ ≤ 1/100.

    What holds at 1/100 holds for every larger δ. Randomizers may be chosen adaptively along the permutation.
    12 times the binary blanket pair's ε at ε0 = 0.5 and n = 10⁴…10⁶, 15 times at ε0 = 0.1; it may exceed ε0.
    """
    _check(local_epsilon, cohort, delta)
    if local_epsilon > 0.5:
        raise ValueError(f"Theorem 7 needs local_epsilon in (0, 1/2], got {local_epsilon!r}")
    if cohort < 1000:
        raise ValueError(f"Theorem 7 needs at least 1000 reports, got {cohort!r}")
    delta = min(delta, 0.01)
    return 12 * local_epsilon * math.sqrt(math.log(1 / delta) / cohort)


def binary_response_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""Of binary randomized response alone: Cheu et al. 2019, Theorem 4.11 as other papers cite it.

    **The paper's own text could not be read here**; the tests compare it with the exact value. With
    λ = 2n/(e^ε0 + 1) fair coins expected and s = λ − √(2λ·log(2/δ)),

        ε = √(32·log(4/δ)/s)·(1 − s/n)   where λ ≥ 14·log(4/δ).

    Not a bound for other ε0-LDP randomizers: 3-ary response leaks more from ε0 = log 2 on. 4.3 to 5 times the
    exact ε at n = 10⁴…10⁶, ε0 = 0.5…4, δ = 10⁻⁶. It may exceed ε0.
    """
    _check(local_epsilon, cohort, delta)
    coins = 2 * cohort * math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    least = 14 * math.log(4 / delta)
    if coins < least:
        raise ValueError(
            f"Theorem 4.11 needs 2·cohort/(e^local_epsilon + 1) >= {least:.4g} at delta={delta:.3g}, "
            f"got {coins:.4g}"
        )
    kept = coins - math.sqrt(2 * coins * math.log(2 / delta))
    return math.sqrt(32 * math.log(4 / delta) / kept) * (1 - kept / cohort)


def _check(local_epsilon: float, cohort: int, delta: float = 0.5, *, most: float | None = None) -> None:
    checks.number("local_epsilon", local_epsilon, above=0, at_most=most)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)


def _within(theorem: str, reach: float, local_epsilon: float, cohort: int, delta: float) -> None:
    if local_epsilon > reach:
        raise ValueError(
            f"{theorem} needs local_epsilon <= {reach:.3g} for {cohort} reports at delta={delta:.3g}, "
            f"got {local_epsilon:.3g}"
        )
