"""What goes over the wire: a round's messages, statements, envelopes and tokens, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr_shuffle import PrivateEvaluation
from flwr_shuffle.batch_messages import BatchMessage, BatchStep
from flwr_shuffle.clipping import UpdateTerms
from flwr_shuffle.evaluation import record_of, vector_of
from flwr_shuffle.messages import Instruction, context_of, plain_payload, read_plain_payload
from flwr_shuffle.mix_messages import MixRequest, batch_content, read_answer, refused_content
from flwr_shuffle.server.checkpoints import ModelState
from flwr_shuffle.service_messages import NodeRole, Role, question_content, read_question
from flwr_shuffle.updates import Layout
from reports_answers import FILES, Questions, digest, vector

from shuffle_plugins.mechanisms import MechanismSpec, SumSpec
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.shuffler import (
    BatchRefused,
    BatchRequest,
    EnvelopeOpener,
    ItemsDigest,
    MixedBatch,
    MixedStatement,
    Refusal,
    RoundContext,
    ServiceKey,
    Statement,
    envelope_size,
    mark_bytes,
    open_reports,
    part_sizes,
    seal,
)
from shuffle_plugins.shuffler.keys import public_key_bytes

TOKEN = bytes(range(16))
CONTEXT = RoundContext(run="run-7", token=TOKEN, fingerprint=bytes(range(32)), minimum=3)
ENVELOPES = FILES / "envelopes.json"
ROW_ENVELOPES = FILES / "row_envelopes.json"
SIZE = 24


def sealing_key(number: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def signing_key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


ANALYZER, CLIENTS = sealing_key(7), [signing_key(10 + i) for i in range(4)]
MIXER = ServiceKey(sealing=sealing_key(8), signing=signing_key(9))
SECOND = ServiceKey(sealing=sealing_key(20), signing=signing_key(21))
REQUEST = MixRequest(
    context=CONTEXT,
    analyzer_key=public_key_bytes(ANALYZER),
    minimum=2,
    size=100,
    envelopes=[bytes([i]) * 100 for i in range(4)],
)

LOCAL = MechanismSpec(name="l2-block", local_epsilon=2.0, radius=0.5, options=(("signs", 2),))
INSTRUCTIONS: dict[str, tuple[int, Callable[[], Instruction]]] = {
    "plain": (9, lambda: Instruction(token=TOKEN, run="run-7", server_round=3, mechanism=LOCAL)),
    "sealed": (
        9,
        lambda: Instruction(
            token=TOKEN,
            run="run-7",
            server_round=3,
            mechanism=LOCAL,
            participation=0.25,
            analyzer_key=public_key_bytes(ANALYZER),
            minimum=50,
        ),
    ),
    "evaluation": (
        9,
        lambda: Instruction(
            token=TOKEN,
            run="run-7",
            server_round=4,
            mechanism=EVALUATION.spec(cohort=2),
            metrics=EVALUATION.ranges,
        ),
    ),
    "weighted": (
        9,
        lambda: Instruction(
            token=TOKEN,
            run="run-7",
            server_round=5,
            mechanism=LOCAL,
            update=UpdateTerms(clipping_norm=0.25, max_examples=100, examples_key="n"),
        ),
    ),
    "vector-sum": (
        9,
        lambda: Instruction(
            token=TOKEN,
            run="run-7",
            server_round=1,
            mechanism=SumSpec(protocol=VectorSum(dim=9, cohort=60, levels=6, coins=40, radius=2.0)),
        ),
    ),
    "ball-sum": (
        9,
        lambda: Instruction(
            token=TOKEN,
            run="run-7",
            server_round=1,
            mechanism=SumSpec(protocol=BallSum(dim=9, cohort=60, budget=20.0, samples=5, levels=2)),
        ),
    ),
}
EVALUATION = PrivateEvaluation(metrics={"accuracy": (0, 1), "loss": (0, 10)}, local_epsilon=1.0)


def of_record(record: Any) -> dict[str, Any]:
    """A ConfigRecord's entries; bytes as hexadecimal."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"hex": value.hex()}
        return [plain(entry) for entry in value] if isinstance(value, list) else value

    return {key: plain(value) for key, value in record.items()}


def of_content(content: RecordDict) -> dict[str, Any]:
    return {key: of_record(record) for key, record in content.items()}


def instruction(name: str) -> dict[str, Any]:
    dim, build = INSTRUCTIONS[name]
    asked = build()
    record = asked.to_record()
    assert Instruction.from_record(ConfigRecord.inflate(record.deflate())) == asked
    reported = asked.report_dim(dim)
    size = asked.mechanism.report_bytes(dim=reported)
    return {
        "record": of_record(record),
        "report_dim": reported,
        "report_bytes": size,
        "context": context_of(asked, dim=reported).digest().hex(),
        "fingerprint": context_of(asked, dim=reported).fingerprint.hex(),
    }


def payloads() -> dict[str, Any]:
    report = bytes(range(20))
    sent, dummy = plain_payload(report, size=20), plain_payload(None, size=20)
    assert read_plain_payload(sent, size=20) == report
    assert read_plain_payload(dummy, size=20) is None
    return {"report": sent.hex(), "dummy": dummy.hex()}


def layout() -> dict[str, Any]:
    old = {
        "weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
        "scale": np.array(0.5, dtype=np.float32),
        "mean": np.zeros(2, dtype=np.float64),
        "batches": np.array(7, dtype=np.int64),
    }
    new = {name: value + np.asarray(0.25).astype(value.dtype) for name, value in old.items()}
    before, after = (
        ArrayRecord({name: Array(np.asarray(v)) for name, v in model.items()}) for model in (old, new)
    )
    places = Layout.of(before)
    shifted = places.shifted(before, torch.arange(places.dim, dtype=torch.float64) / 8)
    return {
        "dim": places.dim,
        "digest": places.digest,
        "flat": vector(places.flatten(before)),
        "delta": vector(places.delta(after, before)),
        "shifted": {name: [str(a.dtype), a.numpy().tobytes().hex()] for name, a in shifted.items()},
    }


def evaluation() -> dict[str, Any]:
    metrics = EVALUATION.ranges
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.75, "loss": 12.5, "other": 1.0})})
    found = vector_of(metrics, content, failed_share=0.5)
    return {
        "mechanism": EVALUATION.spec(cohort=2).to_json(),
        "vector": vector(found),
        "record": dict(record_of(metrics, torch.tensor([0.25, -0.5], dtype=torch.float64))),
    }


def statements() -> dict[str, Any]:
    said = Statement(bytes(32)).signed(MIXER.signing)
    return {
        "context": CONTEXT.digest().hex(),
        "request": REQUEST.digest().hex(),
        "public_key": MIXER.public.hex(),
        "signature": said.hex(),
        "envelope_size": envelope_size(SIZE),
    }


class Signer:
    """What messages of a mix node need of a mixer: its keys."""

    role, public_key, minimum = "mixer", MIXER.public, 3

    def sign(self, statement: Statement) -> bytes:
        return statement.signed(MIXER.signing)


def mixing() -> dict[str, Any]:
    mixer: Any = Signer()
    challenge = bytes(range(32))
    role = NodeRole.signed(mixer, challenge=challenge, run="run-7", node=5)
    rejected = {1: Refusal.WRONG_SIZE, 3: Refusal.UNREADABLE}
    batch = MixedBatch(reports=[b"b" * 72, b"a" * 72], answered=2, rejected=rejected)
    answered = batch_content(batch, request=REQUEST, mixer=mixer)
    refused = refused_content(BatchRefused(Refusal.UNDER_MINIMUM, rejected), request=REQUEST, mixer=mixer)
    verifying = MIXER.public.verifying
    assert MixRequest.from_content(REQUEST.to_content()) == REQUEST
    assert NodeRole.from_content(role.to_content()) == role
    assert role.holds(role=Role.MIXER, challenge=challenge, run="run-7", node=5, verifying_key=verifying)
    assert read_question(question_content(challenge)) == challenge
    found = read_answer(answered, request=REQUEST, verifying_key=verifying)
    assert (found.reports, found.answered, found.rejected) == (batch.reports, 2, rejected)
    try:
        read_answer(refused, request=REQUEST, verifying_key=verifying)
    except BatchRefused as error:
        told = {"code": str(error.code), "rejected": {str(k): str(v) for k, v in error.rejected.items()}}
    return {
        "request": of_content(REQUEST.to_content()),
        "role": of_content(role.to_content()),
        "question": of_content(question_content(challenge)),
        "batch": of_content(answered),
        "refused": of_content(refused),
        "told": told,
    }


def write_files() -> None:
    """Envelopes are sealed with fresh randomness: those of one round are kept."""
    sealed = [
        seal(
            None if place == 2 else bytes([place]) * SIZE,
            size=SIZE,
            context=CONTEXT,
            analyzer_key=public_key_bytes(ANALYZER),
            mixer_key=MIXER.public.sealing,
            signing_key=client,
        ).hex()
        for place, client in enumerate(CLIENTS)
    ]
    ENVELOPES.write_text(json.dumps(sealed, indent=0) + "\n")
    write_row_file()


def write_row_file() -> None:
    """Envelopes for a cascade of two mixers."""
    sealed = [
        seal(
            None if place == 2 else bytes([place]) * SIZE,
            size=SIZE,
            context=CONTEXT,
            analyzer_key=public_key_bytes(ANALYZER),
            mixer_key=[MIXER.public.sealing, SECOND.public.sealing],
            signing_key=client,
        ).hex()
        for place, client in enumerate(CLIENTS)
    ]
    ROW_ENVELOPES.write_text(json.dumps(sealed, indent=0) + "\n")


def envelopes() -> dict[str, Any]:
    opener = EnvelopeOpener(
        context=CONTEXT,
        analyzer_key=public_key_bytes(ANALYZER),
        private_key=MIXER.sealing,
        enrolled=frozenset(map(public_key_bytes, CLIENTS)),
    )
    opened = [opener.open(bytes.fromhex(text)) for text in json.loads(ENVELOPES.read_text())]
    reports = open_reports([each.inner for each in opened], context=CONTEXT, analyzer_private_key=ANALYZER)
    return {
        "signers": [each.signer.hex() for each in opened],
        "real": [each.real for each in opened],
        "inner": [digest(each.inner) for each in opened],
        "reports": [report.hex() for report in reports],
    }


def row() -> dict[str, Any]:
    """Envelopes for two mixers, what the second one is asked, and what it says."""
    envelopes = [bytes.fromhex(text) for text in json.loads(ROW_ENVELOPES.read_text())]
    keys = [MIXER.public.sealing, SECOND.public.sealing]
    openers = [
        EnvelopeOpener(
            context=CONTEXT,
            analyzer_key=public_key_bytes(ANALYZER),
            private_key=private,
            enrolled=frozenset(map(public_key_bytes, CLIENTS)),
            mixer_keys=keys,
        )
        for private in (MIXER.sealing, SECOND.sealing)
    ]
    split = part_sizes(SIZE, mixers=2)[0]
    first = [openers[0].open(envelope[:split]) for envelope in envelopes]
    second = [openers[1].open(one.inner) for one in first]
    tickets = [openers[1].open_ticket(envelope[split:]) for envelope in envelopes]
    items = [one.inner + envelope[split:] for one, envelope in zip(first, envelopes, strict=True)]
    said = MixedStatement(
        request=bytes(range(32)),
        answered=4,
        rejected={4: Refusal.UNREADABLE},
        count=4,
        outputs=ItemsDigest.of([one.inner for one in first], size=len(first[0].inner)).value(),
        masks=(sum(one.masks[0] for one in first) % (1 << 128),),
        signature=bytes(64),
    )
    request = BatchRequest(
        context=CONTEXT,
        analyzer_key=public_key_bytes(ANALYZER),
        mixers=(MIXER.public, SECOND.public),
        position=1,
        minimum=3,
        size=len(items[0]),
        count=4,
        inputs=ItemsDigest.of(items, size=len(items[0])).value(),
        previous=(said,),
    )
    message = BatchMessage(step=BatchStep.PUT, request=request, first=2, items=[b"b" * 5, b"a" * 5])
    assert BatchMessage.from_content(message.to_content()) == message
    reports = open_reports([one.inner for one in second], context=CONTEXT, analyzer_private_key=ANALYZER)
    return {
        "sizes": [[envelope_size(SIZE, mixers=k), part_sizes(SIZE, mixers=k)] for k in (1, 2, 3)],
        "signers": [[one.signer.hex() for one in first], [one.signer.hex() for one in tickets]],
        "real": [[one.real for one in first], [one.real for one in second]],
        "marks": [mark_bytes(one.mark).hex() for one in second],
        "masked": [mark_bytes(one.masked).hex() for one in tickets],
        "masks": [mark_bytes(*one.masks).hex() for one in first],
        "reports": [report.hex() for report in reports],
        "request": request.digest().hex(),
        "statement": request.statement(said).digest.hex(),
        "put": of_content(message.to_content()),
        "instruction": of_record(replace(INSTRUCTIONS["sealed"][1](), mixers=2).to_record()),
    }


def checkpoint() -> dict[str, Any]:
    arrays = ArrayRecord({"w": Array(np.arange(3, dtype=np.float32)), "n": Array(np.array(7))})
    state = {"step": 3, "rate": 0.5, "on": True, "nothing": None, "moments": [np.arange(3), {"deep": 2}]}
    data = ModelState(arrays, state).to_bytes()
    found = ModelState.from_bytes(data)
    return {
        "names": list(found.arrays),
        "arrays": [[str(a.dtype), a.numpy().tolist()] for a in found.arrays.values()],
        "state": {key: value for key, value in found.strategy.items() if key != "moments"},
        "moments": [found.strategy["moments"][0].tolist(), found.strategy["moments"][1]],
    }


def codes() -> dict[str, Any]:
    """Codes that another version on the other side compares; newer codes may stand beside them."""
    newer = {Refusal.NOT_AGREED, Refusal.INCONSISTENT, Refusal.PROOF_REFUSED, Refusal.TOO_LARGE}
    return {"mixer": sorted(str(code) for code in Refusal if code not in newer)}


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {
        f"instruction[{name}]": partial(instruction, name) for name in INSTRUCTIONS
    }
    return asked | {
        "payloads": payloads,
        "layout": layout,
        "evaluation": evaluation,
        "statements": statements,
        "mixing": mixing,
        "envelopes": envelopes,
        "row": row,
        "checkpoint": checkpoint,
        "codes": codes,
    }
