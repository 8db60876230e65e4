"""Ten thousand clients in one process, a thousand reports a round."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, InProcessGrid, SelfSampling, ShuffleStrategy
from flwr_shuffle.messages import instruction_of, plain_payload, reply

from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import MechanismSpec

POPULATION = 10_000
DIM = 64
AIM = np.linspace(-0.1, 0.1, DIM)


def app():
    """Clients whose reports were all made in one go: what is measured is the rest."""
    spec = MechanismSpec(name="linf-coordinate", local_epsilon=2.0, radius=0.1)
    updates = torch.from_numpy(AIM).expand(POPULATION, DIM)
    reports = spec.build(dim=DIM).randomize(updates, clip=True)
    encoded = reports.each_to_bytes()
    coins = np.random.default_rng()
    client_app = ClientApp()

    @client_app.train()
    def train(message, context):
        report = encoded[context.node_config["partition-id"]]
        speaks = coins.random() < instruction_of(message).participation
        return reply(plain_payload(report if speaks else None, size=len(report)), to=message)

    return client_app


@pytest.mark.slow
def test_ten_thousand_clients(tmp_path):
    grid = InProcessGrid(app(), num_nodes=POPULATION)
    model = ArrayRecord({"w": Array(np.zeros(DIM, dtype=np.float32))})
    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        for sampling in (FixedSize(1000), SelfSampling(0.1)):
            strategy = ShuffleStrategy(
                FedAvg(fraction_evaluate=0.0),
                randomizer="linf-coordinate",
                local_epsilon=2.0,
                clipping_norm=0.1,
                sampling=sampling,
                population=POPULATION,
                delta=1e-6,
                ledger=ledger,
            )
            strategy.start(grid, model, num_rounds=len(ledger.rounds()) + 1, train_config=ConfigRecord())
        first, second = ledger.rounds()
        spending = ledger.accountant().spending(1e-6)
    assert (first.charged.observer.population, first.charged.reports, first.participants) == (
        POPULATION,
        1000,
        1000,
    )
    assert 800 < second.charged.reports < 1200
    # No more clients count than that many reports speak for, each with a probability of a tenth.
    assert second.charged.server.population == min(POPULATION, second.charged.reports * 10)
    assert second.participants == POPULATION
    assert 0 < spending.observer.upper < 0.3 < spending.server.upper < spending.local_epsilon == 4.0
