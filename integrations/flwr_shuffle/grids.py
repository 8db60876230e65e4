"""Grids, in this process and one that gives replies back shuffled, and stages, which shuffle or add up."""

from __future__ import annotations

import logging
import mmap
import re
import secrets
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import mul
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
    UserConfig,
)
from flwr.clientapp import ClientApp

# Flower has no public address for these: ids, codes, a run, its nodes, its own grids, and the identity under
# which a process makes messages.
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from flwr_shuffle.messages import (
    RECORD_KEY,
    ClientRefusal,
    Instruction,
    SharedTerms,
    WindowPlace,
    copied,
    payload_of,
    read_plain_payload,
    type_of,
)
from flwr_shuffle.updates import Layout
from shuffle_plugins.core import ReportLayout, Reports, checks
from shuffle_plugins.core.checks import Ranged
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.protocols import WindowedSum, Windows, WindowSolver
from shuffle_plugins.shuffler import BatchRefused, InMemoryShuffler, Refusal, Shuffler

_log = logging.getLogger("flwr")
_Items = TypeVar("_Items", bound=Sized)
_Made = TypeVar("_Made")

# How Flower says that an app has no function for a message.
NO_HANDLER = re.compile(r"No \w+ function registered with name '(\w+)'")

SIMULATED_HEARTBEAT = 86_400.0  # seconds, at least; a SuperNode's is half an hour at most

NodeConfig = Mapping[str, bool | float | int | str]


def _seconds(name: str, value: object) -> object:
    if type(value) not in (int, float) or not value > 0:  # type: ignore[operator]
        raise ValueError(f"{name} is a positive number of seconds, got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Waiting(Ranged):
    """How long a server waits, in seconds; each may be infinite.

    Args:
        connect_timeout: for ``population`` clients at the start of a round. After the run's first round fewer
            will do after that time, down to ``minimum_reports``: clients may be gone for good.
        discovery_timeout: for mix nodes or aggregators to be connected.
        answer_timeout: for a node to say whether it is one, or which ε0 it takes in a ``GroupsStrategy``.
        work_timeout: for its work of a round, where the round's own timeout is not shorter.
        poll_interval: between two looks for new nodes.
    """

    connect_timeout: Annotated[float, _seconds] = 600.0
    discovery_timeout: Annotated[float, _seconds] = 300.0
    answer_timeout: Annotated[float, _seconds] = 60.0
    work_timeout: Annotated[float, _seconds] = 600.0
    poll_interval: Annotated[float, _seconds] = 1.0


class MessageGrid(Grid):
    """A grid whose messages are made as ``flwr.app.Message`` makes them."""

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


class WrappedGrid(MessageGrid):
    """Another grid: everything passes as it is, but for what a subclass overrides."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @override
    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    @override
    def run(self) -> Run:
        return self._grid.run

    @override
    def get_node_ids(self) -> list[int]:
        return list(self._grid.get_node_ids())

    @override
    def get_nodes(self) -> list[NodeInfo]:
        """Those nodes of the other grid whose ids :meth:`get_node_ids` gives."""
        shown = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in shown]

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


def arriving(grid: Grid, messages: list[Message], *, timeout: float | None) -> Iterator[Message]:
    """Send messages and yield the replies as they come, at most 32 in memory at once, where Flower's
    ``send_and_receive`` holds all of them. A grid of another kind than Flower's own is asked by it.
    """
    if type(grid) not in (HttpGrid, InMemoryGrid):
        yield from grid.send_and_receive(messages, timeout=timeout)
        return
    interval = grid.pull_interval if isinstance(grid, InMemoryGrid) else 3.0  # as in Flower's own
    waiting = dict.fromkeys(grid.push_messages(messages))
    end = None if timeout is None else time.monotonic() + timeout
    while waiting and (end is None or time.monotonic() < end):
        asked, came = iter(list(waiting)), False
        while some := list(islice(asked, 32)):
            for reply in grid.pull_messages(some):
                came = True
                waiting.pop(reply.metadata.reply_to_message_id, None)
                yield reply
        if waiting and not came:
            time.sleep(interval)


class InProcessGrid(MessageGrid):
    """Nodes that live in this process and answer in turn; each keeps its context from round to round.

    A message reaches a node as a copy of its records, and an exception in the app comes back as Flower's
    engines send it, with its traceback in the log. A warning that many nodes log in a round is shown once.
    ``node_config`` is the same for all nodes, or by the node's position 0, 1, …; ``partition-id`` and
    ``num-partitions`` are set beside it, unless it sets them.
    """

    def __init__(
        self,
        client_app: ClientApp,
        *,
        num_nodes: int,
        node_config: NodeConfig | Callable[[int], NodeConfig] | None = None,
        run_config: NodeConfig | None = None,
        run_id: int = 1,
    ) -> None:
        self._client_app = client_app
        self._node_config = node_config or {}
        self._run_config = cast(UserConfig, dict(run_config or {}))
        self._run = Run.create_empty(run_id=run_id)
        first = SUPERLINK_NODE_ID + 1
        self._nodes = range(first, first + checks.whole("num_nodes", num_nodes))
        self._contexts: dict[int, Context] = {}
        self._waiting: dict[str, Message] = {}
        _identify(run_id)

    @property
    @override
    def run(self) -> Run:
        return self._run

    @override
    def set_run(self, run: Run) -> None:
        self._run = run

    @override
    def get_node_ids(self) -> list[int]:
        return list(self._nodes)

    @override
    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, heartbeat_interval=SIMULATED_HEARTBEAT) for node in self._nodes]

    def context(self, node_id: int) -> Context:
        """What a node keeps: its configuration and its state."""
        if node_id not in self._nodes:
            raise ValueError(f"no node {node_id}; there are {self._nodes.start} to {self._nodes.stop - 1}")
        if node_id not in self._contexts:
            position = node_id - self._nodes.start
            own = self._node_config(position) if callable(self._node_config) else self._node_config
            self._contexts[node_id] = Context(
                run_id=self._run.run_id,
                node_id=node_id,
                node_config={"partition-id": position, "num-partitions": len(self._nodes), **own},
                state=RecordDict(),
                run_config=self._run_config,
            )
        return self._contexts[node_id]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have each message answered; the ids are to be given to :meth:`pull_messages`."""
        pushed = list(messages)
        replies = self._answers(pushed)
        ids = [message.metadata.message_id for message in pushed]
        self._waiting.update(zip(ids, replies, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages, each given out once."""
        return [self._waiting.pop(key) for key in list(message_ids) if key in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Have each message answered, in order. No node is late, so there is nothing to time out."""
        del timeout
        return self._answers(messages)

    def _answers(self, messages: Iterable[Message]) -> list[Message]:
        said: set[tuple[Any, ...]] = set()

        def is_new(record: logging.LogRecord) -> bool:  # whichever of the round's nodes logs it first
            args = record.args if isinstance(record.args, tuple) else ()
            line = record.pathname, record.lineno, *(str(arg) for arg in args if not isinstance(arg, int))
            fresh = line not in said
            said.add(line)
            return fresh

        _log.addFilter(is_new)
        try:
            return [self._answer(message) for message in messages]
        finally:
            _log.removeFilter(is_new)

    def _answer(self, message: Message) -> Message:
        context = self.context(message.metadata.dst_node_id)
        # A SuperLink fills these in when a message is pushed; they have no public setter.
        message.metadata.__dict__.update(
            _run_id=self._run.run_id, _src_node_id=SUPERLINK_NODE_ID, _message_id=uuid.uuid4().hex
        )
        delivered = Message(RecordDict(), reply_to=message)
        delivered.metadata.__dict__.update(message.metadata.__dict__)
        delivered.content = copied(message.content)
        try:
            return self._client_app(delivered, context)
        except Exception as error:
            if not NO_HANDLER.search(str(error)):
                _log.exception("the ClientApp of node %d raised an exception", message.metadata.dst_node_id)
            reason = f"{type(error)}:<'{error}'>"
            return Message(
                Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=delivered
            )


def _identify(run_id: int) -> None:
    """Let this process make messages, unless it is a Flower process and can already."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 0


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
        return reports // self.instruction.reports_per_client

    def anonymous(self, reports: Reports | None, *, answered: int, **fields: Any) -> Anonymous:
        """What a stage gives back of these replies."""
        nodes = sorted(each.metadata.src_node_id for each in self.answers)
        return Anonymous(reports=reports, answered=answered, participants=tuple(map(str, nodes)), **fields)


@contextmanager
def kept_in(folder: Path | str, what: str) -> Iterator[None]:
    """An error says what to do if something of a round cannot be written to a folder."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{what} cannot be kept in {folder} ({error.strerror}): make room there, or name another. The "
            "round is charged; start again to go on",
        ) from error


def in_file(numbers: NDArray[Any], *, folder: Path | str) -> NDArray[Any]:
    """A copy of an array in a nameless file, of which the system has in memory what there is room for."""
    with kept_in(folder, "what this server keeps of its windows"), tempfile.TemporaryFile(dir=folder) as file:
        file.write(np.ascontiguousarray(numbers).data)
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), numbers.dtype)


class Series:
    """What a server keeps of a series of windows from one to the next: O(b·dim) numbers, in memory, or in
    nameless files in a ``folder``.

    It lasts as long as the process and the run, and until a window is lost. Then a new one begins, with noise
    of its own, and sums of the old one are never added to its sums.

    Attributes:
        id, index: which window is opened next, as of :class:`WindowPlace`.
        clients: the most in one round; so many bits have the numbers of the whole series.
        check_seed: of its check words.
        windows: opens them, where this process sees the rounds' own sums.
        shares: this process's shares of the last b − 1 sums of data where it does not, the newest first.
    """

    def __init__(
        self, mechanism: WindowedSum, *, run: str, clients: int, folder: Path | str | None = None
    ) -> None:
        self.id, self.check_seed = secrets.token_bytes(32), secrets.token_bytes(32)
        self.index = 0
        # Cohorts of one federation differ a little; an eighth more costs at most one bit.
        self.clients = clients + -(-clients // 8)
        self.windows = Windows(mechanism)
        self.shares: deque[Any] = deque(maxlen=mechanism.band - 1)
        self._mechanism, self._run, self._folder = mechanism, run, folder
        self._solver = WindowSolver(
            mechanism, keep=lambda solved: torch.from_numpy(self.kept(solved.numpy()))
        )
        self._counts: deque[int] = deque(
            maxlen=mechanism.band
        )  # clients of the last rounds, the newest first

    @property
    def place(self) -> WindowPlace:
        """The window that is opened next."""
        return WindowPlace(series=self.id, index=self.index)

    def lasts(self, mechanism: PrivateSum, *, run: str, clients: int) -> bool:
        """Whether the next round of so many clients can belong to it."""
        return (self._mechanism, self._run) == (mechanism, run) and clients <= self.clients

    def kept(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """A copy of the numbers where they are kept."""
        return numbers.copy() if self._folder is None else in_file(numbers, folder=self._folder)

    def largest(self, reports: int) -> int:
        """The largest number that the next window can have, with so many clients in its round."""
        mechanism, counts = self._mechanism, (reports, *self._counts)
        data: int = sum(map(mul, mechanism.coefficients, counts)) * mechanism.data_highest
        return data + reports * mechanism.coins_highest

    def solve(self, window: Tensor, *, reports: int) -> Total:
        """The estimate of a round's own sum, once its window, int64 (dim,), is open; the next one follows."""
        found = Total(sum=self._solver.solve(window, reports=reports), reports=reports)
        self._counts.appendleft(reports)
        self.index += 1
        return found


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
        series: of the windows of a ``WindowedSum``; None before the first, and after one was lost.
        window_folder: of files with what is kept of a series; None keeps it in memory.
    """

    takes_several = False
    adds_up = False
    hides_shares = False
    analyzer_key = b""
    mixers = 1
    fewest_answers = 1
    series: Series | None = None
    window_folder: Path | str | None = None

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

    def next_window(self, mechanism: PrivateSum, *, run: str, clients: int) -> WindowPlace | None:
        """The window that the next round opens, in a new series if it must be; None if it opens none.

        To be asked before :meth:`shared`. A window that is not opened is the next one again.
        """
        if not isinstance(mechanism, WindowedSum):
            return None
        if self.series is None or not self.series.lasts(mechanism, run=run, clients=clients):
            folder = self.window_folder
            self.series = Series(mechanism, run=run, clients=clients, folder=folder)
            where = "in memory" if folder is None else f"in nameless files in {folder}"
            _log.info(
                "shuffle: a series of windows begins: sums of %d rounds at most, each of at most %d clients; "
                "this process keeps what it needs of them %s, and after a restart begins another",
                *(mechanism.band, self.series.clients, where),
            )
        return self.series.place

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
        each, several = layout.report_bytes, replies.instruction.reports_per_client
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
        instruction = replies.instruction
        mechanism = instruction.mechanism.build(dim=replies.dim)
        numbers, count = _valid_total(mechanism, shuffled.reports)
        left_out = len(shuffled.reports) - count
        total = None
        if count >= max(self.minimum, instruction.minimum):
            total = self._estimated(mechanism, numbers, count, window=instruction.window_of(mechanism))
        return replace(
            shuffled,
            reports=None,
            answered=shuffled.answered - left_out,
            unreadable=shuffled.unreadable + left_out,
            total=total,
            refusal=Refusal.UNDER_MINIMUM if total is None else None,
        )

    def _estimated(
        self, mechanism: PrivateSum, numbers: Tensor, count: int, *, window: WindowPlace | None
    ) -> Total:
        if window is None:
            return Total(sum=mechanism.estimate(numbers, reports=count), reports=count)
        series = self.series
        if series is None or series.place != window:
            raise ValueError("these clients were told another window than the next one")
        self.series = None  # a window that was opened and not solved is never opened again
        total = series.solve(series.windows.open(numbers, reports=count), reports=count)
        self.series = series
        return total


def readable_reports(encoded: Sequence[bytes], *, layout: ReportLayout) -> Reports | None:
    """Those of some messages that are one report each, in their order; None if none is."""
    header, size = layout.header(1), layout.report_bytes
    alike = [data for data in encoded if len(data) == size and data.startswith(header)]
    parts = [reports for reports, _ in _by_halves(Reports.from_each, alike, lambda all, i, j: all[i:j])]
    return Reports.concat(parts) if parts else None


def valid_sum(mechanism: PrivateSum, reports: Reports) -> Total:
    """The mechanism's sum over those reports that it accepts, and how many those are.

    The estimate is made once, of all totals: adding estimates up would leave rounding errors that depend on
    how reports were grouped.
    """
    total, found = _valid_total(mechanism, reports)
    count = found // mechanism.reports_per_client
    return Total(
        sum=mechanism.estimate(total, reports=count) if count else torch.zeros(mechanism.dim), reports=count
    )


def _valid_total(mechanism: PrivateSum, reports: Reports) -> tuple[Tensor, int]:
    """The total of those reports that a mechanism accepts, and how many; others are found by halving."""
    found: list[tuple[Tensor, int]] = list(_by_halves(mechanism.total, reports, Reports.narrow))
    if not found:
        return torch.zeros(mechanism.dim), 0
    first, *others = (total for total, _ in found)
    return sum(others, start=first), sum(size for _, size in found)


def _by_halves(
    make: Callable[[_Items], _Made], items: _Items, cut: Callable[[_Items, int, int], _Items]
) -> Iterator[tuple[_Made, int]]:
    """``make(items)`` and the number of items; where that raises ValueError, the same of each half."""
    size = len(items)
    try:
        yield make(items), size
    except ValueError:
        if size > 1:
            yield from _by_halves(make, cut(items, 0, size // 2), cut)
            yield from _by_halves(make, cut(items, size // 2, size), cut)


_REFUSALS = frozenset(str(code) for code in ClientRefusal)
_OTHER_ERROR = "the app failed; its text may hold data and is not shown here, the client's own log has it"


class AnonymousReply(Message):
    """The one reply to a shuffled round, without a sender; ``errors`` says how many clients gave which."""

    def __init__(self, anonymous: Anonymous, *, token: bytes, errors: Counter[str]) -> None:
        super().__init__(RecordDict(), dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.TRAIN)
        self.anonymous, self.token, self.errors = anonymous, token, errors


class GroupGrid(WrappedGrid):
    """The nodes of another grid that are in one group: a strategy on it draws from these alone."""

    def __init__(self, grid: Grid, *, members: Iterable[int]) -> None:
        if isinstance(grid, ShuffleGrid):
            raise ValueError("give the plain grid: the strategy of a group makes its own ShuffleGrid")
        super().__init__(grid)
        self.members = set(members)

    @override
    def get_node_ids(self) -> list[int]:
        return [node for node in self._grid.get_node_ids() if node in self.members]


class ShuffleGrid(WrappedGrid):
    """Any other grid, whose replies to rounds with a shuffle instruction come back without names or order.

    Who must be trusted for that says :attr:`ShuffleStage.trust`. Other messages pass as they are.
    """

    def __init__(self, grid: Grid, *, stage: ShuffleStage) -> None:
        if not isinstance(stage, ShuffleStage):
            raise ValueError(f"stage must be a ShuffleStage, got {stage!r}")
        super().__init__(grid)
        self.stage = stage
        self._serving: frozenset[int] = frozenset()  # said that they serve another stage, and train nothing

    @property
    def whole(self) -> Grid:
        """The grid with all nodes, also those of the stage, if this one is of a group of clients."""
        return self._grid._grid if isinstance(self._grid, GroupGrid) else self._grid

    def open(self) -> None:
        """Let the stage find the nodes it needs; called before each round, as nodes come and go."""
        self.stage.open(self.whole)

    def get_node_ids(self) -> list[int]:
        """All connected nodes but those that are no clients: the stage says so, or they themselves."""
        excluded = self.stage.excluded_nodes | self._serving
        return [node for node in self._grid.get_node_ids() if node not in excluded]

    def is_private(self, message: Message) -> bool:
        """Whether the reply to this message comes without its sender's name, as one with all others."""
        return is_shuffled(message)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages that are not private; ValueError for others."""
        pushed = list(messages)
        if any(map(self.is_private, pushed)):
            raise ValueError(
                "private rounds and queries are not pushed and pulled message by message, which would give "
                "each reply with its sender's name: use send_and_receive"
            )
        return super().push_messages(pushed)

    def clients_of(self, nodes: Sequence[int]) -> set[int]:
        """The nodes of a round; ValueError if one is there twice, or is no client."""
        invited = set(nodes)
        if len(invited) != len(nodes):
            raise ValueError("a node is asked twice in one round; each client may report once")
        if invited & self.stage.excluded_nodes:
            raise ValueError(
                "the mix node, and other nodes that the stage excludes, are no clients: leave them out"
            )
        return invited

    def collected(self, replies: Replies) -> AnonymousReply:
        """The one reply to a round, without names or order."""
        errors = _errors(replies.messages)
        self._serving |= {
            reply.metadata.src_node_id
            for reply in replies.messages
            if _errors([reply])[ClientRefusal.SERVICE_NODE]
        }
        token = replies.instruction.token
        return AnonymousReply(self.stage.collect(replies), token=token, errors=errors)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and wait; replies to a shuffle instruction come back as one :class:`AnonymousReply`."""
        sent = list(messages)
        if not any(is_shuffled(message) for message in sent):
            return super().send_and_receive(sent, timeout=timeout)
        return at_once([(self, sent)], timeout=timeout)


def at_once(
    rounds: Sequence[tuple[ShuffleGrid, list[Message]]], *, timeout: float | None
) -> list[AnonymousReply]:
    """Send the rounds of several grids around one, whose messages all leave together; one reply to each."""
    sent = [message for _, messages in rounds for message in messages]
    asked: dict[int, tuple[ShuffleGrid, Instruction, int]] = {}
    for own, messages in rounds:
        invited = own.clients_of([message.metadata.dst_node_id for message in messages])
        asked |= dict.fromkeys(invited, (own, *_common(messages)))
    if len(asked) < len(sent):
        raise ValueError("a node is asked in two rounds at once; each client is in one group")

    def taken(reply: Message) -> Message:
        if reply.has_error() or reply.metadata.src_node_id not in asked:
            return reply
        own, instruction, dim = asked[reply.metadata.src_node_id]
        return own.stage.take(reply, instruction=instruction, dim=dim)

    replies = _received(map(taken, arriving(rounds[0][0].whole, sent, timeout=timeout)), sent=sent)
    return [
        own.collected(
            Replies(
                messages=[reply for reply in replies if asked[reply.metadata.src_node_id][0] is own],
                instruction=instruction,
                dim=dim,
                grid=own.whole,
                timeout=timeout,
            )
        )
        for own, instruction, dim in dict.fromkeys(asked.values())
    ]


def is_shuffled(message: Message) -> bool:
    """Whether a message has the instruction of a shuffled round."""
    return message.has_content() and RECORD_KEY in message.content


def model_of(messages: Sequence[Message]) -> tuple[str, ArrayRecord]:
    """The model in a round's messages, the same in all of them, and the key of its record."""
    models: dict[int, tuple[str, ArrayRecord]] = {}
    for content in {id(message.content): message.content for message in messages}.values():
        records = content.array_records
        if len(records) != 1:
            raise ValueError("every message of a shuffled round holds the model, as its one ArrayRecord")
        ((key, arrays),) = records.items()
        models[id(arrays)] = (key, arrays)
    first, *others = models.values()
    if any(other != first for other in others):
        raise ValueError(
            "different models go to different clients: the mean of their updates has no model to belong to"
        )
    return first


def _common(messages: Sequence[Message]) -> tuple[Instruction, int]:
    """What all clients of a round are asked, and the length of the vector that they report."""
    if not all(map(is_shuffled, messages)):
        raise ValueError("every message of a shuffled round holds the instruction; send other messages apart")
    queried = all(type_of(message) == MessageType.QUERY for message in messages)
    arrays = {} if queried else dict(model_of(messages)[1])
    records = {id(message.content[RECORD_KEY]): message.content[RECORD_KEY] for message in messages}
    instructions = {Instruction.from_record(record) for record in records.values()}
    if len(instructions) != 1:
        raise ValueError("all clients of a round get the same instruction")
    instruction = instructions.pop()
    dim = 0 if queried else Layout.of(arrays, trained=instruction.update.trained).dim
    return instruction, instruction.report_dim(dim)


def _received(replies: Iterable[Message], *, sent: Sequence[Message]) -> list[Message]:
    """At most one reply from each invited node: what it answered, or its error. The log says what else came.

    Of a client that was lost, or answered too late, the SuperLink sends an error under its own node id, in
    reply to that client's message. What no invited client can have sent is ignored, lest it stop a run.
    """
    coming = iter(replies)
    first_come = list(islice(coming, 1))  # messages have ids of their own once they are sent
    asked = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    if len(asked) < len(sent):  # a grid that sends copies leaves these messages without ids of their own
        asked = {}
    invited = {message.metadata.dst_node_id for message in sent}
    answers: dict[int, Message] = {}
    lost: set[int] = set()
    ignored = 0
    for reply in chain(first_come, coming):
        sender = reply.metadata.src_node_id
        node = asked.get(reply.metadata.reply_to_message_id) if asked else sender
        first = node not in answers or (answers[node].has_error() and not reply.has_error())
        if node in invited and sender == node and first:
            answers[node] = reply
        elif node in invited and sender == SUPERLINK_NODE_ID and reply.has_error():
            lost.add(node)
        else:
            ignored += 1
    lost -= answers.keys()
    silent = len(invited) - len(answers) - len(lost)
    if lost or silent:
        _log.warning(
            "%d of %d clients dropped out: the SuperLink lost %d, and %d did not answer in time",
            *(len(lost) + silent, len(invited), len(lost), silent),
        )
    if ignored:
        _log.warning("%d messages were ignored: no invited client sent them", ignored)
    if errors := _errors(list(answers.values())):
        _log.warning("%d of %d clients answered with an error", errors.total(), len(invited))
        for reason, count in errors.most_common(5):
            _log.warning("\t%d: %s", count, reason)
    return list(answers.values())


def _errors(replies: Sequence[Message]) -> Counter[str]:
    """How many clients answered with each constant text; other texts may hold data and count as one."""
    errors = [reply.error for reply in replies if reply.has_error()]
    return Counter(
        error.reason
        if error.code == ErrorCode.MOD_FAILED_PRECONDITION and error.reason in _REFUSALS
        else _OTHER_ERROR
        for error in errors
    )
