"""A Flower grid that gives back a round's replies shuffled, as one message without a sender."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

# Flower has no public address for these two.
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid

from flwr_shuffle.grids import WrappedGrid, arriving
from flwr_shuffle.messages import RECORD_KEY, ClientRefusal, Instruction
from flwr_shuffle.stages.stage import Anonymous, Replies, ShuffleStage
from flwr_shuffle.updates import Layout

_log = logging.getLogger("flwr")
_REFUSALS = frozenset(str(code) for code in ClientRefusal)
_OTHER_ERROR = "the app failed; its text may hold data and is not shown here, the client's own log has it"


class AnonymousReply(Message):
    """The one reply to a shuffled round, without a sender: how many reports there are, and the reports.

    Attributes:
        anonymous: the reports, or their total, that the stage gave back.
        token: random id of the round.
        errors: how many clients answered with each error. A client's refusals depend on its settings and the
            request alone, and are shown as they are; other texts may hold data and are not shown.
    """

    anonymous: Anonymous
    token: bytes
    errors: Counter[str]

    def __init__(
        self, anonymous: Anonymous, *, token: bytes, errors: Mapping[str, int] | None = None
    ) -> None:
        counts: dict[str, int | float | list[int] | list[float]] = {
            "reports": anonymous.count,
            "answered": anonymous.answered,
            "unreadable": anonymous.unreadable,
            "errors": sum((errors or {}).values()),
        }
        content = RecordDict({"metrics": MetricRecord(counts)})
        super().__init__(content, dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.TRAIN)
        self.anonymous = anonymous
        self.token = token
        self.errors = Counter(errors or {})


class ShuffleGrid(WrappedGrid):
    """Another grid, whose replies to rounds with a shuffle instruction come back without names or order.

    The strategy, its logs and its metrics do not see who sent what. This process could, as it holds the other
    grid; :attr:`ShuffleStage.trust` says who must be trusted. Messages without an instruction pass as they
    are.

    Args:
        grid: any Flower grid, in simulation or deployment.
        stage: the stage that shuffles the replies.
    """

    def __init__(self, grid: Grid, *, stage: ShuffleStage) -> None:
        if not isinstance(stage, ShuffleStage):
            raise ValueError(f"stage must be a ShuffleStage, got {stage!r}")
        super().__init__(grid)
        self._stage = stage
        self._serving: frozenset[int] = frozenset()  # said that they serve another stage, and train nothing

    @property
    def stage(self) -> ShuffleStage:
        """The stage that shuffles the replies of this grid."""
        return self._stage

    def open(self) -> None:
        """Let the stage find the nodes it needs; called before each round, as nodes come and go."""
        self._stage.open(self._grid)

    def get_node_ids(self) -> list[int]:
        """All connected nodes but those that the stage excludes, or that refused to train as service
        nodes.
        """
        excluded = self._stage.excluded_nodes | self._serving
        return [node for node in self._grid.get_node_ids() if node not in excluded]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages that are not to be shuffled: others' replies could be pulled with their senders'
        names.
        """
        pushed = list(messages)
        if any(_is_shuffled(message) for message in pushed):
            raise ValueError(
                "a round that is to be shuffled cannot be pushed and pulled message by message: that would "
                "give each reply with its sender's name. Use send_and_receive"
            )
        return super().push_messages(pushed)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and wait; replies to a shuffle instruction come back as one :class:`AnonymousReply`."""
        sent = list(messages)
        if not any(_is_shuffled(message) for message in sent):
            return super().send_and_receive(sent, timeout=timeout)
        instruction, dim = _common(sent)
        invited = {message.metadata.dst_node_id for message in sent}
        if len(invited) != len(sent):
            raise ValueError("a node is asked twice in one round; each client may report once")
        if invited & self._stage.excluded_nodes:
            raise ValueError(
                "the mix node, and other nodes that the stage excludes, are no clients: leave them out"
            )

        def taken(reply: Message) -> Message:
            if reply.has_error() or reply.metadata.src_node_id not in invited:
                return reply
            return self._stage.take(reply, instruction=instruction, dim=dim)

        replies = _received(map(taken, arriving(self._grid, sent, timeout=timeout)), sent=sent)
        self._serving |= {
            reply.metadata.src_node_id for reply in replies if _errors([reply])[ClientRefusal.SERVICE_NODE]
        }
        anonymous = self._stage.collect(
            Replies(messages=replies, instruction=instruction, dim=dim, grid=self._grid, timeout=timeout)
        )
        return [AnonymousReply(anonymous, token=instruction.token, errors=_errors(replies))]


def _is_shuffled(message: Message) -> bool:
    return message.has_content() and RECORD_KEY in message.content


def _common(messages: Sequence[Message]) -> tuple[Instruction, int]:
    contents = {id(message.content): message.content for message in messages if message.has_content()}
    records: dict[int, ConfigRecord] = {}
    models: dict[int, ArrayRecord] = {}
    for content in contents.values():
        record = content.get(RECORD_KEY)
        arrays = [each for each in content.values() if isinstance(each, ArrayRecord)]
        if not isinstance(record, ConfigRecord) or len(arrays) != 1:
            raise ValueError(
                "every message of a shuffled round holds the model, as its one ArrayRecord, and the "
                "instruction; send other messages apart"
            )
        records[id(record)] = record
        models[id(arrays[0])] = arrays[0]
    instructions = {Instruction.from_record(record) for record in records.values()}
    layouts = {
        Layout.of(arrays, trained=each.update.trained) for arrays in models.values() for each in instructions
    }
    if len(instructions) != 1 or len(layouts) != 1:
        raise ValueError("all clients of a round get the same instruction and a model of the same layout")
    instruction = instructions.pop()
    return instruction, instruction.report_dim(layouts.pop().dim)


def _received(replies: Iterable[Message], *, sent: Sequence[Message]) -> list[Message]:
    """At most one reply from each invited node: what it answered, or its error. The log says what else came.

    A client that does not answer has dropped out. If it stopped sending heartbeats or its answer expired, the
    SuperLink answers in its place, with an error under the SuperLink's node id; only the message that the
    error replies to says which client it was. Messages that no invited client can have sent are ignored: if
    they made a round fail, anybody could stop a run.
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
            len(lost) + silent,
            len(invited),
            len(lost),
            silent,
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
