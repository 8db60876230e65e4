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
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.noise import noise_ratio

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms import PrivateSum

NormName = Literal["l1", "l2", "linf"]

PASSES = frozenset({Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH})
"""Ways of sampling in which T counts passes, each of which hears every client once."""

_ORDERS: dict[str, float] = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


class ReportError(NamedTuple):
    """The largest E‖R(x) - x‖² of a report over the clients' ball, and its bits on the wire."""

    variance: float
    bits: int


def check_norm(norm: str) -> NormName:
    """Return the norm's name; ValueError unless there is one."""
    if norm not in _ORDERS:
        raise ValueError(f"norm must be one of {', '.join(_ORDERS)}, got {norm!r}")
    return cast(NormName, norm)


def mechanism_norm(mechanism: str, *, dim: int) -> NormName:
    """Norm of the ball in which the mechanism takes its inputs; refused if a plan cannot take it."""
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
    """
    p, q = _ORDERS[check_norm(norm)], _ORDERS[check_norm(within)]
    return checks.radius(radius) * math.pow(checks.dim(dim), max(0.0, 1 / q - 1 / p))


def report_error(
    mechanism: str, *, local_epsilon: float, dim: int, radius: float, norm: NormName
) -> ReportError:
    """A mechanism's error on clients in a ball, set up for the smallest ball of its norm around it."""
    own = mechanism_norm(mechanism, dim=dim)
    size = enclosing_radius(radius=radius, norm=norm, within=own, dim=dim)
    built = registry.get(mechanism, local_epsilon=local_epsilon, dim=dim, radius=size)
    return ReportError(variance=built.worst_variance, bits=built.bits_per_report)


def sampling_error(*, population: int, cohort: int, sampling: Sampling, spread: float) -> float:
    """Mean squared error of one round's average that sampling alone causes; ``spread`` is S.

    Where clients join on their own, the sum of the reports is divided by the expected number of them, so its
    size fluctuates too: S is then the distance from zero, and the error (1 - k/n)·S²/k.
    """
    if cohort == population:
        return 0.0
    if sampling in (Sampling.POISSON, Sampling.CHECK_IN):
        return (1 - cohort / population) * spread**2 / cohort
    return (population - cohort) / (population - 1) * spread**2 / cohort


def gaussian_mse(*, target_epsilon: float, delta: float, sensitivity: float, dim: int) -> float:
    """Mean squared error d·σ² of the analytic Gaussian mechanism.

    ``sensitivity`` is the ℓ2 distance between the means of neighbouring datasets.
    """
    return dim * (sensitivity * noise_ratio(local_epsilon=target_epsilon, local_delta=delta)) ** 2


LEAST_RATIO = 2.0
"""Ratio over a whole run under which training is warned of.

What a run can learn depended on this ratio and little else (``docs/guides/opacus.md``,
``benchmarks/mnist_tuning.py``). Networks that learn their own features need more.
"""


@dataclass(frozen=True, kw_only=True)
class ExpectedNoise:
    """How the mean of one round's reports compares with its noise. Lengths are ℓ2, in units of the data.

    ``noise`` is √E‖mean of reports - mean of clipped vectors‖², at most. ``largest_signal`` is the length of
    the mean if all clipped vectors were as long as clipping allows and pointed the same way: gradients of
    real training are less aligned. ``local_epsilon`` is None for a sum.
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
        """The ratio for the sum of the means of T rounds: √T times that of one round."""
        return math.sqrt(checks.whole("num_steps", num_steps)) * self.signal_to_noise_ratio

    def remedies(self) -> tuple[str, ...]:
        """What would raise the ratio, one thing each, with how much it helps."""
        falls = "a sum's noise is divided by the cohort"
        costs: tuple[str, ...] = ("a smaller noise multiplier, which costs epsilon",)
        if self.local_epsilon is not None:
            falls = "the noise falls as its square root"
            costs = (
                f"a larger local epsilon than {self.local_epsilon:.3g}, which costs epsilon",
                "a multi-message sum such as vector-sum, whose noise is smaller by about the square root of "
                "the cohort",
            )
        return (
            f"a larger cohort than {self.cohort:,.0f} ({falls})",
            f"train fewer parameters than {self.dim:,} (the noise grows as the square root)",
            *costs,
        )

    def warning(self, *, num_steps: int | None = None) -> str | None:
        """What is wrong with this noise and what would help; None if it leaves something to learn from.

        ``num_steps`` are the rounds of the whole run; None warns of what is too noisy even for 1,000.
        """
        steps = 1000 if num_steps is None else num_steps  # so many that a warning needs no guess
        over = self.signal_to_noise_ratio_over(steps)
        if over >= LEAST_RATIO:
            return None
        known = "even over" if num_steps is None else "over all"
        return (
            "the noise will drown the updates: the signal-to-noise ratio of a step's mean is at most "
            f"{self.signal_to_noise_ratio:.2g}, {over:.2g} {known} {steps:,} steps, and a run with less than "
            f"{LEAST_RATIO:g} learns badly. What would help: {'; '.join(self.remedies())}"
        )


def expected_noise(mechanism: PrivateSum, *, cohort: float, num_steps: int = 1) -> ExpectedNoise:
    """The noise in the mean of ``cohort`` reports, expected if clients join on their own, before any is made.

    √(V/k), with V the largest variance in the ball that a report adds to the sum, without clipping and
    sampling errors. A sum's coins are counted from all clients, also where privacy counts on fewer. Of
    windows of sums it is the independent noise that would leave as much in a model of ``num_steps`` rounds.
    """
    checks.number("cohort", cohort, above=0)
    variance = mechanism.variance_over(num_steps) / (mechanism.cohort or 1)
    norm = check_norm(str(mechanism.norm))
    signal = enclosing_radius(radius=mechanism.radius, norm=norm, within="l2", dim=mechanism.dim)
    return ExpectedNoise(
        noise=math.sqrt(variance / cohort),
        largest_signal=signal,
        dim=mechanism.dim,
        cohort=cohort,
        local_epsilon=mechanism.local_epsilon if mechanism.cohort is None else None,
    )
