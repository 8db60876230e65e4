"""The loop: widths that hold, regret as promised, costs before releases, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from thinning import first_fast

from shuffle_plugins.bandits import (
    CentralModel,
    Environment,
    LinearBandit,
    LocalModel,
    NonPrivate,
    PrivacyModel,
    ShuffledModel,
)
from shuffle_plugins.randomness import SeededRandomness

MODELS = {
    "central": CentralModel(epsilon=0.5),
    "local": LocalModel(local_epsilon=1.0),
    "local sign": LocalModel(local_epsilon=1.0, mechanism="binary-rr"),
    "shuffled sign": ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr"),
    "not private": NonPrivate(),
}


def mean_regret(
    model: PrivacyModel, *, horizon: int, actions: int = 10, seeds: int = 6, core_set: bool = True
) -> float:
    found = []
    for seed in range(seeds):
        environment = Environment.random(actions=actions, dim=2, seed=seed)
        bandit = LinearBandit(actions=environment.actions, horizon=horizon, privacy=model, core_set=core_set)
        found.append(environment.play(bandit, seed=seed).regret)
    return float(np.mean(found))


@first_fast("name", MODELS, fast=2)
def test_widths_cover_more_often_than_promised(name: str) -> None:
    """In at least 1 - β of the runs every estimate of every batch is within γ, which is not idle."""
    model, runs, failure, shares = MODELS[name], 30, 0.3, []
    for seed in range(runs):
        environment = Environment.random(actions=12, dim=3, seed=seed)
        bandit = LinearBandit(actions=environment.actions, horizon=4_000, privacy=model, failure=failure)
        rng, largest = np.random.default_rng(seed), 0.0
        while not (batch := bandit.select()).final:
            left = bandit.remaining_actions
            plus = environment.successes(batch.actions, batch.counts, rng)
            bandit.update_totals(batch, batch.noise.simulated(plus, batch.counts, rng))
            errors = np.abs(environment.actions[left] @ (bandit.parameter - environment.parameter))
            largest = max(largest, errors.max() / bandit.widths[-1])
        shares.append(largest)
    assert np.mean(np.array(shares) <= 1) >= 1 - failure
    assert np.median(shares) > 0.3


@pytest.mark.parametrize(
    "model",
    [
        CentralModel(epsilon=1e6),
        LocalModel(local_epsilon=1e6, mechanism="binary-rr"),
        ShuffledModel(epsilon=1e6, delta=1e-6, mechanism="binary-rr"),
    ],
    ids=["central", "local sign", "shuffled sign"],
)
def test_at_a_huge_epsilon_it_is_the_bandit_without_privacy(model: PrivacyModel) -> None:
    for seed in range(3):
        environment = Environment.random(actions=30, dim=3, seed=seed)
        private, plain = (
            environment.play(
                LinearBandit(actions=environment.actions, horizon=50_000, privacy=privacy), seed=seed
            )
            for privacy in (model, NonPrivate())
        )
        assert private == plain


def test_regret_of_the_models_is_in_the_order_of_trust() -> None:
    central, signs, local = (
        mean_regret(model, horizon=100_000, seeds=4)
        for model in (
            CentralModel(epsilon=0.5),
            ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr"),
            LocalModel(local_epsilon=0.5),
        )
    )
    plain = mean_regret(NonPrivate(), horizon=100_000, seeds=4)
    assert 0.9 * plain < central < 1.6 * plain
    assert 0.9 * plain < signs < 1.6 * plain
    assert local > 2.5 * max(central, signs)


@first_fast("name", ["not private", "central", "shuffled sign"])
def test_regret_grows_like_the_root_of_the_horizon(name: str) -> None:
    logs = [14, 16, 18]
    regrets = [
        mean_regret(MODELS[name], horizon=math.ceil(math.exp(log)), actions=1_000, seeds=3) for log in logs
    ]
    assert np.polyfit(logs, np.log(regrets), 1)[0] == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_without_a_core_set_noise_rules_where_epsilon_is_small() -> None:
    """The price of privacy, against the same bandit without noise, is several times higher."""
    settings = {"horizon": 10**7, "actions": 1_000, "seeds": 1}
    with_core, without = (
        mean_regret(CentralModel(epsilon=0.02), core_set=core, **settings)
        / mean_regret(NonPrivate(), core_set=core, **settings)
        for core in (True, False)
    )
    assert with_core < 2.5
    assert without > 2 * with_core


@pytest.mark.parametrize("name", MODELS)
def test_clients_one_by_one(name: str) -> None:
    """The whole loop as an application runs it: assignment, randomised rewards, update."""
    environment = Environment.random(actions=8, dim=2, seed=3)
    bandit = LinearBandit(actions=environment.actions, horizon=30_000, privacy=MODELS[name])
    rng, randomness, clients = np.random.default_rng(0), SeededRandomness(1), 0
    while (batch := bandit.select()) is not None:
        chosen = batch.assignment(randomness=randomness)
        clients += len(chosen)
        assert (np.bincount(chosen, minlength=8)[batch.actions] == batch.counts).all()
        if not batch.final:
            sent = batch.randomize(environment.rewards(chosen, rng), randomness=randomness)
            bandit.update(batch, chosen, sent, randomness=randomness)
    assert clients == 30_000
    assert bandit.remaining_clients == 0
    assert bandit.select() is None
    assert environment.gaps[bandit.best] <= 2 * bandit.widths[-1]
    assert np.argmin(environment.gaps) in bandit.remaining_actions
    if name == "not private":
        assert bandit.epsilon is None
    else:
        assert 0 < bandit.epsilon.upper <= 1


def test_costs_are_recorded_before_anything_is_handed_out() -> None:
    environment = Environment.random(actions=5, dim=2, seed=0)
    bandit = LinearBandit(actions=environment.actions, horizon=1_000, privacy=MODELS["shuffled sign"])
    assert bandit.costs == ()
    batch = bandit.select()
    assert bandit.costs == (batch.noise.epsilon,)
    assert bandit.epsilon.upper <= 0.5
    bandit.discard(batch)
    assert bandit.costs == (batch.noise.epsilon,)
    second = bandit.select()
    assert (second.number, len(bandit.costs), second.size > batch.size) == (2, 2, True)


def test_the_plan_is_what_happens_if_nothing_is_dropped() -> None:
    environment = Environment.random(actions=5, dim=2, seed=0)
    model = LocalModel(local_epsilon=0.01)
    bandit = LinearBandit(actions=environment.actions, horizon=3_000, privacy=model)
    plan = bandit.plan()
    assert [row.number for row in plan] == list(range(1, bandit.num_batches + 1))
    for planned in plan:
        batch = bandit.select()
        assert planned.counts.tolist() == batch.counts.tolist()
        assert planned.noise == batch.noise
        assert batch.noise.local_epsilon == 0.01
        bandit.update_totals(batch, np.zeros(len(batch.actions)))
        assert bandit.widths[-1] == planned.width == batch.width
    last = bandit.select()
    assert last is None or last.final


def test_a_run_goes_on_from_its_state() -> None:
    environment = Environment.random(actions=20, dim=3, seed=5)

    def fresh() -> LinearBandit:
        return LinearBandit(actions=environment.actions, horizon=20_000, privacy=MODELS["shuffled sign"])

    def serve(bandit: LinearBandit, batch, seed: int) -> None:
        rng = np.random.default_rng(seed)
        plus = environment.successes(batch.actions, batch.counts, rng)
        bandit.update_totals(batch, batch.noise.simulated(plus, batch.counts, rng))

    whole, parts = fresh(), fresh()
    while not (batch := whole.select()).final:
        serve(whole, batch, batch.number)
        mine = parts.select()
        saved = json.loads(json.dumps(parts.state_dict()))  # while the batch is out
        parts = fresh()
        again = parts.load_state_dict(saved)
        assert (again.actions.tolist(), again.counts.tolist()) == (
            mine.actions.tolist(),
            mine.counts.tolist(),
        )
        with pytest.raises(ValueError, match="rewards of batch"):
            parts.select()
        serve(parts, again, again.number)
        saved = json.loads(json.dumps(parts.state_dict()))
        parts = fresh()
        assert parts.load_state_dict(saved) is None
    assert parts.state_dict() | {"number": 0} == whole.state_dict() | {
        "number": 0,
        "clients": parts.remaining_clients,
        "finished": False,
    }
    with pytest.raises(ValueError, match="other actions, horizon, privacy"):
        LinearBandit(actions=environment.actions, horizon=20_000, privacy=NonPrivate()).load_state_dict(saved)
    with pytest.raises(ValueError, match="not the state"):
        fresh().load_state_dict({"format": 1})


@pytest.mark.parametrize(
    "damage",
    [
        {"left": [0, 99]},
        {"left": []},
        {"parameter": [math.nan] * 3},
        {"reports": [5]},
        {"costs": []},
        {"clients": -1},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_state_changes_nothing(damage: dict[str, object]) -> None:
    """Without its costs a batch would look free, and a state that is half loaded goes on with the rest."""
    bandit, batch, _ = out(CentralModel(epsilon=1.0))
    saved = bandit.state_dict()
    with pytest.raises(ValueError, match="damaged"):
        bandit.load_state_dict(saved | damage)
    assert bandit.state_dict() == saved
    bandit.discard(batch)  # still the one that is out


def out(privacy: PrivacyModel) -> tuple[LinearBandit, object, np.ndarray]:
    """A bandit, its first batch, and the actions of the clients."""
    bandit = LinearBandit(actions=np.eye(3), horizon=1_000, privacy=privacy)
    batch = bandit.select()
    return bandit, batch, np.repeat(batch.actions, batch.counts)


def test_missing_reports_are_refused_where_they_raise_the_cost() -> None:
    bandit, batch, chosen = out(MODELS["shuffled sign"])
    sent = batch.randomize(np.zeros(len(chosen)))
    with pytest.raises(ValueError, match="must not hand out fewer"):
        bandit.update(batch, chosen[:-1], sent.narrow(0, len(chosen) - 1))
    bandit.update(batch, chosen, sent)
    bandit, batch, _ = out(CentralModel(epsilon=1.0))
    bandit.discard(batch)
    batch = bandit.select()
    chosen = np.repeat(batch.actions, batch.counts)
    bandit.update(batch, chosen[:-1], np.zeros(len(chosen) - 1))  # a trusted server makes do with fewer


def test_a_bad_update_changes_nothing() -> None:
    for privacy in (MODELS["local"], MODELS["central"]):
        bandit, batch, chosen = out(privacy)
        good = batch.randomize(np.zeros(len(chosen)))
        before = bandit.state_dict()
        other = LinearBandit(actions=np.eye(3), horizon=1_000, privacy=privacy).select()
        bad = [
            ((other, chosen, good), "not the one that is out"),
            ((batch, chosen[:-1], good), "one for each report"),
            ((batch, chosen.astype(float), good), "whole numbers"),
            ((batch, np.full(len(chosen), 7), good), "action 7 is not one of batch"),
            ((batch, np.full(len(chosen), chosen[0]), good), "more reports than"),
        ]
        if privacy is MODELS["local"]:
            bad.append(((batch, chosen, np.zeros(len(chosen))), "must randomise their rewards first"))
        else:
            bad.append(((batch, chosen, np.full(len(chosen), 1.5)), "outside"))
            bad.append(((batch, chosen, np.full(len(chosen), np.nan)), "outside"))
            sent = out(MODELS["local"])[1].randomize(np.zeros(len(chosen)))
            bad.append(((batch, chosen, sent), "rewards as they are"))
        for arguments, message in bad:
            with pytest.raises(ValueError, match=message):
                bandit.update(*arguments)
            assert bandit.state_dict() == before
        bandit.update(batch, chosen, good)
        with pytest.raises(ValueError, match="answered before"):
            bandit.update(batch, chosen, good)


@pytest.mark.parametrize("horizon", [8, 20, 21, 100])
@pytest.mark.parametrize("actions", [1, 2, 40])
def test_few_clients_are_all_served(horizon: int, actions: int) -> None:
    environment = Environment.random(actions=actions, dim=4, seed=1)
    played = environment.play(
        LinearBandit(actions=environment.actions, horizon=horizon, privacy=NonPrivate()), seed=0
    )
    assert sum(clients for clients, _, _ in played.batches) == horizon
    assert played.regret <= 2 * horizon


@pytest.mark.parametrize(
    ("model", "adversary", "trusted"),
    [
        (CentralModel(epsilon=1.0), "whoever sees the played actions", "the server sees every reward"),
        (LocalModel(local_epsilon=2.0), "local", "nobody"),
        (ShuffledModel(epsilon=1.0, delta=1e-6, mechanism="binary-rr"), "model-observer", "the shuffler"),
        (NonPrivate(), "any", "everybody"),
    ],
)
def test_a_statement_names_whom_the_model_trusts(model, adversary, trusted):
    bandit = LinearBandit(actions=np.eye(2), horizon=2000, privacy=model)
    assert "nothing recorded" in str(bandit.statement())
    bandit.select()
    found = bandit.statement()
    (guarantee,) = found.guarantees
    assert (guarantee.adversary, guarantee.epsilon, found.num_rounds) == (adversary, bandit.epsilon, 1)
    assert found.trust[0].startswith(trusted)
    unprotected = isinstance(model, NonPrivate)
    assert ("rewards are not protected at all" in found.warnings) == unprotected
    assert ("ε covers nothing, as there is none" in str(found)) == unprotected
    json.dumps(found.to_dict(), allow_nan=False)
