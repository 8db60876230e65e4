"""PrivUnitG: a Gaussian vector that is more likely in a half-space about the client's own direction."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.mechanisms.privunit.half_spaces import HalfSpaceReports
from shuffle_plugins.mechanisms.privunit.half_spaces_law import HalfSpaceParameters
from shuffle_plugins.mechanisms.privunit.privunit_g_law import optimal_privunit_g, privunit_g_blanket


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

    Raises:
        ValueError: if a parameter is out of range.
    """

    name: ClassVar[str] = "privunit-g"

    def blanket(self) -> Blanket:
        """Two disjoint half-spaces; see ``privunit_g_law.privunit_g_blanket``."""
        return privunit_g_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    def _half_spaces(self) -> HalfSpaceParameters:
        return optimal_privunit_g(local_epsilon=self.local_epsilon, dim=self.dim)
