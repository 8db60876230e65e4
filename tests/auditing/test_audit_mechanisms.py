"""Sound mechanisms pass the audit in rounds of every kind, and the audit says something.

Single reports and tiny shuffles of every registered mechanism are audited by the conformance suite.
"""

import math

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import (
    Aggregate,
    Frequencies,
    LikelihoodRatio,
    Projection,
    audit_local,
    audit_round,
)
from shuffle_plugins.mechanisms import get
from shuffle_plugins.randomness import SeededRandomness

CONFIDENCE = 0.999
SOUND = (("binary-rr", 1), ("k-rr", 4), ("laplace", 4), ("linf-coordinate", 4), ("privunit", 4))
ROUNDS = {
    "local": ({"population": 1, "cohort": 1, "sampling": "full"}, 1e-3, 1),
    "full": ({"population": 12, "cohort": 12, "sampling": "full"}, 1e-2, 1),
    "sampled": ({"population": 30, "cohort": 10}, 1e-2, 1),
    "poisson": ({"population": 30, "cohort": 10, "sampling": "poisson"}, 1e-2, 1),
    "poisson, server": (
        {"population": 30, "cohort": 10, "sampling": "poisson", "adversary": "server"},
        1e-2,
        1,
    ),
    "composed": ({"population": 20, "cohort": 8}, 1e-2, 5),
}


KINDS = [
    *(("binary-rr", 1, kind) for kind in ROUNDS),  # which are fast
    *((name, dim, "full") for name, dim in SOUND[1:]),
    *(("privunit", 4, kind) for kind in ROUNDS if kind != "full"),
]
TELLING = ("local", "full", "poisson, server")


def certified(mechanism, fields, *, delta, num_steps=1):
    """A round, and its ε by the mechanism's own blanket or the generic one: both hold."""
    generic = ShuffleRound(local_epsilon=mechanism.local_epsilon, local_delta=mechanism.local_delta, **fields)
    bounds = []
    for shuffle_round in (generic, mechanism.round(**fields)):
        accountant = ShuffleAccountant()
        accountant.step(shuffle_round, num_steps=num_steps)
        bounds.append(accountant.epsilon(delta, lower=False).upper)
    return generic, min(bounds)


@first_fast(("name", "dim", "kind"), KINDS, fast=len(ROUNDS) + len(SOUND) - 1)
def test_what_is_certified_withstands_the_attack(name, dim, kind):
    fields, delta, num_steps = ROUNDS[kind]
    mechanism = get(name, local_epsilon=2.0, dim=dim)
    shuffle_round, upper = certified(mechanism, fields, delta=delta, num_steps=num_steps)
    result = audit_round(
        mechanism,
        shuffle_round,
        delta=delta,
        num_steps=num_steps,
        num_trials=4000,
        confidence=CONFIDENCE,
        randomness=SeededRandomness(1),
    )
    assert result.consistent_with(upper), f"{result} but {upper} is certified"
    assert result.epsilon > 0 or kind not in TELLING


@pytest.mark.parametrize(("name", "dim"), SOUND)
@first_fast("local_epsilon", [0.5, 3.0])
def test_reports_withstand_the_attack_at_the_declared_local_epsilon(name, dim, local_epsilon):
    mechanism = get(name, local_epsilon=local_epsilon, dim=dim)
    result = audit_local(
        mechanism,
        delta=mechanism.local_delta,
        num_trials=20_000,
        confidence=CONFIDENCE,
        randomness=SeededRandomness(2),
    )
    assert result.consistent_with(local_epsilon), str(result)
    assert result.epsilon >= (0.5 if mechanism.blanket().exact else 0.25) * local_epsilon


@first_fast(
    ("name", "dim", "fields", "delta", "share"),
    [
        ("binary-rr", 1, {"population": 20, "cohort": 20, "sampling": "full"}, 1e-2, 0.85),
        ("linf-coordinate", 4, {"population": 50, "cohort": 10}, 1e-3, 0.25),
        (
            "binary-rr",
            1,
            {"population": 50, "cohort": 10, "sampling": "poisson", "adversary": "server"},
            1e-3,
            0.9,
        ),
    ],
    ids=["full", "sampled", "server"],
)
def test_where_the_worst_case_is_attained_the_audit_comes_close(name, dim, fields, delta, share):
    mechanism = get(name, local_epsilon=2.0, dim=dim)
    shuffle_round, upper = certified(mechanism, fields, delta=delta)
    result = audit_round(
        mechanism, shuffle_round, delta=delta, num_trials=50_000, randomness=SeededRandomness(1)
    )
    assert share * upper < result.epsilon <= upper


@first_fast(
    "attack", [LikelihoodRatio(), Frequencies(), Projection(), Aggregate()], ids=lambda attack: attack.name
)
def test_every_attack_gets_somewhere_alone(attack):
    mechanism = get("linf-coordinate", local_epsilon=2.0, dim=2)
    shuffle_round, upper = certified(mechanism, {"population": 8, "cohort": 8}, delta=0.02)
    result = audit_round(
        mechanism,
        shuffle_round,
        delta=0.02,
        num_trials=4000,
        attacks=[attack],
        randomness=SeededRandomness(4),
    )
    assert result.attack == attack.name
    assert 0.4 * upper < result.epsilon <= upper


# -- the result and the arguments -----------------------------------------------------------------------


def small_audit(**changes):
    mechanism = get("binary-rr", local_epsilon=1.0, dim=1)
    arguments = {"delta": 1e-3, "num_trials": 200, "randomness": SeededRandomness(0)} | changes
    shuffle_round = arguments.pop(
        "shuffle_round", ShuffleRound(local_epsilon=1.0, population=3, cohort=3, sampling="full")
    )
    return audit_round(mechanism, shuffle_round, **arguments)


def test_the_result_says_what_it_is_for():
    result = small_audit(
        confidence=0.9, shuffle_round=ShuffleRound(local_epsilon=1.0, population=2, cohort=2)
    )
    assert (result.neighbouring_relation, result.adversary) == ("replace-one", "model-observer")
    assert (result.delta, result.confidence, result.num_trials) == (1e-3, 0.9, 200)
    assert result.epsilon > 0
    for said in ("δ = 0.001", "0.9 confidence", "replace-one", "model-observer", result.attack):
        assert said in str(result)
    assert float(str(result).split()[2]) <= result.epsilon
    assert result.violates(result.epsilon * 0.99)
    assert result.consistent_with(result.epsilon)
    assert result.consistent_with(math.inf)
    with pytest.raises(ValueError, match="certified_epsilon"):
        result.violates(float("nan"))
    with pytest.raises(ValueError, match="certified_epsilon"):
        result.consistent_with(-1.0)


def test_an_attack_that_learns_nothing_proves_nothing():
    class Blind(Aggregate):
        def prepare(self, target):
            return lambda rounds: torch.zeros(len(rounds.sizes))

    assert small_audit(attacks=[Blind()]).epsilon == 0
