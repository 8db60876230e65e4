"""Stages: what takes a round's replies and gives back reports without names or order, or their sum alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor
from typing_extensions import override

from flwr_shuffle.messages import Instruction, SharedTerms, payload_of, read_plain_payload
from shuffle_plugins.core import ReportLayout, Reports
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.shuffler import BatchRefused, InMemoryShuffler, Refusal, Shuffler

_Items = TypeVar("_Items", bound=Sized)
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """An unbiased estimate of the sum of the clients' vectors, (dim,), and of how many reports it is."""

    sum: Tensor
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    """What a stage gives the server of a round's replies.

    Attributes:
        reports: the readable reports of all clients in random order; None if there are none or they were
            added up.
        answered: how many clients answered with a report or a dummy. Where every invited client was asked
            for a report, a dummy is no answer, and is left out if it can be recognised.
        participants: ids of the nodes that answered without an error, in ascending order.
        unreadable: how many replies were dropped because they were not a report of this round.
        foreign: how many of these this server itself found not to be a report, not a mix node or an
            aggregator; None if all.
        refusal: why the whole batch was refused; None if it was shuffled.
        total: the reports' sum, of a stage that adds reports up.
    """

    reports: Reports | None
    answered: int
    participants: tuple[str, ...]
    unreadable: int = 0
    foreign: int | None = None
    refusal: Refusal | None = None
    total: Total | None = None

    @property
    def count(self) -> int:
        """How many reports came out, or are in the total."""
        if self.total is not None:
            return self.total.reports
        return 0 if self.reports is None else len(self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """A round's replies, and what a stage needs to read them.

    Attributes:
        messages: at most one from each invited node. A client that answered with an error has dropped out.
        dim: length of the vector that a client reports.
        grid: Flower's own grid, through which the stage can reach mix nodes or aggregators.
        timeout: seconds to wait for such nodes; None waits without end.
    """

    messages: Sequence[Message]
    instruction: Instruction
    dim: int
    grid: Grid
    timeout: float | None = None

    @property
    def answers(self) -> list[Message]:
        """The clients' replies, without those that report an error."""
        return [reply for reply in self.messages if not reply.has_error()]

    @property
    def layout(self) -> ReportLayout:
        """The form of every report of the round."""
        return self.instruction.mechanism.layout(dim=self.dim)

    def clients(self, reports: int) -> int:
        """How many clients have sent at least so many reports; any left over are not counted as one."""
        return reports // self.instruction.samples_per_client

    def anonymous(self, reports: Reports | None, *, answered: int, **fields: Any) -> Anonymous:
        """What a stage gives back of these replies."""
        nodes = sorted(each.metadata.src_node_id for each in self.answers)
        return Anonymous(reports=reports, answered=answered, participants=tuple(map(str, nodes)), **fields)


class ShuffleStage(ABC):
    """A shuffler as a Flower server uses it: it takes the clients' replies and gives back their reports.

    Before each round the server calls :meth:`open`, and sets ``fewest_answers``. During the round it calls
    :meth:`take` with each reply as it arrives, and at the end :meth:`collect` once. What :meth:`collect`
    returns must not depend on the order of the replies, nor say whose report is which.

    Attributes:
        takes_several: whether clients may send several reports each, which come out as far apart as any
            others.
        adds_up: whether only the sum of the reports comes out; some mechanisms' reports are safe only so.
        hides_shares: whether the server sees nothing of the reports but their sum, not even in this process.
            Then clients that decide in secret whether they take part in a sum hide that from the server too.
        analyzer_key: public key to which clients seal their reports; empty if they send them unsealed.
        mixers: to how many mixers they seal them.
        fewest_answers: how many clients of the current round must answer, with a report or a dummy, and the
            instruction's ``minimum`` with a report, or nobody gets to see its reports.
    """

    takes_several = False
    adds_up = False
    hides_shares = False
    analyzer_key = b""
    mixers = 1
    fewest_answers = 1

    @property
    @abstractmethod
    def trust(self) -> str:
        """One sentence: who must be trusted for reports to come out without names and order."""

    @property
    def minimum(self) -> int:
        """Fewest reports that the stage gives out together, as far as the server knows; at least one."""
        return 1

    def shared(self, mechanism: PrivateSum, *, clients: int) -> SharedTerms | None:
        """What clients of a new round must know to split their counts into shares; None if they do not.

        ValueError if the stage cannot add up reports of this mechanism, or of so many clients as are invited.
        """
        del mechanism, clients
        return None

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Ids of nodes that are not asked for reports, such as a mix node."""
        return frozenset()

    def open(self, grid: Grid) -> None:
        """Find the nodes that the stage needs, if it needs any; cheap when they are known already."""
        del grid

    def take(self, reply: Message, *, instruction: Instruction, dim: int) -> Message:
        """Take the large parts out of a client's reply as it arrives, such as into a file, and return what
        must stay in memory until all have arrived and go to :meth:`collect`.
        """
        del instruction, dim
        return reply

    @abstractmethod
    def collect(self, replies: Replies) -> Anonymous:
        """Shuffle one round's replies, and give back their reports or their sum, or why there are none."""


class InMemoryStage(ShuffleStage):
    """A shuffler in the server's own process, which must be trusted to forget whose report is whose."""

    takes_several = True

    def __init__(self, shuffler: Shuffler) -> None:
        if not isinstance(shuffler, Shuffler):
            raise ValueError(f"shuffler must be a Shuffler, got {shuffler!r}")
        self._shuffler = shuffler

    @property
    @override
    def trust(self) -> str:
        return self._shuffler.trust

    @property
    @override
    def minimum(self) -> int:
        return self._shuffler.minimum

    @override
    def collect(self, replies: Replies) -> Anonymous:
        layout, encoded = replies.layout, list[bytes]()
        each, several = layout.report_bytes, replies.instruction.samples_per_client
        dummies = unreadable = 0
        for reply in replies.answers:
            try:
                sent = read_plain_payload(payload_of(reply), size=each * several)
            except ValueError:
                unreadable += 1
                continue
            if sent is not None:
                encoded += [sent[place * each : (place + 1) * each] for place in range(several)]
            elif replies.instruction.has_dummies:
                dummies += 1
        reports = readable_reports(encoded, layout=layout)
        count = replies.clients(0 if reports is None else len(reports))
        answered, unreadable = count + dummies, unreadable + replies.clients(len(encoded)) - count
        try:
            enough = count >= max(self.minimum, replies.instruction.minimum)
            if reports is None or not enough or answered < self.fewest_answers:
                raise BatchRefused(Refusal.UNDER_MINIMUM)
            reports = self._shuffler.shuffle_reports(reports)
        except BatchRefused as refused:
            return replies.anonymous(None, answered=answered, unreadable=unreadable, refusal=refused.code)
        return replies.anonymous(reports, answered=answered, unreadable=unreadable)


class SummingStage(InMemoryStage):
    """Adds up reports in the server's own process, which must be trusted with them, and gives back their sum
    alone, as for a ``VectorSum``, of whose reports a single one may not protect its client at all.
    """

    takes_several = False
    adds_up = True

    def __init__(self, *, minimum: int = 2) -> None:
        super().__init__(InMemoryShuffler(minimum=minimum))

    @property
    @override
    def trust(self) -> str:
        return "this server process adds up the clients' reports and must be trusted with each of them"

    @override
    def collect(self, replies: Replies) -> Anonymous:
        shuffled = super().collect(replies)
        if shuffled.reports is None:
            return shuffled
        total = valid_sum(replies.instruction.mechanism.build(dim=replies.dim), shuffled.reports)
        left_out = len(shuffled.reports) - total.reports
        enough = total.reports >= max(self.minimum, replies.instruction.minimum)
        return replace(
            shuffled,
            reports=None,
            answered=shuffled.answered - left_out,
            unreadable=shuffled.unreadable + left_out,
            total=total if enough else None,
            refusal=None if enough else Refusal.UNDER_MINIMUM,
        )


def readable_reports(encoded: Sequence[bytes], *, layout: ReportLayout) -> Reports | None:
    """The reports among messages of one report each, in their order, without those that are none; None if
    all are.
    """
    header, size = layout.header(1), layout.report_bytes
    alike = [data for data in encoded if len(data) == size and data.startswith(header)]
    parts = [reports for reports, _ in _by_halves(Reports.from_each, alike, lambda all, i, j: all[i:j])]
    return Reports.concat(parts) if parts else None


def valid_sum(mechanism: PrivateSum, reports: Reports) -> Total:
    """The mechanism's sum over those reports that it accepts, and how many those are.

    A client can send well-formed bytes that the mechanism never makes, which are found by halving. The
    estimate is made once, of all totals: adding estimates up would leave rounding errors that depend on how
    reports were grouped.
    """
    found: list[tuple[Tensor, int]] = list(_by_halves(mechanism.total, reports, Reports.narrow))
    count = sum(size for _, size in found)
    if count == 0:
        return Total(sum=torch.zeros(mechanism.dim), reports=0)
    first, *others = (total for total, _ in found)
    return Total(sum=mechanism.estimate(sum(others, start=first), reports=count), reports=count)


def _by_halves(
    make: Callable[[_Items], _Made], items: _Items, cut: Callable[[_Items, int, int], _Items]
) -> Iterator[tuple[_Made, int]]:
    """``make(items)`` and the number of items; if that raises ValueError, the same of each half, and so
    on.
    """
    size = len(items)
    try:
        yield make(items), size
    except ValueError:
        if size > 1:
            yield from _by_halves(make, cut(items, 0, size // 2), cut)
            yield from _by_halves(make, cut(items, size // 2, size), cut)
