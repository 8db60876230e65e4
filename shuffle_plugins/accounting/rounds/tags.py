"""Rounds in which every client sends several messages, each shuffled with the others' of its tag."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from shuffle_plugins.accounting.pairs.blanket import Blanket
from shuffle_plugins.accounting.rounds.known_cohort import KnownCohort, check_whole
from shuffle_plugins.accounting.rounds.shuffle import ShuffleRound
from shuffle_plugins.accounting.terms import Adversary, Sampling
from shuffle_plugins.core import checks

_SCHEMES = (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL, Sampling.SINGLE_PASS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tag:
    """Messages of one kind: a place drawn uniformly, and a bit about it flipped by randomized response.

    Attributes:
        local_epsilon: ε0 of one such message, in nats, in [1e-9, 500].
        count: how many tags are of this kind, each with one message of every client.
        places: whether there is more than one place. If not, a message is a bit, and only counted.

    Raises:
        ValueError: if a number is out of range.
    """

    local_epsilon: float
    count: int
    places: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_epsilon", checks.local_epsilon(self.local_epsilon))
        if type(self.count) is not int or self.count < 1:
            raise ValueError(f"count must be a whole number, at least 1, got {self.count!r}")
        if type(self.places) is not bool:
            raise ValueError(f"places must be true or false, got {self.places!r}")

    def shuffled(self, reports: int) -> ShuffleRound:
        """The round of one such tag: so many messages, everybody's.

        With several places the blanket is min over records of the message's law, 1/(b(e^ε0 + 1)) at each of
        the 2b messages, attained by two opposite records: the same weights and masses as of one bit, in
        whatever place. What the place tells is in it: it is part of the message.
        """
        build = Blanket.generic if self.places else Blanket.bit
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=reports,
            cohort=reports,
            sampling=Sampling.FULL,
            mechanism="tag",
            blanket=build(self.local_epsilon),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedRound(KnownCohort):
    """One kind of round of a multi-message protocol; hashable, so results are cached by it.

    Each client of the cohort sends one message under every tag, each randomised by itself, and messages of
    one tag are shuffled. Given the data, tags are independent, so the round is the composition of its tags
    among the cohort. The same clients send under all tags: sampling hides them once, after composition.

    Attributes:
        tags: kinds of tags.
        population: n, the public and fixed number of clients.
        cohort: k, how many take part; ``population`` under full participation, the smallest batch under a
            single pass, of which one step is one whole pass.
        honest: clients of the cohort counted on to follow the protocol; all of them if None.
        opposite: whether two records are opposite in every message under every tag: it makes the lower bound.
        sampling: without replacement, full, or single pass.
        adversary: against whom the round is measured; a server that sees who took part gains what sampling
            hides.

    Neighbouring relation: replace-one at fixed population.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    tags: tuple[Tag, ...]
    population: int
    cohort: int
    honest: int | None = None
    opposite: bool = False
    sampling: Sampling = Sampling.FULL
    adversary: Adversary = Adversary.MODEL_OBSERVER

    MARK: ClassVar[str] = "tags"
    own_delta: ClassVar[float] = 0.0
    replacement_distance: ClassVar[float] = 0.0
    pair_name: ClassVar[str] = "composed tags"

    def __post_init__(self) -> None:
        self._check_cohort(*_SCHEMES, reason="tags are composed for")
        object.__setattr__(self, "tags", tuple(self.tags))
        if not self.tags or not all(isinstance(tag, Tag) for tag in self.tags):
            raise ValueError("a round needs tags, at least one")
        if self.honest is not None:
            check_whole("honest", self.honest, low=1, high=self.cohort)
        if type(self.opposite) is not bool:
            raise ValueError(f"opposite must be true or false, got {self.opposite!r}")

    @property
    def local_epsilon(self) -> float:
        """ε0 of all messages of one client together."""
        return math.fsum(tag.count * tag.local_epsilon for tag in self.tags)

    def shuffles(self) -> tuple[tuple[ShuffleRound, int], ...]:
        """Each kind of tag as a round among those who follow the protocol, and how many there are."""
        reports = self.cohort if self.honest is None else self.honest
        return tuple((tag.shuffled(reports), tag.count) for tag in self.tags)

    def state(self) -> tuple[Any, ...]:
        """The round as a plain tuple of str, int, float, bool, None and tuples, for checkpoints."""
        return (
            self.MARK,
            self.sampling.value,
            self.adversary.value,
            tuple((tag.local_epsilon, tag.count, tag.places) for tag in self.tags),
            self.population,
            self.cohort,
            self.honest,
            self.opposite,
        )

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """Rebuild a round from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        try:
            mark, sampling, adversary, tags, population, cohort, honest, opposite = state
            kinds = tuple(Tag(local_epsilon=e, count=count, places=places) for e, count, places in tags)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a TaggedRound: {state!r}") from error
        if mark != cls.MARK:
            raise ValueError(f"not the state of a TaggedRound: {state!r}")
        return cls(
            tags=kinds,
            population=population,
            cohort=cohort,
            honest=honest,
            opposite=opposite,
            sampling=Sampling(sampling),
            adversary=Adversary(adversary),
        )
