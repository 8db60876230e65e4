"""What a paper promises of private frequencies, and what a trusted server reaches: for comparison only.

Feldman, McMillan, Talwar 2021, Theorems 3.1 and 5.2.

Errors are E‖f̂ − f‖² of the frequencies of n clients over K categories, replace-one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_plugins.accounting import largest_within
from shuffle_plugins.accounting.published import clones
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.noise import noise_ratio

_LEAST, _PRECISION = 1e-4, 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFrequencies:
    """A one-message protocol as the paper's theorems set it up.

    Attributes:
        local_epsilon: ε0 by Theorem 3.1.
        squared_error: E‖f̂ − f‖² by the constants of the optimal oracle.
    """

    local_epsilon: float
    squared_error: float


def one_message(*, categories: int, cohort: int, epsilon: float, delta: float) -> PublishedFrequencies:
    """Theorem 5.2 with the constants that its proof leaves out: the largest ε0 that Theorem 3.1 allows.

    The oracle's error is (4K·e^ε0/(e^ε0 − 1)² + 1)/n, a bound on that of subset selection and of optimal
    unary encoding (Wang, Blocki, Li, Jha 2017, section 4.4; Ye, Barg 2018), which Theorem 5.1 asks for up to
    constants. So E‖f̂ − f‖ = O(√(K·log(1/δ))/(εn) + 1/√n): the first term is the central model's up to
    √log(1/δ). The second is needed by one message only where K is large (Ghazi, Golowich, Kumar, Pagh,
    Velingker 2019); the error of k-ary response falls below it once e^ε0 is well above K.

    Raises:
        ValueError: if an argument is out of range, or Theorem 3.1 reaches ε at no ε0.
    """
    checks.dim(categories)
    local_epsilon = largest_local_epsilon(cohort=cohort, epsilon=epsilon, delta=delta)
    odds = math.exp(local_epsilon)
    return PublishedFrequencies(
        local_epsilon=local_epsilon,
        squared_error=(4 * categories * odds / (odds - 1) ** 2 + 1) / cohort,
    )


def largest_local_epsilon(*, cohort: int, epsilon: float, delta: float) -> float:
    """The largest ε0 whose ε by Theorem 3.1 (closed form) is at most ``epsilon``.

    Raises:
        ValueError: if an argument is out of range, or there is none.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive finite number, got {epsilon!r}")
    reach = math.log(cohort / (16 * math.log(2 / delta))) if 0 < delta < 1 and cohort > 0 else 0.0
    found = None
    if reach > _LEAST:
        found = largest_within(
            lambda level: clones.clone_bound(local_epsilon=level, cohort=cohort, delta=delta),
            target=epsilon,
            start=min(1.0, reach),
            lowest=_LEAST,
            highest=reach * (1 - 1e-9),
            precision=_PRECISION,
        )
    if found is None:
        raise ValueError(f"Theorem 3.1 says nothing of ε={epsilon!r}, δ={delta!r} with {cohort!r} reports")
    return found


def central_gaussian(*, categories: int, cohort: int, epsilon: float, delta: float) -> float:
    """Error of a trusted server's Gaussian noise at sensitivity √2: the analytic calibration.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.dim(categories)
    ratio = noise_ratio(local_epsilon=epsilon, local_delta=delta)
    return categories * 2 * ratio**2 / cohort**2


def central_laplace(*, categories: int, cohort: int, epsilon: float) -> float:
    """Error of a trusted server's discrete Laplace noise, ε-DP: 2α/(1 − α)² in each count, α = e^(−ε/2).

    Two counts move by one each: the ℓ1 sensitivity is 2 (Dwork, McSherry, Nissim, Smith 2006; Ghosh,
    Roughgarden, Sundararajan 2009).

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.dim(categories)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive finite number, got {epsilon!r}")
    return categories / (2 * math.sinh(epsilon / 4) ** 2) / cohort**2
