r"""Privacy losses of sums with discrete Laplace noise.

Let the noise be P[k] ∝ t^|k|, t = e^{-a}, and two sums g steps apart. Their log-likelihood ratio at k is
a·(|k − g| − |k|): g·a left of 0, falling by 2a a step, −g·a right of g. At the losses a·(g − 2j) that
occur, the privacy profile is P(k ≤ j) − e^{a(g−2j)}·P(k ≤ j − g) = 1 − t^j, and between them it is linear in
E = e^ε. Sums that are closer than g cost less at every ε, as the noise is log-concave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.core import checks

_MOST_POINTS = 1 << 11
_MOST_LISTED = 1 << 24  # outcomes of an instance
_ROUNDOFF = 1e-12
_WRAPPED = 1e-11  # more than sums mod q can move: their range leaves out noise of probability 2**-40


def laplace_profile(*, rate: float, shift: int) -> tuple[Floats, Floats]:
    """Losses from 0 up, and δ there rounded up: of the discrete Laplace against itself ``shift`` steps away.

    Where more than 2,048 losses occur, that many of them: between points of a profile its chord is above it.
    """
    places = shift // 2 + 1
    j = np.unique(np.linspace(0, places - 1, min(places, _MOST_POINTS)).astype(np.int64))[::-1]
    losses: Floats = np.asarray(rate * (shift - 2 * j), dtype=np.float64)
    values: Floats = -np.expm1(-rate * j.astype(np.float64))
    if shift % 2:
        # No loss is 0: there the chord between the losses ±a counts.
        centre = values[0] + math.exp(-rate * (places - 1)) * math.tanh(rate / 2)
        kept = slice(0 if places <= _MOST_POINTS else 1, None)
        losses, values = np.append(0.0, losses[kept]), np.append(centre, values[kept])
    return losses * (1 + _ROUNDOFF), values * (1 + _ROUNDOFF)


def laplace_losses(
    *, rate: float, shift: int, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the privacy loss distribution of the discrete Laplace on a sample of fixed size.

    Args:
        rate: how fast the noise falls, in nats per step.
        shift: how many steps two sums can be apart.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are resolved on their grid.
    """
    losses, deltas = laplace_profile(rate=rate, shift=shift)
    return profile_losses(losses, deltas, resolution=resolution, sampling_rate=sampling_rate)


def has_laplace_instance(*, shift: int) -> bool:
    """Whether :func:`laplace_instance_losses` can list the outcomes."""
    return 0 < shift <= _MOST_LISTED


def laplace_instance_losses(
    *, rate: float, shift: int, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below: everybody else holds x', and the client x or x', ``shift`` steps apart.

    P is the law of the sum when the client holds x and takes part with probability γ. Arguments as of
    :func:`laplace_losses`, ``shift`` at least 1.
    """
    fall = -rate
    outside = 1 / (1 + math.exp(fall))
    inside = -math.expm1(fall) * outside * np.exp(fall * np.arange(1, shift))
    moved = np.concatenate([[outside], inside, [outside * math.exp(fall * shift)]]) * (1 - _WRAPPED)
    q = moved[::-1]
    p = (1 - sampling_rate) * q + sampling_rate * moved
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)


_LARGEST_EPSILON = 500.0  # as of a local randomizer: above it e^ε0 leaves a float no room
_INSTANCE = "discrete Laplace instance"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaplaceRound(Round):
    r"""A round of a sum with discrete Laplace noise.

    What is seen is, up to total variation ``distance``, a function of Σ x_i + k, with P[k] ∝
    :math:`e^{-ε_0|k|/sensitivity}` and x_i whole numbers.

    Attributes:
        population, cohort, sampling, adversary: as of :class:`Round`.
        noise_epsilon: ε0 of the noise alone, in (0, 500].
        sensitivity: largest \|x − x'\| of two numbers that a client may hold, at least 1.
        attained: a difference of two such numbers that does occur: it makes the lower bound. 0 if none is
            known.
        distance: bound on the total variation between the round and a function of that sum.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    cohort: int
    noise_epsilon: float
    sensitivity: int
    attained: int = 0
    distance: float = 0.0

    KIND: ClassVar[str] = "laplace"
    STORED: ClassVar[tuple[str, ...]] = (
        "noise_epsilon",
        "distance",
        "sensitivity",
        "attained",
        "population",
        "cohort",
    )

    def __post_init__(self) -> None:
        Round.__post_init__(self)
        epsilon = checks.number("noise_epsilon", self.noise_epsilon, above=0, at_most=_LARGEST_EPSILON)
        object.__setattr__(self, "noise_epsilon", epsilon)
        object.__setattr__(self, "distance", checks.fraction("distance", self.distance))
        checks.whole("sensitivity", self.sensitivity)
        checks.whole("attained", self.attained, at_least=0, at_most=self.sensitivity)

    @property
    def rate(self) -> float:
        """How fast the noise falls, in nats per step."""
        return self.noise_epsilon / self.sensitivity

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return "discrete Laplace"

    @property
    def description(self) -> str:
        """The ε0 of the noise."""
        return f"a sum with discrete Laplace noise of {self.noise_epsilon:.6g} nats"

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages."""
        return "the sum with its noise, and nothing of what single clients add to it"

    @property
    def replacement_distance(self) -> float:
        """Total variation that the accountant charges for."""
        return self.distance

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of the noise, on a sample. Sums closer than the sensitivity cost less."""
        return laplace_losses(
            rate=self.rate,
            shift=self.sensitivity,
            sampling_rate=self.sampling_rate,
            resolution=resolution,
        )

    @property
    def lower_families(self) -> tuple[str, ...]:
        """The sum itself, if two numbers are known that a client may hold."""
        return (_INSTANCE,) if has_laplace_instance(shift=self.attained) else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of the sum, when the client's two numbers are ``attained`` apart."""
        return laplace_instance_losses(
            rate=self.rate,
            shift=self.attained,
            sampling_rate=self.sampling_rate,
            resolution=resolution,
        )
