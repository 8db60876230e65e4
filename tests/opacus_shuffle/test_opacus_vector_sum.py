"""P_vec through the Opacus host."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise, LambdaGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import (
    Delivery,
    PrivacyEngine,
    ShuffleDPOptimizer,
    ShufflePrivacyError,
    SubsampledShufflePLDAccountant,
)
from torch import nn

from shuffle_plugins.protocols import BallSum, VectorSum, WindowedSum
from shuffle_plugins.randomness import Randomness, SeededRandomness


@pytest.fixture
def private_sum(make_private: Any) -> Any:
    return functools.partial(
        make_private, randomizer="vector-sum", local_epsilon=None, noise_multiplier=3.0, max_grad_norm=0.5
    )


@pytest.fixture
def solved(calibrated: Any) -> Any:
    return functools.partial(
        calibrated, randomizer="vector-sum", target_epsilon=1.5, epochs=2, max_grad_norm=0.5
    )


@pytest.fixture
def balanced_coins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exactly half of all coins show heads: no noise. Holds the number of coins of each toss."""
    tossed: list[int] = []

    def heads(self: VectorSum, *, randomness: Randomness) -> torch.Tensor:
        tossed.append(self.cohort * self.coins)
        return torch.full((self.dim,), self.cohort * self.coins // 2, dtype=torch.int64)

    monkeypatch.setattr(VectorSum, "common_noise", heads)
    return tossed


def opacus_step(module: nn.Module, batch: Any, *, cohort: int) -> list[torch.Tensor]:
    """Parameters after Opacus's own step, without noise."""
    plain = GradSampleModule(module)
    optimizer = DPOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=cohort,
    )
    x, y = batch
    nn.functional.cross_entropy(plain(x), y).backward()
    optimizer.step()
    return [p.detach() for p in plain.parameters()]


# ---- what a step computes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("physical", [8, 3])
def test_without_noise_a_step_is_opacus_own(
    private_sum: Any, make_model: Any, step: Any, balanced_coins: list[int], physical: int
) -> None:
    engine, module, optimizer, loader = private_sum()
    chunks = []
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as split:
        for chunk in itertools.islice(split, math.ceil(8 / physical)):
            step(module, optimizer, chunk)
            chunks.append(chunk)
    batch = [torch.cat(parts) for parts in zip(*chunks, strict=True)]
    assert len(engine.accountant) == 1
    lattice = optimizer.mechanism.lattice
    assert balanced_coins == [8 * optimizer.mechanism.coins]
    # 8 roundings of at most one step each, averaged over 8, times the learning rate; odd coins are half off.
    for p, q in zip(module.parameters(), opacus_step(make_model(), batch, cohort=8), strict=True):
        assert torch.allclose(p, q, atol=0.1 * lattice.step * 1.1, rtol=0)


def test_the_noise_is_the_protocols_and_tossed_once_in_a_split_batch() -> None:
    module = GradSampleModule(nn.Linear(400, 40))
    optimizer = ShuffleDPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        randomizer="vector-sum",
        noise_multiplier=3.0,
        max_grad_norm=0.5,
        population=40,
        cohort=8,
        loss_reduction="sum",
        randomness=SeededRandomness(4),
    )
    optimizer.attach_step_hook(SubsampledShufflePLDAccountant().get_optimizer_hook_fn(sample_rate=0.2))
    for part, rows in enumerate((3, 3, 2)):
        optimizer.expect_batch(Delivery(rows=rows, part=part, parts=3))
        optimizer.zero_grad()
        (0.0 * module(torch.zeros(rows, 400))).sum().backward()
        optimizer.step()
    released = torch.cat([p.grad.flatten() for p in module.parameters()]).double()
    variance = optimizer.mechanism.noise_variance
    entries = len(released)
    assert abs(float(released.mean())) < 5 * math.sqrt(variance / entries)
    assert abs(float(released.square().mean()) / variance - 1) < 5 * math.sqrt(2 / entries)
    assert variance == pytest.approx((3.0 * 0.5) ** 2, rel=0.021)
    steps = released / optimizer.mechanism.lattice.step
    half = 8 * optimizer.mechanism.coins / 2 % 1
    assert float((steps - half - (steps - half).round()).abs().max()) < 1e-2  # whole numbers of the lattice


# ---- a target ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("randomizer", ["vector-sum", "linf-coordinate"])
def test_a_target_counts_what_was_spent_before(solved: Any, train: Any, randomizer: str) -> None:
    engine = PrivacyEngine(accountant="subsampled_shuffle_rdp")
    solved = functools.partial(solved, engine=engine, randomizer=randomizer)
    first = solved()[1:]
    train(*first, epochs=2)
    with pytest.warns(UserWarning, match="10 rounds are recorded"):
        second = solved(target_epsilon=2.0)[1:]
    assert second[1].effective_noise_multiplier > first[1].effective_noise_multiplier
    train(*second, epochs=2)
    assert 0.99 * 2.0 < engine.get_epsilon(1e-5) <= 2.0
    with (
        pytest.warns(UserWarning, match="recorded"),
        pytest.raises(ShufflePrivacyError, match="leave no room"),
    ):
        solved(target_epsilon=1.9)


# ---- what is refused, and changes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vector-sum", "multi-message"])
def test_noise_schedulers_of_opacus_change_the_noise_and_every_round_is_counted_so(
    private_sum: Any, train: Any, name: str
) -> None:
    engine, module, optimizer, loader = private_sum(randomizer=name)
    scheduler = ExponentialNoise(optimizer, gamma=2.0)
    clip = LambdaGradClip(optimizer, scheduler_function=lambda epoch: 0.5**epoch)
    first = optimizer.noise_multiplier
    for _ in range(2):
        train(module, optimizer, loader)
        scheduler.step()
        clip.step()
    assert optimizer.noise_multiplier == 4 * first
    assert optimizer.max_grad_norm == optimizer.mechanism.radius == 0.5 * 0.25
    history = engine.accountant.core.history
    assert [steps for _, steps in history] == [5, 5]
    alone = [SubsampledShufflePLDAccountant() for _ in history]
    for accountant, (shuffle_round, steps) in zip(alone, history, strict=True):
        accountant.record(shuffle_round, num_steps=steps)
    assert alone[0].get_epsilon(1e-3) > 1.3 * alone[1].get_epsilon(1e-3)


def test_noise_that_no_round_can_be_certified_with_is_refused_before_training(
    private_sum: Any, make_model: Any
) -> None:
    module = make_model()
    with pytest.raises(ShufflePrivacyError, match=r"noise_multiplier=0\.05 is too little"):
        private_sum(module=module, noise_multiplier=0.05)
    assert not hasattr(module, "autograd_grad_sample_hooks")
    _, _, optimizer, _ = private_sum()
    with pytest.raises(ShufflePrivacyError, match="too little"):
        optimizer.noise_multiplier = 0.05
    assert optimizer.noise_multiplier == 3.0


@pytest.mark.parametrize("build", [VectorSum.with_noise, BallSum.with_noise])
def test_a_share_of_honest_clients_as_documented_trains(
    private_sum: Any, calibrated: Any, train: Any, build: Any
) -> None:
    """The round is charged as a draw from the honest clients alone, the loader still draws from everybody."""
    counted = functools.partial(build, honest_fraction=0.8)
    engine, module, optimizer, loader = private_sum(randomizer=counted)
    assert train(module, optimizer, loader) == len(engine.accountant) == 5
    assert optimizer.round.population == 32
    assert optimizer.sample_rate == loader.sample_rate == 0.2
    trusting, *objects = private_sum(randomizer=build)
    train(*objects)
    assert engine.get_epsilon(1e-3) > trusting.get_epsilon(1e-3)

    engine, module, optimizer, loader = calibrated(
        randomizer=counted, target_epsilon=2.0, target_delta=1e-3, epochs=1
    )
    assert train(module, optimizer, loader) == 5
    assert 1.98 < engine.get_epsilon(1e-3) <= 2.0


def test_what_a_sum_cannot_do_is_refused(private_sum: Any) -> None:
    with pytest.raises(ShufflePrivacyError, match="needs noise_multiplier"):
        private_sum(noise_multiplier=None)
    with pytest.raises(TypeError, match="local_epsilon"):
        private_sum(local_epsilon=1.0)
    with pytest.raises(ShufflePrivacyError, match=r"batch_size.* is 1: .*at least 2"):
        private_sum(batch_size=1)
    _, _, optimizer, _ = private_sum()
    with pytest.raises(AttributeError, match="noise_multiplier"):
        _ = optimizer.local_epsilon


@pytest.mark.parametrize("randomizer", ["windowed-sum", functools.partial(WindowedSum, coefficients=(2, 1))])
def test_windows_of_sums_are_refused_as_a_loader_keeps_nobody_apart(
    private_sum: Any, randomizer: Any
) -> None:
    with pytest.raises(ShufflePrivacyError, match="kept apart in time"):
        private_sum(randomizer=randomizer)
