"""What goes over the wire to clients, and what is read of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr_shuffle import PrivateEvaluation
from flwr_shuffle.clipping import UpdateTerms
from flwr_shuffle.evaluation import record_of, vector_of
from flwr_shuffle.messages import Instruction, context_of, plain_payload, read_plain_payload
from flwr_shuffle.server.checkpoints import ModelState
from flwr_shuffle.updates import Layout
from reports_answers import Questions, vector

from shuffle_plugins.mechanisms import MechanismSpec, SumSpec
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.shuffler.keys import public_key_bytes

TOKEN = bytes(range(16))
ANALYZER = X25519PrivateKey.from_private_bytes(bytes([7]) * 32)
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


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {
        f"instruction[{name}]": partial(instruction, name) for name in INSTRUCTIONS
    }
    return asked | {
        "payloads": payloads,
        "layout": layout,
        "evaluation": evaluation,
        "checkpoint": checkpoint,
    }
