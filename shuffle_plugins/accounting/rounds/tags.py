"""Rounds in which every client sends several messages, each shuffled with the others' of its tag."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from shuffle_plugins.accounting.composition.tags import sampled_composition, sampled_instance
from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution, Resolution, tighter
from shuffle_plugins.accounting.pairs.reports import Blanket, product_atoms
from shuffle_plugins.accounting.rounds.round import Round, lower_families, lower_losses, upper_losses
from shuffle_plugins.accounting.rounds.shuffle import ShuffleRound
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks

_INSTANCE = "tags instance"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tag:
    """Messages of one kind: a place drawn uniformly, and a bit about it flipped by randomized response.

    Attributes:
        local_epsilon: ε0 of one such message, in nats, in [1e-9, 500].
        count: how many tags are of this kind, each with one message of every client.
        places: whether there is more than one place. If not, a message is a bit, and only counted.
        lean: two records are known whose bits, before they are flipped, have means of ±``lean`` in every
            place: 1 if they are opposite for certain. It makes a lower bound.

    Raises:
        ValueError: if a number is out of range.
    """

    local_epsilon: float
    count: int
    places: bool
    lean: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_epsilon", checks.local_epsilon(self.local_epsilon))
        checks.whole("count", self.count)
        if type(self.places) is not bool:
            raise ValueError(f"places must be true or false, got {self.places!r}")
        checks.number("lean", self.lean, at_least=0, at_most=1)

    def shuffled(self, reports: int) -> ShuffleRound:
        """The round of one such tag: so many messages, everybody's.

        With several places the place is a part of the message that says nothing of the record
        (``docs/proofs/tags.md``, "What is seen").
        """
        return self.sampled(population=reports, cohort=reports)

    def sampled(self, *, population: int, cohort: int) -> ShuffleRound:
        """The round of one such tag whose messages a uniform sample of the population sends."""
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

    def state(self) -> tuple[float, int, bool] | tuple[float, int, bool, float]:
        """The kind as a plain tuple, for checkpoints; without a lean of one."""
        plain = (self.local_epsilon, self.count, self.places)
        return plain if self.lean == 1 else (*plain, self.lean)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedRound(Round):
    """A round of a multi-message protocol whose messages carry tags.

    Each client of the cohort sends one message under every tag, each randomised by itself, and messages of
    one tag are shuffled. Given the data, tags are independent, so the round is the composition of its tags
    among the cohort. The same clients send under all tags: sampling hides them once, after composition.

    Attributes:
        population, cohort, sampling, adversary: as of :class:`Round`.
        tags: kinds of tags.
        honest: clients of the cohort counted on to follow the protocol; all of them if None.
        opposite: whether two records are opposite in every message under every tag, as far as its ``lean``
            says: it makes the lower bound.
        participation: probability with which each of the cohort, by a secret coin of its own, sends messages
            about its record. The others send messages about a record that is the same for all, such as zero.
            None if all send their own. It holds against everybody who sees no more than the shuffled messages
            or their sum, the server included; of such a round no lower bound is known.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    cohort: int
    tags: tuple[Tag, ...]
    honest: int | None = None
    opposite: bool = False
    participation: float | None = None

    KIND: ClassVar[str] = "tags"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    STORED: ClassVar[tuple[str, ...]] = (
        "tags",
        "population",
        "cohort",
        "honest",
        "opposite",
        "participation",
    )

    def __post_init__(self) -> None:
        Round.__post_init__(self)
        object.__setattr__(self, "tags", tuple(self.tags))
        if not self.tags or not all(isinstance(tag, Tag) for tag in self.tags):
            raise ValueError("a round needs tags, at least one")
        if self.honest is not None:
            checks.whole("honest", self.honest, at_most=self.cohort)
        if type(self.opposite) is not bool:
            raise ValueError(f"opposite must be true or false, got {self.opposite!r}")
        object.__setattr__(self, "participation", checks.participation(self.participation))

    def opened(self) -> TaggedRound:
        """The round as one sees it who knows whose records the messages are about."""
        return replace(self, participation=None)

    @property
    def local_epsilon(self) -> float:
        """ε0 of all messages of one client together."""
        return math.fsum(tag.count * tag.local_epsilon for tag in self.tags)

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return "composed tags"

    @property
    def description(self) -> str:
        """The ε0 of a client's messages."""
        return f"tagged messages with {self.local_epsilon:.6g} nats in all of a client's together"

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages."""
        return "the messages of each tag without senders and in random order (their sums show less)"

    def shuffles(self) -> tuple[tuple[ShuffleRound, int], ...]:
        """Each kind of tag as a round among those who follow the protocol, and how many there are."""
        return tuple((tag.shuffled(self._reports), tag.count) for tag in self.tags)

    @property
    def _reports(self) -> int:
        return self.cohort if self.honest is None else self.honest

    @property
    def resolves_alone(self) -> bool:
        """False: composed tags have many outcomes."""
        return False

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of all tags composed, on a sample; of one tag, those of its messages too."""
        shuffles, counts = zip(*self.shuffles(), strict=True)
        composed = sampled_composition(
            [upper_losses(each, resolution) for each in shuffles],
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
    def lower_families(self) -> tuple[str, ...]:
        """All messages of two opposite records, if there are such."""
        known = self.opposite and self.participation is None and any(tag.lean > 0 for tag in self.tags)
        return (_INSTANCE,) if known else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of all messages of two opposite records."""
        return self._opposite_records(resolution, exchanged=False)

    def reversed_lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The same with the two records exchanged."""
        return self._opposite_records(resolution, exchanged=True)

    def _opposite_records(self, resolution: Resolution, *, exchanged: bool) -> PrivacyLossDistribution:
        told = [tag for tag in self.tags if tag.lean > 0]
        attained = [tag.attained(self._reports) for tag in told]
        return sampled_instance(
            [lower_losses(each, lower_families(each)[0], resolution) for each in attained],
            [tag.count for tag in told],
            sampling_rate=self.sampling_rate,
            resolution=resolution,
            exchanged=exchanged,
        )

    @classmethod
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The fields, their tags rebuilt."""
        try:
            tags = tuple(
                Tag(local_epsilon=e, count=count, places=places, lean=lean[0] if lean else 1.0)
                for e, count, places, *lean in saved["tags"]
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a {cls.__name__}: its tags are {saved['tags']!r}") from error
        return saved | {"tags": tags}
