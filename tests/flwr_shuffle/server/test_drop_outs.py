"""Clients that drop out cost a round their reports, and nothing else, whatever Flower says of them.

The errors come from Flower's own SuperLink state, which runs here in the test's process.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
)
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_ACCOUNT_NAME,
    NOOP_FEDERATION_ID,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr_shuffle import FixedSize, SelfSampling
from flwr_shuffle.grids import AnonymousReply, InMemoryStage, InProcessGrid, ShuffleGrid
from strategy_harness import MODEL, client_app, honest_payload, record, shuffled
from test_flower_grid import instruction, question
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound
from shuffle_plugins.shuffler import InMemoryShuffler

CLIENTS = 100
ROUNDS = 20
DELTA = 1e-6

CODES = {
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}
KILLED, LATE, FORGOTTEN, GONE, FAILED = WAYS = ("killed", "late", "forgotten", "gone", "failed")


class LossyGrid(InMemoryGrid):
    """Flower's grid over a SuperLink's state, whose nodes answer in this process, or drop out.

    Args:
        app: what the nodes run.
        drop_outs: says for one round's nodes which of them drop out, and how.
    """

    def __init__(
        self, app: ClientApp, *, num_nodes: int, drop_outs: Callable[[Iterable[int]], dict[int, str]]
    ) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        super().__init__(state_factory=factory, pull_interval=0.0)
        run = Run.create_empty(run_id=1)
        run.primary_task_id = 1
        run.federation_id = NOOP_FEDERATION_ID
        self.state.run_ids[1] = RunRecord(run=run)
        self.state.task_store[1] = Task(task_id=1, run_id=1)
        self.set_run(run)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
        self._app = app
        self._drop_outs = drop_outs
        self._ways: dict[int, str] = {}
        self.nodes = [self._new_node() for _ in range(num_nodes)]
        self.survivors: list[int] = []
        self.codes: Counter[int] = Counter()

    def _new_node(self) -> int:
        node = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), heartbeat_interval=1e9
        )
        self.state.acknowledge_node_heartbeat(node, heartbeat_interval=1e9)
        return node

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Flower's; nodes that are gone by then get nothing, and their messages no id."""
        sent = list(messages)
        if not sent:
            return []
        self._ways = self._drop_outs(message.metadata.dst_node_id for message in sent)
        for node in self._dropped(GONE):
            self.state.delete_node(NOOP_FLWR_AID, node)
        ids = list(super().push_messages(sent))
        for message in sent:
            self._work(message.metadata.dst_node_id)
        self.survivors.append(len(sent) - len(self._ways))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Flower's; then killed nodes are started again, and others take the place of those that left."""
        replies = list(super().pull_messages(message_ids))
        self.codes.update(reply.error.code for reply in replies if reply.has_error())
        for node in self._dropped(KILLED):
            self.state.acknowledge_node_heartbeat(node, heartbeat_interval=1e9)
        for node in self._dropped(GONE):
            self.nodes[self.nodes.index(node)] = self._new_node()
        self._ways = {}
        return replies

    def _dropped(self, way: str) -> list[int]:
        return [node for node, how in self._ways.items() if how == way]

    def _work(self, node: int) -> None:
        way = self._ways.get(node)
        if way == KILLED:
            self.state.deactivate_node(node)
        for message in [] if way in (KILLED, GONE) else self.state.get_message_ins(node, limit=1):
            if way == FORGOTTEN:
                self.state.delete_messages({message.metadata.message_id})
                continue
            place = self.nodes.index(node)
            context = Context(1, node, {"partition-id": place}, RecordDict(), {})
            answer = self._app(message, context)
            if way == FAILED:
                answer = Message(
                    Error(ErrorCode.CLIENT_APP_CRASHED, "ClientApp stopped responding."), reply_to=message
                )
            answer.metadata.__dict__["_message_id"] = secrets.token_hex(16)
            assert self.state.store_message_res(answer)
            if way == LATE:  # it expires before the server looks
                answer.metadata.ttl = 1e-9


def lossy(rate: float, *, seed: int) -> Callable[[Iterable[int]], dict[int, str]]:
    """Each node drops out with this probability, in any way."""
    chance = random.Random(seed)
    return lambda nodes: {node: chance.choice(WAYS) for node in nodes if chance.random() < rate}


def quick_app() -> ClientApp:
    """Clients that make their reports once: it is not what they say that is tested here."""
    made: dict[Any, bytes] = {}

    def payload(message: Message, context: Context) -> bytes:
        place = context.node_config["partition-id"]
        if place not in made:
            made[place] = honest_payload(message, context)
        return made[place]

    return client_app(payload)


def learn(grid: InMemoryGrid, *, rounds: int = ROUNDS, **options: Any) -> tuple[Any, Any]:
    strategy = shuffled(population=CLIENTS, delta=DELTA, **{"sampling": FixedSize(CLIENTS), **options})
    return strategy, strategy.start(grid, record(MODEL), num_rounds=rounds)


@first_fast("rate", [0.01, 0.05, 0.2])
def test_every_round_that_has_its_minimum_is_released(rate: float) -> None:
    grid = LossyGrid(quick_app(), num_nodes=CLIENTS, drop_outs=lossy(rate, seed=int(1000 * rate)))
    strategy, result = learn(grid)
    enough = {i: n for i, n in enumerate(grid.survivors, 1) if n >= strategy.minimum_reports}
    assert strategy.minimum_reports == 80
    assert len(grid.survivors) == ROUNDS
    released = {i: metrics["reports"] for i, metrics in result.train_metrics_clientapp.items()}
    assert released == enough
    assert (len(enough) == ROUNDS) if rate < 0.2 else (0 < len(enough) < ROUNDS)
    assert strategy.accountant.num_rounds == len(enough)
    if rate == 0.2:
        assert grid.codes.keys() == CODES
    mechanism = strategy.settings.mechanism.build(dim=9)
    owed = FederatedAccountant()
    for reports in enough.values():
        owed.step(
            FederatedRound.drawn(mechanism, candidates=CLIENTS, invited=CLIENTS, reports=reports),
            participants=map(str, range(reports)),  # client 0 in every round
        )
    for adversary in Adversary:
        spent = strategy.accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
        assert 0 < spent <= owed.epsilon(DELTA, adversary=adversary, lower=False).upper * (1 + 1e-9)


def test_secret_participation_survives_drop_outs() -> None:
    grid = LossyGrid(quick_app(), num_nodes=CLIENTS, drop_outs=lossy(0.05, seed=4))
    strategy, result = learn(grid, rounds=5, sampling=SelfSampling(0.5), minimum_reports=20)
    assert len(result.train_metrics_clientapp) == 5 == strategy.accountant.num_rounds


def ask(
    meddle: Callable[[list[Message], list[Message]], list[Message]], *, clients: int = 6
) -> AnonymousReply:
    """One round whose replies were changed on the way: given are the messages sent and the honest replies."""

    class Meddling(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> list[Message]:
            sent = list(messages)
            return meddle(sent, super().send_and_receive(sent, timeout=timeout))

    grid = ShuffleGrid(
        Meddling(client_app(), num_nodes=clients), stage=InMemoryStage(InMemoryShuffler(minimum=2))
    )
    asked = instruction()
    [reply] = grid.send_and_receive([question(node, asked) for node in grid.get_node_ids()])
    assert isinstance(reply, AnonymousReply)
    return reply


def test_an_error_of_the_superlink_stands_for_the_client_it_answers_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def meddle(sent: list[Message], replies: list[Message]) -> list[Message]:
        lost = create_message_error_unavailable_res_message(sent[1].metadata, "node_unavail")
        unknown = create_message_error_unavailable_ins_message(sent[2].metadata.message_id, 1)
        foreign = create_message_error_unavailable_ins_message("of another round", 1)
        beside = create_message_error_unavailable_res_message(sent[3].metadata, "msg_unavail")
        return [lost, unknown, foreign, beside, replies[0], *replies[3:5]]

    anonymous = ask(meddle).anonymous
    assert (anonymous.count, anonymous.answered, anonymous.refusal) == (3, 3, None)
    assert anonymous.participants == ("2", "5", "6")
    logged = [entry.getMessage() for entry in caplog.records]
    assert logged == [
        "3 of 6 clients dropped out: the SuperLink lost 2, and 1 did not answer in time",
        "1 messages were ignored: no invited client sent them",
    ]


def test_what_no_invited_client_can_have_sent_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A stranger, a client that speaks in another's place, and one that answers twice."""

    def meddle(sent: list[Message], replies: list[Message]) -> list[Message]:
        stranger = Message(replies[0].content, reply_to=sent[0])
        stranger.metadata.__dict__["_src_node_id"] = 77
        impostor = Message(replies[1].content, reply_to=sent[0])
        impostor.metadata.__dict__["_src_node_id"] = sent[1].metadata.dst_node_id
        not_asked = Message(replies[2].content, reply_to=sent[2])
        not_asked.metadata.__dict__["_reply_to_message_id"] = "of another round"
        from_the_superlink = Message(replies[3].content, reply_to=sent[3])
        from_the_superlink.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        return [stranger, impostor, not_asked, from_the_superlink, *replies, replies[5]]

    anonymous = ask(meddle).anonymous
    assert (anonymous.count, anonymous.answered, anonymous.refusal) == (6, 6, None)
    assert "5 messages were ignored" in caplog.text
    assert "dropped out" not in caplog.text


def test_an_error_does_not_take_the_place_of_an_answer() -> None:
    def meddle(sent: list[Message], replies: list[Message]) -> list[Message]:
        failed = Message(Error(ErrorCode.CLIENT_APP_CRASHED, "stopped"), reply_to=sent[0])
        failed.metadata.__dict__.update(
            _src_node_id=sent[0].metadata.dst_node_id,
            _reply_to_message_id=sent[0].metadata.message_id,
        )
        return [failed, *replies, failed]

    assert ask(meddle).anonymous.count == 6


def test_a_few_clients_that_answer_nonsense_do_not_stop_a_run() -> None:
    """All others have dropped out: the round is lost, and the next one begins."""

    def nonsense(message: Message, context: Context) -> bytes:
        good = honest_payload(message, context)
        return good if context.node_config["partition-id"] >= 10 else bytes([7]) * len(good)

    rounds = iter(range(2))

    def drop_outs(nodes: Iterable[int]) -> dict[int, str]:
        del nodes
        return dict.fromkeys(grid.nodes[10:], KILLED) if next(rounds) == 0 else {}

    grid = LossyGrid(client_app(nonsense), num_nodes=CLIENTS, drop_outs=drop_outs)
    strategy = shuffled(sampling=FixedSize(CLIENTS), population=CLIENTS, delta=DELTA)
    result = strategy.start(grid, record(MODEL), num_rounds=2)
    assert [metrics["reports"] for metrics in result.train_metrics_clientapp.values()] == [90]
