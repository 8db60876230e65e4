"""Mix cascades, and batches in pieces, in a grid: rounds, hostile nodes, and a run from end to end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr_shuffle import InProcessGrid, MixNodeStage, Waiting
from flwr_shuffle.messages import SERVICE_KEY, Role
from flwr_shuffle.service_nodes import register_mix_node
from mixing import SIZE, MixedRun, encoded

from shuffle_plugins.shuffler import BatchLimits, Refusal, ShuffleError
from shuffle_plugins.shuffler.envelopes import layer_size, ticket_size
from shuffle_plugins.shuffler.keys import ServiceKey
from shuffle_plugins.shuffler.mixer import BatchSpool

PIECE = 2 * layer_size(SIZE, mixers=2, position=0)


@pytest.fixture(params=[1, 2, 3])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> MixedRun:
    return in_pieces(MixedRun(folder=tmp_path, mixers=request.param))


@pytest.fixture
def two(tmp_path: Path) -> MixedRun:
    return in_pieces(MixedRun(folder=tmp_path, mixers=2))


def in_pieces(run: MixedRun) -> MixedRun:
    run.stage = run.new_stage(piece_bytes=PIECE)
    return run


def steps(run: MixedRun) -> list[tuple[int, str]]:
    """Which mixer was sent a piece, or asked for one, in order."""
    places = {node: place for place, node in enumerate(run.nodes)}
    asked = [message for message in run.grid.seen if message.metadata.message_type == Role.MIXER.work]
    return [
        (places[message.metadata.dst_node_id], "put" if "items" in message.content[SERVICE_KEY] else "take")
        for message in asked
        if message.has_content() and "request" in message.content[SERVICE_KEY]
    ]


def test_a_round_through_all_mixers_in_pieces(row: MixedRun) -> None:
    row.dummies = {row.mixers + 1}
    found = row.round()
    assert encoded(found.reports) == sorted(row.sent[i] for i in row.sent if i not in row.dummies)
    assert (found.answered, found.unreadable, found.refusal) == (6, 0, None)
    assert len(found.participants) == 6
    expected = []
    for place in range(row.mixers):
        inputs, outputs = (layer_size(SIZE, mixers=row.mixers, position=place + i) for i in (0, 1))
        inputs += ticket_size(mixers=row.mixers, position=place)
        given = 5 if place == row.mixers - 1 else 6  # the last mixer drops the dummy
        puts = -(-6 // max(1, PIECE // inputs))
        takes = -(-given // max(1, PIECE // outputs)) - 1  # the first part comes with the last answer
        assert puts > 1
        expected += [*[(place, "put")] * puts, *[(place, "take")] * takes]
    assert steps(row) == expected
    assert row.mixers == 1 or (0, "take") in expected
    assert row.stage.excluded_nodes == set(row.nodes[: row.mixers])
    for place in range(row.mixers):
        assert list(Path(f"{row.mixer_file(place)}.batches").iterdir()) == []


@pytest.mark.parametrize("mixers", [1, 2])
def test_a_small_batch_is_one_message_to_each_mixer(tmp_path: Path, mixers: int) -> None:
    run = MixedRun(folder=tmp_path, mixers=mixers)
    assert encoded(run.round().reports) == sorted(run.sent.values())
    assert steps(run) == [(place, "put") for place in range(mixers)]


@pytest.mark.parametrize("given", [0, 1])
def test_a_mixer_that_fails_while_it_gives_back_does_not_make_the_round_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    """Reports are mixed, and the server may hold some of them."""
    take = BatchSpool.take

    def failing(*args: Any, first: int, most: int) -> list[bytes]:
        if first >= given:
            raise OSError("the disk is gone")
        return take(*args, first=first, most=most)

    monkeypatch.setattr(BatchSpool, "take", failing)
    run = MixedRun(folder=tmp_path, mixers=1)
    run.stage = run.new_stage(piece_bytes=1)
    found = run.round()
    assert found.reports is None
    assert found.refusal is Refusal.NO_ANSWER
    assert not found.refusal.conclusive


def test_a_client_that_seals_nonsense_inside_is_dropped_by_the_second(
    two: MixedRun, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can say whose it was; it counts neither as a report nor as an answer."""
    stranger = ServiceKey.generate().public.sealing
    two.changes = {5: {"mixer_key": [two.mixer_keys[0].public.sealing, stranger]}}
    found = two.round()
    # All layers are bound to the whole row, so the first mixer finds it already.
    assert (found.answered, found.unreadable, found.count) == (5, 1, 5)
    assert f"(unreadable), of node {two.nodes[5]}" in caplog.text


def test_a_row_in_another_order_than_the_clients_pinned_is_refused(two: MixedRun) -> None:
    keys = [key.public.hex() for key in two.mixer_keys][::-1]
    two.stage = MixNodeStage(
        mixer_public_key=keys, waiting=Waiting(discovery_timeout=0.2, poll_interval=0.05)
    )
    found = two.round()
    assert (found.reports, found.refusal) == (None, Refusal.MISCONFIGURED)
    with pytest.raises(RuntimeError, match=r"same mixers in the same order\. mixer_public_key of the server"):
        two.stage.open(two.grid)
    again = InProcessGrid(two.grid._client_app, num_nodes=8, node_config=two.config, run_id=2)
    two.stage.open(again)  # another run may have other settings


def test_a_row_that_has_worked_goes_on_after_a_mixer_that_could_not(two: MixedRun) -> None:
    assert two.round().reports is not None

    def full(*_: Any, **__: Any) -> None:
        raise ShuffleError("no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchSpool, "put", full)
        assert two.round().refusal is Refusal.MISCONFIGURED
    assert two.round().reports is not None


def test_a_client_that_the_second_mixer_does_not_know_is_named(
    two: MixedRun, caplog: pytest.LogCaptureFixture
) -> None:
    """The round is refused; who is named so three times is not invited any more."""
    enrolled = (two.folder / "enrolled").read_text().splitlines()
    (two.folder / "others").write_text("\n".join(enrolled[:3] + enrolled[4:]) + "\n")
    as_all = two.config

    def config(position: int) -> dict[str, Any]:
        own = {"shuffle-enrolled-file": str(two.folder / "others")} if position == 1 else {}
        return {**as_all(position), **own}

    two.grid._node_config = config
    for _ in range(3):
        found = two.round()
        assert (found.reports, found.refusal) == (None, Refusal.UNKNOWN_SIGNER)
    assert two.nodes[5] in two.stage.excluded_nodes
    assert f"dropped (unknown-signer), of node {two.nodes[5]}" in caplog.text
    two.connected = range(8)
    instruction = two.instruction()
    others = [reply for reply in two.answers(instruction) if reply.metadata.src_node_id != two.nodes[5]]
    assert two.collect(others, instruction).count == 5


@pytest.mark.parametrize("mixer", [0, 1])
@pytest.mark.parametrize("turn", range(3))
def test_a_mixer_that_is_gone_between_two_pieces_ends_the_round(two: MixedRun, mixer: int, turn: int) -> None:
    """As after a kill: the round is charged, never mixed again, and the next one is as any other."""
    answers = itertools.count()

    def receive(replies: list[Message]) -> list[Message]:
        from_it = {two.nodes[mixer]} & {reply.metadata.src_node_id for reply in replies}
        if from_it and Role.MIXER.work in {reply.metadata.message_type for reply in replies}:
            return replies if next(answers) != turn else []
        return replies

    instruction, replies = two.begun()
    two.grid.receive = receive
    assert two.collect(replies, instruction).refusal is Refusal.NO_ANSWER
    assert next(answers) == turn + 1
    two.grid.receive = list
    assert two.collect(replies, instruction).refusal is Refusal.REPLAYED
    assert len(encoded(two.round().reports)) == 6
    for place in range(2):
        assert list(Path(f"{two.mixer_file(place)}.batches").iterdir()) == []


@pytest.mark.parametrize("where", ["register_mix_node", "node_config"])
def test_a_batch_beyond_a_mixers_limit_is_refused(two: MixedRun, where: str) -> None:
    as_all = two.config
    if where == "node_config":
        two.grid._node_config = lambda position: {**as_all(position), "shuffle-batch-reports": 5}
    else:
        app = ClientApp()
        register_mix_node(app, limits=BatchLimits(most_reports=5))
        app.train()(two._train)
        two.grid._client_app = app
    found = two.round()
    assert (found.reports, found.refusal) == (None, Refusal.TOO_LARGE)
    assert not list(two.folder.glob("*.batches/*"))
