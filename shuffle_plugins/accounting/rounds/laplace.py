"""Rounds whose output is a sum of the cohort's integers plus discrete Laplace noise: what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from shuffle_plugins.accounting.rounds.known_cohort import KnownCohort, check_whole
from shuffle_plugins.accounting.terms import Adversary, Sampling

_LARGEST_EPSILON = 500.0

_SCHEMES = (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaplaceRound(KnownCohort):
    r"""One kind of round of a sum with discrete Laplace noise; hashable, so results are cached by it.

    What is seen is, up to total variation ``distance``, a function of Σ x_i + k, with P[k] ∝
    :math:`e^{-ε_0|k|/sensitivity}` and x_i whole numbers.

    Attributes:
        noise_epsilon: ε0 of the noise alone, in (0, 500].
        sensitivity: largest \|x − x'\| of two numbers that a client may hold, at least 1.
        population: n, the public and fixed number of clients.
        cohort: k, how many take part; ``population`` under full participation.
        attained: a difference of two such numbers that does occur: it makes the lower bound. 0 if none is
            known.
        distance: bound on the total variation between the round and a function of that sum.
        sampling: without replacement, or full.
        adversary: against whom the round is measured; a server that sees who took part gains what sampling
            hides.

    Neighbouring relation: replace-one at fixed population.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    noise_epsilon: float
    sensitivity: int
    population: int
    cohort: int
    attained: int = 0
    distance: float = 0.0
    sampling: Sampling = Sampling.FULL
    adversary: Adversary = Adversary.MODEL_OBSERVER

    MARK: ClassVar[str] = "laplace"
    local_epsilon: ClassVar[float] = math.inf
    local_delta: ClassVar[float] = 0.0
    own_delta: ClassVar[float] = 0.0
    pair_name: ClassVar[str] = "discrete Laplace"

    def __post_init__(self) -> None:
        self._check_cohort(*_SCHEMES, reason="the noise of a sum is shared out among")
        object.__setattr__(self, "noise_epsilon", _number("noise_epsilon", self.noise_epsilon))
        object.__setattr__(self, "distance", _number("distance", self.distance))
        if not 0 < self.noise_epsilon <= _LARGEST_EPSILON:
            raise ValueError(f"noise_epsilon must be in (0, {_LARGEST_EPSILON:g}], got {self.noise_epsilon}")
        if not 0 <= self.distance <= 1:
            raise ValueError(f"distance must be in [0, 1], got {self.distance}")
        check_whole("sensitivity", self.sensitivity, low=1)
        check_whole("attained", self.attained, low=0, high=self.sensitivity)

    @property
    def rate(self) -> float:
        """How fast the noise falls, in nats per step."""
        return self.noise_epsilon / self.sensitivity

    @property
    def replacement_distance(self) -> float:
        """Total variation that the accountant charges for."""
        return self.distance

    def state(self) -> tuple[Any, ...]:
        """The round as a plain tuple of str, int and float, for checkpoints."""
        return (
            self.MARK,
            self.sampling.value,
            self.adversary.value,
            self.noise_epsilon,
            self.distance,
            self.sensitivity,
            self.attained,
            self.population,
            self.cohort,
        )

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """Rebuild a round from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        try:
            mark, sampling, adversary, noise_epsilon, distance, *sizes = state
            sensitivity, attained, population, cohort = sizes
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a LaplaceRound: {state!r}") from error
        if mark != cls.MARK:
            raise ValueError(f"not the state of a LaplaceRound: {state!r}")
        return cls(
            sampling=Sampling(sampling),
            adversary=Adversary(adversary),
            noise_epsilon=noise_epsilon,
            distance=distance,
            sensitivity=sensitivity,
            attained=attained,
            population=population,
            cohort=cohort,
        )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)
