"""Multi-message sums in Flower: noise that the clients make together, and who may add it up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    Anonymous,
    ClientLimits,
    ClientsRefused,
    FixedSize,
    InProcessGrid,
    MechanismSpec,
    MixNodeStage,
    Poisson,
    Replies,
    SelfSampling,
    ShuffleMod,
    ShuffleStrategy,
    SummingStage,
    Waiting,
)
from flwr_shuffle.grids import valid_sum
from flwr_shuffle.messages import (
    ClientRefusal,
    Instruction,
    instruction_of,
    payload_of,
    plain_payload,
    read_plain_payload,
    reply,
)
from flwr_shuffle.updates import Layout
from strategy_harness import CLIENTS, DIM, MODEL, client_app, honest_payload, record, train, update

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleAccountant
from shuffle_plugins.mechanisms import PrivateSum, SumSpec, registry, spec_from_json
from shuffle_plugins.protocols import BallSum, ScalarSum, UnaryL1Sum, VectorSum
from shuffle_plugins.shuffler import InMemoryShuffler

DELTA = 1e-6
SUMS = ClientLimits(max_local_epsilon=math.inf, max_rounds=100, max_epsilon=1e4, delta=DELTA)
SUM = VectorSum.with_noise(dim=DIM, cohort=16, noise_multiplier=2.5, overhead=0.3)


def strategy_of(**options: Any) -> ShuffleStrategy:
    chosen: dict[str, Any] = {
        "randomizer": SUM,
        "sampling": FixedSize(CLIENTS),
        "population": CLIENTS,
        "delta": DELTA,
        "waiting": Waiting(poll_interval=0.01),
    }
    return ShuffleStrategy(FedAvg(fraction_evaluate=0.0), **(chosen | options))


def agreed_app(limits: ClientLimits | None = None) -> ClientApp:
    mod = ShuffleMod(limits=limits or SUMS)
    app = ClientApp(mods=[mod])
    app.train()(train)
    return app


def grid_of(app: ClientApp, *, clients: int = CLIENTS) -> InProcessGrid:
    return InProcessGrid(app, num_nodes=clients, node_config=lambda i: {"partition-id": i})


def moves(strategy: ShuffleStrategy, app: ClientApp, *, rounds: int, clients: int = CLIENTS) -> torch.Tensor:
    """What each round added to the model's numbers, (rounds, dim)."""
    path = [record(MODEL)]
    strategy.start(
        grid_of(app, clients=clients),
        path[0],
        num_rounds=rounds,
        evaluate_fn=lambda now, model: path.append(model) if now else None,
    )
    flat = torch.stack([Layout.of(arrays).flatten(arrays).double() for arrays in path])
    return flat.diff(dim=0)


def same_update(truth: torch.Tensor, limits: ClientLimits) -> ClientApp:
    """Clients that all have the same update, so that a mean's error is all noise."""
    app = ClientApp(mods=[ShuffleMod(limits=limits)])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        return Message(RecordDict({"arrays": Layout.of(arrays).shifted(arrays, truth)}), reply_to=message)

    return app


@pytest.mark.slow
def test_every_round_costs_what_the_sum_was_made_for() -> None:
    """Charged as if no more than the protocol's clients came, drawn from all that are connected."""
    strategy = strategy_of(sampling=FixedSize(18))
    moves(strategy, agreed_app(), rounds=3)
    spent = strategy.spending()
    observer = ShuffleAccountant()
    hiding = SUM.cohort * CLIENTS // 18
    observer.step(SUM.round(population=hiding, sampling=Sampling.WITHOUT_REPLACEMENT), num_steps=3)
    server = ShuffleAccountant()
    server.step(SUM.round(), num_steps=spent.worst_client_rounds)
    assert spent.observer.upper == pytest.approx(observer.epsilon(DELTA, lower=False).upper, rel=1e-3)
    assert spent.server.upper == pytest.approx(server.epsilon(DELTA, lower=False).upper, rel=1e-3)
    assert spent.observer.upper_bound.startswith("covering Gaussian")
    assert spent.observer.upper < spent.server.upper
    assert spent.local_epsilon == math.inf


@pytest.mark.parametrize(
    "limits",
    [
        ClientLimits(max_local_epsilon=400.0, max_rounds=100),
        replace(SUMS, max_total_local_epsilon=1000.0),
        replace(SUMS, max_rounds=0),
        replace(SUMS, max_epsilon=0.1),
    ],
)
def test_a_client_that_did_not_agree_to_sums_refuses(limits: ClientLimits) -> None:
    strategy = strategy_of()
    with pytest.raises(ClientsRefused) as stopped:
        strategy.start(grid_of(agreed_app(limits)), record(MODEL), num_rounds=1)
    assert strategy.accountant.num_rounds == 0
    assert strategy.arrays is None
    if limits.max_local_epsilon == 400.0:
        assert str(ClientRefusal.NO_SUMS) in str(stopped.value)


def test_a_sealed_share_is_refused_by_the_client() -> None:
    asked = Instruction(
        token=bytes(16), run="run", server_round=1, mechanism=SumSpec(protocol=SUM), analyzer_key=bytes(32)
    )
    content = RecordDict({"arrays": record(MODEL), "shuffle": asked.to_record()})
    message = Message(content, dst_node_id=1, message_type="train")
    answer = agreed_app()(message, Context(1, 1, {"partition-id": 0}, RecordDict(), {}))
    assert answer.has_error()
    assert answer.error.reason == str(ClientRefusal.SEALED_SUM)


def forged(count: Callable[[Any], Any], *, by: int) -> Callable[[Message, Context], bytes]:
    """Payloads of which those of the first ``by`` clients hold other counts."""

    def payload(message: Message, context: Context) -> bytes:
        made = honest_payload(message, context)
        if int(context.node_config["partition-id"]) >= by:
            return made
        asked = instruction_of(message)
        assert asked is not None
        mechanism = asked.mechanism.build(dim=DIM)
        reports = mechanism.randomize(torch.zeros(1, DIM))
        field = reports.fields[0]
        changed = field._holding(count(field.values))
        return b"\x01" + type(reports)(reports.mechanism, reports.dim, (changed,)).to_bytes()

    return payload


def test_impossible_counts_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    most = (1 << SUM.messages_per_coordinate.bit_length()) - 1
    assert most > SUM.messages_per_coordinate
    strategy = strategy_of()
    strategy.start(
        grid_of(client_app(forged(lambda values: torch.full_like(values, most), by=3))),
        record(MODEL),
        num_rounds=1,
    )
    assert strategy.accountant.num_rounds == 1
    assert "3 replies dropped" in caplog.text


class HidingStage(SummingStage):
    """A sum that the server is taken to see alone, as aggregators of other organisations would make it."""

    @property
    def hides_shares(self) -> bool:
        return True


def self_sampled(rate: float, **options: Any) -> ShuffleStrategy:
    return strategy_of(sampling=SelfSampling(rate), **options)


@pytest.mark.slow
def test_self_sampled_clients_add_zeros_and_the_mean_is_over_the_expected_number() -> None:
    """Everybody has the same update: the mean's error is the coins', and who took part."""
    rate, rounds, truth = 0.5, 12, torch.from_numpy(update(0))
    strategy = self_sampled(rate)
    found = moves(strategy, same_update(truth, SUMS), rounds=rounds)
    noise = SUM.coins / 4 * SUM.lattice.step**2 / CLIENTS / rate**2  # of the mean, in each coordinate
    drawn = (1 - rate) / rate / CLIENTS * truth.square()
    errors = (found.mean(dim=0) - truth) / ((noise + drawn) / rounds).sqrt()
    assert float(errors.abs().max()) < 6.5  # of nine


def test_a_budget_against_the_server_stops_a_self_sampled_sum_before_it_is_passed(tmp_path: Path) -> None:
    """The ledger's rounds go on counting after a restart, and the last round is within the budget."""
    three = ShuffleAccountant()
    three.step(SUM.round(participation=0.2), num_steps=3)
    budget = three.epsilon(DELTA).upper * 1.001
    options: dict[str, Any] = {
        "shuffler": HidingStage(),
        "max_epsilon": budget,
        "budget_against": Adversary.SERVER,
        "ledger": tmp_path / "ledger",
    }
    first = self_sampled(0.2, **options)
    moves(first, agreed_app(), rounds=2)
    again = self_sampled(0.2, **options)
    with pytest.raises(PrivacyBudgetExhausted):
        moves(again, agreed_app(), rounds=9)
    assert again.accountant.num_rounds == 3
    assert again.spending().server.upper <= budget


def test_what_a_client_sends_to_a_sum_does_not_tell_whether_it_took_part() -> None:
    """Replies are reports of one length; a dummy is none, and is not counted as an answer."""
    seen: list[bytes] = []

    class Watching(SummingStage):
        def collect(self, replies: Replies) -> Anonymous:
            seen.extend(payload_of(reply) for reply in replies.answers)
            return super().collect(replies)

    strategy = self_sampled(0.3, shuffler=Watching())
    moves(strategy, agreed_app(), rounds=2)
    size = SUM.layout.report_bytes
    assert len(seen) == 2 * CLIENTS
    assert all(read_plain_payload(payload, size=size) is not None for payload in seen)

    def dummy_app() -> ClientApp:
        app = ClientApp()

        @app.train()
        def _(message: Message, context: Context) -> Message:
            return reply(plain_payload(None, size=size), to=message)

        return app

    refused = self_sampled(0.3)
    moves(refused, dummy_app(), rounds=1)
    assert refused.accountant.num_rounds == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shuffler": MixNodeStage(mixer_public_key="ab" * 64)}, "SummingStage"),
        ({"shuffler": InMemoryShuffler()}, "SummingStage"),
        ({"sampling": Poisson(0.9)}, "FixedSize"),
        ({"sampling": FixedSize(15)}, "invites 15"),
        ({"minimum_reports": 17}, "leave minimum_reports out"),
        ({"randomizer": "vector-sum"}, "VectorSum.calibrated"),
        ({"randomizer": ScalarSum.calibrated(cohort=16, epsilon=1.0, delta=1e-6)}, "sum of vectors"),
        (
            {"randomizer": MechanismSpec(name="laplace", local_epsilon=2.0), "shuffler": SummingStage()},
            "adds up",
        ),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        strategy_of(**options)


def test_a_sum_for_another_model_is_refused_before_anything_is_sent() -> None:
    strategy = strategy_of()
    with pytest.raises(ValueError, match=f"dim={DIM + 1}"):
        strategy.start(
            grid_of(agreed_app()), ArrayRecord({"w": Array(np.zeros(DIM + 1, np.float32))}), num_rounds=1
        )
    assert strategy.accountant.num_rounds == 0


@pytest.mark.parametrize(
    "protocol",
    [
        VectorSum.with_noise(dim=DIM, cohort=16, noise_multiplier=2.5, radius=0.3, overhead=0.3),
        BallSum.with_noise(dim=DIM, cohort=16, noise_multiplier=2.0, radius=0.3, frame="rotation", samples=3),
    ],
)
def test_a_forged_report_does_not_make_the_order_of_the_others_seen(protocol: VectorSum | BallSum) -> None:
    """The estimate is one function of the whole-number total, wherever the forgery stood."""
    mechanism: PrivateSum = protocol
    honest = mechanism.randomize(torch.randn(16, DIM, dtype=torch.float64))
    field = honest.fields[0]
    most = torch.full_like(field.values[:1], (1 << field.bits) - 1)
    forged = type(honest)(
        honest.mechanism,
        honest.dim,
        (field._holding(most), *(other._holding(other.values[:1]) for other in honest.fields[1:])),
    )
    expected = mechanism.estimate(mechanism.total(honest), reports=16)
    for place in range(17):
        mixed = type(honest).concat([honest.narrow(0, place), forged, honest.narrow(place, 16)])
        found = valid_sum(mechanism, mixed)
        assert found.reports == 16
        assert torch.equal(found.sum, expected)


class Foreign(UnaryL1Sum):
    """A sum by somebody else, a report of which protects its client a little by itself."""

    name: ClassVar[str] = "foreign-sum"


def test_anybodys_sum_is_added_up_charged_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the host knows the mechanism: it is chosen by what it says of itself."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("foreign-sum", Foreign, kind="sums")
    rounds, truth = 6, torch.arange(1, DIM + 1, dtype=torch.float64) / 45
    foreign = Foreign.calibrated(dim=DIM, cohort=16, epsilon=8.0, delta=DELTA, num_steps=rounds)
    with pytest.raises(ValueError, match="SummingStage"):
        strategy_of(randomizer=foreign, shuffler=InMemoryShuffler())
    strategy = strategy_of(randomizer=foreign, sampling=FixedSize(16), population=16)
    assert isinstance(strategy.settings.stage, SummingStage)
    limits = ClientLimits(max_local_epsilon=foreign.local_epsilon * 1.001, max_rounds=100)
    found = moves(strategy, same_update(truth, limits), rounds=rounds, clients=16)
    assert 7.0 < strategy.get_epsilon(DELTA) <= 8.0
    assert strategy.spending().local_epsilon == pytest.approx(rounds * foreign.local_epsilon, rel=1e-6)
    error = (found.mean(dim=0) - truth).square().sum() * rounds * 16**2
    assert float(error) < 8 * foreign.worst_variance  # a sum of nine squares, eight times its mean
    spec = strategy.settings.mechanism
    assert spec_from_json(spec.to_json()) == spec
