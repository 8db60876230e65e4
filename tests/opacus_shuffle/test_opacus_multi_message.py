"""The thesis's multi-message means through the Opacus host."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError
from thinning import first_fast
from torch import nn
from torch.utils.data import DataLoader

from shuffle_plugins.accounting import CountedRound, ShuffleAccountant, TaggedRound
from shuffle_plugins.protocols import BallSum, UnaryL1Sum
from shuffle_plugins.randomness import Randomness


@pytest.fixture
def private_sum(make_private: Any) -> Any:
    return functools.partial(
        make_private, randomizer="multi-message", local_epsilon=None, noise_multiplier=3.0, max_grad_norm=0.5
    )


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs that say, in whole numbers, what the protocol estimates without flipping."""

    def total(self: BallSum, x: Any, *, randomness: Randomness) -> torch.Tensor:
        clipped = x.dense() * (self.radius / x.l2_norm().clamp(min=self.radius))[:, None]
        return (clipped.sum(dim=0).double() * 2**40).round().long()

    monkeypatch.setattr(BallSum, "share", total)
    monkeypatch.setattr(BallSum, "estimate", lambda _, total, *, reports: total.double() / 2**40)


@pytest.mark.parametrize("physical", [8, 3])
def test_without_noise_a_step_is_opacus_own(
    private_sum: Any, make_model: Any, step: Any, dataset: Any, exact: None, physical: int
) -> None:
    engine, module, optimizer, loader = private_sum()
    indices: list[int] = []
    draw = loader.batch_sampler.draw
    loader.batch_sampler.draw = lambda: indices.extend((drawn := draw()).tolist()) or drawn
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as split:
        for batch in split:
            step(module, optimizer, batch)
            if len(engine.accountant):
                break
    plain = GradSampleModule(make_model())
    opacus = DPOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=8,
    )
    x, y = dataset[indices[:8]]
    nn.functional.cross_entropy(plain(x), y).backward()
    opacus.step()
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_an_epoch_costs_what_an_accountant_of_ones_own_says(
    private_sum: Any, train: Any, dataset: Any
) -> None:
    engine, module, optimizer, loader = private_sum(engine=PrivacyEngine(accountant="subsampled_shuffle_pld"))
    steps = train(module, optimizer, loader)
    protocol = optimizer.mechanism
    assert isinstance(protocol, BallSum)
    assert (protocol.cohort, protocol.radius, optimizer.noise_multiplier) == (8, 0.5, 3.0)
    again = BallSum.with_noise(dim=protocol.dim, cohort=8, noise_multiplier=3.0, radius=0.5)
    accountant = ShuffleAccountant()
    accountant.step(again.round(population=len(dataset)), num_steps=steps)
    assert isinstance(optimizer.round, TaggedRound)
    assert engine.get_epsilon(1e-5) == pytest.approx(accountant.epsilon(1e-5).upper)
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_counted_bits_train_and_cost_what_their_round_says(
    make_private: Any, train: Any, dataset: Any
) -> None:
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant="subsampled_shuffle_pld"),
        randomizer="unary-l1-sum",
        local_epsilon=None,
        noise_multiplier=3.0,
        max_grad_norm=0.5,
    )
    steps = train(module, optimizer, loader)
    protocol = optimizer.mechanism
    assert isinstance(protocol, UnaryL1Sum)
    assert (protocol.cohort, protocol.radius) == (8, 0.5)
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(population=len(dataset)), num_steps=steps)
    assert isinstance(optimizer.round, CountedRound)
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
def test_a_target_is_met_and_not_missed_by_much(
    make_model: Any, dataset: Any, train: Any, method: str
) -> None:
    engine, module = PrivacyEngine(accountant=f"subsampled_shuffle_{method}"), make_model()
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=8),
        randomizer=functools.partial(BallSum.with_noise, frame="rotation"),
        target_epsilon=1.5,
        target_delta=1e-5,
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
