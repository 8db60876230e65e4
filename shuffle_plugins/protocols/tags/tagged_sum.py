"""Multi-message mean estimation: flipped bits of sampled coordinates, each shuffled under its tag."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Adversary, PrivacyTarget, Sampling, Tag, TaggedRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks, rows_at_once
from shuffle_plugins.mechanisms import CountRange
from shuffle_plugins.mechanisms.bit_planes import NEXT_TO_NOTHING, BitPlanes, SampledPlan, plane_leans
from shuffle_plugins.mechanisms.sign_patterns import SignThresholds
from shuffle_plugins.protocols.shuffle_protocol import SummingProtocol, check_clips
from shuffle_plugins.protocols.tags.calibration import calibrated_budget
from shuffle_plugins.protocols.tags.plans import level_epsilons, tag_counts
from shuffle_plugins.protocols.tally import Tally, label_bits
from shuffle_plugins.randomness import Randomness, secure

_ENTRIES_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSum(SummingProtocol):
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

    only_levels: ClassVar[int | None] = None  # of data that have no more

    dim: int
    budget: float
    samples: int
    levels: int = 1
    planes: BitPlanes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        SummingProtocol.__post_init__(self)
        checks.number("budget", self.budget, above=0)
        checks.whole("levels", self.levels)
        checks.whole("samples", self.samples, at_most=self.size)
        thresholds = tuple(map(SignThresholds.of, level_epsilons(self.plan, budget=self.budget)))
        object.__setattr__(self, "planes", BitPlanes(dim=self.size, plan=self.plan, thresholds=thresholds))
        _ = self.round()

    # -- what kinds of data differ in --------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> int:
        """D, coordinates that are sampled."""

    @property
    def flat(self) -> float:
        """How large all coordinates of two opposite data are, at most 1: they make the lower bound."""
        return 1.0

    def _checked(self, x: Tensor | Rows) -> Rows:
        """The data as rows, (clients, dim).

        Raises:
            ValueError: if they are not what the protocol takes.
        """
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")
        return rows.finite(rows.linf_norm())[0]

    @abstractmethod
    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        """What is at these coordinates of each datum in [-1, 1]^D, of the shape (clients, …) of columns."""

    @abstractmethod
    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        """From the estimated sum in [-1, 1]^D to the one in units of the data, (dim,)."""

    @classmethod
    def _coefficients(cls, *, dim: int, **data: Any) -> int:
        """D for data of these fields."""
        return checks.dim(dim)

    @classmethod
    def calibrated(
        cls,
        *,
        cohort: int,
        epsilon: float,
        delta: float,
        num_steps: int = 1,
        population: int | None = None,
        honest_fraction: float = 1.0,
        overhead: float = 0.1,
        levels: int | None = None,
        samples: int | None = None,
        **data: Any,
    ) -> Self:
        """The protocol of the largest budget whose certified ε at δ is at most ``epsilon``.

        Args:
            cohort, honest_fraction: as the fields.
            epsilon: target for all rounds together, replace-one.
            delta: δ of the target.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``cohort`` of them without replacement.
            overhead: share of variance that fewer bits may cost.
            levels: m; with ``samples`` chosen by default.
            samples: s.
            data: the fields that say what clients hold: ``dim``, and what else the class has.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        return calibrated_budget(
            PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps),
            build=lambda plan, budget: cls(
                cohort=cohort,
                budget=budget,
                samples=plan.samples,
                levels=plan.levels,
                honest_fraction=honest_fraction,
                **data,
            ),
            size=cls._coefficients(**data),
            cohort=cohort,
            population=population,
            honest_fraction=honest_fraction,
            overhead=overhead,
            levels=cls.only_levels if levels is None else levels,
            samples=samples,
        )

    # -- what it costs ----------------------------------------------------------------------------------

    @property
    def plan(self) -> SampledPlan:
        """The bit planes (levels) and blocks per plane (samples) that a client sends messages on."""
        return SampledPlan(levels=self.levels, samples=self.samples)

    @property
    def message_epsilons(self) -> tuple[float, ...]:
        """ε0 of one message of each plane, in nats."""
        return level_epsilons(self.plan, budget=self.budget)

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participation: float | None = None,
    ) -> TaggedRound:
        """As :meth:`SummingProtocol.round`, or with secret participation.

        Args:
            population, cohort, sampling, adversary: as there.
            participation: probability with which each client's messages are about its datum, by a secret coin
                of its own; the others' are about zero. None if all are about the client's own.

        Raises:
            ValueError: if the numbers contradict each other, or no honest client is left.
        """
        present = self.participants(population=population, cohort=cohort, sampling=sampling)
        single, several = tag_counts(self.plan, size=self.size)
        # Of numbers next to 0 the last of several planes is almost certain, too.
        sizes = (self.flat, self.flat * NEXT_TO_NOTHING)
        leans = max((plane_leans(size, levels=self.levels) for size in sizes), key=min)
        counts = [(count, places) for count, places in ((single, False), (several, True)) if count]
        return TaggedRound(
            tags=tuple(
                Tag(local_epsilon=epsilon, count=count, places=places, lean=lean)
                for epsilon, lean in zip(self.message_epsilons, leans, strict=True)
                for count, places in counts
            ),
            population=present.population,
            cohort=present.reports,
            honest=None if present.honest == present.reports else present.honest,
            opposite=True,
            sampling=present.sampling,
            adversary=adversary,
            participation=participation,
        )

    def secret_round(self, *, answered: int, participation: float) -> TaggedRound:
        """The round of those who answer, each adding data with that probability; see :meth:`round`.

        Raises:
            ValueError: as :meth:`round`.
        """
        return self.round(cohort=answered, participation=participation)

    @property
    def tags(self) -> int:
        """Tags, and messages that a client sends: m·s."""
        return self.levels * self.samples

    @property
    def messages_per_client(self) -> int:
        """Messages that a client sends: one under each tag, m·s."""
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
    def counts(self) -> CountRange:
        """A client's sign, or nothing, in each coefficient of each plane: blocks of a plane are disjoint."""
        return CountRange(self.levels * self.size, -1, 1)

    # -- what is done -----------------------------------------------------------------------------------

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each client's messages as one report, in the order of their tags.

        ``clip`` must be true: a sum always clips. Otherwise as :meth:`Reporter.randomize`.
        """
        check_clips(clip)
        places, bits = self._encoded(self._checked(x), secure(randomness))
        return self.layout.reports(*self.planes.sent(places, bits))

    @property
    def message_layout(self) -> ReportLayout:
        """The form of one message to a shuffler of all tags: tag, place in the tag's block, bit."""
        fields = map(FieldLayout, (label_bits(self.tags), self.planes.blocks.index_bits, 1))
        return ReportLayout(self.name, self.dim, tuple(fields))

    def messages(self, reports: Reports) -> list[Reports]:
        """Each client's messages as (tag, place, bit), a batch for each client, for a ``Shuffler``."""
        columns, signs = self._parsed(reports)
        places, bits = columns - self.planes.blocks.starts().to(columns.device), signs > 0
        tag, layout = torch.arange(self.tags), self.message_layout
        return [
            layout.reports(tag, place, bit)
            for place, bit in zip(places.flatten(1), bits.flatten(1), strict=True)
        ]

    def tally(self, messages: Reports) -> Tally:
        """Count shuffled messages by plane and coordinate, (levels·D,).

        Messages with a tag or a place that does not exist, which no honest client sends, are set aside and
        counted as foreign. Any other message moves one plane of one coordinate by one sign, whoever sent it;
        :meth:`surplus` tells if there were too many.

        Raises:
            ValueError: if the reports are not this protocol's messages.
        """
        self.message_layout.check(messages)
        tag, place, bit = (part.values.to(torch.int64) for part in messages.fields)
        block = tag % self.samples
        known = (tag < self.tags) & (place < self.planes.blocks.lengths()[block])
        label = (tag // self.samples) * self.size + self.planes.blocks.starts()[block] + place
        return Tally.of(torch.where(known, label, -1), bit, labels=self.levels * self.size)

    def surplus(self, counted: Tally) -> int:
        """Messages under tags beyond one of each client; honest clients send none."""
        return int((self._by_tag(counted) - self.cohort).clamp(min=0).sum())

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Randomise each row and add up all signs, int64 (levels·D,) on the CPU, in bounded memory."""
        source = secure(randomness)
        rows = self._checked(x)
        counts = torch.zeros(self.levels * self.size, dtype=torch.int64)
        step = rows_at_once(max(self.tags, self.size), device=rows.device, entries=_ENTRIES_AT_ONCE)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows))
            places, bits = self._encoded(part, source)
            counts += self._added(self.planes.columns(places), bits.to(torch.int64) * 2 - 1)
        return counts

    def total(self, reports: Reports) -> Tensor:
        """Signs added up by plane and coordinate, int64 (levels·D,); see :meth:`Summation.total`."""
        return self._added(*self._parsed(reports))

    @override
    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        signs = 2 * total.ones - total.bits if isinstance(total, Tally) else total
        if signs.shape != (self.levels * self.size,):
            raise ValueError(f"a total is ({self.levels * self.size},), got {tuple(signs.shape)}")
        count = checks.whole("reports", self.senders(total) if reports is None else reports, at_least=0)
        sums = self.planes.estimate(signs.view(self.levels, self.size))
        return self._in_units(sums, reports=count)

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

    def _by_tag(self, counted: Tally) -> Tensor:
        """Messages under each tag, int64 (levels, samples)."""
        by_plane = counted.bits.view(self.levels, self.size).cumsum(dim=1)
        ends = self.planes.blocks.starts() + self.planes.blocks.lengths() - 1
        return by_plane[:, ends].diff(dim=1, prepend=torch.zeros(self.levels, 1, dtype=torch.int64))

    def _encoded(self, rows: Rows, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Places within their blocks, and flipped bits, (clients, levels, samples) both."""
        places = self.planes.draw(rows.num_rows, randomness=randomness, device=rows.device)
        values = self._values(rows, self.planes.columns(places))
        return places, self.planes.flip(values, randomness=randomness)

    def _parsed(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Coordinates and signs out of whole reports, (clients, levels, samples) both."""
        self.layout.check(reports)
        return self.planes.parse(reports)

    def _added(self, columns: Tensor, signs: Tensor) -> Tensor:
        counts: Tensor = self.planes.count(columns, signs).cpu().flatten()
        return counts
