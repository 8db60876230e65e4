r"""How far a round's estimate is from the mean of all clients' vectors: noise and sampling.

Clients hold vectors :math:`x_1, …, x_n` in a ball of radius r; a round averages the reports of k of
them. With :math:`V(x) = E‖R(x) - x‖²` for an unbiased randomizer R, the mean squared error of that average is

.. math:: \frac1k \frac1n \sum_i V(x_i) + \frac{1}{k} \frac{n-k}{n-1} S²,
          \qquad S² = \frac1n \sum_i ‖x_i - \bar x‖²,

noise and sampling: given the cohort the reports are independent and unbiased, and the second term is that
of a mean drawn without replacement (Cochran 1977, *Sampling Techniques*, Theorem 2.2). Both are bounded by
their worst case, V by its largest value in the ball and S by the ball's ℓ2 radius, unless S is known to be
less. One configuration of clients need not attain both, so the sum is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry

NormName = Literal["l1", "l2", "linf"]

INDEPENDENT = frozenset({Sampling.POISSON, Sampling.CHECK_IN})
"""Ways of sampling in which clients join on their own, so that the size of a cohort is random."""

PASSES = frozenset({Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH})
"""Ways of sampling in which T counts passes, each of which hears every client once."""

_ORDERS: dict[NormName, float] = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportError:
    """The error of one report, and its length.

    Attributes:
        variance: largest E‖R(x) - x‖² over the clients' ball.
        bits: length of the report on the wire.
    """

    variance: float
    bits: int


def check_norm(norm: str) -> NormName:
    """Return the norm's name.

    Raises:
        ValueError: unless it is l1, l2 or linf.
    """
    if norm not in get_args(NormName):
        raise ValueError(f"norm must be one of {', '.join(get_args(NormName))}, got {norm!r}")
    return cast("NormName", norm)


def mechanism_norm(mechanism: str, *, dim: int) -> NormName:
    """Norm of the ball in which the mechanism takes its inputs.

    Raises:
        ValueError: if there is no such mechanism, or it refuses the dimension.
    """
    if registry.kind_of(mechanism) is registry.Kind.CATEGORIES:
        raise ValueError(f"{mechanism} takes categories, not vectors")
    built = registry.get(mechanism, local_epsilon=1.0, dim=dim)
    if built.domain not in get_args(NormName):
        raise ValueError(f"{mechanism} takes {built.domain}, not vectors")
    if built.local_delta > 0:
        raise ValueError(f"reports of {mechanism} are (ε0, δ0)-LDP, which a plan does not account for")
    return check_norm(built.domain)


def enclosing_radius(*, radius: float, norm: NormName, within: NormName, dim: int) -> float:
    r"""Radius of the smallest ball of norm ``within`` around a ball of norm ``norm``, both centred at 0.

    :math:`r \max(1, d^{1/q - 1/p})` for a p-ball in a q-ball.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.radius(radius)
    checks.dim(dim)
    p, q = _ORDERS[check_norm(norm)], _ORDERS[check_norm(within)]
    return radius * math.pow(dim, max(0.0, 1 / q - 1 / p))


def report_error(
    mechanism: str, *, local_epsilon: float, dim: int, radius: float, norm: NormName
) -> ReportError:
    """The mechanism's error on clients in a ball, set up for the smallest ball of its own norm that holds it.

    Args:
        mechanism: its registered name.
        local_epsilon: ε0 of one report, in nats.
        dim: d, length of a client's vector.
        radius: radius of the clients' ball.
        norm: norm of the clients' ball.

    Raises:
        ValueError: if there is no such mechanism, or it refuses an argument.
    """
    own = mechanism_norm(mechanism, dim=dim)
    size = enclosing_radius(radius=radius, norm=norm, within=own, dim=dim)
    built = registry.get(mechanism, local_epsilon=local_epsilon, dim=dim, radius=size)
    return ReportError(variance=built.worst_variance, bits=built.bits_per_report)


def sampling_error(*, population: int, cohort: int, sampling: Sampling, spread: float) -> float:
    """Mean squared error of one round's average that sampling alone causes, as if the reports were exact.

    Args:
        population: n, the number of clients.
        cohort: k, the expected number where clients join on their own.
        sampling: how the cohort is chosen.
        spread: S, root mean square distance of the clients' vectors from their mean. Where clients join on
            their own, under Poisson sampling and random check-in, the sum of the reports is divided by the
            expected number of them, so its size fluctuates too: S is then the distance from zero, and the
            error (1 - k/n)·S²/k.
    """
    if cohort == population:
        return 0.0
    if sampling in INDEPENDENT:
        return (1 - cohort / population) * spread**2 / cohort
    return (population - cohort) / (population - 1) * spread**2 / cohort
