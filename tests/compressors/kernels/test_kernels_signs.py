"""The torch paths under the compressors' kernels, against the law written out draw by draw."""

import math

import pytest
import torch

from shuffle_plugins.compressors.hadamard import hadamard_transform, padded_dim
from shuffle_plugins.compressors.kernels import (
    decode_signs,
    encode_signs,
    gather_signs,
    pack_signs,
    signs,
    unpack_signs,
)
from shuffle_plugins.compressors.quantization import SignThresholds, plus_thresholds, random_signs
from shuffle_plugins.core import Rows
from shuffle_plugins.randomness import Randomness, SeededRandomness

EPSILONS = [1e-4, 1.5, 50.0]


def batch(clients, dim, *, seed=0):
    return SeededRandomness(seed).normal((clients, dim))


def diagonal(dim):
    return SeededRandomness(7).integers(2, dim).mul_(2).sub_(1).to(torch.int8)


class GivenDraws(Randomness):
    """A source of 62-bit draws, whose thresholds can be asked for."""

    def __init__(self, draws):
        self.draws = draws

    def words(self, count, *, device="cpu"):
        assert count == self.draws.numel()
        return self.draws.clone()

    def bernoulli(self, thresholds):
        self.thresholds = thresholds
        return super().bernoulli(thresholds)


def whole_draws(keystream, indices):
    """The 62-bit draws of a keystream, all bits of each."""
    coins = keystream.coins(0, int(indices.max()) + 1).to(torch.int64)[indices] + (1 << 15)
    return (coins << 46) | (keystream.refinements(indices) & ((1 << 46) - 1))


def expected_signs(values, indices, low, keystream):
    source = GivenDraws(whole_draws(keystream, indices))
    return random_signs(values, thresholds=SignThresholds(low=low), randomness=source)


@pytest.mark.parametrize("local_epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 2, 8, 64, 1000])
def test_encoded_signs_are_random_signs_of_the_rotated_row(dim, local_epsilon):
    low = SignThresholds.of(local_epsilon).low
    x, keystream, scale = batch(3, dim), SeededRandomness(1).keystream(), 0.8
    packed = encode_signs(x, signs=diagonal(dim), scale=scale, low_threshold=low, draw=keystream)
    size = padded_dim(dim)
    padded = torch.nn.functional.pad(x * diagonal(dim), (0, size - dim))
    values = (hadamard_transform(padded) * (1 / (math.sqrt(size) * scale))).clamp(-1, 1)
    indices = torch.arange(3)[:, None] * max(size, 32) + torch.arange(size)
    expected = expected_signs(values.flatten(), indices.flatten(), low, keystream)
    assert torch.equal(unpack_signs(packed, columns=size), expected.view(3, size))
    assert packed.shape == (3, -(-size // 32))
    if size < 32:
        assert bool((packed >> size == 0).all())


@pytest.mark.parametrize("local_epsilon", EPSILONS)
def test_gathered_signs_are_random_signs_of_the_coordinates(local_epsilon):
    low = SignThresholds.of(local_epsilon).low
    x, keystream = batch(70, 9), SeededRandomness(1).keystream()
    indices = SeededRandomness(2).integers(9, (70, 3))
    drawn = gather_signs(x, indices, scale=1.7, low_threshold=low, draw=keystream)
    values = (x.gather(1, indices) * (1 / 1.7)).clamp(-1, 1).flatten()
    assert torch.equal(drawn.flatten(), expected_signs(values, torch.arange(210), low, keystream))


class NearMisses:
    """Coins next to where they decide, so that nearly every draw needs its lower bits."""

    def __init__(self, values, rule):
        self.coin = (values * signs.coin_gain(rule)).floor().to(torch.int64)
        self.coin += SeededRandomness(4).integers(4, values.numel()) - 2
        self.coin.clamp_(-(1 << 15), (1 << 15) - 1)
        thresholds = plus_thresholds(values, thresholds=rule)
        self.lower = (thresholds + SeededRandomness(5).integers(3, values.numel()) - 1) & ((1 << 46) - 1)

    def coins(self, start, count, *, device):
        return self.coin.to(torch.int16)

    def refinements(self, indices):
        return self.lower[indices]

    @property
    def draws(self):
        return (self.coin + (1 << 15) << 46) | self.lower


@pytest.mark.parametrize("local_epsilon", EPSILONS)
def test_draws_next_to_their_threshold_are_decided_by_integers(local_epsilon):
    rule = SignThresholds.of(local_epsilon)
    values = torch.cat([batch(1, 20_000)[0].clamp(-1, 1), torch.tensor([0.0, 1.0, -1.0, 1e-30, -1e-30])])
    near = NearMisses(values, rule)
    source = GivenDraws(near.draws)
    expected = random_signs(values, thresholds=SignThresholds(low=rule.low), randomness=source).bool()
    assert torch.equal(signs.lazy_signs(values, rule, draw=near), expected)
    on_the_edge = (near.draws - source.thresholds).abs() <= 1
    assert int(on_the_edge.sum()) > 3_000


def test_chunks_and_blocks_of_columns_change_nothing(monkeypatch):
    x, low = batch(40, 100), 1 << 58
    indices = SeededRandomness(2).integers(100, (40, 5))

    def run(given):
        keystream = SeededRandomness(1).keystream()
        encoded = encode_signs(given, signs=diagonal(100), scale=0.9, low_threshold=low, draw=keystream)
        gathered = gather_signs(given, indices, scale=0.9, low_threshold=low, draw=keystream)
        return encoded, gathered

    whole = run(x)
    monkeypatch.setattr(signs, "CHUNK_VALUES", 300)
    for part in (x, Rows([x[:, :1], x[:, 1:60], x[:, 60:]]), x.T.contiguous().T):
        assert all(torch.equal(a, b) for a, b in zip(run(part), whole, strict=True))


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 100, 2_000])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 1_500])
def test_bits_are_packed_and_counted_without_loss(rows, columns):
    bits = SeededRandomness(1).integers(2, (rows, columns)).to(torch.uint8)
    packed = pack_signs(bits)
    assert packed.shape == (rows, -(-columns // 32))
    assert packed.dtype == torch.int32
    assert torch.equal(unpack_signs(packed, columns=columns), bits)
    assert torch.equal(pack_signs(bits.bool()), packed)
    assert torch.equal(decode_signs(packed, columns=columns), bits.sum(dim=0, dtype=torch.int64))
