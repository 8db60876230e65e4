r"""PrivUnitG: a Gaussian vector that is more likely in a half-space about the client's own direction.

PrivUnitG (Asi, Feldman, Talwar 2022) reports a vector V of :math:`\mathbb{R}^d` whose density with respect to
N(0, I) is :math:`c\,e^{ε_0}` on one half-space about the client's direction and c elsewhere: the case J = 1
of :mod:`.half_spaces`. The estimate V/m has variance :math:`(d + t\,m)/m^2 - 1` with t the threshold,
which is chosen to minimise it. It is larger than PrivUnit's by a share of order 1/d, as ‖V‖ is not fixed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

from scipy import special

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.half_spaces import (
    LARGEST_THRESHOLD,
    HalfSpaceParameters,
    HalfSpaceReports,
    hazard,
)
from shuffle_plugins.mechanisms.privunit.sphere import (
    LOUDEST_TOLD,
    Caps,
    caps_information,
    half_spaces_at_angle,
    plain_share,
    three_caps,
)


@lru_cache(maxsize=256)
def optimal_privunit_g(*, local_epsilon: float, dim: int) -> HalfSpaceParameters:
    """The PrivUnitG of least variance."""
    from scipy import optimize  # slow to import, and needed by no other mechanism

    checks.local_epsilon(local_epsilon)
    checks.dim(dim)

    shrink, gap = math.exp(-local_epsilon), -math.expm1(-local_epsilon)

    def log_loss(threshold: float) -> float:
        tail = float(special.ndtr(-threshold))
        mean = gap * tail / (shrink + gap * tail) * hazard(threshold)
        return math.log(dim + threshold * mean) - 2 * math.log(mean)

    largest = min(2 + 2 * math.sqrt(local_epsilon), LARGEST_THRESHOLD)
    found = optimize.minimize_scalar(
        log_loss, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9}
    )
    return HalfSpaceParameters.at(float(found.x), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def privunit_g_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket of PrivUnitG on the ball: (e, 1) and (1, e) with mass c·s each, (1, 1) with mass c(1 - 2s).

    The proof is that of :func:`~.privunit_blanket` with N(0, I)
    for the uniform law and half-spaces for caps: s ≤ 1/2, and opposite half-spaces are disjoint. A third
    record at a right angle to both is independent of them.
    """
    (threshold,) = optimal_privunit_g(local_epsilon=local_epsilon, dim=dim).thresholds
    s = float(special.ndtr(-threshold))
    plain = plain_share(s, local_epsilon=local_epsilon)
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


class PrivUnitG(HalfSpaceReports):
    """PrivUnitG on an l2 ball, with the threshold of least variance and ε0 spent exactly.

    A report is a vector of dim float32 numbers, 32·dim bits: a normal vector that is e^ε0 times likelier in
    a half-space about the client's own direction than elsewhere. Rows of every length in the ball are
    reported without bias. What holds of reports and of their sums is said in :class:`.HalfSpaceReports`. The
    error is PrivUnit's up to a share of order 1/dim; what it has over PrivUnit is the simple law of a sum.

    Source: Asi, Feldman, Talwar 2022, "Optimal algorithms for mean estimation under local differential
    privacy", §3.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: radius of the l2 ball.
    """

    name: ClassVar[str] = "privunit-g"

    def blanket(self) -> Blanket:
        """Two disjoint half-spaces; see ``privunit_g.privunit_g_blanket``."""
        return privunit_g_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    def _half_spaces(self) -> HalfSpaceParameters:
        return optimal_privunit_g(local_epsilon=self.local_epsilon, dim=self.dim)
