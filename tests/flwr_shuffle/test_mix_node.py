import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle.in_process import InProcessGrid
from flwr_shuffle.messages import PAYLOAD_KEY, RECORD_KEY, payload_of
from flwr_shuffle.mix_messages import (
    MIX_KEY,
    MixerRole,
    MixRequest,
    batch_content,
    read_batch,
    refusal_content,
    refusal_in,
)
from flwr_shuffle.mix_node import register_mix_node
from flwr_shuffle.mix_stage import MixNodeStage
from mixing import SIZE, SPEC, MixedRun, encoded

from shuffle_plugins.mechanisms.spec import MechanismSpec
from shuffle_plugins.shuffler import MixedBatch, Refusal, RoundContext, SpentTokens
from shuffle_plugins.shuffler.envelopes import envelope_size
from shuffle_plugins.shuffler.keys import (
    enrol,
    generate_sealing_key,
    generate_signing_key,
    public_bytes,
    public_hex,
    write_private_key,
)


@pytest.fixture
def run(tmp_path: Path) -> MixedRun:
    return MixedRun(folder=tmp_path)


def test_a_round_by_the_mix_node(run: MixedRun) -> None:
    run.dummies = {2, 5}
    found = run.round()
    assert encoded(found.reports) == sorted(run.sent[i] for i in (1, 3, 4, 6))
    assert (found.answered, found.unreadable, found.refusal) == (6, 0, None)
    assert found.participants == tuple(map(str, run.grid.get_node_ids()[1:]))


def test_the_mix_node_is_found_and_is_no_client(run: MixedRun) -> None:
    assert run.stage.minimum == 2
    run.stage.open(run.grid)
    assert run.stage.excluded_nodes == {run.grid.get_node_ids()[0]}
    assert run.stage.minimum == run.minimum
    assert len(run.stage.analyzer_key) == 32
    asked = len(run.grid.seen)
    run.stage.open(run.grid)
    assert len(run.grid.seen) == asked


def held(message: Message) -> list[bytes]:
    """Every value in a message, as bytes."""
    entries = [entry for record in message.content.values() for entry in record.values()]
    values = [value for entry in entries for value in (entry if isinstance(entry, list) else [entry])]
    return [value if isinstance(value, bytes) else str(value).encode() for value in values]


def batches(run: MixedRun) -> list[RecordDict]:
    """What the mixer answered to the rounds so far, refusals apart."""
    contents = [message.content for message in run.grid.seen if message.has_content()]
    return [content for content in contents if "reports" in content.get(MIX_KEY, {})]


def test_nothing_the_server_sees_ties_a_report_to_a_client(run: MixedRun) -> None:
    run.dummies = {4}
    run.round()
    (content,) = batches(run)
    batch, _ = read_batch(content)
    assert len(batch.reports) == 5
    for node in run.grid.get_node_ids()[1:]:
        said = [held(message) for message in run.grid.seen if message.metadata.src_node_id == node]
        role, (payload,) = said
        assert role == [str(Refusal.NOT_A_MIXER).encode()]
        assert len(payload) == envelope_size(SIZE)
        for known in [*run.sent.values(), *batch.reports, *map(public_bytes, run.signing_keys.values())]:
            assert not any(known[i : i + 8] in payload for i in range(len(known) - 7))


def test_order_of_arrival_does_not_matter(run: MixedRun) -> None:
    """Reports come back in an order that follows neither from the nodes nor from when they answered."""
    orders = set()
    run.stage.open(run.grid)
    for turn in range(12):
        instruction = run.instruction()
        replies = run.answers(instruction)
        found = run.collect(replies if turn % 2 else replies[::-1], instruction)
        assert found.reports is not None
        place = {run.sent[i]: i for i in run.sent}
        reports = [found.reports.narrow(i, i + 1).to_bytes() for i in range(6)]
        orders.add(tuple(place[report] for report in reports))
    assert len(orders) > 6


def altered(reply: Message, *, byte: int) -> Message:
    payload = bytearray(payload_of(reply))
    payload[byte] ^= 1
    reply.content = RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: bytes(payload)})})
    return reply


def refusal_of(run: MixedRun, replies: list[Message], instruction: Any) -> Refusal | None:
    found = run.collect(replies, instruction)
    assert found.reports is None
    return found.refusal


@pytest.mark.parametrize("byte", [0, 40, 150, -1])
def test_a_tampered_envelope_refuses_the_round(run: MixedRun, byte: int) -> None:
    run.stage.open(run.grid)
    instruction = run.instruction()
    replies = run.answers(instruction)
    replies[3] = altered(replies[3], byte=byte)
    assert refusal_of(run, replies, instruction) is Refusal.UNREADABLE
    assert run.round().refusal is None


def test_replayed_batches_are_refused(run: MixedRun) -> None:
    run.stage.open(run.grid)
    instruction = run.instruction()
    replies = run.answers(instruction)
    assert run.collect(replies, instruction).refusal is None
    assert refusal_of(run, replies, instruction) is Refusal.REPLAYED
    assert refusal_of(run, replies[1:], instruction) is Refusal.REPLAYED
    assert refusal_of(run, replies, run.instruction()) is Refusal.UNREADABLE


def test_duplicates_are_refused(run: MixedRun) -> None:
    run.stage.open(run.grid)
    instruction = run.instruction()
    replies = run.answers(instruction)
    assert refusal_of(run, [*replies, replies[0]], instruction) is Refusal.DUPLICATE
    run.changes = {2: {"signing_key": run.signing_keys[1]}}
    instruction = run.instruction()
    assert refusal_of(run, run.answers(instruction), instruction) is Refusal.DUPLICATE


def test_strangers_and_wrong_keys_are_refused(run: MixedRun) -> None:
    run.stage.open(run.grid)
    for change, code in (
        ({"signing_key": generate_signing_key()}, Refusal.UNKNOWN_SIGNER),
        ({"mixer_key": public_bytes(generate_sealing_key())}, Refusal.UNREADABLE),
        ({"analyzer_key": public_bytes(generate_sealing_key())}, Refusal.UNREADABLE),
    ):
        run.changes = {6: change}
        instruction = run.instruction()
        assert refusal_of(run, run.answers(instruction), instruction) is code


@pytest.mark.parametrize(
    "change",
    [
        {"participation": 0.5},
        {"run": "another"},
        {"server_round": 2},
        {"mechanism": MechanismSpec(name=SPEC.name, local_epsilon=2.5)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_client_that_was_told_another_round_is_noticed(run: MixedRun, change: dict[str, Any]) -> None:
    run.stage.open(run.grid)
    told = run.instruction()
    replies = run.answers(told)
    other = run.instruction(token=told.token, **change)
    replies[2] = run.answers(other)[2]
    assert refusal_of(run, replies, told) is Refusal.UNREADABLE


def test_too_few_reports_are_refused_and_the_mixer_counts_reports_alone(run: MixedRun) -> None:
    run.dummies = {1, 2, 3, 4}
    found = run.round()
    assert (found.refusal, found.reports, found.answered) == (Refusal.UNDER_MINIMUM, None, 6)
    run.dummies = {1, 2, 3}
    assert run.round().refusal is None
    run.dummies = set()
    instruction = run.instruction()
    replies = run.answers(instruction)
    sent = len(run.grid.seen)
    assert refusal_of(run, replies[:2], instruction) is Refusal.UNDER_MINIMUM
    assert len(run.grid.seen) == sent  # too few to ask


def test_the_server_can_ask_for_more(run: MixedRun) -> None:
    run.stage = MixNodeStage(minimum=6)
    assert run.round().refusal is None
    run.dummies = {1}
    found = run.round()
    assert (found.refusal, found.answered) == (Refusal.UNDER_MINIMUM, 6)


def test_errors_are_drop_outs(run: MixedRun) -> None:
    run.stage.open(run.grid)
    instruction = run.instruction()
    replies = run.answers(instruction)
    replies[0].content = RecordDict({"other": ConfigRecord({"x": 1})})  # no payload
    replies[1] = Message(Error(code=0, reason="lost"), reply_to=replies[1])
    found = run.collect(replies, instruction)
    assert (len(found.participants), found.answered, found.unreadable) == (5, 4, 1)
    assert encoded(found.reports) == sorted(run.sent[i] for i in (3, 4, 5, 6))


def test_nonsense_that_a_client_sealed_is_dropped_and_does_not_count(run: MixedRun) -> None:
    """Neither among reports nor among clients that answered: who sends nonsense hides nobody."""
    run.changes = {1: {"report": os.urandom(SIZE)}}
    run.dummies = {2}
    found = run.round()
    assert encoded(found.reports) == sorted(run.sent[i] for i in (3, 4, 5, 6))
    assert (found.answered, found.unreadable, found.refusal) == (5, 1, None)
    run.changes = {i: {"report": os.urandom(SIZE)} for i in range(1, 7)}
    found = run.round()
    assert (found.reports, found.refusal) == (None, Refusal.UNREADABLE)


def test_enrolled_clients_are_read_anew_every_round(run: MixedRun) -> None:
    newcomer = generate_signing_key()
    run.changes = {1: {"signing_key": newcomer}}
    assert run.round().refusal is Refusal.UNKNOWN_SIGNER
    enrol(run.folder / "enrolled", public_bytes(newcomer))
    assert run.round().refusal is None


def spoil_key(run: MixedRun) -> None:
    (run.folder / "mixer").chmod(0o644)


def spoil_enrolment(run: MixedRun) -> None:
    (run.folder / "enrolled").write_text("nobody")


def spoil_state(run: MixedRun) -> None:
    (run.folder / "mixer.rounds").unlink()


def spoil_minimum(run: MixedRun) -> None:
    run.minimum = "3"  # type: ignore[assignment]


@pytest.mark.parametrize("spoil", [spoil_key, spoil_enrolment, spoil_state, spoil_minimum])
def test_what_the_mixer_lacks_is_said_in_its_own_log_alone(
    run: MixedRun, spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(run)
    with caplog.at_level(logging.ERROR, logger="flwr"), pytest.raises(RuntimeError, match="no mix node"):
        run.stage.open(run.grid)
    assert "this mix node cannot work" in caplog.text
    mixer = run.grid.get_node_ids()[0]
    told = {value for m in run.grid.seen if m.metadata.src_node_id == mixer for value in held(m)}
    assert told == {str(Refusal.MISCONFIGURED).encode()}


def test_a_mixer_that_breaks_later_refuses(run: MixedRun) -> None:
    run.stage.open(run.grid)
    sqlite3.connect(run.folder / "mixer.rounds").executescript("DROP TABLE spent")
    instruction = run.instruction()
    assert refusal_of(run, run.answers(instruction), instruction) is Refusal.MISCONFIGURED


def test_a_client_asked_to_mix_says_no(run: MixedRun) -> None:
    node = run.grid.get_node_ids()[1]
    request = MixRequest(
        context=RoundContext(run="test", token=bytes(16), fingerprint=bytes(32)),
        analyzer_key=bytes(32),
        minimum=2,
        envelopes=[b"x"],
    )
    (reply,) = run.grid.send_and_receive([Message(request.to_content(), node, "query.mix")])
    assert refusal_in(reply.content) is Refusal.NOT_A_MIXER


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({MIX_KEY: ConfigRecord({"token": b"x"})})])
def test_a_request_that_is_none_is_refused(run: MixedRun, content: RecordDict) -> None:
    node = run.grid.get_node_ids()[0]
    (reply,) = run.grid.send_and_receive([Message(content, node, "query.mix")])
    assert refusal_in(reply.content) is Refusal.UNREADABLE


def grid_of(configs: list[dict[str, Any]]) -> InProcessGrid:
    app = ClientApp()
    register_mix_node(app)
    return InProcessGrid(app, num_nodes=len(configs), node_config=lambda position: configs[position])


def test_without_a_mix_node_the_run_does_not_start(run: MixedRun) -> None:
    with pytest.raises(RuntimeError, match="no mix node is connected"):
        run.stage.open(grid_of([{}, {"shuffle-role": "client"}]))
    with pytest.raises(RuntimeError, match="no mix node is connected"):
        run.stage.open(InProcessGrid(ClientApp(), num_nodes=2))  # an app without the handlers


def test_of_several_mix_nodes_the_key_picks_one(run: MixedRun) -> None:
    other = generate_sealing_key()
    write_private_key(run.folder / "other", other)
    SpentTokens.create(run.folder / "other.rounds", public_key=public_bytes(other))
    configs = [run.config(0), {**run.config(0), "shuffle-mixer-key-file": str(run.folder / "other")}, {}]
    grid = grid_of(configs)
    with pytest.raises(RuntimeError, match="2 keys"):
        run.stage.open(grid)
    chosen = MixNodeStage(mixer_public_key=public_hex(other))
    chosen.open(grid)
    assert chosen.excluded_nodes == set(grid.get_node_ids()[:2])
    with pytest.raises(RuntimeError, match="no mix node"):
        MixNodeStage(mixer_public_key="ab" * 32, discovery_timeout=0.1).open(grid)


def test_a_mixer_that_does_not_answer_is_looked_for_again(run: MixedRun) -> None:
    run.stage.open(run.grid)
    run.grid.relay = lambda messages: [m for m in messages if m.metadata.message_type != "query.mix"]
    instruction = run.instruction()
    assert refusal_of(run, run.answers(instruction), instruction) is Refusal.NO_ANSWER
    run.grid.relay = list
    asked = len(run.grid.seen)
    assert run.round().refusal is None
    assert any(m.metadata.message_type == "query.role" for m in run.grid.seen[asked:])
    assert len(run.stage.excluded_nodes) == 1


def test_a_mix_node_whose_first_answer_is_an_error_is_asked_again(run: MixedRun) -> None:
    failures: list[Message] = []
    questions: list[Message] = []

    def asked(messages: list[Message]) -> list[Message]:
        questions[:] = messages
        return messages

    def failing(replies: list[Message]) -> list[Message]:
        if len(failures) >= 2 * len(questions):
            return replies
        failures.extend(questions)
        return [Message(Error(code=0, reason="process died"), reply_to=question) for question in questions]

    stage = MixNodeStage(poll_interval=0.01, discovery_timeout=20)
    run.grid.relay, run.grid.receive = asked, failing
    stage.open(run.grid)
    assert len(failures) == 2 * len(questions)
    assert len(stage.excluded_nodes) == 1


def test_a_mix_node_that_was_started_anew_takes_over(tmp_path: Path) -> None:
    """To Flower it is another node, and the old one may count as connected for a while."""
    run = MixedRun(folder=tmp_path, clients=7)
    first, second = run.grid.get_node_ids()[0], run.grid.get_node_ids()[7]
    run.connected = range(7)
    assert run.round().refusal is None
    run.connected = range(8)
    run.restarted = 7
    assert run.round().refusal is None
    assert run.stage.excluded_nodes == {first, second}
    asked = [m for m in run.grid.seen if m.metadata.message_type == "query.mix"]
    assert {m.metadata.dst_node_id for m in asked} >= {first, second}
    run.connected = range(1, 8)
    assert run.round().refusal is None


def test_without_the_mix_node_a_round_is_refused_and_conclusively(run: MixedRun) -> None:
    run.stage.open(run.grid)
    run.connected = range(1, 7)
    instruction = run.instruction()
    found = refusal_of(run, run.answers(instruction), instruction)
    assert found is Refusal.NOT_A_MIXER
    assert found.conclusive
    run.connected = range(7)
    assert run.round().refusal is None


def test_what_may_have_been_shuffled_is_not_conclusive() -> None:
    lost = {Refusal.NO_ANSWER, Refusal.REPLAYED, Refusal.WRONG_ROUND}
    assert {code for code in Refusal if not code.conclusive} == lost


def test_an_answer_to_another_round_is_no_answer(run: MixedRun) -> None:
    run.round()
    (stale,) = batches(run)

    def late(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.metadata.message_type == "query.mix":
                reply.content = stale
        return replies

    run.grid.receive = late
    instruction = run.instruction()
    assert refusal_of(run, run.answers(instruction), instruction) is Refusal.WRONG_ROUND


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({MIX_KEY: ConfigRecord({"refusal": "because"})}),
        RecordDict({MIX_KEY: ConfigRecord({"token": bytes(16), "answered": 6, "reports": [1, 2, 3]})}),
    ],
)
def test_an_answer_that_is_none_refuses_the_round(run: MixedRun, content: RecordDict) -> None:
    run.stage.open(run.grid)
    instruction = run.instruction()
    replies = run.answers(instruction)
    (answer,) = run.answers(instruction)[:1]
    answer.content = content
    run.grid.receive = lambda _: [answer]
    assert refusal_of(run, replies, instruction) is Refusal.NO_ANSWER


@pytest.mark.parametrize(
    "argument",
    [
        {"minimum": 1},
        {"mixer_public_key": "short"},
        {"mix_timeout": 0},
        {"answer_timeout": -1.0},
        {"poll_interval": float("nan")},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_arguments_out_of_range_are_refused(argument: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|64 hexadecimal"):
        MixNodeStage(**argument)


def test_an_app_takes_the_handlers_once() -> None:
    app = ClientApp()
    register_mix_node(app)
    with pytest.raises(ValueError, match="registered"):
        register_mix_node(app)


CONTENTS = {
    "request": MixRequest(
        context=RoundContext(run="test", token=bytes(16), fingerprint=bytes(32)),
        analyzer_key=bytes(32),
        minimum=2,
        envelopes=[b"a", b"b"],
    ).to_content(),
    "role": MixerRole(public_key=bytes(32), minimum=3).to_content(),
    "batch": batch_content(MixedBatch(reports=[b"a", b"b"], answered=3), token=bytes(16)),
}
READERS = {"request": MixRequest.from_content, "role": MixerRole.from_content, "batch": read_batch}


def with_entries(content: RecordDict, **entries: Any) -> RecordDict:
    values = {key: value for key, value in {**content[MIX_KEY], **entries}.items() if value is not None}
    return RecordDict({MIX_KEY: ConfigRecord(values)})


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, content in CONTENTS.items() for key in content[MIX_KEY]]
)
def test_an_entry_missing_or_of_another_type_is_refused(kind: str, key: str) -> None:
    value = CONTENTS[kind][MIX_KEY][key]
    for wrong in [None, *(other for other in ("text", 7.5, 7, b"x", [1]) if type(other) is not type(value))]:
        with pytest.raises(ValueError, match="each of its type"):
            READERS[kind](with_entries(CONTENTS[kind], **{key: wrong}))


@pytest.mark.parametrize("kind", CONTENTS)
def test_messages_hold_nothing_else(kind: str) -> None:
    content, read = CONTENTS[kind], READERS[kind]
    with pytest.raises(ValueError, match="no others"):
        read(with_entries(content, extra=1))
    with pytest.raises(ValueError, match="one ConfigRecord"):
        read(RecordDict({MIX_KEY: content[MIX_KEY], "more": ConfigRecord({})}))


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("request", {"version": 1}),
        ("request", {"minimum": 1}),
        ("request", {"promised": 1}),
        ("request", {"token": b"short"}),
        ("request", {"analyzer-key": bytes(31)}),
        ("request", {"envelopes": [1]}),
        ("role", {"version": 1}),
        ("role", {"public-key": bytes(31)}),
        ("role", {"minimum": 0}),
        ("batch", {"reports": ["a"]}),
        ("batch", {"reports": []}),
        ("batch", {"answered": 1}),
    ],
)
def test_values_out_of_range_are_refused(kind: str, entries: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"version|least 2|bytes|more reports"):
        READERS[kind](with_entries(CONTENTS[kind], **entries))


def test_contents_come_back() -> None:
    request = MixRequest.from_content(CONTENTS["request"])
    assert (request.envelopes, request.minimum, request.context.run) == ([b"a", b"b"], 2, "test")
    assert MixerRole.from_content(CONTENTS["role"]) == MixerRole(public_key=bytes(32), minimum=3)
    assert read_batch(CONTENTS["batch"]) == (MixedBatch(reports=[b"a", b"b"], answered=3), bytes(16))
    for code in Refusal:
        assert refusal_in(refusal_content(code)) is code
    assert refusal_in(CONTENTS["batch"]) is None
    with pytest.raises(ValueError, match="not a valid Refusal"):
        refusal_in(RecordDict({MIX_KEY: ConfigRecord({"refusal": "because"})}))


def test_a_hundred_clients_answer_in_one_message(tmp_path: Path) -> None:
    run = MixedRun(folder=tmp_path, clients=100)
    assert encoded(run.round().reports) == sorted(run.sent.values())


def test_the_mix_node_keeps_nothing_in_the_runs_state(run: MixedRun) -> None:
    run.round()
    assert not list(run.grid.context(run.grid.get_node_ids()[0]).state)
