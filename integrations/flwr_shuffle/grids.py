"""Grids: what wraps one of Flower's, and one whose nodes run in this process, for tests and many clients."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, cast

from flwr.app import Context, Error, Message, RecordDict, UserConfig
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
from typing_extensions import override

from flwr_shuffle.messages import copied
from flwr_shuffle.service_messages import NO_HANDLER
from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Ranged

_log = logging.getLogger("flwr")

_PULL_INTERVAL = 3.0  # seconds, as in Flower's own grids
_AT_ONCE = 32  # replies that are pulled together

NodeConfig = Mapping[str, bool | float | int | str]


def _seconds(name: str, value: object) -> object:
    if type(value) not in (int, float) or not value > 0:  # type: ignore[operator]
        raise ValueError(f"{name} is a positive number of seconds, got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Waiting(Ranged):
    """How long a server waits, in seconds; each may be infinite.

    Args:
        connect_timeout: for ``population`` clients at the start of a round. Later than in the run's first
            round, fewer will do after that time, down to ``minimum_reports``: clients may be gone for good.
            Their number is what each round is accounted for.
        discovery_timeout: for mix nodes or aggregators to be connected.
        answer_timeout: for a node to say whether it is one.
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


def innermost(grid: Grid) -> Grid:
    """The grid inside all wrappers of this package."""
    while isinstance(grid, WrappedGrid):
        grid = grid._grid
    return grid


def arriving(grid: Grid, messages: list[Message], *, timeout: float | None) -> Iterator[Message]:
    """Send messages and yield the replies as they come, where the grid is one of Flower's own.

    Flower's ``send_and_receive`` holds all replies in memory before it returns the first one. Here at most
    32 are there at once. A grid of another kind, which may do more than Flower's in its own
    ``send_and_receive``, is asked by that.
    """
    if type(grid) not in (HttpGrid, InMemoryGrid):
        yield from grid.send_and_receive(messages, timeout=timeout)
        return
    interval = grid.pull_interval if isinstance(grid, InMemoryGrid) else _PULL_INTERVAL
    waiting = dict.fromkeys(grid.push_messages(messages))
    end = None if timeout is None else time.monotonic() + timeout
    while waiting and (end is None or time.monotonic() < end):
        asked, came = iter(list(waiting)), False
        while some := list(islice(asked, _AT_ONCE)):
            for reply in grid.pull_messages(some):
                came = True
                waiting.pop(reply.metadata.reply_to_message_id, None)
                yield reply
        if waiting and not came:
            time.sleep(interval)


class InProcessGrid(MessageGrid):
    """Nodes that live in this process and answer in turn; each keeps its context from round to round.

    A message reaches a node as a copy of its records, and an exception in the app comes back as Flower's
    engines send it: as an error with the exception's type and text; its traceback is in the log, unless the
    app merely has no function for the message. A node costs nothing until it is asked.
    A warning that many nodes log in a round is shown once.

    Args:
        client_app: what every node runs.
        num_nodes: how many nodes are connected.
        node_config: a node's own configuration, the same for all, or by the node's position 0, 1, ….
            ``partition-id`` and ``num-partitions`` are set beside it, unless it sets them.
        run_config: the run's configuration, as the nodes see it.
        run_id: id of the run.

    Raises:
        ValueError: if ``num_nodes`` is not at least one.
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
    def num_nodes(self) -> int:
        """How many nodes there are; there will never be more."""
        return len(self._nodes)

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
        said_once = _SaidOnce()
        _log.addFilter(said_once)
        try:
            return [self._answer(message) for message in messages]
        finally:
            _log.removeFilter(said_once)

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


class _SaidOnce(logging.Filter):
    """Lets a line of the log through once, whichever of the round's nodes logs it first."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[tuple[str, int, tuple[str, ...]]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        texts = tuple(str(arg) for arg in args if not isinstance(arg, int))
        line = (record.pathname, record.lineno, texts)
        new = line not in self._said
        self._said.add(line)
        return new


def _identify(run_id: int) -> None:
    """Let this process make messages, unless it is a Flower process and can already."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 0
