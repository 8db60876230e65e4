"""The noise in the mean of a round's reports, and the largest signal beside it: known before training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shuffle_plugins.core import checks
from shuffle_plugins.planning.errors import check_norm, enclosing_radius

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms.base import PrivateSum

LEAST_RATIO = 2.0
"""Ratio over a whole run under which training is warned of.

What a run can learn depended on this ratio and little else: a linear model of MNIST's digits, at its best
learning rate, ended at 32 to 38 % of test accuracy at a ratio of 0.5, 61 to 67 % at 1, 78 to 84 % at 2,
89 to 91 % at 4, 91 to 94 % at 8 and 91 to 96 % at 16, in 10, 50 or 200 steps (``docs/guides/opacus.md``,
``benchmarks/mnist_tuning.py``). Networks that learn their own features need more.
"""

_MANY_STEPS = 1000  # of a run whose number of steps is not known: a warning then needs no guess


@dataclass(frozen=True, kw_only=True)
class ExpectedNoise:
    """How the mean of one round's reports compares with its noise. Lengths are ℓ2, in units of the data.

    Attributes:
        noise: root mean square length of the noise in the mean, at most: √E‖mean of reports - mean of
            clipped vectors‖².
        largest_signal: length of the mean if all clipped vectors were as long as clipping allows and pointed
            the same way. The gradients of real training are less aligned, and less so the better the model
            fits: the real signal is smaller, by how much nobody knows beforehand.
        dim: d, length of a vector.
        cohort: k, reports in the mean.
        local_epsilon: ε0 of one report; None for a multi-message sum.
    """

    noise: float
    largest_signal: float
    dim: int
    cohort: float
    local_epsilon: float | None

    @property
    def signal_to_noise_ratio(self) -> float:
        """``largest_signal`` over ``noise``, of one round. No real round has more."""
        return self.largest_signal / self.noise if self.noise else math.inf

    def signal_to_noise_ratio_over(self, num_steps: int) -> float:
        """The ratio for the sum of the means of T rounds: √T times that of one round.

        Signals add up; of independent noises the squares do.
        """
        return math.sqrt(checks.whole("num_steps", num_steps)) * self.signal_to_noise_ratio

    def warning(self, *, num_steps: int | None = None) -> str | None:
        """What is wrong with this noise and what would help; None if it leaves something to learn from.

        ``num_steps`` are the rounds of the whole run. If they are unknown, the warning is for what is too
        noisy even for 1,000.
        """
        steps = _MANY_STEPS if num_steps is None else num_steps
        over = self.signal_to_noise_ratio_over(steps)
        if over >= LEAST_RATIO:
            return None
        known = "even over" if num_steps is None else "over all"
        return (
            "the noise will drown the updates: the signal-to-noise ratio of a step's mean is at most "
            f"{self.signal_to_noise_ratio:.2g}, {over:.2g} {known} {steps:,} steps, and a run with less than "
            f"{LEAST_RATIO:g} learns badly. What would help: {'; '.join(self.remedies())}"
        )

    def remedies(self) -> tuple[str, ...]:
        """What would raise the ratio, one thing each, with how much it helps."""
        parameters = f"train fewer parameters than {self.dim:,} (the noise grows as the square root)"
        if self.local_epsilon is None:
            return (
                f"a larger cohort than {self.cohort:,.0f} (a sum's noise is divided by the cohort)",
                parameters,
                "a smaller noise multiplier, which costs epsilon",
            )
        return (
            f"a larger cohort than {self.cohort:,.0f} (the noise falls as its square root)",
            parameters,
            f"a larger local epsilon than {self.local_epsilon:.3g}, which costs epsilon",
            "a multi-message sum such as vector-sum, whose noise is smaller by about the square root of the "
            "cohort",
        )


def expected_noise(mechanism: PrivateSum, *, cohort: float) -> ExpectedNoise:
    r"""The noise in the mean of ``cohort`` reports of this mechanism, before any is made.

    With V the variance that one report adds to the sum, the largest in the ball, the mean of k independent
    reports has noise :math:`\sqrt{V/k}` (root mean square ℓ2 length; first term of the error in
    :mod:`shuffle_plugins.planning.errors`). For a local randomizer V is its ``worst_variance``; for a
    multi-message sum its ``worst_variance`` over its ``cohort``.

    Assumes unbiased reports that are averaged with equal weights, all of them from the same mechanism, and
    made by clients who follow it. Clipping and sampling errors are not in it, nor is anything that the server
    does with the mean. A sum's coins are counted from all clients, also where ``honest_fraction`` says that
    privacy counts on fewer.

    Args:
        mechanism: built for the dimension and the clipping radius: a ``LocalRandomizer`` (from
            :func:`shuffle_plugins.mechanisms.registry.get` or ``MechanismSpec.build``), or a sum of vectors
            in an ℓ2 ball, ``VectorSum`` or ``BallSum``. No torch is used beyond what built it.
        cohort: k, reports in the mean; where clients join on their own, the expected number.
    """
    from shuffle_plugins.mechanisms.base import PrivateSum

    checks.number("cohort", cohort, above=0)
    if not isinstance(mechanism, PrivateSum):
        raise ValueError(f"expected a local randomizer or a sum of vectors, got {mechanism!r}")
    variance = mechanism.worst_variance / (mechanism.cohort or 1)
    norm = check_norm(str(mechanism.norm))
    signal = enclosing_radius(radius=mechanism.radius, norm=norm, within="l2", dim=mechanism.dim)
    return ExpectedNoise(
        noise=math.sqrt(variance / cohort),
        largest_signal=signal,
        dim=mechanism.dim,
        cohort=cohort,
        local_epsilon=mechanism.local_epsilon if mechanism.cohort is None else None,
    )
