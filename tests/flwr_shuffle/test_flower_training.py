"""What clients report of training: a norm that adapts, weights, the arrays that are trained, and failures."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr_shuffle import ClientLimits, FixedSize, InProcessGrid, QuantileClipping, ShuffleMod, Updates
from flwr_shuffle.messages import ClientRefusal
from flwr_shuffle.updates import UpdateTerms
from mod_harness import adding, ask, grid_of, instruction, record
from strategy_harness import CLIENTS, shuffled
from torch import nn

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.protocols import VectorSum

SHORT = 8
FLAT = {"weights": np.zeros(SHORT, dtype=np.float32)}
NORMS = {"laplace": 1, "privunit": 2, "linf-block": math.inf}


def run(lengths, *, rounds=1, examples=None, **options):
    """Clients whose update points along the first axis, as long as ``lengths`` says."""
    app = ClientApp(mods=[ShuffleMod(limits=ClientLimits(max_local_epsilon=400.0, max_rounds=1000))])

    @app.train()
    def _(message, context):
        client = int(context.node_config["partition-id"])
        array = message.content["arrays"]["weights"].numpy().copy()
        array[0] += lengths[client]
        metrics = MetricRecord({} if examples is None else {"num-examples": examples[client]})
        return Message(
            RecordDict({"arrays": record({"weights": array}), "metrics": metrics}), reply_to=message
        )

    grid = InProcessGrid(app, num_nodes=len(lengths))
    chosen = {"sampling": FixedSize(len(lengths)), "population": len(lengths)} | options
    strategy = shuffled(FedAvg(fraction_evaluate=0.0), **chosen)
    result = strategy.start(grid, record(FLAT), num_rounds=rounds)
    return strategy, result.arrays["weights"].numpy()


@pytest.mark.parametrize("name", sorted(NORMS))
@pytest.mark.parametrize("length", [0.0, 1e-30, 0.3, 2.0, 1e30])
def test_an_update_and_its_bit_lie_in_the_mechanisms_ball(name, length):
    mechanism = MechanismSpec(name=name, local_epsilon=2.0, radius=0.7).build(dim=SHORT + 1)
    direction = torch.randn(SHORT, dtype=torch.float64)
    update = length * direction / torch.linalg.vector_norm(direction, ord=NORMS[name])
    terms = UpdateTerms(clipping_norm=0.5)
    vector = terms.prepared(update, mechanism)
    assert float(torch.linalg.vector_norm(vector, ord=NORMS[name])) <= 0.7 * (1 + 1e-12)
    back, share = terms.read(vector, mechanism)
    torch.testing.assert_close(back, update * min(1.0, 0.5 / max(length, 1e-300)))
    assert share == (1.0 if length <= 0.5 else 0.0)


@pytest.mark.slow
def test_the_norm_finds_the_quantile_and_costs_no_epsilon():
    """Updates of length 1 to 20; the norm starts at 1 and should come near their median."""
    lengths = np.linspace(1, 20, 20)
    options = {"randomizer": "laplace", "local_epsilon": 400.0, "clipping_norm": 1.0}
    adapting, _ = run(
        lengths, rounds=22, updates=Updates(adaptive_clipping=QuantileClipping(learning_rate=0.5)), **options
    )
    fixed, _ = run(lengths, rounds=22, **options)
    assert 8 < adapting.clipping_norm < 13
    for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        assert (
            adapting.accountant.epsilon(1e-6, adversary=adversary, lower=False).upper
            == fixed.accountant.epsilon(1e-6, adversary=adversary, lower=False).upper
        )


def test_the_mean_is_of_updates_clipped_to_the_rounds_norm():
    strategy, weights = run(
        [0.5, 4.0], updates=Updates(adaptive_clipping=QuantileClipping()), clipping_norm=1.0
    )
    assert weights[0] == pytest.approx((0.5 + 1.0) / 2, abs=0.1)
    assert strategy.clipping_norm == pytest.approx(1.0, abs=0.05)  # half of them within: it stays


def test_the_norm_survives_the_process(tmp_path):
    updates = Updates(adaptive_clipping=QuantileClipping())
    options = {"updates": updates, "clipping_norm": 1.0, "ledger": tmp_path / "b.db"}
    first, _ = run([9.0] * 10, rounds=3, **options)
    again, _ = run([9.0] * 10, rounds=3, **options)
    assert again.clipping_norm == first.clipping_norm > 1.2


def test_updates_are_weighed_before_they_are_clipped():
    """5 of 10 examples of length 2 count 1, and 40 of 10 no more than a client can: all of 3."""
    _, weights = run([2.0, 3.0], examples=[5, 40], updates=Updates(max_examples=10), clipping_norm=3.0)
    assert weights[0] == pytest.approx((1.0 + 3.0) / 2, abs=0.15)


def test_a_client_without_a_number_of_examples_reports_zeros():
    _, weights = run([2.0, 2.0], updates=Updates(max_examples=10), clipping_norm=3.0)
    assert weights[0] == pytest.approx(0, abs=0.15)


WIDE = {
    "head.w": np.zeros((40, 30), np.float32),
    "body.w": np.full((5, 3), 7, np.float32),
    "body.n": np.array(4),
}
DIM = 1200
SUM: dict[str, Any] = {
    "randomizer": VectorSum.with_noise(dim=DIM, cohort=CLIENTS, noise_multiplier=0.5),
    "local_epsilon": None,
    "clipping_norm": None,
}
OF_SUMS = ClientLimits(max_local_epsilon=math.inf, max_rounds=99, max_epsilon=1e9, delta=1e-3)
SINGLE = ClientLimits(max_local_epsilon=8.0, max_rounds=99)


def grid(
    *, failing: int, returned: tuple[str, ...] = tuple(WIDE), limits: ClientLimits = OF_SUMS
) -> InProcessGrid:
    """Clients that add 0.01 to the head, and to the body what must not arrive; the first ones fail."""
    app = ClientApp(mods=[ShuffleMod(limits=limits)])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) < failing:
            raise RuntimeError("no data")
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
        model["head.w"] = model["head.w"] + np.float32(0.01)
        model["body.w"] = model["body.w"] * -1000
        arrays = record({name: model[name] for name in returned})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    return InProcessGrid(app, num_nodes=CLIENTS)


def head(name: str) -> bool:
    return name.startswith("head.")


@pytest.mark.parametrize("returned", [("head.w",), tuple(WIDE), ("body.w", "head.w")])
def test_arrays_that_are_not_trained_stay_whatever_clients_return(returned: tuple[str, ...]) -> None:
    strategy = shuffled(updates=Updates(trained=head), **SUM)
    result = strategy.start(grid(failing=0, returned=returned), record(WIDE), num_rounds=2)
    np.testing.assert_allclose(result.arrays["head.w"].numpy().mean(), 0.02, atol=0.007)
    for name in ("body.w", "body.n"):
        np.testing.assert_array_equal(result.arrays[name].numpy(), WIDE[name])
    assert abs(result.train_metrics_clientapp[2]["failed"]) < 0.15  # type: ignore[operator]


@pytest.mark.parametrize("failing", [0, 6, CLIENTS])
def test_the_share_that_failed_is_told_and_leaves_the_model_alone(
    failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A mark is 1 long. Along it the noise deviates by 0.5 / 20, and updates that are 0.35 long by 0.01."""
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = shuffled(updates=Updates(trained=head), **SUM).start(
            grid(failing=failing), record(WIDE), num_rounds=1
        )
    assert result.train_metrics_clientapp[1]["failed"] == pytest.approx(failing / CLIENTS, abs=0.19)
    assert ("whose app failed: it raised an error" in caplog.text) == (failing > 0)
    expected = 0.01 * (CLIENTS - failing) / CLIENTS  # no client that failed moves anything
    left = result.arrays["head.w"].numpy() - expected
    assert left.mean() == pytest.approx(0, abs=0.006)
    assert np.linalg.norm(left) == pytest.approx(0.5 / 20 * math.sqrt(DIM), rel=0.16)  # 1.32 with the mark


def test_replies_without_arrays_that_are_trained_count_as_failures(caplog: pytest.LogCaptureFixture) -> None:
    """As of Flower's FedBN, before trained= says which arrays they will return."""
    one = {"randomizer": "privunit", "local_epsilon": 4.0, "clipping_norm": 1.0}
    clients = grid(failing=0, returned=("head.w",), limits=SINGLE)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = shuffled(**one).start(clients, record(WIDE), num_rounds=5)
    # Its deviation is 0.07, measured over 400 runs.
    assert result.train_metrics_clientapp[5]["failed"] == pytest.approx(1, abs=0.5)
    assert "of clients whose app failed" in caplog.text


@pytest.mark.parametrize(("short", "randomizer"), [(True, "privunit"), (False, "laplace")])
def test_where_a_mark_would_cost_or_tell_nothing_there_is_none(short: bool, randomizer: str) -> None:
    model = {"w": np.zeros(999 if short else 1000, np.float32)}
    clients = grid_of(adding({"w": model["w"]}), num_nodes=CLIENTS)
    result = shuffled(randomizer=randomizer, local_epsilon=4.0).start(clients, record(model), num_rounds=1)
    assert "failed" not in result.train_metrics_clientapp[1]


@pytest.mark.parametrize("name", ["privunit", "linf-block"])
@pytest.mark.parametrize("terms", [UpdateTerms(), UpdateTerms(clipping_norm=0.37)])
def test_a_mark_is_within_the_ball_and_within_the_clipping_norm(name: str, terms: UpdateTerms) -> None:
    mechanism = MechanismSpec(name=name, local_epsilon=2.0, radius=0.7).build(dim=DIM + terms.bits)
    mark = terms.mark(bytes(16), mechanism)
    order = 2 if name == "privunit" else math.inf
    vector = terms.prepared(mark, mechanism)
    assert 0.6999 < float(torch.linalg.vector_norm(vector, ord=order)) <= 0.7
    assert terms.bits == 0 or vector[-1] > 0  # a client that failed does not move the clipping norm up
    other = terms.mark(bytes(15) + b"1", mechanism)
    assert abs(float(torch.dot(mark, other) / torch.dot(mark, mark))) < 6 / math.sqrt(DIM)


def test_marks_go_any_way() -> None:
    """Each sign is + in half of the rounds, so that means stay unbiased."""
    mechanism = MechanismSpec(name="privunit", local_epsilon=2.0).build(dim=1000)
    marks = torch.stack([UpdateTerms().mark(i.to_bytes(16), mechanism).sign() for i in range(400)])
    assert float(marks.mean(dim=0).abs().max()) < 7 / math.sqrt(400)
    assert float(marks.mean(dim=1).abs().max()) < 7 / math.sqrt(1000)


def test_running_statistics_stay_the_servers_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    app = ClientApp(mods=[ShuffleMod(limits=SINGLE)])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        model(torch.randn(9, 3)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    initial = ArrayRecord(net().state_dict())
    strategy = shuffled(FedAdam(), randomizer="privunit", local_epsilon=2.0, clipping_norm=1.0)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        final = strategy.start(InProcessGrid(app, num_nodes=CLIENTS), initial, num_rounds=3).arrays
    for name, array in initial.items():
        same = np.array_equal(array.numpy(), final[name].numpy())
        assert same == name.endswith(("running_mean", "running_var", "num_batches_tracked")), name
    assert (
        caplog.text.count("Running statistics stay at the server's values: 1.running_mean, 1.running_var, ")
        == 1
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"trained": "head"}, "function of an array's name"),
        ({"trained": lambda name: name == "body.n"}, "no array"),
    ],
)
def test_nothing_to_train_is_refused_before_anything_is_sent(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        shuffled(updates=Updates(**options)).start(grid(failing=0), record(WIDE), num_rounds=1)


def test_an_instruction_that_names_other_arrays_is_refused_by_clients() -> None:
    asked = instruction(
        MechanismSpec(name="privunit", local_epsilon=2.0, radius=1.0), update=UpdateTerms(trained=("head.x",))
    )
    assert type(asked).from_record(asked.to_record()) == asked
    answer = ask(grid_of(adding({})), WIDE, asked)
    assert answer.error.reason == ClientRefusal.BAD_MODEL


def test_clipping_that_adapts_goes_with_both() -> None:
    wider = VectorSum.with_noise(dim=DIM + 1, cohort=CLIENTS, noise_multiplier=0.5)
    strategy = shuffled(
        updates=Updates(trained=head, adaptive_clipping=QuantileClipping()), **(SUM | {"randomizer": wider})
    )
    result = strategy.start(grid(failing=5), record(WIDE), num_rounds=2)
    assert result.train_metrics_clientapp[2]["failed"] == pytest.approx(0.25, abs=0.19)
    assert strategy.clipping_norm < 1  # all were within it
