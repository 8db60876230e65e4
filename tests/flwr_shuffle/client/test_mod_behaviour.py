"""What a client's mod lets through, and what it does not."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle.client import ShuffleMod
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.messages import PAYLOAD_KEY, RECORD_KEY, ClientRefusal, payload_of, read_plain_payload
from mod_harness import (
    GENEROUS,
    adding,
    ask,
    counts,
    grid_of,
    instruction,
    question,
    record,
    released,
)
from scipy import stats
from thinning import first_fast

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import LInfBlock, LocalRandomizer, MechanismSpec

MODEL = {"w": np.zeros((2, 3), np.float32), "b": np.array(0.5, np.float32), "n": np.array([1, 2])}
SPEC = MechanismSpec(name="linf-block", local_epsilon=2.0)
SIZE = SPEC.report_bytes(dim=7)
SECRET = "secret-4711"


def _assert_one_report_and_nothing_else(answer: Message) -> Reports:
    assert not answer.has_error()
    assert {key: list(value) for key, value in answer.content.items()} == {RECORD_KEY: [PAYLOAD_KEY]}
    payload = payload_of(answer)
    assert len(payload) == SIZE + 1
    report = read_plain_payload(payload, size=SIZE)
    assert report is not None
    reports = Reports.from_bytes(report)
    assert (len(reports), reports.mechanism, reports.dim) == (1, "linf-block", 7)
    return reports


def _chatty(message: Message, context: Context) -> Message:
    answer = adding({"w": np.ones((2, 3))})(message, context)
    answer.content["metrics"] = MetricRecord({"num-examples": 3, "loss": 0.1, "labels": [1, 2, 3]})
    answer.content["config"] = ConfigRecord({"note": SECRET})
    answer.content["more-metrics"] = MetricRecord({"x": 1.0})
    return answer


def test_only_the_report_leaves() -> None:
    _assert_one_report_and_nothing_else(ask(grid_of(_chatty), MODEL, instruction(SPEC)))


def test_the_first_mod_is_the_outermost() -> None:
    seen: list[list[str]] = []

    def adds_metrics(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        answer = call_next(message, context)
        seen.append(list(answer.content))
        answer.content["from-a-mod"] = MetricRecord({"loss": 0.5})
        return answer

    client_app = ClientApp(mods=[ShuffleMod(limits=GENEROUS), adds_metrics])
    client_app.train(mods=[adds_metrics])(_chatty)
    _assert_one_report_and_nothing_else(ask(InProcessGrid(client_app, num_nodes=1), MODEL, instruction(SPEC)))
    assert all("arrays" in names for names in seen)
    assert len(seen) == 2


@pytest.mark.parametrize("kind", ["train", "train.default", "train.other"])
def test_nothing_leaves_without_an_instruction(kind: str) -> None:
    calls: list[str] = []
    grid = grid_of(_chatty)
    message = question(MODEL, None, node=2, kind=kind)

    def train(asked: Message, context: Context) -> Message:
        calls.append(kind)
        return _chatty(asked, context)

    answer = ShuffleMod(limits=GENEROUS)(message, grid.context(2), train)
    assert answer.error.reason == ClientRefusal.NO_INSTRUCTION
    assert not calls


def _raises(message: Message, context: Context) -> Message:
    raise ValueError(f"row 17 holds {SECRET}")


def _exits(message: Message, context: Context) -> Message:
    raise SystemExit(SECRET)


def _is_cancelled(message: Message, context: Context) -> Message:
    raise CancelledError(SECRET)


def _answers_with_an_error(message: Message, context: Context) -> Message:
    return Message(Error(code=0, reason=SECRET), reply_to=message)


def _answers_with_nothing(message: Message, context: Context) -> Message:
    return None  # type: ignore[return-value]


def _answers_without_arrays(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)


def _answers_with_two(message: Message, context: Context) -> Message:
    arrays = record({"w": np.ones(3)})
    return Message(RecordDict({"one": arrays, "other": arrays}), reply_to=message)


def _nan(message: Message, context: Context) -> Message:
    return adding({"w": np.full((2, 3), np.nan)})(message, context)


def _infinite(message: Message, context: Context) -> Message:
    return adding({"b": np.array(np.inf)})(message, context)


def _another_model(message: Message, context: Context) -> Message:
    return Message(RecordDict({"arrays": record({"w": np.ones((2, 4), np.float32)})}), reply_to=message)


FAILURES = [
    _raises,
    _exits,
    _is_cancelled,
    _answers_with_an_error,
    _answers_with_nothing,
    _answers_without_arrays,
    _answers_with_two,
    _nan,
    _infinite,
    _another_model,
]


@pytest.mark.parametrize("train", FAILURES)
def test_a_failure_looks_like_any_other_report_or_like_one_constant_error(
    train: Callable[[Message, Context], Message],
) -> None:
    answer = ask(grid_of(train), MODEL, instruction(SPEC))
    _assert_one_report_and_nothing_else(answer)
    assert SECRET not in repr(answer.content)
    mod = ShuffleMod(limits=GENEROUS, on_failure="error")
    answer = ask(grid_of(train, mod=mod), MODEL, instruction(SPEC))
    assert answer.error.reason == ClientRefusal.TRAINING_FAILED
    assert answer.error.code == 6


def test_the_operator_of_the_client_reads_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    ask(grid_of(_raises), MODEL, instruction(SPEC))
    assert SECRET in caplog.text


@first_fast("name", ["linf-block", "l1-hadamard"])
def test_a_failed_client_reports_zeros_with_the_mechanisms_law(name: str) -> None:
    spec = MechanismSpec(name=name, local_epsilon=3.0)
    model = {"w": np.zeros(3, np.float32)}
    reports = released(model, adding({"w": np.full(3, np.nan)}), spec, clients=400, dim=3)
    mechanism = spec.build(dim=3)
    outcomes = mechanism.outcomes()
    assert outcomes is not None
    law = mechanism.log_likelihood(outcomes, torch.zeros(3)).exp().numpy()
    assert stats.chisquare(counts(reports, outcomes).numpy(), 400 * law / law.sum()).pvalue > 1e-8


def _empties_the_record(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"].to_torch_state_dict(keep_input=False)  # type: ignore[union-attr]
    assert not message.content["arrays"]
    arrays["w"] += 100.0
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


def test_an_app_may_empty_the_servers_record() -> None:
    """Flower offers it to save memory; the update is still the difference to what was sent."""
    spec = MechanismSpec(name="linf-block", local_epsilon=30.0, options=(("block", 7),))
    model = {"w": np.zeros((2, 3), np.float32), "b": np.array(0.5, np.float32)}
    report = payload_of(ask(grid_of(_empties_the_record), model, instruction(spec)))[1:]
    estimate = spec.build(dim=7).sum(Reports.from_bytes(report))
    assert estimate[:6].gt(0.9).all()


def test_arrays_may_have_any_key() -> None:
    grid = grid_of(
        lambda message, context: Message(RecordDict({"out": message.content["in"]}), reply_to=message)
    )
    message = question(MODEL, instruction(SPEC), node=2)
    message.content["in"] = message.content.pop("arrays")
    [answer] = grid.send_and_receive([message])
    _assert_one_report_and_nothing_else(answer)


@pytest.mark.parametrize(
    "arrays",
    [{}, {"n": np.array([1])}, {"w": np.array(["text"])}, {"w": np.zeros(2, np.complex64)}],
)
def test_models_that_cannot_be_trained_are_refused(arrays: dict[str, np.ndarray]) -> None:
    answer = ask(grid_of(_chatty), arrays, instruction(SPEC))
    assert answer.error.reason == ClientRefusal.BAD_MODEL


@pytest.mark.parametrize(
    "spec",
    [
        MechanismSpec(name="no-such", local_epsilon=1.0),
        MechanismSpec(name="k-rr", local_epsilon=1.0),
        MechanismSpec(name="binary-rr", local_epsilon=1.0),
        MechanismSpec(name="linf-block", local_epsilon=1.0, options=(("block", 99),)),
        MechanismSpec(name="linf-block", local_epsilon=1.0, options=(("secret", 1),)),
        MechanismSpec(name="l1-hadamard", local_epsilon=1.0, options=(("public_seed", 1),)),
    ],
)
def test_mechanisms_that_cannot_be_built_are_refused(spec: MechanismSpec) -> None:
    answer = ask(grid_of(_chatty), MODEL, instruction(spec))
    assert answer.error.reason == ClientRefusal.BAD_MECHANISM


def test_whatever_breaks_in_the_mod_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(LocalRandomizer, "randomize", broken)
    answer = ask(grid_of(_chatty), MODEL, instruction(SPEC))
    assert answer.error.reason in (ClientRefusal.INTERNAL, ClientRefusal.BAD_MECHANISM)


def test_dummies_and_reports_are_made_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as asked, equally long, after the same training and the same randomising."""
    made = {"trained": 0, "randomized": 0}
    genuine = LInfBlock.randomize_rows

    def counted(self: LInfBlock, *arguments: object) -> Reports:
        made["randomized"] += 1
        return genuine(self, *arguments)  # type: ignore[arg-type]

    def train(message: Message, context: Context) -> Message:
        made["trained"] += 1
        return _chatty(message, context)

    SPEC.report_bytes(dim=7)  # asks the mechanism for an empty batch, once per process
    monkeypatch.setattr(LInfBlock, "randomize_rows", counted)
    rounds, rate = 300, 0.3
    grid = grid_of(train, num_nodes=rounds)
    asked = instruction(SPEC, participation=rate)
    payloads = [payload_of(ask(grid, MODEL, asked, node=node)) for node in grid.get_node_ids()]
    assert made == {"trained": rounds, "randomized": rounds}
    assert {len(payload) for payload in payloads} == {SIZE + 1}
    sent = sum(read_plain_payload(payload, size=SIZE) is not None for payload in payloads)
    assert stats.binomtest(sent, rounds, rate).pvalue > 1e-8


def test_a_dummy_holds_nothing() -> None:
    grid = grid_of(_chatty)
    payload = payload_of(ask(grid, MODEL, instruction(SPEC, participation=1e-18)))
    assert payload == bytes(SIZE + 1)
