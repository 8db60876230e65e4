"""The thesis's multi-message means through the Opacus host."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError
from thinning import first_fast

from shuffle_plugins.accounting import CountedRound, ShuffleAccountant, TaggedRound
from shuffle_plugins.protocols import BallSum, UnaryL1Sum


@pytest.fixture
def private_sum(make_private: Any) -> Any:
    return functools.partial(
        make_private, randomizer="multi-message", local_epsilon=None, noise_multiplier=3.0, max_grad_norm=0.5
    )


@pytest.mark.parametrize(
    ("name", "kind", "round_kind"),
    [("multi-message", BallSum, TaggedRound), ("unary-l1-sum", UnaryL1Sum, CountedRound)],
)
def test_it_trains_and_costs_what_its_round_says(
    private_sum: Any, train: Any, dataset: Any, name: str, kind: type, round_kind: type
) -> None:
    engine, module, optimizer, loader = private_sum(
        engine=PrivacyEngine(accountant="subsampled_shuffle_pld"), randomizer=name
    )
    steps = train(module, optimizer, loader)
    protocol = optimizer.mechanism
    assert isinstance(protocol, kind)
    assert (protocol.cohort, protocol.radius, optimizer.noise_multiplier) == (8, 0.5, 3.0)
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(population=len(dataset)), num_steps=steps)
    assert isinstance(optimizer.round, round_kind)
    assert engine.get_epsilon(1e-5) == pytest.approx(accountant.epsilon(1e-5).upper)
    assert all(bool(p.isfinite().all()) for p in module.parameters())


@pytest.mark.slow
def test_the_released_noise_is_the_protocols(private_sum: Any) -> None:
    squares: list[float] = []
    for _ in range(200):
        _, module, optimizer, loader = private_sum(randomness=None)
        x, _ = next(iter(loader))
        (0.0 * module(x)).sum().backward()
        optimizer.step()
        released = torch.cat([p.grad.flatten() for p in module.parameters()]) * 8
        squares.append(float(released.double().square().sum()))
    mean = sum(squares) / len(squares)
    assert 0.5 * optimizer.mechanism.worst_variance < mean < 1.1 * optimizer.mechanism.worst_variance


@first_fast("method", ["rdp", "pld"])
def test_a_target_is_met_and_not_missed_by_much(calibrated: Any, train: Any, method: str) -> None:
    engine, module, optimizer, loader = calibrated(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"),
        randomizer=functools.partial(BallSum.with_noise, frame="rotation"),
        target_epsilon=1.5,
        epochs=1,
        max_grad_norm=0.5,
    )
    assert optimizer.mechanism.frame == "rotation"
    train(module, optimizer, loader)
    assert 0.98 * 1.5 < engine.get_epsilon(1e-5) <= 1.5
    with pytest.raises(PrivacyBudgetExceeded):
        train(module, optimizer, loader)


def test_what_it_cannot_do_is_refused(private_sum: Any) -> None:
    with pytest.raises(ShufflePrivacyError, match="without-replacement"):
        private_sum(sampling="poisson")
    with pytest.raises(TypeError, match="local_epsilon"):
        private_sum(local_epsilon=1.0)
    with pytest.raises(ShufflePrivacyError, match="needs noise_multiplier"):
        private_sum(noise_multiplier=None)
    with pytest.raises(ValueError, match="frame must be one of 'rotation', 'kashin'"):
        private_sum(randomizer=functools.partial(BallSum.with_noise, frame="kashn"))
    with pytest.raises(ShufflePrivacyError, match=r"batch_size.* is 1: .*at least 2"):
        private_sum(batch_size=1)
    _, _, optimizer, _ = private_sum()
    with pytest.raises(AttributeError, match="noise_multiplier"):
        _ = optimizer.local_epsilon
