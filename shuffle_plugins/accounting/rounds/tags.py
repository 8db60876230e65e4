"""Rounds in which every client sends several messages: under tags, or bits that are only counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from typing_extensions import override

from shuffle_plugins.accounting.composition.sampled import sampled_composition, sampled_instance
from shuffle_plugins.accounting.losses import PrivacyLossDistribution, Resolution, discounted, tighter
from shuffle_plugins.accounting.pairs.bits import (
    BitResponse,
    counted_instance,
    counted_losses,
    elsewhere_instance,
    enough_noise,
    sampled_counts_losses,
)
from shuffle_plugins.accounting.pairs.reports import Blanket, product_atoms
from shuffle_plugins.accounting.rounds.round import (
    Round,
    ShuffleRound,
    lower_families,
    lower_losses,
    upper_losses,
)
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Chance, Count, Dim, Flag, Fraction, LocalEpsilon, Ranged, one_of

_ELSEWHERE = "counted bits held elsewhere instance"


@dataclass(frozen=True, kw_only=True)
class Tag(Ranged):
    """Messages of one kind: a place drawn uniformly, and a bit about it flipped by randomized response.

    Attributes:
        count: how many tags are of this kind, each with one message of every client.
        places: whether there is more than one place. If not, a message is a bit, and only counted.
        lean: two records are known whose bits, before they are flipped, have means of ±``lean`` in every
            place. It makes a lower bound.
    """

    local_epsilon: LocalEpsilon
    count: Count
    places: Flag
    lean: Fraction = 1.0

    def shuffled(self, reports: int) -> ShuffleRound:
        """The round of one such tag to which everybody sends."""
        return self.sampled(population=reports, cohort=reports)

    def sampled(self, *, population: int, cohort: int) -> ShuffleRound:
        """The round of one such tag whose messages a uniform sample of the population sends.

        The place says nothing of the record (``docs/proofs/tags.md``, "What is seen").
        """
        build = Blanket.sign if self.places else Blanket.bit
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=population,
            cohort=cohort,
            sampling=Sampling.FULL if cohort == population else Sampling.WITHOUT_REPLACEMENT,
            mechanism="tag",
            blanket=build(self.local_epsilon),
            channel_fixed=True,
        )

    def attained(self, reports: int) -> ShuffleRound:
        """The round of one such tag, with the two records as its instance: everybody else holds one."""
        if self.lean == 1:
            return self.shuffled(reports)
        gain = math.tanh(self.local_epsilon / 2) * self.lean
        instance = product_atoms(likely=((1 + gain) / 2,), held=(-1,))
        blanket = replace(Blanket.generic(self.local_epsilon, exact=False), instances=(instance,))
        return replace(self.shuffled(reports), blanket=blanket)

    def state(self) -> tuple[float, int, bool, float]:
        """The kind as a plain tuple."""
        return self.local_epsilon, self.count, self.places, self.lean


@dataclass(frozen=True, kw_only=True)
class _ComposedRound(Round):
    """A round that is the composition of many shuffles of the same clients.

    Attributes:
        honest: clients of the cohort counted on to follow the protocol; all of them if None.
    """

    cohort: int
    honest: int | None = None

    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)

    @property
    def reports(self) -> int:
        """Clients whose messages hide each other."""
        return self.cohort if self.honest is None else self.honest


@dataclass(frozen=True, kw_only=True)
class TaggedRound(_ComposedRound):
    """A round of a multi-message protocol whose messages carry tags.

    Each client of the cohort sends one message under every tag, and messages of one tag are shuffled. Given
    the data, tags are independent, so the round is the composition of its tags among the cohort; the same
    clients send under all: sampling hides them once, after composition.

    Attributes:
        opposite: whether two records are opposite in every message under every tag, as far as its ``lean``
            says: it makes the lower bound.
        participation: probability with which each of the cohort, by a secret coin of its own, sends messages
            about its record, and not about one that is the same for all, such as zero. None if all send their
            own. It holds against everybody who sees no more than the shuffled messages or their sum, the
            server included; no lower bound is known.
    """

    tags: tuple[Tag, ...]
    opposite: Flag = False
    participation: Chance | None = None

    KIND: ClassVar[str] = "tags"
    pair_name = "composed tags"
    seen = "the messages of each tag without senders and in random order (their sums show less)"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tags", tuple(self.tags))
        if not self.tags or not all(isinstance(tag, Tag) for tag in self.tags):
            raise ValueError("a round needs tags, at least one")

    @override
    def opened(self) -> TaggedRound:
        return replace(self, participation=None)

    @property
    @override
    def local_epsilon(self) -> float:
        return math.fsum(tag.count * tag.local_epsilon for tag in self.tags)

    @property
    @override
    def description(self) -> str:
        return f"tagged messages with {self.local_epsilon:.6g} nats in all of a client's together"

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        counts = [tag.count for tag in self.tags]
        composed = sampled_composition(
            [upper_losses(tag.shuffled(self.reports), resolution) for tag in self.tags],
            counts,
            # Secret participation is one more sample (docs/proofs/sums.md, "Secret participation").
            sampling_rate=self.sampling_rate * (self.participation or 1.0),
            resolution=resolution,
        )
        # Who follows the protocol, and who sends about a record of its own, is no matter of a single message.
        if sum(counts) > 1 or self.sampling_rate == 1 or self.honest is not None or self.participation:
            return composed
        direct = self.tags[0].sampled(population=self.population, cohort=self.cohort)
        return tighter(composed, upper_losses(direct, resolution))

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        known = self.opposite and self.participation is None and any(tag.lean > 0 for tag in self.tags)
        return ("tags instance",) if known else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """All messages of two opposite records."""
        told = [tag for tag in self.tags if tag.lean > 0]
        attained = [tag.attained(self.reports) for tag in told]
        return sampled_instance(
            [lower_losses(each, lower_families(each)[0], resolution) for each in attained],
            [tag.count for tag in told],
            sampling_rate=self.sampling_rate,
            resolution=resolution,
            exchanged=exchanged,
        )

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        try:
            tags = tuple(
                Tag(local_epsilon=epsilon, count=count, places=places, lean=lean)
                for epsilon, count, places, lean in saved["tags"]
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a {cls.__name__}: its tags are {saved['tags']!r}") from error
        return saved | {"tags": tags}


class BitEncoding(StrEnum):
    """How the bits of unary encoding are flipped; ε0 is the bit's own."""

    SYMMETRIC = "symmetric"
    """Ones and zeros with probability 1/(e^ε0 + 1): RAPPOR. A report of weight one has 2·ε0."""

    OPTIMAL = "optimal"
    """Zeros with probability 1/(e^ε0 + 1), ones with 1/2: OUE. A report of weight one has ε0."""


@dataclass(frozen=True, kw_only=True)
class CountedRound(_ComposedRound):
    """A round of counted unary encoding: each client flips ``length`` bits, and the sum of each is seen.

    Two clients' vectors differ in at most ``ones`` bits that fall from one to zero and as many that rise, so
    the round is the composition of that many counts (``docs/proofs/tags.md``).

    Attributes:
        bit_epsilon: ε0 of one bit; up to 40 in the optimal encoding.
        ones: how many of a client's bits may be set, in [1, length].
        distance: bound on the total variation between the sums as drawn and this.
    """

    bit_epsilon: LocalEpsilon
    length: Dim
    ones: int = 1
    encoding: Annotated[BitEncoding, one_of(BitEncoding)] = BitEncoding.SYMMETRIC
    distance: Fraction = 0.0

    KIND: ClassVar[str] = "counted"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/tags.md"
    pair_name = "composed counts"
    seen = "the number of ones in each place, over all clients, and nobody's own bits"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("ones", self.ones, at_most=self.length)
        if self.encoding is BitEncoding.OPTIMAL and self.bit_epsilon > 40:
            raise ValueError(
                f"bit_epsilon must be at most 40 in the optimal encoding, got {self.bit_epsilon!r}: so few "
                "zeros are flipped that nobody is hidden"
            )

    @property
    def response(self) -> BitResponse:
        """Probabilities of a one."""
        symmetric = self.encoding is BitEncoding.SYMMETRIC
        return (BitResponse.symmetric if symmetric else BitResponse.optimal)(self.bit_epsilon)

    @property
    @override
    def local_epsilon(self) -> float:
        bit = self.response
        fall, rise = math.log(bit.one / bit.zero), math.log(bit.not_zero / bit.not_one)
        fewer = min(self.ones, self.length - self.ones)
        return self.ones * max(fall, rise) + fewer * min(fall, rise)

    @property
    @override
    def description(self) -> str:
        return f"counts of {self.length} bits with {self.bit_epsilon:.6g} nats each, {self.encoding} encoding"

    @property
    def changes(self) -> int:
        """Bits in which two clients' vectors differ, at most."""
        return min(2 * self.ones, self.length)

    @property
    @override
    def replacement_distance(self) -> float:
        return self.distance

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        bit, rate = self.response, self.sampling_rate
        if self.encoding is BitEncoding.SYMMETRIC:
            laws, counts = [upper_losses(self._tag().shuffled(self.reports), resolution)], [self.changes]
        else:
            fall = counted_losses(bit, others=self.reports - 1, resolution=resolution)
            laws, counts = [fall, fall.reversed()], [self.ones, self.ones]
        found = sampled_composition(laws, counts, sampling_rate=rate, resolution=resolution)
        # With more variance of a count, a sample's counts are as good as hidden all at once.
        much = 100.0 if self.encoding is BitEncoding.SYMMETRIC else 200.0
        little = enough_noise(bit, self.reports) * bit.one * bit.not_one <= much
        if rate < 1 and self.ones == 1 and self.honest is None and little:
            drawn = sampled_counts_losses(
                bit, population=self.population, cohort=self.cohort, resolution=resolution
            )
            return tighter(found, drawn)
        return found

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        """The dataset that tells more, if its round can be listed.

        Everybody else holds x', which differs from the client's x in all the bits that it can; in the optimal
        encoding, at full participation and with bits enough, none of these; on a sample (in the symmetric
        encoding, where few zeros are flipped) one bit that neither x nor x' has.
        """
        symmetric = self.encoding is BitEncoding.SYMMETRIC
        elsewhere = self.sampling_rate < 1 and self.ones == 1 and self.length >= 3 and self.honest is None
        # Up to so many flipped zeros, over γ², the others' own bit tells more (measured).
        few = self.cohort * self.response.zero <= 60 * self.sampling_rate**2
        if elsewhere and (few or not symmetric):
            return (_ELSEWHERE,)
        return ("counted bits instance",) if symmetric or self.length >= 2 * self.ones else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        if family == _ELSEWHERE:  # exchanged, two bits change places: the same losses
            found = elsewhere_instance(
                self.response, population=self.population, cohort=self.cohort, resolution=resolution
            )
            return discounted(found, self.distance)
        if self.encoding is BitEncoding.SYMMETRIC:
            alone = self._tag().shuffled(self.reports)
            laws, counts = [lower_losses(alone, lower_families(alone)[0], resolution)], [self.changes]
        else:
            others = self.reports - 1
            fall = counted_instance(self.response, others=others, resolution=resolution)
            # Who is not drawn leaves its place to one of the others: they must hold x'.
            held = self.sampling_rate < 1 or self.length < 3 * self.ones
            rise = counted_instance(self.response, others=others, resolution=resolution, held=held)
            laws, counts = [fall, rise.reversed()], [self.ones, self.ones]
        found = sampled_instance(
            laws, counts, sampling_rate=self.sampling_rate, resolution=resolution, exchanged=exchanged
        )
        return discounted(found, self.distance)

    def _tag(self) -> Tag:
        return Tag(local_epsilon=self.bit_epsilon, count=1, places=False)
