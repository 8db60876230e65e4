"""What papers promise of sums and frequencies by their own constants, and what a trusted server reaches.

For comparison only. Sums: Cheu, Joseph, Mao, Peng 2022, Lemma 3.1 and Theorem 3.2; Girgis 2023 (thesis),
Theorem 3.5.2. Frequencies: Feldman, McMillan, Talwar 2021, Theorems 3.1 and 5.2; errors are E‖f̂ − f‖² of the
frequencies of n clients over K categories, replace-one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.bit_planes import budgets
from shuffle_plugins.mechanisms.noise import noise_ratio
from shuffle_plugins.mechanisms.sign_patterns import Constants


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSum:
    """g, b and p of P_1D, or of P_vec in each coordinate; n·b·p(1 − p) in squared units of the data."""

    levels: int
    coins: int
    probability: float
    noise_variance: float


def scalar_sum(
    *, cohort: int, epsilon: float, delta: float, upper: float = 1.0, levels: int | None = None
) -> PublishedSum:
    """P_1D for numbers in [0, upper], by Lemma 3.1: (ε·(1 + 2/g), δ), instance by instance.

    b > 180·g²·log(2/δ)/(ε²·n), p = 90·g²·log(2/δ)/(b·ε²·n). ``levels`` is g, by default the least that the
    lemma allows for upper = 1, √n.
    """
    _check(epsilon, delta)
    steps = math.ceil(math.sqrt(cohort)) if levels is None else levels
    needed = 90 * steps**2 * math.log(2 / delta) / (epsilon**2 * cohort)
    coins = math.floor(2 * needed) + 1
    probability = needed / coins
    variance = cohort * coins * probability * (1 - probability)
    return PublishedSum(
        levels=steps, coins=coins, probability=probability, noise_variance=variance * (upper / steps) ** 2
    )


def vector_sum(*, dim: int, cohort: int, epsilon: float, delta: float) -> PublishedSum:
    """P_vec for vectors of norm at most 1, by the proof of Theorem 3.2.

    Each coordinate, of range 2, gets (ε̂, δ̂) = (ε/(18·√log((d + 1)/δ)), δ/(d + 1)) and the coins of Lemma
    3.1, with g = max(2√n, √d, 4).
    """
    _check(epsilon, delta)
    own_delta = delta / (dim + 1)
    return scalar_sum(
        cohort=cohort,
        epsilon=epsilon / (18 * math.sqrt(math.log(1 / own_delta))),
        delta=own_delta,
        upper=2.0,
        levels=math.ceil(max(2 * math.sqrt(cohort), math.sqrt(dim), 4)),
    )


def multi_message_budget(
    *, cohort: int, samples: int, levels: int = 1, epsilon: float, delta: float
) -> float:
    """Total ε0 of one client's messages in multi-message mean estimation: Girgis's thesis, Theorem 3.5.2.

    Its parameter v² = s·n·min(ε², ε)/(144·log(1/δ)) is no ε0: level k, of share v_k ∝ 4^(−k/3) of v, flips
    each of its s bits with probability (1 − √(v_k²/(v_k² + 4s²)))/2, so a bit's ε0 is 2·asinh(v_k/2s).
    Theorem 3.3.2 is the case of one level.
    """
    if not 0 < epsilon <= levels * samples:
        raise ValueError(f"the theorem is about epsilon in (0, {levels * samples}], got {epsilon!r}")
    if not 0 < delta < 0.5:
        raise ValueError(f"the theorem is about delta in (0, 1/2), got {delta!r}")
    v = math.sqrt(samples * cohort * min(epsilon**2, epsilon) / (144 * math.log(1 / delta)))
    shares = budgets(levels, per_place=v / samples, constants=Constants.THESIS)
    return 2 * samples * float(np.arcsinh(shares / 2).sum())


def _check(epsilon: float, delta: float) -> None:
    if not 0 < epsilon <= 15:
        raise ValueError(f"the paper is about epsilon in (0, 15], got {epsilon!r}")
    if not 0 < delta < 0.5:
        raise ValueError(f"the paper is about delta in (0, 1/2), got {delta!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFrequencies:
    """A one-message protocol: its ε0 by Theorem 3.1, and its error by the constants of the optimal oracle."""

    local_epsilon: float
    squared_error: float


def one_message(*, categories: int, cohort: int, epsilon: float, delta: float) -> PublishedFrequencies:
    """Theorem 5.2 with the constants that its proof leaves out: the largest ε0 that Theorem 3.1 allows.

    The oracle's error is (4K·e^ε0/(e^ε0 − 1)² + 1)/n, a bound on that of subset selection and of optimal
    unary encoding (Wang, Blocki, Li, Jha 2017, section 4.4; Ye, Barg 2018), which Theorem 5.1 asks for up to
    constants.
    """
    checks.dim(categories)
    local_epsilon = largest_local_epsilon(cohort=cohort, epsilon=epsilon, delta=delta)
    odds = math.exp(local_epsilon)
    return PublishedFrequencies(
        local_epsilon=local_epsilon, squared_error=(4 * categories * odds / (odds - 1) ** 2 + 1) / cohort
    )


def largest_local_epsilon(*, cohort: int, epsilon: float, delta: float) -> float:
    """The largest ε0 whose ε by Theorem 3.1 (closed form) is at most ``epsilon``."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive finite number, got {epsilon!r}")
    reach = math.log(cohort / (16 * math.log(2 / delta))) if 0 < delta < 1 and cohort > 0 else 0.0
    found = None
    if reach > 1e-4:
        found = largest_within(
            lambda level: shuffles.clone_bound(local_epsilon=level, cohort=cohort, delta=delta),
            target=epsilon,
            start=min(1.0, reach),
            lowest=1e-4,
            highest=reach * (1 - 1e-9),
            precision=1e-6,
        )
    if found is None:
        raise ValueError(f"Theorem 3.1 says nothing of ε={epsilon!r}, δ={delta!r} with {cohort!r} reports")
    return found


def central_gaussian(*, categories: int, cohort: int, epsilon: float, delta: float) -> float:
    """Error of a trusted server's Gaussian noise at sensitivity √2: the analytic calibration."""
    checks.dim(categories)
    ratio = noise_ratio(local_epsilon=epsilon, local_delta=delta)
    return categories * 2 * ratio**2 / cohort**2


def central_laplace(*, categories: int, cohort: int, epsilon: float) -> float:
    """Error of a trusted server's discrete Laplace noise, ε-DP: 2α/(1 − α)² in each count, α = e^(−ε/2).

    Two counts move by one each: the ℓ1 sensitivity is 2 (Dwork, McSherry, Nissim, Smith 2006; Ghosh,
    Roughgarden, Sundararajan 2009).
    """
    checks.dim(categories)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive finite number, got {epsilon!r}")
    return categories / (2 * math.sinh(epsilon / 4) ** 2) / cohort**2
