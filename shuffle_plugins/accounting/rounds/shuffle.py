"""What one kind of round is: who takes part, how each report is randomised, who watches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from shuffle_plugins.accounting.pairs.blanket import Blanket, Form
from shuffle_plugins.accounting.terms import MAX_POPULATION, Adversary, Sampling, round_adversary
from shuffle_plugins.core import checks

ShuffleRoundState = tuple[str, str, float, int, float, str, tuple[Any, ...], float]

_PAIR_NAMES = {Form.CORNERS: "blanket pair", Form.CLONES: "clones pair", Form.BIT: "counted bits"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleRound:
    """One kind of shuffled round; hashable, so results are cached by it.

    Attributes:
        local_epsilon: ε0 of every client's report in nats, in [1e-9, 500], spent once per participating
            client and round.
        population: n, the public and fixed number of clients.
        cohort: k, the number of reports shuffled together. Under Poisson sampling it is the expected number,
            γ·n, and need not be whole. Under full participation it equals ``population``. Under a single pass
            it is the size of the smallest batch, and one step of the accountant is one whole pass. Under
            check-in it is the expected number of reports in a round, population over rounds, and one step is
            one whole pass. In an epoch it is the batch size, and one step is one whole epoch, whose cost to
            an observer of the model is that of full participation at any batch size; records that fill no
            last batch may be left out. Against the server it is the size of the smallest batch.
        sampling: how the cohort is chosen.
        adversary: against whom the round is measured.
        mechanism: name of the randomizer whose blanket is used; ``"generic"`` covers every ε0-LDP randomizer.
        blanket: the randomizer's blanket; None takes the generic one.
        local_delta: δ0 of an (ε0, δ0)-LDP report, in [0, 1). Such rounds are accounted through a pure ε0
            randomizer close to the real one (Feldman, McMillan, Talwar 2021, Theorem 3.8), and the distance
            is charged to δ.

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
    local_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling", checks.choice(Sampling, "sampling", self.sampling))
        object.__setattr__(self, "adversary", round_adversary(self.adversary))
        object.__setattr__(self, "local_epsilon", checks.local_epsilon(self.local_epsilon))
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
        if isinstance(self.local_delta, bool) or not isinstance(self.local_delta, (int, float)):
            raise ValueError(f"local_delta must be a number, got {self.local_delta!r}")
        if not 0 <= self.local_delta < 1:
            raise ValueError(f"local_delta must be in [0, 1), got {self.local_delta!r}")
        object.__setattr__(self, "local_delta", float(self.local_delta))
        if self.local_delta > 0 and self.blanket is not None:
            raise ValueError(
                "an (ε0, δ0) randomizer is accounted for by ε0 and δ0 alone; leave out its blanket, or give "
                "one whose own tail is charged, and no local_delta"
            )
        if self.sampling not in (Sampling.POISSON, Sampling.CHECK_IN) and not self.cohort.is_integer():
            raise ValueError(f"cohort must be whole under {self.sampling} sampling, got {self.cohort!r}")
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("full participation needs cohort == population")
        if self.blanket is None:
            if self.mechanism != "generic":
                raise ValueError(
                    f"mechanism {self.mechanism!r} needs its blanket; pass blanket=, for a known mechanism "
                    "shuffle_plugins.mechanisms.blanket(name, local_epsilon=…, dim=…)"
                )
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
        if self.blanket is not None:
            return self.blanket
        return _worst_case(self.local_epsilon, pure=self.local_delta == 0)

    @property
    def own_delta(self) -> float:
        """δ of one report without amplification: its δ0, and the tail cut off its blanket."""
        return self.local_delta + self.effective_blanket().tail

    @property
    def pair_name(self) -> str:
        """What the dominating pair of such a round is called."""
        form = self.effective_blanket().form
        return _PAIR_NAMES[Form.CORNERS if form is Form.BIT and self.spans_batches else form]

    @property
    def spans_batches(self) -> bool:
        """Whether a report hides among those of other batches, whose inputs may follow from it.

        Such reports are never merely counted: the batches are seen one by one.
        """
        hidden = self.adversary is Adversary.MODEL_OBSERVER
        return self.sampling is Sampling.CHECK_IN or (self.sampling is Sampling.EPOCH and hidden)

    @property
    def replacement_distance(self) -> float:
        """How far, in total variation, a round is from one of pure ε0 randomizers; 0 without ``local_delta``.

        (1 + e^-ε0/2)·δ0 for every client that reports: Feldman, McMillan, Talwar 2021, Theorem 3.8.
        """
        if self.sampling in (Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH):
            reports = float(self.population)
        elif self.sampling is Sampling.POISSON and self.adversary is Adversary.SERVER:
            reports = 1 + (self.population - 1) * self.sampling_rate  # the client is known to take part
        else:
            reports = self.cohort
        return reports * self.local_delta * (1 + math.exp(-self.local_epsilon) / 2)

    def received(self, count: int) -> ShuffleRound:
        """This round once its number of reports is known: ``count`` of the population, uniformly.

        Under Poisson sampling, or when clients decide in secret whether to take part, the number of reports
        is independent of their data and public. Given it, the cohort is a uniform subset of that size;
        recording that charges what the round really cost. Record the rounds of a history all in one way.

        Args:
            count: reports received, at least one; a round without reports releases nothing and costs nothing.

        Raises:
            ValueError: if the round is not under Poisson sampling, or the count is out of range.
        """
        if self.sampling is Sampling.CHECK_IN:
            raise ValueError("a check-in pass is charged as a whole, whatever the counts of its rounds")
        if self.sampling is Sampling.EPOCH:
            raise ValueError("an epoch is charged as a whole, whatever the sizes of its batches")
        if self.sampling is not Sampling.POISSON:
            raise ValueError(f"the cohort of a round under {self.sampling} sampling is known beforehand")
        if type(count) is not int or not 1 <= count <= self.population:
            raise ValueError(
                f"a round has between 1 and {self.population} reports, got {count!r}; one without any costs "
                "nothing and need not be recorded"
            )
        return replace(self, sampling=Sampling.WITHOUT_REPLACEMENT, cohort=count)

    def state(self) -> ShuffleRoundState:
        """The round as a plain tuple of str, int, float, bool and tuples, for checkpoints."""
        return (
            self.sampling.value,
            self.adversary.value,
            self.local_epsilon,
            self.population,
            self.cohort,
            self.mechanism,
            self.effective_blanket().state(),
            self.local_delta,
        )

    @classmethod
    def from_state(cls, state: ShuffleRoundState) -> Self:
        """Rebuild a round from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        try:
            (
                sampling,
                adversary,
                local_epsilon,
                population,
                cohort,
                mechanism,
                blanket_state,
                local_delta,
            ) = state
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a ShuffleRound: {state!r}") from error
        if not isinstance(mechanism, str):
            raise ValueError(f"not the state of a ShuffleRound: {state!r}")
        blanket = Blanket.from_state(blanket_state)
        restored = cls(
            sampling=Sampling(sampling),
            adversary=Adversary(adversary),
            local_epsilon=local_epsilon,
            local_delta=local_delta,
            population=population,
            cohort=cohort,
            mechanism=mechanism,
            blanket=None if mechanism == "generic" else blanket,
        )
        if restored.effective_blanket() != blanket:
            raise ValueError(f"not the state of a ShuffleRound: {state!r}")
        return restored


@lru_cache(maxsize=1024)  # a history asks for it again and again
def _worst_case(local_epsilon: float, *, pure: bool) -> Blanket:
    return Blanket.generic(local_epsilon) if pure else Blanket.clones(local_epsilon)
