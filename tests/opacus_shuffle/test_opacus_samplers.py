from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from opacus.data_loader import switch_generator
from opacus_shuffle import FixedSizeSampler, PoissonSampler
from opacus_shuffle.loaders import uniform_subset
from scipy import stats
from thinning import first_fast
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.randomness import SeededRandomness

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
