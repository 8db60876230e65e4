r"""Reports that are normal, or normal within a half-space about the client's direction. Torch-free.

With :math:`\langle V, u \rangle` the inner product of a report V with the client's direction u, and
thresholds :math:`s_1 < \dots < s_J`, V is N(0, I) with probability c, whatever u is. Else one of the
half-spaces :math:`\{v : \langle v, u \rangle \ge s_j\}` is drawn, with probabilities proportional to their
standard normal masses :math:`q_j`, and V is N(0, I) conditioned on it. So the density of V with respect to
N(0, I) is a staircase in the inner product: it is c below all thresholds, and at each of them it rises by
:math:`c(e^{ε_0}-1)/J`. With :math:`c = 1/(1 + (e^{ε_0}-1)\bar q)`, :math:`\bar q` the mean of the q's, its
integral is one. It ends at :math:`c\,e^{ε_0}`, so ε0 is spent in full.

The mean of V is m·u with :math:`m = (1-c)\sum φ(s_j) / \sum q_j`, φ the normal density, and
:math:`E‖V‖^2 = d + (1-c)\sum s_j φ(s_j) / \sum q_j`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy import special

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.sphere import plain_share_drawn
from shuffle_plugins.randomness import WHOLE

LARGEST_THRESHOLD = 36.0
"""Normal tails beyond vanish in float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfSpaceParameters:
    """The numbers of one such mechanism.

    Attributes:
        local_epsilon: ε0 in nats.
        dim: d, dimension of the space.
        thresholds: s_1 < … < s_J, least inner products with the direction of a report in each half-space.
        tails: q_j, standard normal masses of the half-spaces, at most 1/2.
        plain_threshold: probability of a report that is N(0, I), times 2**62, rounded up; so ε0 is never
            exceeded.
        drawn: of reports that are not plain, the probability of one of the first j half-spaces, times 2**62.
        mean: m, length of E[V]; reports are divided by it.
        mean_square: E‖V‖².
    """

    local_epsilon: float
    dim: int
    thresholds: tuple[float, ...]
    tails: tuple[float, ...]
    plain_threshold: int
    drawn: tuple[int, ...]
    mean: float
    mean_square: float

    @property
    def plain_probability(self) -> float:
        """c, mass of the blanket."""
        return self.plain_threshold / WHOLE

    @property
    def shares(self) -> tuple[float, ...]:
        """Of reports that are not plain, the probability of each half-space."""
        return tuple((last - first) / WHOLE for first, last in pairwise((0, *self.drawn)))

    @classmethod
    def at(cls, *thresholds: float, local_epsilon: float, dim: int) -> HalfSpaceParameters:
        """A mechanism of these thresholds, ε0 spent in full.

        Raises:
            ValueError: if a parameter is out of range, or the thresholds do not rise.
        """
        checks.local_epsilon(local_epsilon)
        checks.dim(dim)
        if not all(0 <= threshold <= LARGEST_THRESHOLD for threshold in thresholds):
            listed = ", ".join(map(repr, thresholds))
            raise ValueError(f"a threshold must be in [0, {LARGEST_THRESHOLD:g}], got {listed}")
        if not thresholds or any(first >= second for first, second in pairwise(thresholds)):
            raise ValueError(f"thresholds must rise, got {thresholds!r}")
        tails = special.ndtr(-np.array(thresholds))
        plain_threshold = plain_share_drawn(float(tails.mean()), local_epsilon=local_epsilon)
        informative = (WHOLE - plain_threshold) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and thresholds of {thresholds!r} a report says nothing: "
                "raise local_epsilon, or lower the thresholds"
            )
        drawn = [round(share * WHOLE) for share in np.cumsum(tails / tails.sum())[:-1].tolist()]
        found = cls(
            local_epsilon=local_epsilon,
            dim=dim,
            thresholds=tuple(thresholds),
            tails=tuple(tails.tolist()),
            plain_threshold=plain_threshold,
            drawn=(*drawn, WHOLE),
            mean=0.0,
            mean_square=0.0,
        )
        hazards = [share * hazard(s) for share, s in zip(found.shares, thresholds, strict=True)]
        excess = math.fsum(s * each for s, each in zip(thresholds, hazards, strict=True))
        return replace(found, mean=informative * math.fsum(hazards), mean_square=dim + informative * excess)


def hazard(threshold: float) -> float:
    """Mean of a standard normal value that is at least ``threshold``."""
    log_density = -threshold * threshold / 2 - math.log(2 * math.pi) / 2
    return math.exp(log_density - float(special.log_ndtr(-threshold)))
