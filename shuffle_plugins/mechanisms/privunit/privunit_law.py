r"""The numbers of PrivUnit: the cap, the mixture, the bias, the blanket. Torch-free.

PrivUnit (Bhowmick et al. 2018) reports a unit vector V whose density with respect to the uniform law on the
sphere is :math:`c\,e^{ε_0}` on the cap :math:`\{v : \langle v, u \rangle \ge t\}` around the client's
direction u and c elsewhere. With s the measure of the cap, :math:`c = 1/(1 + (e^{ε_0}-1)s)`. The ratio of
densities is exactly :math:`e^{ε_0}`: unlike in the original no budget is split between the cap and its
probability.

The same law as a mixture: with probability c, V is uniform on the whole sphere and says nothing about u;
otherwise it is uniform on the cap. This is how it is sampled here.

**Optimal cap.** The mean of V is m·u with :math:`m(t) = (e^{ε_0}-1)φ(t)/(1+(e^{ε_0}-1)s(t))`,
:math:`φ(t) = E[A; A \ge t]`. The variance of V/m is :math:`1/m^2 - 1`, so the best t maximises m. Since
:math:`φ' = -t f` and :math:`s' = -f`, the derivative vanishes exactly where :math:`t = m(t)`, that is, at the
root of :math:`h(t) = t(1/(e^{ε_0}-1) + s(t)) - φ(t)`. As :math:`h(0) < 0 < h(1)` and
:math:`h'(t) = 1/(e^{ε_0}-1) + s(t) > 0`, the root is unique; it is positive, so s ≤ 1/2. (Optimality of the
form within ε0-LDP: Asi, Feldman, Talwar 2022.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shuffle_plugins.accounting import Blanket, zero_between
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.sphere import (
    LOUDEST_TOLD,
    OVERLAP_ERROR,
    Caps,
    cap_measure,
    cap_moment,
    caps_at_angle,
    caps_information,
    plain_share,
    plain_share_drawn,
    three_caps,
)
from shuffle_plugins.mechanisms.signs.randomized_response_law import bit_blanket
from shuffle_plugins.randomness import WHOLE


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivUnitParameters:
    """One PrivUnit.

    Attributes:
        local_epsilon: ε0 in nats.
        dim: d, dimension of the space.
        threshold: t, least inner product of a point of the cap with its centre.
        cap_measure: s, share of the sphere in the cap, in (0, 1/2].
        uniform_threshold: probability of a report that is uniform on the sphere, times 2**62, rounded up; so
            ε0 is never exceeded.
        mean: m, length of E[V]; reports are divided by it.
    """

    local_epsilon: float
    dim: int
    threshold: float
    cap_measure: float
    uniform_threshold: int
    mean: float

    @property
    def uniform_probability(self) -> float:
        """c, mass of the blanket."""
        return self.uniform_threshold / WHOLE

    @classmethod
    def at(cls, threshold: float, *, local_epsilon: float, dim: int) -> PrivUnitParameters:
        """PrivUnit with a given cap, ε0 spent in full.

        Raises:
            ValueError: if a parameter is out of range, or the cap is so small that its measure is zero.
        """
        checks.local_epsilon(local_epsilon)
        checks.dim(dim)
        if not 0 <= threshold < 1:
            raise ValueError(f"the cap's threshold must be in [0, 1), got {threshold!r}")
        measure = cap_measure(threshold, dim=dim)
        if measure < 1e-300:
            raise ValueError(f"the cap at {threshold} has no measure in dimension {dim}")
        uniform_threshold = plain_share_drawn(measure, local_epsilon=local_epsilon)
        informative = (WHOLE - uniform_threshold) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and threshold={threshold} a report says nothing: raise "
                "local_epsilon, or lower the threshold"
            )
        return cls(
            local_epsilon=local_epsilon,
            dim=dim,
            threshold=threshold,
            cap_measure=measure,
            uniform_threshold=uniform_threshold,
            mean=informative * cap_moment(threshold, dim=dim) / measure,
        )


@lru_cache(maxsize=256)
def optimal_privunit(*, local_epsilon: float, dim: int) -> PrivUnitParameters:
    """The PrivUnit of least variance.

    Raises:
        ValueError: if a parameter is out of range.
    """
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    if dim == 1:
        return PrivUnitParameters.at(0.0, local_epsilon=local_epsilon, dim=dim)
    inverse_odds = math.exp(-local_epsilon) / -math.expm1(-local_epsilon)

    def slope(threshold: float) -> float:
        share = inverse_odds + cap_measure(threshold, dim=dim)
        return threshold * share - (cap_moment(threshold, dim=dim) if threshold < 1 else 0.0)

    threshold = zero_between(slope, 0.0, 1.0, xtol=1e-300, rtol=1e-13, most_steps=2000)
    return PrivUnitParameters.at(min(threshold, 1 - 1e-16), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def privunit_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket of PrivUnit on the ball: (e, 1) and (1, e) with mass c·s each, (1, 1) with mass c(1 - 2s).

    In one dimension a report is a sign, binary randomized response, and counted as a bit.

    *Proof.* A client at x, ‖x‖ ≤ radius, becomes the direction ±x/‖x‖ with probabilities (1 ± ‖x‖/radius)/2,
    so its density is :math:`c(1 + (e-1) A_x(v))` with :math:`A_x(v) \in [0, 1]` the probability that the cap
    of its random direction contains v; x = 0 reports the uniform law, :math:`A_0 = s`. Always
    :math:`\int A_x = s`. Every v lies outside the cap of some unit vector, so ω = c times the uniform law,
    and the two weights of a blanket report are :math:`1 + (e-1)A` and :math:`1 + (e-1)B`, with A, B in [0, 1]
    of mean s.

    Accounting needs :math:`E[f(const + \sum_i G_i)]`, f convex, :math:`G = r_0 - E r_1`, E ≥ 0. It does not
    fall when one slot's (A, B) is moved (i) to the corners of the unit square at equal mean, with masses
    :math:`w_{10} = w_{01} = s - w_{11}`; then (ii) by trading mass :math:`w_{11}` at (1, 1) and as much at
    (0, 0) for :math:`w_{11}` at (1, 0) and at (0, 1): G is linear, so the means agree, and the two new values
    of G enclose the two old ones. There is enough at (0, 0), as :math:`w_{00} = 1 - 2s + w_{11} \ge w_{11}`
    by s ≤ 1/2. What is left is (1, 0): s, (0, 1): s, (0, 0): 1 - 2s: two disjoint caps. Antipodal points of
    the boundary attain it, so overlapping caps, inner points and the random sign are all covered, at every ε.

    A third record at a right angle to both leaves most of either cap at the blanket's density: that makes
    the lower bound.

    Raises:
        ValueError: if a parameter is out of range.
    """
    parameters = optimal_privunit(local_epsilon=local_epsilon, dim=dim)
    if dim == 1:
        return bit_blanket(local_epsilon)
    s = parameters.cap_measure
    uniform = plain_share(s, local_epsilon=local_epsilon)
    shared = float(caps_at_angle(parameters.threshold, angle=math.pi / 2, dim=dim)) + OVERLAP_ERROR * s
    caps = Caps(
        local_epsilon=local_epsilon,
        density=uniform,
        measure=s,
        overlap=lambda angle: caps_at_angle(parameters.threshold, angle=angle, dim=dim),
    )
    quiet = local_epsilon <= LOUDEST_TOLD
    return Blanket(
        local_epsilon=local_epsilon,
        differing=uniform * s,
        low=uniform * (1 - 2 * s),
        outside=uniform * max(s - shared, 0.0),
        instances=(three_caps(caps),),
        information_bound=caps_information(caps) if quiet else None,
    ).shared()
