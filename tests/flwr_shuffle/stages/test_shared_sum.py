"""The stage that shares counts between a server and aggregators: sums, drop-outs, and hostile parties."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flwr_shuffle.client as client_mod
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr_shuffle import (
    ClientsRefused,
    InProcessGrid,
    MechanismSpec,
    SelfSampling,
    SharedSumStage,
    ShuffleMod,
    Waiting,
)
from flwr_shuffle.grids import Replies
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    SERVICE_KEY,
    ClientRefusal,
    Instruction,
    Role,
    Step,
    payload_of,
)
from sharing_run import COHORT, DIM, MODEL, SUM, SharedRun, recorded, update_of
from thinning import first_fast

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.protocols import BallSum, LaplaceVectorSum, PoissonBinomialSum, UnaryL1Sum, VectorSum
from shuffle_plugins.secure_aggregation import Expansion, sealed_seed_size
from shuffle_plugins.shuffler import Refusal
from shuffle_plugins.shuffler.keys import ServiceKey, SigningKey, public_key_bytes

BIT_SUM = PoissonBinomialSum(dim=DIM, cohort=COHORT, bits=63, message_epsilon=0.4)
UNARY_SUM = UnaryL1Sum(dim=DIM, cohort=COHORT, radius=4.0, bit_epsilon=2.0)
LAPLACE_SUM = LaplaceVectorSum(dim=DIM, cohort=COHORT, radius=4.0, levels=9, noise_epsilon=5.0)


@pytest.fixture
def run(tmp_path: Path) -> SharedRun:
    return SharedRun(folder=tmp_path)


def altered(reply: Message, change: Callable[[bytes], bytes]) -> Message:
    """A reply whose payload is another."""
    record = ConfigRecord({PAYLOAD_KEY: change(payload_of(reply))})
    reply.content = RecordDict({RECORD_KEY: record})
    return reply


# -- the sum --------------------------------------------------------------------------------------------


@first_fast(
    ("mechanism", "aggregators", "verified"),
    [
        (SUM, 2, False),
        (BIT_SUM, 1, False),
        (UNARY_SUM, 1, True),
        (LAPLACE_SUM, 2, False),
        (LAPLACE_SUM, 1, True),
        (SUM, 1, False),
        (SUM, 3, False),
        (BallSum(dim=DIM, cohort=COHORT, budget=6.0, samples=8, levels=2), 1, True),
        (SUM, 1, True),
        (SUM, 2, True),
    ],
    fast=5,
)
def test_the_total_is_that_of_the_clients_reports(
    tmp_path: Path, mechanism: Any, aggregators: int, verified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: the coins that the clients tossed are all in it, and nothing else."""
    tossed = recorded(mechanism, monkeypatch)
    run = SharedRun(folder=tmp_path, mechanism=mechanism, aggregators=aggregators)
    run.stage = run.new_stage(verified=verified)
    found = run.round()
    assert (found.refusal, found.unreadable, found.answered) == (None, 0, 6)
    assert found.total is not None
    assert (found.count, found.reports, len(found.participants), len(tossed)) == (6, None, 6, 6)
    assert torch.equal(found.total.sum, mechanism.estimate(torch.stack(tossed).sum(dim=0), reports=6))


def test_self_sampled_clients_hide_their_participation_from_the_server(run: SharedRun) -> None:
    """The server sees the total alone, so that ε against it is an observer's; and it is the sum's own."""
    strategy = run.strategy(sampling=SelfSampling(0.3))
    strategy.start(run.grid, ArrayRecord({"w": Array(MODEL)}), num_rounds=2)
    found = strategy.spending()
    alone = ShuffleAccountant()
    alone.step(SUM.round(participation=0.3), num_steps=2)
    assert found.num_rounds == 2
    assert found.server.upper == found.observer.upper
    assert found.server.upper == pytest.approx(alone.epsilon(found.delta).upper, rel=1e-9)


def test_the_noise_that_a_server_chooses_spends_the_clients_own_epsilon(tmp_path: Path) -> None:
    """Two sums of next to no noise, one of them without a client, would show that client's update."""
    calibrated = VectorSum.calibrated(dim=DIM, cohort=6, epsilon=3.0, delta=1e-3, num_steps=2)
    run = SharedRun(folder=tmp_path, max_epsilon=3.0, mechanism=calibrated)
    bare = VectorSum(dim=DIM, cohort=6, levels=1 << 16, coins=11)
    start = ArrayRecord({"w": Array(MODEL)})
    with pytest.raises(ClientsRefused, match="over its shuffle-max-epsilon"):
        run.strategy(randomizer=bare).start(run.grid, start, num_rounds=1)
    strategy = run.strategy()
    with pytest.raises(ClientsRefused, match="over its shuffle-max-epsilon"):
        strategy.start(run.grid, start, num_rounds=3)
    assert strategy.accountant.num_rounds == 2  # no fewer than its noise was made for


def test_aggregators_are_not_told_the_checks_seed(run: SharedRun) -> None:
    """One that knew it could pass a false sum."""
    instruction = run.instruction()
    run.collect(run.answers(instruction), instruction)
    asked = [m for m in run.grid.seen if _asks(m) and m.metadata.dst_node_id in run.nodes[:2]]
    assert {Step(json.loads(m.content[SERVICE_KEY]["step"])) for m in asked} == set(Step)
    assert not any(repr(instruction.shared.check_seed)[2:-1] in repr(m.content) for m in asked)
    assert not any(instruction.shared.check_seed.hex() in repr(m.content) for m in asked)


# -- drop-outs and hostile clients -------------------------------------------------------------------------


@pytest.mark.parametrize("aggregators", [1, 2])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda payload: payload[:-1], Refusal.WRONG_SIZE),
        (lambda payload: b"x", Refusal.WRONG_SIZE),
        (lambda payload: bytes(len(payload)), Refusal.UNREADABLE),
        (lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]), Refusal.UNREADABLE),
        (lambda payload: bytes([payload[0] ^ 1]) + payload[1:], Refusal.UNREADABLE),  # the share alone
    ],
)
def test_a_bad_reply_is_left_out_and_its_node_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
    code: Refusal,
    aggregators: int,
) -> None:
    run = SharedRun(folder=tmp_path, aggregators=aggregators)
    instruction, replies = run.begun()
    altered(replies[2], change)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = run.collect(replies, instruction)
    assert found.total is not None
    assert (found.answered, found.unreadable, found.total.reports) == (5, 1, 5)
    assert f"envelopes dropped ({code}), of node {replies[2].metadata.src_node_id}" in caplog.text


def test_an_envelope_that_one_aggregator_cannot_open_leaves_the_client_out_everywhere(
    run: SharedRun,
) -> None:
    instruction, replies = run.begun()
    size = sealed_seed_size()
    altered(replies[0], lambda payload: payload[: -2 * size] + bytes(size) + payload[-size:])  # the first's
    altered(replies[1], lambda payload: payload[:-size] + bytes(size))  # the second's
    found = run.collect(replies, instruction)
    assert found.total is not None
    assert (found.answered, found.unreadable, found.total.reports) == (4, 2, 4)


def test_a_total_beyond_what_clients_can_have_is_refused(
    run: SharedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lies and checks its lie well can shift the sum; not beyond what all together could be."""
    instruction = run.instruction(shared=run.stage.shared(SUM, clients=100))
    honest = client_mod.share

    def lying(counts: np.ndarray, **kwargs: Any) -> Any:
        lie = np.full_like(counts, 50 * (SUM.counts.highest - SUM.counts.lowest)) if counts.any() else counts
        return honest(lie, **kwargs)

    replies = run.answers(instruction)[:5]
    monkeypatch.setattr(client_mod, "share", lying)
    (run.folder / "ledger0").unlink()
    replies[0] = run.answers(instruction)[0]
    assert run.collect(replies, instruction).refusal is Refusal.INCONSISTENT


def test_too_few_shares_are_refused_before_anybody_is_asked(run: SharedRun) -> None:
    instruction, replies = run.begun()
    found = run.collect(replies[:2], instruction)
    assert found.refusal is Refusal.UNDER_MINIMUM
    assert found.refusal.conclusive
    assert not any(m.metadata.message_type == Role.AGGREGATOR.work for m in run.grid.seen)


# -- aggregators that fail or lie ---------------------------------------------------------------------------


def tampered(run: SharedRun, change: Callable[[dict[str, Any]], None], *, step: Step, of: int = 0) -> None:
    """Let one aggregator's answers to a step arrive changed."""
    asked: list[str] = []

    def relay(messages: list[Message]) -> list[Message]:
        asked[:] = [json.loads(m.content[SERVICE_KEY]["step"]) for m in messages if _asks(m)]
        return messages

    def receive(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if asked == [str(step)] * run.aggregators and reply.metadata.src_node_id == run.nodes[of]:
                values = dict(reply.content[SERVICE_KEY].items())
                change(values)
                reply.content = RecordDict({SERVICE_KEY: ConfigRecord(values)})
        return replies

    run.grid.relay, run.grid.receive = relay, receive


def _asks(message: Message) -> bool:
    return message.has_content() and message.metadata.message_type == Role.AGGREGATOR.work


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda values: values.update(total=bytes(len(values["total"]))), Refusal.NOT_PROVEN),
        (lambda values: values.update(total=values["total"][:-1]), Refusal.NOT_PROVEN),
        (lambda values: values.update(rejected="nonsense"), Refusal.NO_ANSWER),
        (lambda values: values.update(extra=1), Refusal.NO_ANSWER),
    ],
)
def test_an_answer_that_is_not_signed_or_cannot_be_read_is_charged_and_the_run_goes_on(
    run: SharedRun,
    change: Callable[[dict[str, Any]], None],
    expected: Refusal,
    of: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tampered(run, change, step=Step.ADD, of=of)
    found = run.round()
    assert found.refusal is expected
    assert not found.refusal.conclusive
    unread = f"aggregator {run.nodes[of]}: an answer that cannot be read" in caplog.text
    assert unread == (expected is Refusal.NO_ANSWER)
    run.grid.receive = list
    assert run.round().total is not None


@pytest.mark.parametrize("lie", ["a count", "a client left out", "a client twice"])
def test_an_aggregator_that_lies_and_signs_is_found_by_the_check(
    run: SharedRun, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Expansion.add

    def lying(self: Expansion, *seeds: bytes) -> None:
        match lie:
            case "a client left out":
                honest(self, *seeds[1:])
            case "a client twice":
                honest(self, seeds[0], *seeds)
            case "a count":
                honest(self, *seeds)
                self.total.counts[0] += 1

    instruction, replies = run.begun()
    monkeypatch.setattr(Expansion, "add", lying)
    found = run.collect(replies, instruction)
    assert found.refusal is Refusal.INCONSISTENT
    assert found.total is None


@pytest.mark.parametrize("aggregators", [1, 2])
def test_an_aggregator_that_does_not_answer(tmp_path: Path, aggregators: int) -> None:
    """Before sums are asked for, nothing is lost; afterwards the round is charged; then the run goes on."""
    run = SharedRun(folder=tmp_path, aggregators=aggregators)
    run.stage.open(run.grid)
    for step in Step:
        instruction, replies = run.begun()
        run.grid.relay = lambda messages, step=step: [
            m
            for m in messages
            if not (
                _asks(m)
                and json.loads(m.content[SERVICE_KEY]["step"]) == step
                and m.metadata.dst_node_id == run.nodes[0]
            )
        ]
        found = run.collect(replies, instruction)
        assert found.refusal is (Refusal.NOT_AGREED if step is Step.CHECK else Refusal.NO_ANSWER)
        assert found.refusal.conclusive == (step is Step.CHECK)
    run.grid.relay = list
    assert run.round().total is not None


def test_without_an_aggregator_nothing_is_charged(run: SharedRun) -> None:
    instruction, replies = run.begun()
    run.grid.connected = lambda: [0, *range(2, 8)]
    with pytest.raises(RuntimeError, match=run.keys[1].public.hex()):
        run.stage.open(run.grid)
    asked = Replies(messages=replies, instruction=instruction, dim=DIM, grid=run.grid)
    found = run.stage.collect(asked)
    assert found.refusal is Refusal.NOT_THIS_ROLE
    assert found.refusal.conclusive


def test_a_round_is_added_up_once(run: SharedRun) -> None:
    """Not even with a client less: the difference would be that client's expansion."""
    instruction, replies = run.begun()
    assert run.collect(replies, instruction).total is not None
    for again in (replies, replies[1:]):
        found = run.collect(again, instruction)
        assert found.refusal is Refusal.REPLAYED
        assert not found.refusal.conclusive


def test_an_answer_is_bound_to_its_request(run: SharedRun) -> None:
    """The second aggregator's answer, or one to a check, does not pass for the first's sum."""
    kept: list[RecordDict] = []

    def receive(replies: list[Message]) -> list[Message]:
        first = [r for r in replies if r.metadata.src_node_id == run.nodes[0] and SERVICE_KEY in r.content]
        second = [r for r in replies if r.metadata.src_node_id == run.nodes[1] and SERVICE_KEY in r.content]
        if first and second and "total" in first[0].content[SERVICE_KEY]:
            kept.append(first[0].content)
            first[0].content = second[0].content
        return replies

    run.grid.receive = receive
    assert run.round().refusal is Refusal.NOT_PROVEN
    assert kept


# -- who agrees to what -------------------------------------------------------------------------------------


def refusals(run: SharedRun, instruction: Instruction) -> set[str]:
    return {reply.error.reason if reply.has_error() else "answered" for reply in run.answers(instruction)}


def test_clients_share_with_the_aggregators_that_they_pinned_alone(tmp_path: Path) -> None:
    run = SharedRun(folder=tmp_path)
    others = run.new_stage(aggregator_public_keys=[ServiceKey.generate().public.hex(), run.pinned[1]])
    swapped = run.new_stage(aggregator_public_keys=run.pinned[::-1])
    for stage in (others, swapped):
        told = run.instruction(shared=stage.shared(SUM, clients=6))
        assert refusals(run, told) == {str(ClientRefusal.OTHER_PINNED)}
    assert refusals(run, run.instruction(shared=None)) == {str(ClientRefusal.PINNED)}
    assert not any((tmp_path / f"ledger{i}").exists() for i in range(6))  # nothing was charged


def test_a_client_that_pinned_none_does_not_share(run: SharedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {
        position: {
            key: value
            for key, value in run.config(position).items()
            if "aggregator" not in key and "signing" not in key
        }
        for position in range(8)
    }
    app = ClientApp(mods=[ShuffleMod()])
    app.train()(run._train)
    run.grid = type(run.grid)(app, num_nodes=8, node_config=without.__getitem__)
    assert refusals(run, run.instruction()) == {str(ClientRefusal.NOT_PINNED)}


@pytest.mark.parametrize("shared", [True, False])
def test_a_clients_own_epsilon_counts_its_coin_only_where_it_shares(run: SharedRun, shared: bool) -> None:
    """With aggregators that it pinned nobody sees more than the sum; otherwise the server sees its report."""
    participation, cohort = 0.3, run.mechanism.cohort
    certified = {}
    for coin in (participation, None):
        alone = ShuffleAccountant()
        alone.step(SUM.round(cohort=cohort, participation=coin), num_steps=2)
        certified[coin] = alone.epsilon(1e-3, lower=False).upper
    assert certified[participation] < 0.7 * certified[None]
    limit = certified[participation if shared else None] * 1.0001

    def config(position: int) -> dict[str, Any]:
        own = {
            key: value
            for key, value in run.config(position).items()
            if shared or position < run.aggregators or not ("aggregator" in key or "signing" in key)
        }
        limits = {"shuffle-max-epsilon": limit, "shuffle-delta": 1e-3}
        return own if position < run.aggregators else own | limits

    run.grid = type(run.grid)(run.app, num_nodes=8, node_config=config)
    run.nodes = run.grid.get_node_ids()
    asked = {"participation": participation, "minimum": cohort} | ({} if shared else {"shared": None})
    found = [refusals(run, run.instruction(**asked)) for _ in range(3)]
    assert found == [{"answered"}, {"answered"}, {str(ClientRefusal.MAX_EPSILON)}]


def test_one_message_mechanisms_are_not_shared(run: SharedRun) -> None:
    spec = MechanismSpec(name="linf-block", local_epsilon=1.0)
    assert refusals(run, run.instruction(mechanism=spec)) == {str(ClientRefusal.NO_COUNTS)}
    with pytest.raises(ValueError, match="no whole numbers"):
        run.stage.shared(spec.build(dim=DIM), clients=6)
    with pytest.raises(ValueError, match="this stage adds up multi-message sums"):
        run.strategy(randomizer=spec)


def test_a_server_that_tells_one_client_another_check_does_not_get_its_counts(run: SharedRun) -> None:
    """Or it could read the one client's counts out of the check words, which are linear in them."""
    instruction, replies = run.begun()
    (run.folder / "ledger0").unlink()
    other = replace(instruction.shared, check_seed=bytes(32))
    replies[0] = run.answers(replace(instruction, shared=other))[0]
    found = run.collect(replies, instruction)
    assert (found.answered, found.unreadable) == (5, 1)


def test_errors_that_nobody_foresaw_are_constants_too(
    run: SharedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would send the text of an exception to the server."""

    def failing(self: Expansion, *seeds: bytes) -> None:
        raise ArithmeticError(f"seed {seeds[0].hex()}")

    instruction, replies = run.begun()
    monkeypatch.setattr(Expansion, "add", failing)
    assert run.collect(replies, instruction).refusal is Refusal.MISCONFIGURED
    assert not any(message.has_error() for message in run.grid.seen)


@pytest.mark.parametrize("aggregators", [1, 2])
def test_an_aggregator_that_calls_everything_bad_does_not_stop_the_run(
    tmp_path: Path, aggregators: int
) -> None:
    """Nor is anybody blamed for an app without the mod."""
    run = SharedRun(folder=tmp_path, aggregators=aggregators)
    run.enrolled.write_text(public_key_bytes(SigningKey.generate()).hex())
    result = run.strategy().start(run.grid, ArrayRecord({"w": Array(MODEL)}), num_rounds=1)
    assert np.array_equal(result.arrays["w"].numpy(), MODEL)


def test_a_round_of_more_clients_than_a_share_holds_is_refused(run: SharedRun) -> None:
    terms = run.stage.shared(SUM, clients=1 << 40)
    assert refusals(run, run.instruction(shared=terms)) == {str(ClientRefusal.BAD_INSTRUCTION)}


# -- configuration ------------------------------------------------------------------------------------


def test_stage_says_whom_to_trust_and_keeps_the_largest_minimum(tmp_path: Path) -> None:
    run = SharedRun(folder=tmp_path, minimum=4)
    assert run.stage.minimum == 2
    run.stage.open(run.grid)
    assert run.stage.minimum == 4
    assert run.stage.adds_up
    assert run.stage.analyzer_key == b""
    assert "must not work with the others" in run.stage.trust
    assert "lies" in run.stage.trust
    assert run.stage.excluded_nodes == set(run.nodes[:2])
    run.stage.fewest_answers = 7
    assert run.round().refusal is Refusal.UNDER_MINIMUM


# -- what is said of mistakes -------------------------------------------------------------------------------


def test_a_forgotten_register_aggregator_is_one_clear_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = SharedRun(folder=tmp_path)
    app = ClientApp(mods=[ShuffleMod()])
    app.train()(run._train)
    grid = InProcessGrid(app, num_nodes=8, node_config=run.config)
    with pytest.raises(RuntimeError, match=r"which all nodes run, does not call register_aggregator\(app\)"):
        run.new_stage(waiting=Waiting(discovery_timeout=1e6)).open(grid)  # at once
    assert not any(record.exc_info for record in caplog.records), "a traceback"


def test_a_stranger_that_joins_and_denies_the_role_ends_no_run(
    run: SharedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of anybody's answers as Flower does where the app has no function for the role."""
    nodes, asked = run.nodes[:-1], run.grid._answer
    monkeypatch.setattr(run.grid, "get_node_ids", lambda: nodes)

    def answer(message: Message) -> Message:
        reply = asked(message)
        if message.metadata.dst_node_id != run.nodes[-1]:
            return reply
        name = message.metadata.message_type.partition(".")[2]
        reason = f"No query function registered with name '{name}'"
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)

    monkeypatch.setattr(run.grid, "_answer", answer)
    run.stage.open(run.grid)
    nodes = run.nodes  # it joins
    run.stage.open(run.grid)
    run.stage._known.clear()  # as after an answer that was lost
    nodes = [*run.nodes[:1], run.nodes[-1]]
    with pytest.raises(RuntimeError, match="no aggregator with the pinned keys"):  # one has left indeed
        run.stage.open(run.grid)


def test_a_share_that_cannot_be_written_ends_the_run_charged(tmp_path: Path) -> None:
    """As on a full disk: nothing was released, and the text says what to do."""
    run = SharedRun(folder=tmp_path)
    run.stage = run.new_stage(share_folder=tmp_path / "no such folder")
    strategy = run.strategy()
    with pytest.raises(OSError, match=r"share_folder=.*cannot be kept in .*no such folder.*is charged"):
        strategy.start(run.grid, ArrayRecord({"w": Array(MODEL)}), num_rounds=2)
    assert strategy.accountant.num_rounds == 1
    assert strategy.arrays is None


def test_shares_lie_in_a_file_and_not_in_memory(
    run: SharedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the grid keeps of a reply has no payload, and after the round the file is gone."""
    folder = tmp_path / "shares"
    folder.mkdir()
    run.stage = run.new_stage(share_folder=folder)
    kept: list[Message] = []
    collect = SharedSumStage.collect

    def noted(self: SharedSumStage, replies: Any) -> Any:
        kept.extend(replies.messages)
        return collect(self, replies)

    monkeypatch.setattr(SharedSumStage, "collect", noted)
    result = run.strategy().start(run.grid, ArrayRecord({"w": Array(MODEL)}), num_rounds=2, timeout=60)
    assert [told["reports"] for told in result.train_metrics_clientapp.values()] == [6, 6]
    expected = 2 * np.mean([update_of(client) for client in range(6)], axis=0)
    noise = math.sqrt(2 * 6 / COHORT * SUM.worst_variance / DIM) / 6
    assert np.abs(result.arrays["w"].numpy() - MODEL - expected).max() < 6 * noise
    assert len(kept) == 12
    assert not any(list(message.content) for message in kept)
    assert run.stage._coming is None
    assert not any(folder.iterdir())
