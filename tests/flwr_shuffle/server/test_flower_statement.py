"""The strategy's privacy statement: the numbers of its rounds, and the trust that its stage needs."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Context, Message
from flwr_shuffle import (
    FixedSize,
    MixNodeStage,
    PrivateEvaluation,
    QuantileClipping,
    SelfSampling,
    SharedSumStage,
    ShuffleStrategy,
    SummingStage,
    Updates,
)
from flwr_shuffle.settings import Invitation
from strategy_harness import CLIENTS, DIM, MODEL, grid_of, honest_payload, record, shuffled

from shuffle_plugins.accounting import Adversary, Cover, PrivacyStatement
from shuffle_plugins.ledger import BudgetLedger, read_statement
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.shuffler.keys import ServiceKey

SUM = VectorSum.with_noise(dim=DIM, cohort=16, noise_multiplier=2.5, overhead=0.3, honest_fraction=0.75)


def private(**options: Any) -> ShuffleStrategy:
    return shuffled(**{"randomizer": "linf-block", "local_epsilon": 2.0, "clipping_norm": 1.0, **options})


def access(statement: PrivacyStatement, what: str) -> Cover:
    (found,) = [each.cover for each in statement.accesses if what in each.what]
    return found


@pytest.mark.slow
def test_rounds_are_stated_also_while_one_is_under_way(tmp_path: Any) -> None:
    said: list[PrivacyStatement] = []

    def payload(message: Message, context: Context) -> bytes:
        if context.node_config["partition-id"] == 0:
            said.append(strategy.statement())
        return honest_payload(message, context)

    ledger = BudgetLedger(tmp_path / "budget", model="digits")
    strategy = private(ledger=ledger, max_epsilon=30.0, budget_against=Adversary.SERVER)
    assert "nothing recorded" in str(strategy.statement())
    strategy.start(grid_of(payload), record(MODEL), num_rounds=2)
    found, spending = strategy.statement(), strategy.spending()
    assert [each.epsilon.upper for each in found.guarantees] == [
        spending.observer.upper,
        spending.server.upper,
        spending.local_epsilon,
    ]
    assert (found.num_rounds, found.spread.clients, found.warnings) == (2, CLIENTS, ())
    assert (found.target.adversary, found.target.exceeded) == ("server", False)
    assert "model 'digits'" in found.subject
    assert access(found, "other runs") is Cover.COVERED
    assert [each.num_rounds for each in said] == [1, 2]  # the one under way is counted
    assert all("a round is under way" in each.warnings[0] for each in said)
    assert said[1].guarantees[0].epsilon.upper >= found.guarantees[0].epsilon.upper
    saved = read_statement(ledger.path, delta=1e-6)
    assert [each.epsilon for each in saved.guarantees] == [each.epsilon for each in found.guarantees]


@pytest.mark.parametrize("rate", [None, 0.5])
def test_a_mix_node_is_trusted_not_to_help_the_server(rate: float | None) -> None:
    stage = MixNodeStage(mixer_public_key=[ServiceKey.generate().public.hex() for _ in range(2)])
    share = 0.8
    sampling = (
        FixedSize(10, honest_fraction=share) if rate is None else SelfSampling(rate, honest_fraction=share)
    )
    found = private(shuffler=stage, sampling=sampling).statement()
    first, mixer, submitter, honest = found.trust
    assert submitter.startswith("whoever submits the app")
    assert first == stage.trust
    assert ("secret participation hides nobody from it" in mixer) == (rate is not None)
    assert ("whose ε holds against it" in mixer) == (rate is None)
    assert honest.startswith("80% of the clients")


@pytest.mark.parametrize("verified", [False, True])
def test_a_shared_sum_trusts_no_server(verified: bool) -> None:
    keys = [ServiceKey.generate().public.hex() for _ in range(2)]
    stage = SharedSumStage(aggregator_public_keys=keys, verified=verified)
    found = shuffled_sum(shuffler=stage, sampling=SelfSampling(0.5)).statement()
    assert found.trust[0] == stage.trust
    assert "at least one of server and aggregators must not work with the others" in found.trust[0]
    assert ("by no more than the bounds of its counts" in found.trust[0]) is verified
    assert len(found.trust) == 3  # participation is secret from the server, and there is no mixer
    assert found.trust[2].startswith("75% of the clients")


def shuffled_sum(**options: Any) -> ShuffleStrategy:
    return shuffled(**{"randomizer": SUM, "local_epsilon": None, "clipping_norm": None, **options})


def test_a_sum_in_the_servers_process_trusts_the_server_and_has_no_local_epsilon() -> None:
    strategy = shuffled_sum(shuffler=SummingStage(), sampling=SelfSampling(0.5))
    assert any("Participation is open to this process" in each for each in strategy.statement().trust)
    invited = Invitation(mechanism=SUM, candidates=CLIENTS, invited=CLIENTS, fewest=strategy.minimum_reports)
    strategy.accountant.step(strategy.settings.sampling.planned(invited), participants=None)
    found = strategy.statement()
    observer, server, local = found.guarantees
    assert "must be trusted with each of them" in found.trust[0]
    assert observer.epsilon.upper < server.epsilon.upper  # the coin hides nobody from who sees the shares
    assert local.epsilon is None
    assert "a coin of its own" in found.rounds[0].secrecy
    assert "private only in the sum" in str(found)


def test_what_clients_are_asked_beside_training_is_said() -> None:
    raw = private(evaluation="raw").statement()
    assert access(raw, "evaluation") is Cover.NOT_COVERED
    assert "NOT private" in raw.warnings[0]
    asked = PrivateEvaluation(metrics={"accuracy": (0, 1)}, local_epsilon=1.0)
    noisy = private(
        evaluation=asked, updates=Updates(max_examples=600, adaptive_clipping=QuantileClipping())
    ).statement()
    assert access(noisy, "evaluation") is access(noisy, "numbers of examples") is Cover.COVERED
    assert "moves with a private bit" in noisy.clipping
    assert access(noisy, "other runs") is access(noisy, "data of the server's own") is Cover.UNKNOWN
    assert access(private().statement(), "evaluation") is Cover.COVERED
