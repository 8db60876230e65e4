"""Multi-message sums among federated rounds."""

from __future__ import annotations

import math

import pytest

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    ShuffleAccountant,
    Tag,
    TaggedRound,
)
from shuffle_plugins.protocols import VectorSum

DELTA = 1e-6
NAMES = [str(client) for client in range(30)]


def a_sum(clients: int) -> VectorSum:
    return VectorSum.with_noise(dim=20, cohort=clients, noise_multiplier=6.0, overhead=0.3)


def test_sums_of_two_cohorts_add_up_without_being_compared() -> None:
    """The two kinds of rounds compose exactly as in an accountant that is told of both."""
    few, many = a_sum(20), a_sum(25)
    accountant = FederatedAccountant()
    for mechanism, reports, rounds in ((few, 20, 3), (many, 25, 2)):
        one = FederatedRound.drawn(mechanism, candidates=100, invited=30, reports=reports)
        for _ in range(rounds):
            accountant.step(one, participants=NAMES)
    observer, server = ShuffleAccountant(), ShuffleAccountant()
    for mechanism, reports, rounds in ((few, 20, 3), (many, 25, 2)):
        observer.step(mechanism.round(population=reports * 100 // 30, cohort=reports), num_steps=rounds)
        server.step(mechanism.round(), num_steps=rounds)
    found = accountant.spending(DELTA)
    assert found.observer.upper == pytest.approx(observer.epsilon(DELTA).upper, rel=1e-9)
    assert found.server.upper == pytest.approx(server.epsilon(DELTA).upper, rel=1e-9)
    assert 0 < found.server.lower <= found.server.upper
    assert found.local_epsilon == math.inf
    assert accountant.would_exceed(one, max_epsilon=1e9, delta=DELTA, adversary=Adversary.LOCAL)


def test_nobody_samples_itself_into_a_sum() -> None:
    with pytest.raises(ValueError, match="in secret"):
        FederatedRound.secret(a_sum(20), answered=40, reports=20)
    for rate in (0.0, 1.5):
        with pytest.raises(ValueError, match="rate"):
            FederatedRound.secret_sum(a_sum(20), answered=40, rate=rate)


def test_rounds_of_one_kind_are_charged_their_largest_delta() -> None:
    tagged = TaggedRound(population=200, cohort=200, tags=(Tag(local_epsilon=1.0, count=2, places=True),))
    faint, loud = (
        FederatedRound(observer=tagged, server=tagged, local_epsilon=2.0, local_delta=delta)
        for delta in (1e-9, 6e-9)
    )
    for order in ((faint, loud), (loud, faint)):
        accountant = FederatedAccountant()
        for each in order:
            accountant.step(each, participants=None)
        assert accountant.epsilon(2e-8, adversary=Adversary.LOCAL, lower=False).upper == 4.0
        assert accountant.epsilon(1e-8, adversary=Adversary.LOCAL, lower=False).upper == math.inf
