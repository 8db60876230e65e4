from __future__ import annotations

import os
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    Instruction,
    context_of,
    payload_of,
    plain_payload,
    read_plain_payload,
)
from mod_harness import adding, app

from shuffle_plugins.mechanisms import MechanismSpec

SPEC = MechanismSpec(name="l2-block", local_epsilon=2.0, radius=0.5, options=(("signs", 2),))
ASKED = Instruction(
    token=bytes(range(16)),
    run="run-7",
    server_round=3,
    mechanism=SPEC,
    participation=0.25,
    analyzer_key=b"k" * 32,
)


def _with(**changes: Any) -> Instruction:
    fields = {name: getattr(ASKED, name) for name in ("token", "run", "server_round", "mechanism")}
    fields |= {"participation": ASKED.participation, "analyzer_key": ASKED.analyzer_key}
    return Instruction(**(fields | changes))


@pytest.fixture
def message() -> Message:
    InProcessGrid(app(adding({})), num_nodes=1)  # lets this process make messages
    return Message(RecordDict(), 5, "train")


def test_a_context_differs_wherever_clients_could_be_told_different_things() -> None:
    variants = [
        ASKED,
        _with(token=os.urandom(16)),
        _with(run="run-8"),
        _with(server_round=4),
        _with(participation=0.5),
        _with(analyzer_key=b"K" * 32),
        _with(mechanism=MechanismSpec(name="l2-block", local_epsilon=2.0, radius=0.5)),
    ]
    contexts = {context_of(asked, dim=dim).digest() for asked in variants for dim in (8, 9)}
    assert len(contexts) == 2 * len(variants)
    assert context_of(ASKED, dim=8) == context_of(Instruction.from_record(ASKED.to_record()), dim=8)


def test_payloads_of_reports_and_dummies_are_equally_long() -> None:
    report = os.urandom(20)
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
def test_other_replies_have_no_payload(content: RecordDict, message: Message) -> None:
    assert payload_of(Message(content, reply_to=message)) == b""
