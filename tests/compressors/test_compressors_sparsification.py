import math

import pytest
import torch

from shuffle_plugins.compressors.sampling import block_length, stratified_indices
from shuffle_plugins.compressors.sparsification import SparseRows, random_k, top_k, with_error_feedback
from shuffle_plugins.randomness import SeededRandomness


def batch(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("dim", "count"), [(1, 1), (5, 1), (5, 2), (5, 4), (5, 5), (1000, 7)])
def test_one_index_in_each_block(dim, count):
    block = block_length(dim, count)
    assert block == math.ceil(dim / count)
    indices = stratified_indices(dim, count, 4000, randomness=SeededRandomness(1))
    assert indices.shape == (4000, count)
    assert indices.dtype == torch.int64
    assert torch.equal(indices // block, torch.arange(count).expand(4000, count))


def test_indices_are_uniform():
    indices = stratified_indices(30, 3, 40_000, randomness=SeededRandomness(2))
    counts = torch.bincount(indices.reshape(-1), minlength=30).double()
    chi = float(((counts - 4000) ** 2 / 4000).sum())
    assert chi < 27 + 5 * math.sqrt(2 * 27)


def test_bad_numbers_are_refused():
    source = SeededRandomness(1)
    for count in (0, 6, 1.0, True):
        with pytest.raises(ValueError, match="between 1 and 5"):
            stratified_indices(5, count, 3, randomness=source)
    for clients in (-1, 1.0, True):
        with pytest.raises(ValueError, match="number of clients"):
            stratified_indices(5, 1, clients, randomness=source)
    with pytest.raises(ValueError, match="dim must be"):
        stratified_indices(0, 1, 1, randomness=source)
    assert stratified_indices(5, 2, 0, randomness=source).shape == (0, 2)


@pytest.mark.parametrize(("dim", "count"), [(1, 1), (12, 3), (13, 5), (50, 50)])
def test_random_k_is_unbiased_with_the_variance_it_says(dim, count):
    x = batch(1, dim)
    block = block_length(dim, count)
    trials = 40_000
    drawn = random_k(x.expand(trials, dim), count, randomness=SeededRandomness(4)).dense()
    errors = drawn - x
    expected = (block - 1) * float(x.square().sum())
    assert float(errors.square().sum(dim=1).mean()) == pytest.approx(expected, rel=0.02, abs=1e-12)
    allowed = 4.5 * x.abs().squeeze(0) * math.sqrt((block - 1) / trials) + 1e-12
    assert bool((errors.mean(dim=0).abs() <= allowed).all())


def test_unscaled_random_k_leaves_out_a_fixed_share():
    x = batch(1, 12)
    left = random_k(x.expand(20_000, 12), 3, randomness=SeededRandomness(4), scaled=False).dense() - x
    share = float(left.square().sum(dim=1).mean() / x.square().sum())
    assert share == pytest.approx(1 - 1 / 4, rel=0.02)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_top_k_keeps_the_largest(count):
    x = batch(20, 10)
    kept = top_k(x, count).dense()
    ranks = x.abs().argsort(dim=1, descending=True).argsort(dim=1)
    assert torch.equal(kept, x * (ranks < count))
    left = (x - kept).square().sum(dim=1)
    assert bool((left <= (1 - count / 10) * x.square().sum(dim=1) + 1e-12).all())


def test_sparse_rows_add_up_and_drop_padding():
    rows = SparseRows(
        indices=torch.tensor([[0, 0, 3], [2, 4, 7]]),
        values=torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 3.0]]),
        dim=4,
    )
    assert rows.dense().tolist() == [[3.0, 0.0, 0.0, 5.0], [0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ["top", "random"])
def test_error_feedback_sends_everything_in_the_end(name):
    source = SeededRandomness(5)
    compress = {
        "top": lambda x: top_k(x, 4),
        "random": lambda x: random_k(x, 4, randomness=source, scaled=False),
    }[name]
    x = batch(6, 40)
    memory = torch.zeros_like(x)
    sent = torch.zeros_like(x)
    largest = 0.0
    for step in range(1, 301):
        kept, memory = with_error_feedback(x, memory, compress)
        sent += kept.dense()
        torch.testing.assert_close(sent + memory, step * x, rtol=1e-9, atol=1e-9)
        largest = max(largest, float((memory.norm(dim=1) / x.norm(dim=1)).max()))
    assert largest < 4 * 40 / 4
    assert float((sent / 300 - x).norm() / x.norm()) < 4 * 10 / 300


def test_decay_forgets():
    x = batch(2, 8)
    first = with_error_feedback(x, torch.zeros_like(x), lambda given: top_k(given, 2))[1]
    kept, memory = with_error_feedback(x, first, lambda given: top_k(given, 2), decay=0.0)
    assert torch.equal(kept.dense(), top_k(x, 2).dense())
    assert torch.equal(memory, first)


def test_inputs_are_left_alone():
    x, memory = batch(2, 8), batch(2, 8, seed=1)
    copies = x.clone(), memory.clone()
    with_error_feedback(x, memory, lambda given: top_k(given, 2), decay=0.5)
    assert torch.equal(x, copies[0])
    assert torch.equal(memory, copies[1])


def test_nobody():
    none = torch.zeros(0, 5)
    assert top_k(none, 2).dense().shape == (0, 5)
    assert random_k(none, 2, randomness=SeededRandomness(1)).dense().shape == (0, 5)


def test_bad_batches_are_refused():
    for x in (torch.zeros(5), torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match=r"floating point \(clients, dim\)"):
            top_k(x, 1)
        with pytest.raises(ValueError, match=r"floating point \(clients, dim\)"):
            random_k(x, 1, randomness=SeededRandomness(1))
    for count in (0, 6):
        with pytest.raises(ValueError, match="between 1 and 5"):
            top_k(torch.zeros(2, 5), count)
    with pytest.raises(ValueError, match="shape of the batch"):
        with_error_feedback(torch.zeros(2, 5), torch.zeros(1, 5), lambda x: top_k(x, 1))
    for decay in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="decay"):
            with_error_feedback(torch.zeros(2, 5), torch.zeros(2, 5), lambda x: top_k(x, 1), decay=decay)
