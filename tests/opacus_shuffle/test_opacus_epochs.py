"""How batches are drawn: every law, and an ordinary shuffled loader, whose whole epoch is one round."""

from __future__ import annotations

import itertools
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from opacus.data_loader import switch_generator
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import (
    Delivery,
    EpochSampler,
    FixedSizeSampler,
    PoissonSampler,
    PrivacyBudgetExceeded,
    PrivacyEngine,
    ShufflePrivacyError,
    SubsampledShufflePLDAccountant,
)
from opacus_shuffle.loaders import uniform_subset
from scipy import stats
from thinning import first_fast
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import Sampling, ShuffleAccountant
from shuffle_plugins.mechanisms import LInfCoordinate
from shuffle_plugins.randomness import SeededRandomness

# ---- the sampler -------------------------------------------------------------------------------------------


def test_every_cut_into_batches_is_equally_likely() -> None:
    sampler = EpochSampler(population=5, cohort=2, randomness=SeededRandomness(7))
    pairs = itertools.combinations(range(5), 2)
    cuts = {cut: 0 for cut in itertools.product(pairs, repeat=2) if not set(cut[0]) & set(cut[1])}
    for _ in range(40 * len(cuts)):
        cuts[tuple(map(tuple, sampler))] += 1
    assert stats.chisquare(list(cuts.values())).pvalue > 1e-4


# ---- the cost ----------------------------------------------------------------------------------------------


def expected(epochs: int) -> float:
    core, signs = ShuffleAccountant(method="rdp"), LInfCoordinate(local_epsilon=2.0, dim=53)
    core.step(signs.round(population=40, cohort=8, sampling=Sampling.EPOCH), num_steps=epochs)
    return core.epsilon(1e-5).upper


def test_an_epoch_is_one_round_recorded_before_its_first_release(
    make_private: Any, step: Any, flat: Any
) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    recorded = []
    optimizer.attach_step_hook(lambda _: recorded.append((len(engine.accountant), flat(module))))
    for epoch in range(1, 4):
        for batch in loader:
            before = flat(module)
            step(module, optimizer, batch)
            assert recorded[-1][0] == len(engine.accountant) == epoch
            assert torch.equal(recorded[-1][1], before)
            assert not torch.equal(flat(module), before)
        assert len(recorded) == 5 * epoch
        assert engine.get_epsilon(1e-5) == expected(epoch)
    assert [steps for _, steps in engine.accountant.history] == [3]


def test_a_broken_off_epoch_is_paid_in_full_and_the_next_is_a_new_one(make_private: Any, step: Any) -> None:
    engine, module, optimizer, loader = make_private(
        sampling="epoch", data=TensorDataset(torch.randn(40, 6), torch.zeros(40).long())
    )
    for epoch in range(1, 4):
        for batch in itertools.islice(loader, 2):
            step(module, optimizer, batch)
            assert len(engine.accountant) == epoch
    for _ in itertools.islice(loader, 2):  # looked at, and not stepped on
        pass
    assert len(engine.accountant) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("physical", [None, 3])
def test_no_record_is_used_twice_in_what_was_paid_once(
    make_private: Any, transparent: Any, num_workers: int, physical: int | None
) -> None:
    data = TensorDataset(torch.randn(43, 6), torch.arange(43))
    given = DataLoader(data, batch_size=8, shuffle=True, drop_last=True, num_workers=num_workers)
    engine, module, optimizer, loader = make_private(loader=given, randomizer=transparent, sampling="epoch")
    manager = BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical or 8, optimizer=optimizer
    )
    used: list[list[int]] = [[], [], []]
    with manager as split:
        for limit, records in zip((None, 4, None), used, strict=True):
            for x, index in itertools.islice(split, limit):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x), index % 3).backward()
                optimizer.step()
                records.extend(index.tolist())
    assert [len(records) for records in used] == [40, 32 if physical is None else 8 + 3, 40]
    assert all(len(set(records)) == len(records) for records in used)
    assert len(engine.accountant) == 3


def test_a_budget_that_cannot_pay_an_epoch_refuses_its_first_step(
    make_private: Any, train: Any, step: Any, refused: Any
) -> None:
    engine, module, optimizer, loader = make_private(
        sampling="epoch", target_epsilon=(expected(2) + expected(3)) / 2, target_delta=1e-5
    )
    train(module, optimizer, loader, epochs=2)
    for batch in loader:
        with refused(engine.accountant, module, error=PrivacyBudgetExceeded):
            step(module, optimizer, batch)
    assert len(engine.accountant) == 2


def test_a_batch_announced_by_hand_is_no_part_of_an_epoch_that_is_paid(
    make_private: Any, step: Any, train: Any, dataset: TensorDataset
) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    train(module, optimizer, loader)
    assert len(engine.accountant) == 1
    for paid in (2, 3):
        optimizer.expect_batch(Delivery(rows=8))
        step(module, optimizer, [part[:8] for part in dataset.tensors])
        assert len(engine.accountant) == paid


def test_an_accountant_attached_within_an_epoch_is_charged_for_it(make_private: Any, step: Any) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    late = SubsampledShufflePLDAccountant()
    for number, batch in enumerate(loader):
        if number == 2:
            optimizer.attach_step_hook(late.get_optimizer_hook_fn(sample_rate=8 / 40))
        step(module, optimizer, batch)
    assert len(late) == len(engine.accountant) == 1


def test_the_randomizer_stays_the_same_within_an_epoch(make_private: Any, step: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    optimizer.local_epsilon = 1.5
    batches = iter(loader)
    step(module, optimizer, next(batches))
    for local_epsilon in (1.0, 3.0):
        optimizer.local_epsilon = local_epsilon
        with pytest.raises(ShufflePrivacyError, match="within an epoch"):
            step(module, optimizer, next(batches))
    optimizer.local_epsilon = 1.5
    optimizer.max_grad_norm = 0.5  # the same law of reports, so the same cost
    step(module, optimizer, next(batches))
    optimizer.local_epsilon = 1.0
    train(module, optimizer, loader)
    history = engine.accountant.core.history
    assert [(each.local_epsilon, steps) for each, steps in history] == [(1.5, 1), (1.0, 1)]


@pytest.mark.parametrize("steps", [0, 1])
def test_after_a_broken_off_epoch_another_randomizer_trains_the_next(
    make_private: Any, step: Any, train: Any, steps: int
) -> None:
    """Skip a batch, break, change ε0: the refusal advises a new iteration, and that must help."""
    engine, module, optimizer, loader = make_private(sampling="epoch")
    batches = iter(loader)
    for _ in range(steps):
        step(module, optimizer, next(batches))
    module(next(batches)[0])
    optimizer.local_epsilon = 1.0
    if steps:
        with pytest.raises(ShufflePrivacyError, match="begin a new iteration"):
            step(module, optimizer, next(batches))
    train(module, optimizer, loader)
    history = engine.accountant.core.history
    assert [(each.local_epsilon, steps) for each, steps in history] == [(2.0, 1), (1.0, 1)]


def test_a_resumed_run_begins_a_new_epoch(make_private: Any, step: Any, tmp_path: Any) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    for batch in itertools.islice(loader, 2):
        step(module, optimizer, batch)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=optimizer)
    engine, module, optimizer, loader = make_private(sampling="epoch")
    engine.load_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=optimizer)
    assert len(engine.accountant) == 1
    for batch in loader:
        step(module, optimizer, batch)
    assert len(engine.accountant) == 2


@pytest.mark.parametrize(
    ("length", "steps"), [({"epochs": 4}, 20), ({"num_steps": 20}, 20), ({"num_steps": 16}, 16)]
)
def test_calibration_counts_epochs(calibrated: Any, step: Any, length: dict[str, int], steps: int) -> None:
    engine, module, optimizer, loader = calibrated(
        engine=PrivacyEngine(), target_epsilon=2.0, target_delta=1e-3, sampling="epoch", **length
    )
    assert engine.training_plan.num_steps == steps
    assert 1.9 < engine.training_plan.epsilon <= 2.0
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(batches, 20):
        step(module, optimizer, batch)
    assert len(engine.accountant) == 4
    assert engine.get_epsilon(1e-3) == engine.training_plan.epsilon
    with pytest.raises(PrivacyBudgetExceeded):
        step(module, optimizer, next(iter(loader)))


def test_an_epoch_is_paid_once_whatever_is_loaded_within_it(make_private: Any) -> None:
    engine, module, optimizer, loader = make_private(sampling="epoch")
    earlier = engine.accountant.state_dict()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        for state in (engine.accountant.state_dict(), earlier):
            engine.accountant.load_state_dict(state)
            assert len(engine.accountant) == 1


BOTH = [FixedSizeSampler, PoissonSampler]


@first_fast(("n", "k"), [(5, 1), (5, 2), (5, 3), (5, 5), (6, 4)])
def test_every_subset_is_equally_likely(n: int, k: int) -> None:
    randomness = SeededRandomness(7)
    subsets = list(combinations(range(n), k))
    draws = 400 * len(subsets)
    counts = dict.fromkeys(subsets, 0)
    for _ in range(draws):
        counts[tuple(uniform_subset(population=n, size=k, randomness=randomness).tolist())] += 1
    if len(subsets) > 1:
        assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_a_subset_of_a_large_population_is_distinct_sorted_and_spread_out() -> None:
    chosen = uniform_subset(population=10**9, size=20_000, randomness=SeededRandomness(1)).numpy()
    assert np.all(np.diff(chosen) > 0)
    assert stats.kstest(chosen / 1e9, "uniform").pvalue > 1e-4


def test_fixed_size_draws_exactly_k_and_steps_are_independent() -> None:
    sampler = FixedSizeSampler(population=40, cohort=8, num_steps=4000, randomness=SeededRandomness(3))
    batches = list(sampler)
    assert {len(b) for b in batches} == {8}
    seen = np.zeros((len(batches), 40))
    for row, batch in zip(seen, batches, strict=True):
        row[batch] = 1
    expected = len(batches) * 8 / 40
    spread = np.sqrt(expected * (1 - 8 / 40))
    assert np.abs(seen.sum(0) - expected).max() < 5 * spread
    overlap = (seen[1:] * seen[:-1]).sum(1)
    assert abs(overlap.mean() - 8 * 8 / 40) < 5 * overlap.std() / np.sqrt(len(overlap))


def test_poisson_includes_each_record_independently_at_rate_k_over_n() -> None:
    sampler = PoissonSampler(population=30, cohort=6, num_steps=5000, randomness=SeededRandomness(4))
    sizes = np.array([len(b) for b in sampler])
    assert abs(sizes.mean() - 6) < 5 * np.sqrt(30 * 0.2 * 0.8 / len(sizes))
    counts = np.bincount(sizes, minlength=31)
    expected = stats.binom.pmf(np.arange(31), 30, 0.2) * len(sizes)
    pooled = expected > 20
    observed = np.append(counts[pooled], counts[~pooled].sum())
    assert stats.chisquare(observed, np.append(expected[pooled], expected[~pooled].sum())).pvalue > 1e-4


@pytest.mark.parametrize("cls", BOTH)
def test_ranks_share_one_cohort_and_split_it(cls: Any) -> None:
    whole = list(cls(population=50, cohort=11, randomness=SeededRandomness(5)))
    parts = [
        list(cls(population=50, cohort=11, randomness=SeededRandomness(5), rank=r, world_size=3))
        for r in range(3)
    ]
    for step, batch in enumerate(whole):
        assert sorted(i for p in parts for i in p[step]) == batch
    if cls is FixedSizeSampler:
        assert [len(p[0]) for p in parts] == [4, 4, 3]


@pytest.mark.parametrize("cls", BOTH)
def test_opacus_cannot_swap_in_a_generator_of_its_own(cls: Any) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(20, 1)), batch_sampler=cls(population=20, cohort=4))
    with pytest.raises(ValueError, match="generator"):
        switch_generator(data_loader=loader, generator=torch.Generator())
