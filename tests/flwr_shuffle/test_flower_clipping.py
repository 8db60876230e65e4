"""A clipping norm that follows the updates, and updates weighed by examples."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, InProcessGrid, QuantileClipping, ShuffleMod, Updates
from flwr_shuffle.updates import UpdateTerms
from strategy_harness import record, shuffled

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import ClientLimits
from shuffle_plugins.mechanisms import MechanismSpec

DIM = 8
FLAT = {"weights": np.zeros(DIM, dtype=np.float32)}
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
    mechanism = MechanismSpec(name=name, local_epsilon=2.0, radius=0.7).build(dim=DIM + 1)
    direction = torch.randn(DIM, dtype=torch.float64)
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
