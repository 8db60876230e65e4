"""What one kind of round is: who takes part, how each report is randomised, who watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from shuffle_plugins.accounting.blanket import Blanket, check_local_epsilon

NEIGHBOURING_RELATION = "replace-one"
MAX_POPULATION = 10**15

RoundState = tuple[str, str, float, int, float, str, tuple[float, float, float, bool]]


class Sampling(StrEnum):
    """How the clients of a round are chosen from the population."""

    WITHOUT_REPLACEMENT = "without-replacement"
    POISSON = "poisson"
    FULL = "full"
    SINGLE_PASS = "single-pass"


class Adversary(StrEnum):
    """Against whom a round is measured.

    ``MODEL_OBSERVER`` sees what a round releases but not who took part, so sampling amplifies.
    ``SERVER`` also sees who took part: a round costs a participating client as much as full participation in
    its cohort, and only rounds in which that client took part may be recorded.
    """

    MODEL_OBSERVER = "model-observer"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleRound:
    """One kind of shuffled round; hashable, so results are cached by it.

    Attributes:
        local_epsilon: ε0 of every client's report in nats, in [1e-9, 500], spent once per participating
            client and round.
        population: n, the public and fixed number of clients.
        cohort: k, the number of reports shuffled together. Under Poisson sampling it is the expected number,
            γ·n, and need not be whole. Under full participation it equals ``population``. Under a single pass
            it is the size of the smallest batch, and one step of the accountant is one whole pass.
        sampling: how the cohort is chosen.
        adversary: against whom the round is measured.
        mechanism: name of the randomizer whose blanket is used; ``"generic"`` covers every ε0-LDP randomizer.
        blanket: the randomizer's blanket; None takes the generic one.

    Neighbouring relation: replace-one at fixed population.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    local_epsilon: float
    population: int
    cohort: float
    sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    adversary: Adversary = Adversary.MODEL_OBSERVER
    mechanism: str = "generic"
    blanket: Blanket | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling", Sampling(self.sampling))
        object.__setattr__(self, "adversary", Adversary(self.adversary))
        object.__setattr__(self, "local_epsilon", check_local_epsilon(self.local_epsilon))
        if type(self.population) is not int or not 1 <= self.population <= MAX_POPULATION:
            raise ValueError(f"population must be an int in [1, {MAX_POPULATION:g}], got {self.population!r}")
        if isinstance(self.cohort, bool) or not isinstance(self.cohort, (int, float)):
            raise ValueError(f"cohort must be a number, got {self.cohort!r}")
        if not 0 < self.cohort <= self.population:
            raise ValueError(
                f"cohort must be in (0, population], got {self.cohort!r} of {self.population}: "
                "a round cannot shuffle more reports than there are clients"
            )
        object.__setattr__(self, "cohort", float(self.cohort))
        if self.sampling is not Sampling.POISSON and not self.cohort.is_integer():
            raise ValueError(f"cohort must be whole under {self.sampling} sampling, got {self.cohort!r}")
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("full participation needs cohort == population")
        if self.blanket is None:
            if self.mechanism != "generic":
                raise ValueError(f"mechanism {self.mechanism!r} needs its blanket; pass blanket=")
            return
        if not isinstance(self.blanket, Blanket):
            raise ValueError(f"blanket must be a Blanket, got {self.blanket!r}")
        if self.mechanism == "generic":
            raise ValueError("a blanket of its own needs its mechanism's name; pass mechanism=")
        if self.blanket.local_epsilon != self.local_epsilon:
            raise ValueError(
                f"the blanket is for ε0={self.blanket.local_epsilon}, the round for ε0={self.local_epsilon}"
            )

    @property
    def sampling_rate(self) -> float:
        """γ = cohort / population."""
        return self.cohort / self.population

    def effective_blanket(self) -> Blanket:
        """The blanket that accounting uses: the mechanism's own, or the generic one."""
        return self.blanket if self.blanket is not None else Blanket.generic(self.local_epsilon)

    def state(self) -> RoundState:
        """The round as a plain tuple of str, int and float, for checkpoints."""
        blanket = self.effective_blanket()
        return (
            self.sampling.value,
            self.adversary.value,
            self.local_epsilon,
            self.population,
            self.cohort,
            self.mechanism,
            (blanket.differing, blanket.low, blanket.high, blanket.exact),
        )

    @classmethod
    def from_state(cls, state: RoundState) -> Self:
        """Rebuild a round from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        try:
            sampling, adversary, local_epsilon, population, cohort, mechanism, masses = state
            differing, low, high, exact = masses
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a ShuffleRound: {state!r}") from error
        if not isinstance(mechanism, str):
            raise ValueError(f"not the state of a ShuffleRound: {state!r}")
        blanket = None
        if mechanism != "generic":
            blanket = Blanket(
                local_epsilon=local_epsilon, differing=differing, low=low, high=high, exact=exact
            )
        return cls(
            sampling=Sampling(sampling),
            adversary=Adversary(adversary),
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            mechanism=mechanism,
            blanket=blanket,
        )
