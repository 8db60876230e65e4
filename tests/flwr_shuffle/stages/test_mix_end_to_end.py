"""Mod, mix node and strategy together: what is learnt, what it costs, and what the server can tell."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    FixedSize,
    InProcessGrid,
    MixNodeStage,
    SelfSampling,
    ShuffleMod,
    ShuffleStrategy,
    Waiting,
    register_mix_node,
)
from flwr_shuffle import client as mod_module
from flwr_shuffle.messages import RECORD_KEY, payload_of
from flwr_shuffle.service_messages import SERVICE_KEY
from mixing import operators_files

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound
from shuffle_plugins.shuffler import Refusal

CLIENTS = 12
DIM = 5
GOAL = np.linspace(-0.5, 0.5, DIM, dtype=np.float32)


class WatchedGrid(InProcessGrid):
    """Notes what a server can see of each answer to a round, and beside it what it must not learn."""

    mixer_public_key: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coins: list[bool] = []
        self.payloads: list[bytes] = []
        self.seconds: list[float] = []
        self.places: list[int] = []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = []
        for place, message in enumerate(messages):
            begun = time.perf_counter()
            (reply,) = super().send_and_receive([message], timeout=timeout)
            if RECORD_KEY in message.content and not reply.has_error():
                self.seconds.append(time.perf_counter() - begun)
                self.payloads.append(payload_of(reply))
                self.places.append(place)
            replies.append(reply)
        return replies


def train(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"]
    moved = arrays["w"].numpy() + 0.5 * (GOAL - arrays["w"].numpy())
    content = RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"loss": 1.0})})
    return Message(content, reply_to=message)


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedGrid:
    config, keys = operators_files(tmp_path, clients=CLIENTS)
    app = ClientApp(mods=[ShuffleMod()])
    app.train()(train)
    register_mix_node(app)
    grid = WatchedGrid(app, num_nodes=CLIENTS + 1, node_config=config)
    grid.mixer_public_key = keys[0]
    toss = mod_module._coin

    def noted(probability: float) -> bool:
        grid.coins.append(toss(probability))
        return grid.coins[-1]

    monkeypatch.setattr(mod_module, "_coin", noted)
    return grid


def strategy_of(grid: WatchedGrid, sampling: FixedSize | SelfSampling, **changes: Any) -> ShuffleStrategy:
    return ShuffleStrategy(
        FedAvg(fraction_evaluate=0.0),
        **{
            "randomizer": "privunit",
            "local_epsilon": 8.0,
            "clipping_norm": 1.0,
            "sampling": sampling,
            "population": CLIENTS,
            "shuffler": MixNodeStage(
                mixer_public_key=grid.mixer_public_key,
                waiting=Waiting(discovery_timeout=5.0, poll_interval=0.05),
            ),
            "minimum_reports": 2,
            "delta": 1e-5,
            **changes,
        },
    )


def zeros() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(DIM, dtype=np.float32))})


@pytest.mark.slow
def test_secret_participation_earns_the_servers_number(grid: WatchedGrid) -> None:
    """Rounds that cost server and observer the same, and less than if the server had seen who took part."""
    strategy = strategy_of(grid, SelfSampling(0.5), randomizer="linf-block", local_epsilon=1.0)
    result = strategy.start(grid, zeros(), num_rounds=4)
    assert result.train_metrics_clientapp
    spent = strategy.spending()
    assert spent.server.upper == pytest.approx(spent.observer.upper)
    rounds = [metrics["reports"] for metrics in result.train_metrics_clientapp.values()]
    assert sum(grid.coins) >= sum(rounds)
    assert len(grid.coins) == 4 * CLIENTS
    mechanism = strategy.settings.mechanism.build(dim=DIM)
    seen = FederatedAccountant()
    for reports in map(int, rounds):
        seen.step(
            FederatedRound.drawn(mechanism, candidates=CLIENTS, invited=reports, reports=reports),
            participants=map(str, range(reports)),  # client 0 in every round
        )
    assert (
        spent.server.upper
        < 0.9 * seen.epsilon(strategy.settings.delta, adversary=Adversary.SERVER, lower=False).upper
    )


def test_a_forged_batch_is_paid_for_and_the_run_goes_on(
    grid: WatchedGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """The real batch may have gone somewhere; the round after it is as good as any."""
    asked: list[Message] = []

    def forging(messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = WatchedGrid.send_and_receive(grid, messages, timeout=timeout)
        for reply in replies:
            if "said" in reply.content.get(SERVICE_KEY, {}):
                asked.append(reply)
                if len(asked) == 2:
                    reply.content = asked[0].content
                elif len(asked) == 3:
                    reply.content[SERVICE_KEY]["items"] = reply.content[SERVICE_KEY]["items"][::-1]
        return replies

    grid.send_and_receive = forging  # type: ignore[method-assign]
    strategy = strategy_of(grid, FixedSize(CLIENTS))
    result = strategy.start(grid, zeros(), num_rounds=4)
    assert sorted(result.train_metrics_clientapp) == [1, 4]
    assert strategy.accountant.num_rounds == 4
    local = strategy.accountant.epsilon(strategy.settings.delta, adversary=Adversary.LOCAL, lower=False).upper
    assert local == pytest.approx(4 * 8.0)
    assert f"no result ({Refusal.WRONG_ROUND})" in caplog.text
    assert f"no result ({Refusal.NOT_PROVEN})" in caplog.text
