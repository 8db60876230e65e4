r"""The numbers of PrivUnitG: threshold, mixture, mean, blanket. Torch-free.

PrivUnitG (Asi, Feldman, Talwar 2022) reports a vector V of :math:`\mathbb{R}^d` whose density with respect to
N(0, I) is :math:`c\,e^{ε_0}` on the half-space :math:`\{v : \langle v, u \rangle \ge t\}` and c elsewhere, u
the client's direction. With :math:`s = P[N(0, 1) \ge t]` and φ the normal density,
:math:`c = 1/(1 + (e^{ε_0}-1)s)`; as in :mod:`.privunit_law`, V is N(0, I)
with probability c and else conditioned on the half-space, so that ε0 is spent in full.

The mean of V is m·u with :math:`m = (1-c)φ(t)/s`, and :math:`E‖V‖^2 = d + t\,m`. The estimate V/m has
variance :math:`(d + t\,m)/m^2 - 1`, which the threshold minimises. In terms of PrivUnit's it is larger by a
share of order 1/d: there ‖V‖ is fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy import special

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.sphere import (
    LOUDEST_TOLD,
    Caps,
    caps_information,
    half_spaces_at_angle,
    three_caps,
)
from shuffle_plugins.randomness import WHOLE

_ROUNDING = 1e-12  # relative; rounding in float64 never costs ε0
_LARGEST_THRESHOLD = 36.0  # normal tails beyond vanish in float64


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivUnitGParameters:
    """One PrivUnitG.

    Attributes:
        local_epsilon: ε0 in nats.
        dim: d, dimension of the space.
        threshold: t, least inner product with the direction of a report in the half-space.
        tail: s, standard normal mass of the half-space, at most 1/2.
        plain_threshold: probability of a report that is N(0, I), times 2**62, rounded up; so ε0 is never
            exceeded.
        mean: m, length of E[V]; reports are divided by it.
        mean_square: E‖V‖².
    """

    local_epsilon: float
    dim: int
    threshold: float
    tail: float
    plain_threshold: int
    mean: float
    mean_square: float

    @property
    def plain_probability(self) -> float:
        """c, mass of the blanket."""
        return self.plain_threshold / WHOLE

    @classmethod
    def at(cls, threshold: float, *, local_epsilon: float, dim: int) -> PrivUnitGParameters:
        """PrivUnitG with a given threshold, ε0 spent in full.

        Raises:
            ValueError: if a parameter is out of range.
        """
        checks.local_epsilon(local_epsilon)
        checks.dim(dim)
        if not 0 <= threshold <= _LARGEST_THRESHOLD:
            raise ValueError(f"the threshold must be in [0, {_LARGEST_THRESHOLD:g}], got {threshold!r}")
        tail = float(special.ndtr(-threshold))
        shrink = math.exp(-local_epsilon)
        plain = shrink / (shrink - math.expm1(-local_epsilon) * tail)
        plain_threshold = min(math.ceil(plain * (1 + _ROUNDING) * WHOLE), WHOLE)
        informative = (WHOLE - plain_threshold) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and threshold={threshold} a report says nothing: raise "
                "local_epsilon, or lower the threshold"
            )
        mean = informative * _hazard(threshold)
        return cls(
            local_epsilon=local_epsilon,
            dim=dim,
            threshold=threshold,
            tail=tail,
            plain_threshold=plain_threshold,
            mean=mean,
            mean_square=dim + threshold * mean,
        )


@lru_cache(maxsize=256)
def optimal_privunit_g(*, local_epsilon: float, dim: int) -> PrivUnitGParameters:
    """The PrivUnitG of least variance.

    Raises:
        ValueError: if a parameter is out of range.
    """
    from scipy import optimize  # slow to import, and needed by no other mechanism

    checks.local_epsilon(local_epsilon)
    checks.dim(dim)

    shrink, gap = math.exp(-local_epsilon), -math.expm1(-local_epsilon)

    def log_loss(threshold: float) -> float:
        tail = float(special.ndtr(-threshold))
        mean = gap * tail / (shrink + gap * tail) * _hazard(threshold)
        return math.log(dim + threshold * mean) - 2 * math.log(mean)

    largest = min(2 + 2 * math.sqrt(local_epsilon), _LARGEST_THRESHOLD)
    found = optimize.minimize_scalar(
        log_loss, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9}
    )
    return PrivUnitGParameters.at(float(found.x), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def privunit_g_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket of PrivUnitG on the ball: (e, 1) and (1, e) with mass c·s each, (1, 1) with mass c(1 - 2s).

    The proof is that of :func:`~.privunit_blanket` with N(0, I)
    for the uniform law and half-spaces for caps: s ≤ 1/2, and opposite half-spaces are disjoint. A third
    record at a right angle to both is independent of them.

    Raises:
        ValueError: if a parameter is out of range.
    """
    threshold = optimal_privunit_g(local_epsilon=local_epsilon, dim=dim).threshold
    s = float(special.ndtr(-threshold))
    shrink = math.exp(-local_epsilon)
    plain = shrink / (shrink - math.expm1(-local_epsilon) * s)
    caps = Caps(
        local_epsilon=local_epsilon,
        density=plain,
        measure=s,
        overlap=lambda angle: half_spaces_at_angle(threshold, angle=angle),
    )
    quiet = dim > 1 and local_epsilon <= LOUDEST_TOLD
    return Blanket(
        local_epsilon=local_epsilon,
        differing=plain * s,
        low=plain * (1 - 2 * s),
        outside=plain * s * (1 - s) if dim > 1 else 0.0,
        instances=(three_caps(caps),) if dim > 1 else (),
        information_bound=caps_information(caps) if quiet else None,
    ).shared()


def _hazard(threshold: float) -> float:
    """Mean of a standard normal value that is at least ``threshold``."""
    log_density = -threshold * threshold / 2 - math.log(2 * math.pi) / 2
    return math.exp(log_density - float(special.log_ndtr(-threshold)))
