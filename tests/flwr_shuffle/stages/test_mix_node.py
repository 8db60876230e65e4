import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import Waiting
from flwr_shuffle.grids import Anonymous, InProcessGrid
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    SERVICE_KEY,
    MixMessage,
    NodeRole,
    Role,
    Unable,
    payload_of,
    refusal_in,
)
from flwr_shuffle.service_nodes import register_mix_node
from flwr_shuffle.service_stages import MixNodeStage
from mixing import SIZE, MixedRun, encoded, service_key

from shuffle_plugins.shuffler import BatchRefused, BatchRequest, Mixer, Refusal, RoundContext, envelopes
from shuffle_plugins.shuffler.envelopes import envelope_size
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    SigningKey,
    public_key_bytes,
)


@pytest.fixture
def run(tmp_path: Path) -> MixedRun:
    return MixedRun(folder=tmp_path)


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
    return held_by(message.content)


def held_by(content: RecordDict) -> list[bytes]:
    entries = [entry for record in content.values() for entry in record.values()]
    values = [value for entry in entries for value in (entry if isinstance(entry, list) else [entry])]
    return [value if isinstance(value, bytes) else str(value).encode() for value in values]


def batches(run: MixedRun) -> list[RecordDict]:
    """What the mixer answered to the rounds so far, refusals apart."""
    contents = [message.content for message in run.grid.seen if message.has_content()]
    return [content for content in contents if "said" in content.get(SERVICE_KEY, {})]


def altered(reply: Message, *, byte: int) -> Message:
    payload = bytearray(payload_of(reply))
    payload[byte] ^= 1
    reply.content = RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: bytes(payload)})})
    return reply


def dropped(run: MixedRun, replies: list[Message], instruction: Any, *, places: set[int]) -> None:
    """The envelopes at these places are dropped, and nothing else is."""
    found = run.collect(replies, instruction)
    good = [i for i in run.sent if i - 1 not in places]
    assert encoded(found.reports) == sorted(run.sent[i] for i in good)
    assert (found.answered, found.unreadable, found.refusal) == (len(good), len(places), None)
    assert len(found.participants) == len(run.sent)


@pytest.mark.parametrize("byte", [0, 40, 150, -1])
def test_a_tampered_envelope_is_dropped_and_its_node_is_named(
    run: MixedRun, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    instruction, replies = run.begun()
    replies[3] = altered(replies[3], byte=byte)
    dropped(run, replies, instruction, places={3})
    assert f"envelopes dropped (unreadable), of node {run.nodes[4]}" in caplog.text


def garbage(replies: list[Message], *, places: set[int]) -> list[Message]:
    for place in places:
        content = ConfigRecord({PAYLOAD_KEY: os.urandom(envelope_size(SIZE))})
        replies[place].content = RecordDict({RECORD_KEY: content})
    return replies


def test_garbage_stops_no_round_and_who_sends_it_is_not_invited_for_ever(
    run: MixedRun, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it pushes the round under the minimum; and a node that failed for a while is kept."""
    run.stage = run.new_stage(exclude_after=2)
    run.stage.open(run.grid)
    clients = run.nodes[1:]

    def play(places: set[int]) -> Anonymous:
        instruction = run.instruction()
        return run.collect(garbage(run.answers(instruction), places=places), instruction)

    assert play({0, 1}).refusal is None
    assert play({1}).refusal is None
    assert run.stage.excluded_nodes == {run.nodes[0], clients[1]}
    assert f"nodes {clients[1]} sent no good envelope in 2 rounds" in caplog.text
    assert play({0}).refusal is None
    found = play({0, 2, 3, 4})
    assert (found.refusal, found.answered) == (Refusal.UNDER_MINIMUM, 2)
    assert run.stage.excluded_nodes == {run.nodes[0], clients[1], clients[0]}


def test_a_stage_that_is_used_again_knows_nothing_of_an_earlier_run(run: MixedRun) -> None:
    """Another run's nodes may have the same ids, and there the first node is no mix node."""
    run.stage = run.new_stage(exclude_after=1)
    instruction = run.instruction()
    run.collect(garbage(run.answers(instruction), places={1}), instruction)
    assert run.stage.excluded_nodes == {run.nodes[0], run.nodes[2]}
    places = [5, 0, 1]
    again = InProcessGrid(
        run.grid._client_app, num_nodes=3, node_config=lambda place: run.config(places[place]), run_id=2
    )
    run.stage.open(again)
    assert run.stage.excluded_nodes == {again.get_node_ids()[1]}


def test_what_is_wrong_with_everybody_is_nobodys_fault(run: MixedRun) -> None:
    run.stage = run.new_stage(exclude_after=1)
    run.changes = {i: {"mixer_key": public_key_bytes(SealingKey.generate())} for i in range(1, 7)}
    found = run.round()
    assert (found.refusal, found.answered) == (Refusal.UNDER_MINIMUM, 0)
    assert run.stage.excluded_nodes == {run.nodes[0]}


def test_too_few_reports_are_refused_and_the_mixer_counts_reports_alone(run: MixedRun) -> None:
    run.dummies = {1, 2, 3, 4}
    found = run.round()
    assert (found.refusal, found.reports, found.answered) == (Refusal.UNDER_MINIMUM, None, 6)
    assert found.refusal.conclusive  # a signed refusal is believed
    run.dummies = {1, 2, 3}
    assert run.round().refusal is None
    run.dummies = set()
    instruction, replies = run.begun()
    sent = len(run.grid.seen)
    assert run.collect(replies[:2], instruction).refusal is Refusal.UNDER_MINIMUM
    assert len(run.grid.seen) == sent  # too few to ask


def test_where_all_are_to_report_a_dummy_is_no_answer(run: MixedRun) -> None:
    run.stage.open(run.grid)
    run.dummies = {1, 2}
    found = run.round(participation=1.0)
    assert (found.count, found.answered, found.unreadable) == (4, 4, 0)
    run.dummies = {1, 2, 3, 4}
    found = run.round(participation=1.0)
    assert (found.refusal, found.answered) == (Refusal.UNDER_MINIMUM, run.minimum - 1)


def test_nonsense_that_a_client_sealed_is_dropped_and_does_not_count(run: MixedRun) -> None:
    """Neither among reports nor among clients that answered: who sends nonsense hides nobody."""
    run.changes = {1: {"report": os.urandom(SIZE)}}
    run.dummies = {2}
    found = run.round()
    assert encoded(found.reports) == sorted(run.sent[i] for i in (3, 4, 5, 6))
    assert (found.answered, found.unreadable, found.refusal) == (5, 1, None)
    run.changes = {i: {"report": os.urandom(SIZE)} for i in range(1, 7)}
    found = run.round()
    assert (found.reports, found.refusal) == (None, Refusal.NO_REPORT)
    assert not found.refusal.conclusive  # they may have been whole reports of another version


@pytest.mark.parametrize("mixers", [1, 2])
def test_a_report_that_two_clients_sealed_alike_counts_once_and_stops_no_round(
    tmp_path: Path, mixers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sealed, seal_to = MixedRun(folder=tmp_path, mixers=mixers), list[bytes](), envelopes.sealed_to

    def alike(key: bytes, text: bytes, *, info: bytes) -> bytes:
        if key != run.stage.analyzer_key:
            return seal_to(key, text, info=info)
        sealed.append(seal_to(key, text, info=info))
        return sealed[0] if len(sealed) == 2 else sealed[-1]

    monkeypatch.setattr(envelopes, "sealed_to", alike)
    found = run.round()
    first, _, *others = sorted(run.sent)
    assert encoded(found.reports) == sorted(run.sent[i] for i in (first, *others))
    assert (found.answered, found.unreadable, found.refusal) == (5, 1, None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: (run.folder / "mixer").chmod(0o644),
        lambda run: (run.folder / "enrolled").write_text("nobody"),
        lambda run: (run.folder / "mixer.rounds").unlink(),
        lambda run: setattr(run, "minimum", "3"),
    ],
    ids=["key", "enrolment", "state", "minimum"],
)
def test_what_the_mixer_lacks_is_said_in_its_own_log_alone(
    run: MixedRun, spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(run)
    with caplog.at_level(logging.ERROR, logger="flwr"), pytest.raises(RuntimeError, match="no mix node"):
        run.stage.open(run.grid)
    assert "this mix node cannot work" in caplog.text
    mixer = run.grid.get_node_ids()[0]
    told = {value for m in run.grid.seen if m.metadata.src_node_id == mixer for value in held(m)}
    assert told == set(held_by(Unable(code=Refusal.MISCONFIGURED).to_content()))


def test_a_request_that_is_none_or_of_an_older_version_is_refused(
    run: MixedRun, caplog: pytest.LogCaptureFixture
) -> None:
    for content, code in (
        (RecordDict(), Refusal.UNREADABLE),
        (RecordDict({SERVICE_KEY: ConfigRecord({"token": b"x"})}), Refusal.UNREADABLE),
        (RecordDict({SERVICE_KEY: ConfigRecord({"version": 1, "run": "r"})}), Refusal.WRONG_VERSION),
    ):
        (reply,) = run.grid.send_and_receive([Message(content, run.nodes[0], Role.MIXER.work)])
        assert refusal_in(reply.content) is code
    assert "the server speaks version 1 of messages" in caplog.text


def grid_of(configs: list[dict[str, Any]]) -> InProcessGrid:
    app = ClientApp()
    register_mix_node(app)
    return InProcessGrid(app, num_nodes=len(configs), node_config=lambda position: configs[position])


def test_without_a_mix_node_the_run_does_not_start(run: MixedRun) -> None:
    with pytest.raises(RuntimeError, match="no mix node with the pinned keys"):
        run.stage.open(grid_of([{}, {"shuffle-role": "client"}]))
    with pytest.raises(RuntimeError, match="no mix node with the pinned keys"):
        run.stage.open(InProcessGrid(ClientApp(), num_nodes=2))  # an app without the handlers


def test_of_several_mix_nodes_the_pinned_one_mixes(run: MixedRun, caplog: pytest.LogCaptureFixture) -> None:
    other = service_key(run.folder / "other")
    configs = [run.config(0), {**run.config(0), "shuffle-mixer-key-file": str(run.folder / "other")}, {}]
    grid = grid_of(configs)
    first, second, _ = grid.get_node_ids()
    chosen = MixNodeStage(mixer_public_key=other.public.hex())
    chosen.open(grid)
    assert chosen.excluded_nodes == {first, second}
    assert f"mix node {second}, public key {other.public.hex()}" in caplog.text
    assert f"node {first} says that it is a mix node and has not proven" in caplog.text
    with pytest.raises(RuntimeError, match="no mix node"):
        MixNodeStage(mixer_public_key="ab" * 64, waiting=Waiting(discovery_timeout=0.1)).open(grid)


def test_two_nodes_with_the_mixers_keys_stop_the_run_and_are_named(run: MixedRun) -> None:
    grid = grid_of([run.config(0), {}, run.config(0)])
    first, _, third = grid.get_node_ids()
    with pytest.raises(RuntimeError, match=f"nodes {first}, {third} all hold the mixer's private keys"):
        run.stage.open(grid)


Forgery = Callable[[dict[int, Message], MixedRun, int, int], RecordDict]


def signed_by_itself(real: dict[int, Message], run: MixedRun, impostor: int, mixer: int) -> RecordDict:
    """The pinned key to seal to, which is no secret, and a signature by another key."""
    said = role_of(real[mixer])
    return replace(said, signature=SigningKey.generate().sign(b"I am it")).to_content()


def passed_on(real: dict[int, Message], run: MixedRun, impostor: int, mixer: int) -> RecordDict:
    """The mixer's own answer to this very question round, under another node's id."""
    return role_of(real[mixer]).to_content()


def role_of(reply: Message) -> NodeRole:
    return NodeRole.from_content(reply.content)


@pytest.mark.parametrize("forge", [signed_by_itself, passed_on])
def test_an_impostor_does_not_become_the_mix_node(
    run: MixedRun, forge: Forgery, caplog: pytest.LogCaptureFixture
) -> None:
    mixer, impostor = run.nodes[0], run.nodes[6]

    def lie(replies: list[Message]) -> list[Message]:
        real = {reply.metadata.src_node_id: reply for reply in replies}
        if SERVICE_KEY in real.get(impostor, replies[0]).content:
            real[impostor].content = forge(real, run, impostor, mixer)
        return replies

    run.grid.receive = lie
    run.stage.open(run.grid)
    run.grid.receive = list
    assert run.round().refusal is None
    asked = [
        m for m in run.grid.seen if m.metadata.message_type == Role.MIXER.work and m.metadata.dst_node_id
    ]
    assert impostor not in {m.metadata.dst_node_id for m in asked}
    assert f"node {impostor} " in caplog.text


def with_entries(content: RecordDict, **entries: Any) -> RecordDict:
    return RecordDict({SERVICE_KEY: ConfigRecord({**content[SERVICE_KEY], **entries})})


def with_said(content: RecordDict, **entries: Any) -> RecordDict:
    """A batch of which somebody says what the mixer has not signed."""
    return with_entries(content, said=json.dumps(json.loads(str(content[SERVICE_KEY]["said"])) | entries))


@pytest.mark.parametrize(
    "forge",
    [
        lambda run, content: with_entries(content, items=list(reversed(content[SERVICE_KEY]["items"]))),
        lambda run, content: with_said(content, rejected={"0": "unreadable"}, answered=5),
        lambda run, content: with_said(content, signature=SigningKey.generate().sign(b"x").hex()),
        lambda run, content: Unable(code=Refusal.UNDER_MINIMUM).to_content(),
    ],
    ids=["order", "positions", "resigned", "refusal"],
)
def test_a_batch_that_the_mixer_did_not_sign_is_refused_and_the_run_goes_on(
    run: MixedRun, forge: Callable[[MixedRun, RecordDict], RecordDict], caplog: pytest.LogCaptureFixture
) -> None:
    def lie(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if "said" in reply.content.get(SERVICE_KEY, {}):
                reply.content = forge(run, reply.content)
        return replies

    run.stage.open(run.grid)
    run.grid.receive = lie
    found = run.round().refusal
    assert found is Refusal.NOT_PROVEN
    assert not found.conclusive
    assert f"node {run.nodes[0]}" in caplog.text
    run.grid.receive = list
    assert run.round().refusal is None


def test_a_mixer_that_does_not_answer_is_looked_for_again(run: MixedRun) -> None:
    run.stage.open(run.grid)
    run.grid.relay = lambda messages: [m for m in messages if m.metadata.message_type != Role.MIXER.work]
    assert run.round().refusal is Refusal.NO_ANSWER
    run.grid.relay = list
    asked = len(run.grid.seen)
    assert run.round().refusal is None
    assert any(m.metadata.message_type == Role.MIXER.question for m in run.grid.seen[asked:])
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

    stage = run.new_stage(waiting=Waiting(poll_interval=0.01, discovery_timeout=20))
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
    run.grid.relay = lambda messages: [m for m in messages if m.metadata.dst_node_id != first]
    assert run.round().refusal is None
    assert run.stage.excluded_nodes == {first, second}
    asked = [m for m in run.grid.seen if m.metadata.message_type == Role.MIXER.work]
    assert {m.metadata.dst_node_id for m in asked} >= {first, second}
    run.connected = range(1, 8)
    assert run.round().refusal is None


def test_what_may_have_been_shuffled_is_not_conclusive() -> None:
    lost = {Refusal.NO_ANSWER, Refusal.REPLAYED, Refusal.WRONG_ROUND, Refusal.NOT_PROVEN}
    seen = {Refusal.INCONSISTENT, Refusal.NO_REPORT}  # by this server
    assert {code for code in Refusal if not code.conclusive} == lost | seen


def test_an_answer_to_another_round_is_no_answer(run: MixedRun) -> None:
    run.round()
    (stale,) = batches(run)

    def late(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.metadata.message_type == Role.MIXER.work:
                reply.content = stale
        return replies

    run.grid.receive = late
    assert run.round().refusal is Refusal.WRONG_ROUND


@pytest.fixture
def mixer(run: MixedRun) -> Mixer:
    state = run.folder / "mixer.rounds"
    return Mixer(key=run.mixer_key, enrolled=frozenset({bytes(32)}), minimum=3, state=state)


@pytest.mark.parametrize("position", [1, -1])
def test_an_envelope_that_was_not_sent_is_not_dropped(mixer: Mixer, position: int) -> None:
    items = [bytes(envelope_size(1))]
    context = RoundContext(run="test", token=bytes(16), fingerprint=bytes(32))
    batch = BatchRequest.of(items, context=context, analyzer_key=bytes(32), mixers=(mixer.public_key,))
    asked = MixMessage(request=batch, first=0, items=items, most=2)
    refused = asked.refused(
        BatchRefused(Refusal.UNDER_MINIMUM, {position: Refusal.UNREADABLE}), service=mixer
    )
    with pytest.raises(ValueError, match="that was not sent"):
        asked.read(refused.to_content(), verifying_key=mixer.public_key.verifying)
