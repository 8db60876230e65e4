"""Rounds whose output is a sum of the cohort's integers plus discrete Laplace noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution, Resolution
from shuffle_plugins.accounting.pairs.noise import (
    has_laplace_instance,
    laplace_instance_losses,
    laplace_losses,
)
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.core import checks

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
