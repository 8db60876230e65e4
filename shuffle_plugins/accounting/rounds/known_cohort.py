"""What rounds share whose cost needs a cohort of known size."""

from __future__ import annotations

import math

from shuffle_plugins.accounting.terms import MAX_POPULATION, Adversary, Sampling, round_adversary
from shuffle_plugins.core import checks


class KnownCohort:
    """Checks of population, cohort, sampling and adversary, and the sampling rate they make; a mixin."""

    __slots__ = ()

    population: int
    cohort: int
    sampling: Sampling
    adversary: Adversary

    def _check_cohort(self, *schemes: Sampling, reason: str) -> None:
        """Check the four fields, and turn names into enums.

        Args:
            schemes: samplings that are accounted.
            reason: why no other is, a clause.

        Raises:
            ValueError: if a field is out of range, or they contradict each other.
        """
        object.__setattr__(self, "sampling", checks.choice(Sampling, "sampling", self.sampling))
        object.__setattr__(self, "adversary", round_adversary(self.adversary))
        if self.sampling is Sampling.EPOCH:
            raise ValueError(
                "no bound is known on how batches that release sums, each with noise of its own, hide one "
                "another in an epoch of a shuffled loader; draw k of n (sampling='without-replacement'), or "
                "let clients send reports that are private one by one"
            )
        if self.sampling not in schemes:
            raise ValueError(
                f"{reason} a cohort of known size, so {self.sampling} sampling is not accounted; draw k of "
                "n, or let everybody take part"
            )
        check_whole("population", self.population, low=1, high=MAX_POPULATION)
        check_whole("cohort", self.cohort, low=1, high=self.population)
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("full participation needs cohort == population")

    @property
    def sampling_rate(self) -> float:
        """γ: what hides whether a client took part."""
        observed = self.adversary is Adversary.MODEL_OBSERVER
        if observed and self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return self.cohort / self.population
        return 1.0


def check_whole(name: str, value: object, *, low: int, high: float = math.inf) -> None:
    """Check a whole number.

    Raises:
        ValueError: unless it is one, in [low, high].
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number in [{low}, {high:g}], got {value!r}")
