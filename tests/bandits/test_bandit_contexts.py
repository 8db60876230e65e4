"""Contexts: policies as actions, all of them, with the right expected features."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shuffle_plugins.bandits import CentralModel, Environment, LinearBandit, every_policy, sampled_policies


def problem(contexts: int = 4, actions: int = 3, dim: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    features = rng.normal(size=(contexts, actions, dim))
    return features / np.linalg.norm(features, axis=2).max(), rng.dirichlet(np.ones(contexts))


def test_every_policy_that_some_parameter_makes_best_is_there_and_no_other() -> None:
    features, law = problem()
    found = every_policy(features, law)
    angles = np.linspace(0, 2 * math.pi, 20_000, endpoint=False)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    chosen = np.stack([(each @ directions.T).argmax(axis=0) for each in features], axis=1)
    best = {tuple(row) for row in chosen.tolist()}
    assert {tuple(row) for row in found.policies.tolist()} == best
    assert len(found.policies) == len(best)


def test_expected_features_give_the_expected_reward() -> None:
    features, law = problem(dim=3)
    found = sampled_policies(features, law, samples=500)
    theta = np.array([0.3, -0.2, 0.5])
    for policy, action in zip(found.policies, found.actions, strict=True):
        direct = sum(p * features[c, policy[c]] @ theta for c, p in enumerate(law))
        assert action @ theta == pytest.approx(direct)
    best = sum(p * (features[c] @ theta).max() for c, p in enumerate(law))
    assert (found.actions @ theta).max() == pytest.approx(best, abs=0.02)


def test_sampled_policies_are_among_all() -> None:
    features, law = problem()
    everything = {tuple(row) for row in every_policy(features, law).policies.tolist()}
    assert {
        tuple(row) for row in sampled_policies(features, law, samples=300).policies.tolist()
    } <= everything


def test_a_bandit_finds_the_best_policy_and_clients_look_up_their_own_action() -> None:
    features, law = problem(contexts=3, actions=4)
    found, theta = every_policy(features, law), np.array([0.8, -0.5])
    assert found.play(1, 2) == found.policies[1, 2]
    environment = Environment(actions=found.actions, parameter=theta)
    bandit = LinearBandit(actions=found.actions, horizon=10**7, privacy=CentralModel(epsilon=1.0))
    played = environment.play(bandit, seed=0)
    assert environment.gaps[played.best] < 0.01
