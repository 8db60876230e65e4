"""Every message: it comes back as it was sent, and nothing else is read."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    SERVICE_KEY,
    AggregateRequest,
    Answer,
    Instruction,
    MixMessage,
    NodeRole,
    RoleQuestion,
    SharedTerms,
    Step,
    Unable,
    WindowPlace,
    Wire,
    WrongVersionError,
    context_of,
    payload_of,
    plain_payload,
    read_plain_payload,
)
from flwr_shuffle.metrics import Bins, Counts, Mean, Metric, Quantiles
from flwr_shuffle.updates import UpdateTerms
from mod_harness import adding, app

from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.secure_aggregation import ResidueLayout, SumTerms, VerifiedTerms, WindowTerms
from shuffle_plugins.shuffler import BatchRequest, MixedStatement, Refusal, RoundContext
from shuffle_plugins.shuffler.envelopes import envelope_size
from shuffle_plugins.shuffler.keys import ServiceKey
from shuffle_plugins.shuffler.mixer import items_digest

SPEC = MechanismSpec(name="l2-block", local_epsilon=2.0, radius=0.5, options=(("signs", 2),))
CONTEXT = RoundContext(run="test", token=bytes(range(16)), fingerprint=bytes(32), minimum=3)
SIZE = envelope_size(1)
PIECE = [bytes([i]) * SIZE for i in range(4)]
BATCH = BatchRequest.of(
    PIECE, context=CONTEXT, analyzer_key=bytes(32), mixers=(ServiceKey.generate().public,)
)
OUT = [bytes([i]) * BATCH.output_size for i in range(2)]
TERMS = SumTerms(context=CONTEXT, layout=ResidueLayout(8, 12), aggregators=(b"a" * 32, b"b" * 32))
PROVEN = VerifiedTerms(context=CONTEXT, layout=TERMS.layout, aggregators=TERMS.aggregators, largest=9)
WINDOWED = replace(
    PROVEN,
    layout=ResidueLayout(8, 12, vectors=2),
    window=WindowTerms(series=bytes(32), index=7, coefficients=(8, 0, 3), fixed=b"f" * 32),
)
SUM: dict[str, Any] = {
    "minimum": 2,
    "commitments": [bytes(32), b"c" * 32],
    "envelopes": [b"first", b"second"],
}
ASKED = Instruction(
    token=bytes(range(16)),
    run="run-7",
    server_round=3,
    mechanism=SPEC,
    participation=0.25,
    analyzer_key=b"k" * 32,
    update=UpdateTerms(clipping_norm=0.5, max_examples=7, trained=("a", "b")),
)
MESSAGES: dict[str, Wire] = {
    "sealed": ASKED,
    "evaluation": Instruction(
        token=bytes(16),
        run="r",
        server_round=0,
        mechanism=SPEC,
        metrics=(Metric(name="loss", kind=Mean(0, 1.5)), Metric(name="ü", kind=Mean(-1, 2))),
    ),
    "query": Instruction(
        token=bytes(16),
        run="r",
        server_round=0,
        mechanism=SPEC,
        metrics=(
            Metric(name="a", kind=Counts(3)),
            Metric(name="b", kind=Bins(0, 1, 9)),
            Metric(name="c", kind=Quantiles(-1, 1, (0.25, 0.5))),
        ),
    ),
    "records": replace(ASKED, records_per_client=9, samples_per_client=3),
    "shared": replace(
        ASKED,
        analyzer_key=b"",
        shared=SharedTerms(check_seed=bytes(range(32)), aggregators=bytes(32), clients=9, verified=True),
    ),
    "windowed": replace(ASKED, window=WindowPlace(series=bytes(range(32)), index=7)),
    "question": RoleQuestion(challenge=bytes(32)),
    "role": NodeRole(public_key=bytes(32), minimum=3, signature=b"s"),
    "unable": Unable(code=Refusal.MISCONFIGURED),
    "piece": MixMessage(request=BATCH, first=0, items=PIECE, most=2),
    "part": MixMessage(request=BATCH, first=1, most=2),
    "check": AggregateRequest(step=Step.CHECK, terms=TERMS, **SUM),
    "verify": AggregateRequest(step=Step.CHECK, terms=PROVEN, verify_key=bytes(32), **SUM),
    "add": AggregateRequest(step=Step.ADD, terms=PROVEN, messages=[b"x", b"y"], **SUM),
    "window": AggregateRequest(step=Step.ADD, terms=WINDOWED, messages=[b"x", b"y"], **SUM),
    "batch": Answer(
        token=CONTEXT.token,
        said=MixedStatement(
            request=bytes(32),
            answered=3,
            rejected={2: Refusal.UNREADABLE},
            count=2,
            outputs=items_digest(OUT, size=BATCH.output_size),
        ),
        items=OUT,
    ),
    "sum": Answer(token=CONTEXT.token, total=b"sum", rejected={0: Refusal.DUPLICATE}, signature=b"s"),
    "proofs": Answer(token=CONTEXT.token, shares=[b"one", b"two"], signature=b"s"),
    "declined": Answer(token=CONTEXT.token, refusal=Refusal.UNDER_MINIMUM, signature=b"s"),
}


def read(kind: str, record: ConfigRecord) -> Wire:
    return type(MESSAGES[kind]).from_record(record)


def changed(kind: str, **entries: Any) -> ConfigRecord:
    """The record of a message with other entries; None leaves one out."""
    values = {**MESSAGES[kind].to_record(), **entries}
    return ConfigRecord({key: value for key, value in values.items() if value is not None})


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_comes_back(kind: str) -> None:
    """Also through Flower's own serialisation; and Flower can count its bytes, which it cannot."""
    record = MESSAGES[kind].to_record()
    assert read(kind, ConfigRecord.inflate(record.deflate())) == MESSAGES[kind]
    assert record.count_bytes() > 0


@pytest.mark.parametrize("kind", MESSAGES)
def test_entries_missing_unknown_or_of_another_type_are_refused(kind: str) -> None:
    message = MESSAGES[kind]
    defaults = {
        each.name
        for each in fields(message)  # type: ignore[arg-type]
        if each.default is not MISSING or each.default_factory is not MISSING
    }
    for key, value in message.to_record().items():
        if key not in defaults:
            with pytest.raises(ValueError, match=r"entries|version"):
                read(kind, changed(kind, **{key: None}))
        for wrong in ("text", 7.5, 7, b"x", [1], ["a"]):
            if type(wrong) is not type(value) or isinstance(wrong, list):
                with pytest.raises(ValueError, match=r"."):
                    read(kind, changed(kind, **{key: wrong}))
    with pytest.raises(ValueError, match="entries"):
        read(kind, changed(kind, extra=1))
    with pytest.raises(ValueError, match="ConfigRecord"):
        type(message).from_record(MetricRecord({"a": 1}))


@pytest.mark.parametrize("kind", MESSAGES)
def test_another_version_is_named_with_what_to_do(kind: str) -> None:
    with pytest.raises(WrongVersionError, match=r"version 1 of messages; .*: install"):
        read(kind, ConfigRecord({"version": 1, "other": "entries"}))


def test_a_service_nodes_message_comes_alone() -> None:
    content = RoleQuestion(challenge=bytes(32)).to_content()
    for other in (RecordDict(), RecordDict({SERVICE_KEY: content[SERVICE_KEY], "more": ConfigRecord({})})):
        with pytest.raises(ValueError, match="one ConfigRecord"):
            RoleQuestion.from_content(other)


TERMS_TEXT = str(MESSAGES["check"].to_record()["terms"])
WINDOW_TEXT = str(MESSAGES["window"].to_record()["terms"])
ASKED_FOR = '[{"name": "loss", "kind": %s}]'
TWICE = '{"name": "loss", "kind": {"low": 0, "high": 1}}'
SHARES = '{"check_seed": "%s", "aggregators": "%s", "clients": %s}'


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("sealed", {"token": bytes(15)}),
        ("sealed", {"run": "a\nb"}),
        ("sealed", {"mechanism": "{}"}),
        ("sealed", {"mechanism": SPEC.to_json().replace("2.0", "NaN")}),
        ("sealed", {"participation": 0.0}),
        ("sealed", {"analyzer_key": b"", "mixers": 2}),
        ("sealed", {"minimum": 1}),
        ("sealed", {"update": "[]"}),
        ("sealed", {"update": '{"clipping_norm": -1.0}'}),
        ("sealed", {"update": "[" * 100_000}),
        ("sealed", {"shared": SHARES % ("00" * 32, "00" * 32, 9)}),
        ("shared", {"shared": SHARES % ("00" * 31, "00" * 32, 9)}),
        ("records", {"samples_per_client": 10}),
        ("records", {"records_per_client": 10**7}),
        ("evaluation", {"metrics": ASKED_FOR % '{"low": 1, "high": 0}'}),
        ("evaluation", {"metrics": ASKED_FOR % '{"low": 0, "high": %s}' % 10**400}),
        ("evaluation", {"metrics": ASKED_FOR % '{"low": 0, "top": 1}'}),
        ("query", {"metrics": ASKED_FOR % '{"bins": 0}'}),
        ("query", {"metrics": ASKED_FOR % '{"bins": 2097152}'}),
        ("query", {"metrics": ASKED_FOR % '{"low": 0, "high": 1, "bins": 2.5}'}),
        ("query", {"metrics": ASKED_FOR % '{"low": 0, "high": 1, "at": []}'}),
        ("query", {"metrics": ASKED_FOR % '{"low": 0, "high": 1, "at": [1.5]}'}),
        ("query", {"metrics": ASKED_FOR % '{"low": 0, "high": 1, "at": ["a"]}'}),
        ("evaluation", {"metrics": f"[{TWICE}, {TWICE}]"}),
        ("question", {"challenge": bytes(31)}),
        ("unable", {"code": '"because"'}),
        ("piece", {"request": BATCH.to_json().replace('"minimum": 2', '"minimum": 1')}),
        ("sum", {"rejected": '{"1": "because"}'}),
        ("check", {"step": '"mix"'}),
        ("check", {"commitments": [bytes(32)]}),
        ("check", {"terms": TERMS_TEXT.replace("62" * 32, "61" * 32)}),
        ("check", {"terms": TERMS_TEXT[:-1] + ', "largest": 9}'}),
        ("check", {"terms": TERMS_TEXT[:-1] + ', "smallest": 9}'}),
        ("verify", {"verify_key": b"short"}),
        ("verify", {"terms": TERMS_TEXT[:-1] + ', "largest": %s}' % (1 << 62)}),
        ("verify", {"messages": [b"", b""]}),
        ("add", {"messages": [b"x"]}),
        ("windowed", {"window": '{"series": "%s", "index": -1}' % ("00" * 32)}),
        ("windowed", {"window": '{"series": "00", "index": 1}'}),
        ("window", {"terms": WINDOW_TEXT.replace("[8, 0, 3]", "[0, 8, 3]")}),
        ("window", {"terms": WINDOW_TEXT.replace("[8, 0, 3]", '[8, "0", 3]')}),
        ("window", {"terms": WINDOW_TEXT.replace("[8, 0, 3]", "[8, 0, -3]")}),
        ("window", {"terms": WINDOW_TEXT.replace("[8, 0, 3]", "[]")}),
        ("window", {"terms": WINDOW_TEXT.replace('"vectors": 2', '"vectors": 1')}),
        ("window", {"terms": WINDOW_TEXT.replace('"index": 7', '"index": -7')}),
    ],
)
def test_values_out_of_range_are_refused(kind: str, entries: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(kind, changed(kind, **entries))


@pytest.fixture
def reply_to() -> Message:
    InProcessGrid(app(adding({})), num_nodes=1)  # lets this process make messages
    return Message(RecordDict(), 5, "train")


def test_a_context_differs_wherever_clients_could_be_told_different_things() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"token": bytes(16)},
        {"run": "run-8"},
        {"server_round": 4},
        {"participation": 0.5},
        {"analyzer_key": b"K" * 32},
        {"mechanism": replace(SPEC, options=())},
        {"window": WindowPlace(series=bytes(32), index=0)},
        {"window": WindowPlace(series=bytes(32), index=1)},
    ]
    variants = [replace(ASKED, **change) for change in changes]
    contexts = {context_of(asked, dim=dim).digest() for asked in variants for dim in (8, 9)}
    assert len(contexts) == 2 * len(variants)
    assert context_of(ASKED, dim=8) == context_of(Instruction.from_record(ASKED.to_record()), dim=8)


def test_payloads_of_reports_and_dummies_are_equally_long() -> None:
    report = b"r" * 20
    assert len(plain_payload(report, size=20)) == len(plain_payload(None, size=20)) == 21
    assert read_plain_payload(plain_payload(report, size=20), size=20) == report
    assert read_plain_payload(plain_payload(None, size=20), size=20) is None


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({RECORD_KEY: MetricRecord({"payload": 3})}),
        RecordDict({RECORD_KEY: ConfigRecord()}),
        RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: "text"})}),
        RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: b""})}),
        RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: [b"a"]})}),
        RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: b"a", "more": 1})}),
        RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: b"a"}), "metrics": MetricRecord({"loss": 1.0})}),
    ],
)
def test_other_replies_have_no_payload(content: RecordDict, reply_to: Message) -> None:
    assert payload_of(Message(content, reply_to=reply_to)) == b""
