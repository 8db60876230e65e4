"""What all shuffle protocols have in common: who takes part, who is counted on, and the same methods."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from shuffle_plugins.accounting import MAX_POPULATION, Adversary, Round, Sampling
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.mechanisms import Reporter, Summation


class Participants(NamedTuple):
    """Who is in a round, as an accountant counts them.

    Attributes:
        reports: clients whose messages came.
        honest: how many of them are counted on.
        population: of how many they are accounted to be drawn.
        sampling: how they are drawn.
    """

    reports: int
    honest: int
    population: int
    sampling: Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleProtocol(Reporter):
    """Clients send messages to a shuffler, and what it hands on is added up: sums, means, histograms.

    Every protocol is used in the same way::

        accountant.step(protocol.round())  # before anything is released
        reports = protocol.randomize(data)  # one report for each client: all that it sends
        messages = protocol.messages(reports)  # the same, message by message, for a Shuffler

    Shuffled messages tell no more than their total. So a shuffler may also be handed whole reports, add them
    up and hand on the total. An analyzer turns either into an estimate.

    Attributes:
        cohort: n, how many clients take part in one round, at least 2.
        honest_fraction: share of the clients that are counted on to follow the protocol, with those who drop
            out taken off (robust shuffle privacy; Cheu, Joseph, Mao, Peng 2022, Appendix A.3). The guarantee
            holds whatever the others send or do not send.

    Raises:
        ValueError: if a field is out of range, or nobody is counted on.
    """

    cohort: int
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        check_cohort(self.cohort)
        honest_population(self.cohort, self.honest_fraction)

    @property
    def honest_cohort(self) -> int:
        """Clients of one round that are counted on, at least."""
        return honest_population(self.cohort, self.honest_fraction)

    @property
    @abstractmethod
    def messages_per_client(self) -> int:
        """Messages that a client's report stands for."""

    @abstractmethod
    def messages(self, reports: Reports) -> list[Reports]:
        """The messages that whole reports stand for, a batch for each client, for a ``Shuffler``.

        Raises:
            ValueError: if the reports are not this protocol's, hold values that no client sends, or stand for
                more messages than can be listed.
        """

    @abstractmethod
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> Round:
        """The round for an accountant.

        Args:
            population: n of the whole training, of whom the cohort is drawn; by default the cohort alone.
            cohort: clients whose reports really came, by default the field: fewer hide less.
            sampling: k of n where the population is larger, else everybody, by default.
            adversary: against whom the guarantee holds.

        Raises:
            ValueError: if the numbers contradict each other, or too few honest clients are left.
        """

    def participants(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
    ) -> Participants:
        """Who is in a round, for an accountant.

        Args:
            population: of the whole training; by default those whose messages came.
            cohort: clients whose messages came, by default the protocol's cohort.
            sampling: without replacement where the population is larger, else everybody, by default.

        Raises:
            ValueError: if the numbers contradict each other, or nobody is counted on.
        """
        reports = self.cohort if cohort is None else check_cohort(cohort)
        people = population_of(reports, population)
        if sampling is None:
            sampling = Sampling.FULL if people == reports else Sampling.WITHOUT_REPLACEMENT
        if sampling is Sampling.WITHOUT_REPLACEMENT:
            people = hiding(people, cohort=reports, honest_fraction=self.honest_fraction)
        return Participants(reports, honest_population(reports, self.honest_fraction), people, sampling)


class SummingProtocol(ShuffleProtocol, Summation):
    """A protocol whose clients' messages make up a sum. Totals are whole numbers."""

    __slots__ = ()

    @property
    def local_epsilon(self) -> float:
        """ε0 of all messages of one client together, in nats; infinite if others' noise must protect them."""
        return self.round().local_epsilon

    @abstractmethod
    def estimate(self, total: Any, *, reports: int | None = None) -> Any:
        """Unbiased estimate of the sum over the clients that answered, float64.

        Args:
            total: what :meth:`total` returned, or a tally of shuffled messages.
            reports: how many clients' messages are in it. A tally says so by itself, if every one of them
                sent as many as it should.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """


def honest_population(population: int, honest_fraction: float) -> int:
    """How many of so many clients are counted on.

    The product is rounded down, but for what floating point takes off a whole number: 0.7 of 10 are 7.

    Raises:
        ValueError: if the share is no number in (0, 1], or it is nobody.
    """
    checks.number("honest_fraction", honest_fraction, above=0, at_most=1)
    honest = min(population, math.floor(honest_fraction * population * (1 + 1e-12)))
    if honest < 1:
        raise ValueError(f"honest_fraction={honest_fraction!r} of {population} clients is nobody")
    return honest


def population_of(cohort: int, population: int | None) -> int:
    """Of how many a cohort is drawn: of itself by default.

    Raises:
        ValueError: if the population is smaller than the cohort, or larger than any that is accounted.
    """
    if population is None:
        return cohort
    if type(population) is not int or not cohort <= population <= MAX_POPULATION:
        raise ValueError(
            f"population must be a whole number, at least the {cohort} clients of a cohort, "
            f"at most {MAX_POPULATION:,}, got {population!r}"
        )
    return population


def counted_on(cohort: int, population: int | None, honest_fraction: float) -> tuple[int, int]:
    """The honest clients of a cohort, and of how many people it is accounted to be drawn (:func:`hiding`).

    Raises:
        ValueError: if an argument is out of range, or nobody is counted on.
    """
    honest = honest_population(check_cohort(cohort), honest_fraction)
    people = population_of(cohort, population)
    return honest, hiding(people, cohort=cohort, honest_fraction=honest_fraction)


def hiding(population: int, *, cohort: int, honest_fraction: float) -> int:
    """Of how many a cohort is accounted to be drawn: those of the population that are counted on.

    Clients that are not honest may tell whether they were drawn. Should none of them have been, the cohort
    was drawn from the honest ones; it cannot have been drawn from fewer than itself.
    """
    return max(cohort, math.floor(honest_fraction * population))


def check_cohort(cohort: object) -> int:
    """Return a number of clients in one round, in [2, 10**15].

    Raises:
        ValueError: if it is anything else.
    """
    return checks.whole("cohort", cohort, at_least=2, at_most=MAX_POPULATION)


def check_overhead(overhead: float) -> float:
    """Return a share of variance that may be given away, in (0, 1].

    Raises:
        ValueError: if it is anything else.
    """
    return checks.number("overhead", overhead, above=0, at_most=1)


def check_categories(categories: int) -> int:
    """Return a number of categories, in [2, 2**53].

    Raises:
        ValueError: if it is anything else.
    """
    return checks.whole("categories", categories, at_least=2, at_most=1 << 53)


def check_clips(clip: bool) -> None:
    """Check that nobody asks a sum to leave vectors as they are.

    Raises:
        ValueError: unless ``clip`` is true.
    """
    if not clip:
        raise ValueError("a sum always clips to its ball: leave clip as it is")
