"""What leaves a client has the law of its mechanism: decoded from payloads, for every kind of array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr_shuffle.updates import Layout
from mod_harness import Arrays, adding, counts, record, released
from scipy import stats
from strategy_harness import delta
from thinning import first_fast
from torch import nn

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.randomness import SecureRandomness

Train = Callable[[Message, Context], Message]

CLIENTS = 500
SURE = 1e-8
"""A true law is rejected once in a hundred million runs of one test."""

LINEAR = {"weight": np.zeros((1, 2), np.float32), "bias": np.ones(1, np.float32)}
SCALAR = {"temperature": np.array(1234.5, np.float32)}
MIXED = {
    "steps": np.array([3, 4]),
    "gain": np.array(2.0, np.float64),
    "weight": np.array([[0.5], [0.25]], np.float16),
    "mask": np.array([True, False]),
}
BATCH_NORM = {name: tensor.numpy() for name, tensor in nn.BatchNorm1d(1).state_dict().items()}


def _wild_integers(message: Message, context: Context) -> Message:
    """Data in the integers: another value for each client and each entry."""
    answer = adding({"gain": np.array(0.9), "weight": np.array([[-0.2], [0.4]])})(message, context)
    noise = SecureRandomness().integers(1 << 62, 2).numpy()
    new = {name: array.numpy() for name, array in answer.content["arrays"].items()}
    return Message(
        RecordDict({"arrays": record(new | {"steps": noise, "mask": noise % 2 == 0})}), reply_to=message
    )


def _batch_norm(message: Message, context: Context) -> Message:
    """Training proper: a step of SGD, and the buffers move by themselves."""
    model = nn.BatchNorm1d(1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model(torch.tensor([[1.0], [3.0], [8.0]])).pow(3).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.2 * parameter.grad
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


CASES: dict[str, tuple[Arrays, Train]] = {
    "linear": (LINEAR, adding({"weight": np.array([[0.9, -0.4]]), "bias": np.array([0.1])})),
    "0-d": (SCALAR, adding({"temperature": np.array(0.75)})),
    "integers": (MIXED, _wild_integers),
    "batch-norm": (BATCH_NORM, _batch_norm),
}


def _update(arrays: Arrays, train: Train) -> torch.Tensor:
    """What one client's training changes, by training once without any mod."""
    message = Message(RecordDict({"arrays": record(arrays)}), 1, "train")
    new = train(message, None).content["arrays"]  # type: ignore[arg-type]
    return delta(Layout.of(record(arrays)), new, record(arrays))


def _law(spec: MechanismSpec, x: torch.Tensor, outcomes: Reports) -> np.ndarray:
    mechanism = spec.build(dim=x.numel())
    likelihood = mechanism.log_likelihood(outcomes, mechanism.clip(x.unsqueeze(0))[0]).exp().numpy()
    assert likelihood.sum() == pytest.approx(1, abs=1e-6)
    return likelihood / likelihood.sum()


def _released(case: str, spec: MechanismSpec, *, clients: int = CLIENTS) -> tuple[torch.Tensor, Reports]:
    arrays, train = CASES[case]
    reports = released(arrays, train, spec, clients=clients, dim=Layout.of(record(arrays)).dim)
    return _update(arrays, train), reports


@first_fast(
    ("case", "name"),
    [
        ("linear", "linf-block"),
        ("0-d", "l2-block"),
        ("integers", "linf-coordinate"),
        ("batch-norm", "l1-hadamard"),
    ],
)
def test_released_reports_have_the_mechanisms_law(case: str, name: str) -> None:
    spec = MechanismSpec(name=name, local_epsilon=2.5)
    update, reports = _released(case, spec)
    outcomes = spec.build(dim=update.numel()).outcomes()
    assert outcomes is not None
    observed = counts(reports, outcomes).numpy()
    law = _law(spec, update, outcomes)
    assert stats.chisquare(observed, CLIENTS * law).pvalue > SURE
    without_update = _law(spec, torch.zeros_like(update), outcomes)
    assert stats.chisquare(observed, CLIENTS * without_update).pvalue < 1e-5


@pytest.mark.slow
def test_an_update_far_outside_the_ball_is_clipped() -> None:
    spec = MechanismSpec(name="l2-block", local_epsilon=2.0, radius=0.01)
    huge = adding({"weight": np.array([[9e30, -3e30]]), "bias": np.array([1e30])})
    reports = released(LINEAR, huge, spec, clients=CLIENTS, dim=3)
    outcomes = spec.build(dim=3).outcomes()
    assert outcomes is not None
    law = _law(spec, torch.tensor([9.0, -3.0, 1.0]), outcomes)
    assert stats.chisquare(counts(reports, outcomes).numpy(), CLIENTS * law).pvalue > SURE
