"""A Flower grid whose nodes run in this process, one after another: for tests and for many clients."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

# Flower has no public address for the next four: an error's code, a run, the server's id, and the identity
# under which a process makes messages.
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from flwr_shuffle.messages import copied
from flwr_shuffle.service_messages import NO_HANDLER
from flwr_shuffle.wrapped_grid import MessageGrid
from shuffle_plugins.core import checks

_log = logging.getLogger("flwr")

NodeConfig = Mapping[str, bool | float | int | str]


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
    def run(self) -> Run:
        """The run; only its id is known."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Take part in another run. The nodes' contexts stay."""
        self._run = run

    def get_node_ids(self) -> list[int]:
        """Ids of all nodes; the first is the node at position 0."""
        return list(self._nodes)

    def context(self, node_id: int) -> Context:
        """What a node keeps: its configuration and its state.

        Raises:
            ValueError: if there is no such node.
        """
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
        """Have each message answered; the ids are to be given to :meth:`pull_messages`.

        Raises:
            ValueError: if a message is for a node that does not exist.
        """
        pushed = list(messages)
        replies = self._answers(pushed)
        ids = [message.metadata.message_id for message in pushed]
        self._waiting.update(zip(ids, replies, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages, each given out once."""
        return [self._waiting.pop(key) for key in list(message_ids) if key in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Have each message answered, in order. No node is late, so there is nothing to time out.

        Raises:
            ValueError: if a message is for a node that does not exist.
        """
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
