"""Multi-message mean estimation: flipped bits of sampled coordinates, each shuffled under its tag."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Sampling
from shuffle_plugins.accounting.rounds.tags import Tag, TaggedRound
from shuffle_plugins.core import checks
from shuffle_plugins.core.reports import Field, ReportLayout, Reports
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.mechanisms.signs.bit_planes import BitPlanes
from shuffle_plugins.mechanisms.signs.bit_planes_law import SampledPlan
from shuffle_plugins.mechanisms.signs.randomized_response_law import SignThresholds
from shuffle_plugins.protocols.tags.plans import level_epsilons, tag_counts
from shuffle_plugins.protocols.tally import Tally, label_bits, tally
from shuffle_plugins.protocols.targets import check_clips, check_honest_fraction, check_population, hiding
from shuffle_plugins.randomness import Randomness, secure

_ENTRIES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class TaggedBits:
    """What clients send, one message under each tag.

    Attributes:
        places: within the tag's block of coordinates, int64 (clients, levels, samples).
        bits: 0 or 1, of the same shape.
    """

    places: Tensor
    bits: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSum(ABC):
    r"""The thesis's multi-message mean estimation (Girgis 2023, Chapter 3), as a sum.

    A datum is brought to :math:`[-1, 1]^D` and written as ``levels`` bit planes. Of each plane a client draws
    one coordinate from each of ``samples`` blocks and sends, under the tag of plane and block, its place in
    the block and a flipped sign. Messages of one tag are shuffled; the k-th message goes to the k-th
    shuffler, or, with its tag, to one shuffler of all (Remark 3.2.1). What stays is how many signs of each
    kind came for each plane and coordinate.

    All messages of one client together are ``budget``-LDP; shuffled, they cost what :meth:`round`
    says, by composing what each tag costs exactly. The thesis's constants (144, 48) are not used.

    Attributes:
        dim: d, length of a client's vector.
        cohort: n, how many take part in one sum.
        budget: v, ε0 of all messages of one client together. Planes share it so that the variance of a
            shuffled sum is least (``tag_plans``).
        samples: s, blocks per plane, in [1, D].
        levels: m, bit planes.
        honest_fraction: share of the clients that are counted on to follow the protocol; the guarantee holds
            whatever the others send or do not send.
        planes: the bits of all tags.

    Raises:
        ValueError: if a field is out of range.
    """

    name: ClassVar[str]

    dim: int
    cohort: int
    budget: float
    samples: int
    levels: int = 1
    honest_fraction: float = 1.0
    planes: BitPlanes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.whole("cohort", self.cohort, at_least=2)
        check_honest_fraction(self.honest_fraction)
        number = isinstance(self.budget, (int, float)) and not isinstance(self.budget, bool)
        if not (number and 0 < self.budget < math.inf):
            raise ValueError(f"budget must be a positive finite number, got {self.budget!r}")
        if type(self.samples) is not int or type(self.levels) is not int or self.levels < 1:
            raise ValueError(f"samples and levels are whole numbers, got {self.samples!r}, {self.levels!r}")
        if not 1 <= self.samples <= self.size:
            raise ValueError(f"samples must be in [1, {self.size}], got {self.samples!r}")
        thresholds = tuple(map(SignThresholds.of, level_epsilons(self.plan, budget=self.budget)))
        object.__setattr__(self, "planes", BitPlanes(dim=self.size, plan=self.plan, thresholds=thresholds))
        _ = self.round()

    # -- what kinds of data differ in --------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> int:
        """D, coordinates that are sampled."""

    @property
    def opposite(self) -> bool:
        """Whether two data are opposite in every coordinate, which makes the cost attained."""
        return True

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖² over all data."""

    @abstractmethod
    def _checked(self, x: Tensor | Rows) -> Rows:
        """The data as rows, (clients, dim).

        Raises:
            ValueError: if they are not what the protocol takes, or have NaN or infinite entries.
        """

    @abstractmethod
    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        """What is at these coordinates of each datum in [-1, 1]^D, of the shape (clients, …) of columns."""

    @abstractmethod
    def _estimate(self, sums: Tensor, *, reports: int) -> Tensor:
        """From the estimated sum in [-1, 1]^D to the one in units of the data, (dim,)."""

    # -- what it costs ----------------------------------------------------------------------------------

    @property
    def plan(self) -> SampledPlan:
        """Levels and samples."""
        return SampledPlan(levels=self.levels, samples=self.samples)

    @property
    def message_epsilons(self) -> tuple[float, ...]:
        """ε0 of one message of each plane, in nats."""
        return level_epsilons(self.plan, budget=self.budget)

    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> TaggedRound:
        """The round for an accountant.

        Args:
            population: n of the whole training; by default the clients of this sum.
            cohort: clients whose messages were really received, by default :attr:`cohort`: fewer hide less.
            sampling: k of n where the population is larger, else everybody, by default.
            adversary: against whom.

        Raises:
            ValueError: if the numbers contradict each other, or no honest client is left.
        """
        reports = self.cohort if cohort is None else checks.whole("cohort", cohort, at_least=2)
        people = reports if population is None else population
        check_population(people, cohort=reports)
        if sampling is None:
            sampling = Sampling.FULL if people == reports else Sampling.WITHOUT_REPLACEMENT
        if sampling is Sampling.WITHOUT_REPLACEMENT:
            people = hiding(people, cohort=reports, honest_fraction=self.honest_fraction)
        single, several = tag_counts(self.plan, size=self.size)
        counts = [(count, places) for count, places in ((single, False), (several, True)) if count]
        honest = math.floor(self.honest_fraction * reports * (1 + 1e-12))
        return TaggedRound(
            tags=tuple(
                Tag(local_epsilon=epsilon, count=count, places=places)
                for epsilon in self.message_epsilons
                for count, places in counts
            ),
            population=people,
            cohort=reports,
            honest=None if honest == reports else honest,
            opposite=self.opposite,
            sampling=sampling,
            adversary=adversary,
        )

    @property
    def tags(self) -> int:
        """Tags, and messages that a client sends: m·s."""
        return self.levels * self.samples

    @property
    def messages_per_client(self) -> int:
        """One under each tag."""
        return self.tags

    @property
    def bits_per_message(self) -> int:
        """A tag, a place in its block, and a bit, to one shuffler of all tags."""
        return label_bits(self.tags) + self.planes.blocks.index_bits + 1

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: a place and a bit for each tag, in the tags' order."""
        return ReportLayout(self.name, self.dim, self.planes.layout)

    @property
    def bits_per_report(self) -> int:
        """Bits that a client sends where the k-th message goes to the k-th shuffler: m·s·(place + 1)."""
        return self.layout.bits

    # -- what is done -----------------------------------------------------------------------------------

    def encode(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> TaggedBits:
        """Each client's messages.

        Raises:
            ValueError: if x is not a batch of the protocol's data, or has NaN or infinite entries.
        """
        return self._encoded(self._checked(x), secure(randomness))

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each client's whole report, its messages in the order of their tags, for a shuffler that adds up.

        Raises:
            ValueError: as :meth:`encode`, or if ``clip`` is false: a sum always clips.
        """
        check_clips(clip)
        sent = self.encode(x, randomness=randomness)
        return self.planes.reports(sent.places, sent.bits, mechanism=self.name, dim=self.dim)

    def total(self, reports: Reports) -> Tensor:
        """The signs of whole reports added up by plane and coordinate, int64 (levels·D,) on the CPU.

        Totals of groups add up.

        Raises:
            ValueError: if the reports are not this protocol's, or one is none that a client can make.
        """
        self.layout.check(reports)
        columns, signs = self.planes.parse(reports)
        counts: Tensor = self.planes.count(columns, signs).cpu().flatten()
        return counts

    def messages(self, sent: TaggedBits) -> list[Reports]:
        """Each client's messages as reports of (tag, place, bit), one batch a client, for a ``Shuffler``."""
        tag = torch.arange(self.tags)
        batches = []
        for places, bits in zip(sent.places.flatten(1), sent.bits.flatten(1), strict=True):
            fields = (
                Field(tag, label_bits(self.tags)),
                Field(places, self.planes.blocks.index_bits),
                Field(bits.to(torch.int64), 1),
            )
            batches.append(Reports(mechanism=self.name, dim=self.dim, fields=fields))
        return batches

    def tally(self, messages: Reports) -> Tally:
        """Count shuffled messages by plane and coordinate, (levels·D,).

        Messages with a tag or a place that does not exist, which no honest client sends, are set aside and
        counted as foreign. Any other message moves one plane of one coordinate by one sign, whoever sent it;
        :meth:`surplus` tells if there were too many.

        Raises:
            ValueError: if the reports are not this protocol's.
        """
        if messages.mechanism != self.name or messages.dim != self.dim or len(messages.fields) != 3:
            raise ValueError(
                f"these are reports of {messages.mechanism!r} in dimension {messages.dim}, "
                f"not of {self.name!r} in dimension {self.dim}"
            )
        tag, place, bit = (part.values.to(torch.int64) for part in messages.fields)
        if messages.fields[2].bits != 1:
            raise ValueError("a sign takes one bit")
        block = tag % self.samples
        known = (tag < self.tags) & (place < self.planes.blocks.lengths()[block])
        labels = self.levels * self.size
        label = (tag // self.samples) * self.size + self.planes.blocks.starts()[block] + place
        label = torch.where(known, label, labels)
        fields = (Field(label, label_bits(labels + 1)), Field(bit, 1))
        return tally(Reports(mechanism=self.name, dim=self.dim, fields=fields), labels=labels)

    def surplus(self, counted: Tally) -> int:
        """Messages under tags beyond one of each client; honest clients send none."""
        return int((self._by_tag(counted) - self.cohort).clamp(min=0).sum())

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Randomise each row and add up all signs, int64 (levels·D,) on the CPU; chunks of clients add up.

        Memory beyond the batch is bounded.

        Raises:
            ValueError: as :meth:`encode`.
        """
        source = secure(randomness)
        rows = self._checked(x)
        counts = torch.zeros(self.levels * self.size, dtype=torch.int64)
        step = max(1, _ENTRIES_AT_ONCE // max(self.tags, self.size))
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows))
            counts += self.signs(self._encoded(part, source))
        return counts

    def signs(self, sent: TaggedBits) -> Tensor:
        """Clients' signs added up by plane and coordinate, int64 (levels·D,) on the CPU.

        Raises:
            ValueError: if there is a place outside of its block: then a client did not follow the protocol.
        """
        lengths = self.planes.blocks.lengths().to(sent.places.device)
        if not bool(((sent.places >= 0) & (sent.places < lengths)).all()):
            raise ValueError("a client sent a place outside of its block: leave its messages out")
        signs = sent.bits.to(torch.int64) * 2 - 1
        counts: Tensor = self.planes.count(self.planes.columns(sent.places), signs).cpu().flatten()
        return counts

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of the sum over the clients that answered, float64 (dim,).

        Args:
            total: the tally; or signs added up by plane and coordinate, (levels·D,).
            reports: of how many clients messages are in it; a tally says so by itself, if every one of them
                sent one message under each tag.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        signs = 2 * total.ones - total.bits if isinstance(total, Tally) else total
        if signs.shape != (self.levels * self.size,):
            raise ValueError(f"a total is ({self.levels * self.size},), got {tuple(signs.shape)}")
        count = checks.whole("reports", self.senders(total) if reports is None else reports, at_least=0)
        sums = self.planes.estimate(signs.view(self.levels, self.size))
        return self._estimate(sums, reports=count)

    def senders(self, total: Tensor | Tally) -> int:
        """How many clients' messages a tally is of.

        Raises:
            ValueError: if it does not say so: its tags have different numbers of messages, or it is signs
                alone.
        """
        if not isinstance(total, Tally):
            raise ValueError("signs alone do not say how many clients sent them: pass reports=")
        by_tag = self._by_tag(total)
        count = int(by_tag[0, 0])
        if bool((by_tag != count).any()):
            raise ValueError(
                "every client sends one message under each tag; these are not those of a whole number of "
                "clients: pass reports="
            )
        return count

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of the protocol's estimate, (dim,), for a host that simulates all clients.

        Raises:
            ValueError: as :meth:`encode`, or if there are not exactly ``clients`` rows.
        """
        rows = self._checked(x)
        if rows.num_rows != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {rows.num_rows} rows")
        return self.estimate(self.share(rows, randomness=randomness), reports=self.cohort).to(
            rows.compute_dtype
        )

    def _by_tag(self, counted: Tally) -> Tensor:
        """Messages under each tag, int64 (levels, samples)."""
        by_plane = counted.bits.view(self.levels, self.size).cumsum(dim=1)
        ends = self.planes.blocks.starts() + self.planes.blocks.lengths() - 1
        return by_plane[:, ends].diff(dim=1, prepend=torch.zeros(self.levels, 1, dtype=torch.int64))

    def _encoded(self, rows: Rows, randomness: Randomness) -> TaggedBits:
        places = self.planes.draw(rows.num_rows, randomness=randomness, device=rows.device)
        values = self._values(rows, self.planes.columns(places))
        return TaggedBits(places=places, bits=self.planes.flip(values, randomness=randomness))
