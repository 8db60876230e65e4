"""Designs: as near to optimal as they promise, with as few actions."""

from __future__ import annotations

import numpy as np
import pytest

from shuffle_plugins.bandits import near_optimal_design, unit_ball_net
from shuffle_plugins.bandits.designs import even_design


def on_the_sphere(actions: int, dim: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((actions, dim))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def largest_length(actions: np.ndarray, support: np.ndarray, weights: np.ndarray) -> float:
    """By the pseudo-inverse of V in the actions' own coordinates."""
    inverse = np.linalg.pinv((actions[support] * weights[:, None]).T @ actions[support])
    return float(np.einsum("ki,ij,kj->k", actions, inverse, actions).max())


@pytest.mark.parametrize(("actions", "dim"), [(10, 2), (1000, 2), (300, 3), (400, 8)])
@pytest.mark.parametrize("slack", [2.0, 1.01])
def test_a_design_keeps_its_promise_with_few_actions(actions: int, dim: int, slack: float) -> None:
    found = on_the_sphere(actions, dim)
    design = near_optimal_design(found, slack=slack)
    assert design.dimension == dim
    assert largest_length(found, design.support, design.weights) == pytest.approx(design.largest, rel=1e-9)
    assert (
        dim * (1 - 1e-9) <= design.largest <= slack * dim * (1 + 1e-9)
    )  # Kiefer, Wolfowitz: never below dim
    assert len(design.support) <= dim * (dim + 1) // 2
    assert design.weights.sum() == pytest.approx(1)
    assert (design.weights > 0).all()
    assert (np.diff(design.support) > 0).all()


def test_actions_in_a_plane_of_a_larger_space_are_two_dimensional() -> None:
    plane = on_the_sphere(50, 2) @ np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0].T
    design = near_optimal_design(plane, slack=1.01)
    assert design.dimension == 2
    assert 2 <= len(design.support) <= 3
    assert largest_length(plane, design.support, design.weights) <= 2.02 * (1 + 1e-9)


def test_nearly_parallel_actions_are_still_told_apart() -> None:
    angles = 0.3 + 1e-5 * np.arange(20)
    design = near_optimal_design(np.column_stack([np.cos(angles), np.sin(angles)]))
    assert design.dimension == 2
    assert design.largest <= 4


def test_a_core_set_is_far_better_than_playing_everything() -> None:
    lopsided = np.vstack([np.tile([1.0, 0.0], (99, 1)), [[0.0, 1.0]]])
    assert near_optimal_design(lopsided).largest <= 4
    assert even_design(lopsided).largest == pytest.approx(100)


def test_counts_are_rounded_up_and_never_beyond_those_left() -> None:
    design = near_optimal_design(on_the_sphere(30, 3))
    counts = design.counts(100.0, at_most=10_000)
    assert (counts == np.ceil(design.weights * 100 - 1e-9)).all()
    clipped = design.counts(100.0, at_most=57)
    assert clipped.sum() == 57
    assert np.abs(clipped - design.weights * 57).max() < 1


def test_a_net_leaves_no_point_of_the_circle_far_away() -> None:
    net = unit_ball_net(dim=2, spacing=0.01)
    probes = on_the_sphere(2000, 2, seed=5)
    nearest = np.sqrt(np.maximum(2 - 2 * (probes @ net.T).max(axis=1), 0))
    assert nearest.max() <= 0.01
    assert len(net) <= 320
    assert unit_ball_net(dim=1, spacing=0.5).tolist() == [[-1.0], [1.0]]
