"""Sharing, expansion and checks of sums, against plain arithmetic and against an independent keystream."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation import CheckFailed, Expansion, ResidueLayout, Residues, share
from shuffle_plugins.secure_aggregation.sharing import MOST_SUM_BITS, check_words, reconstruct

SEED = bytes(range(32))


def expanded(seeds: tuple[bytes, ...], layout: ResidueLayout) -> Residues:
    expansion = Expansion(layout)
    for i in range(0, len(seeds), 2):
        expansion.add(*seeds[i : i + 2])
    return expansion.total


@pytest.mark.parametrize(
    ("largest", "clients", "size", "aggregators"),
    [(1, 3, 1, 1), (1, 200, 17, 2), (6400, 9, 1000, 1), (6400, 10**5, 40_001, 3), (2**20, 2**23, 5, 2)],
)
def test_a_shared_sum_is_the_sum(largest: int, clients: int, size: int, aggregators: int) -> None:
    layout = ResidueLayout.of_sum(size=size, largest=largest, clients=clients)
    present = min(clients, 6)
    rng = np.random.default_rng(size)
    counts = rng.integers(0, largest + 1, (present, size))
    counts[:, 0] = largest
    sent = [share(mine, layout=layout, aggregators=aggregators, check_seed=SEED) for mine in counts]
    shares = [Residues.from_bytes(each.share.to_bytes(), layout=layout) for each in sent]
    sums = [expanded(column, layout) for column in zip(*(each.seeds for each in sent), strict=True)]
    found = reconstruct(shares, sums, layout=layout, check_seed=SEED)
    assert np.array_equal(found, counts.sum(axis=0))


def test_the_layout_has_the_fewest_bits_that_hold_the_largest_sum() -> None:
    assert ResidueLayout.of_sum(size=1, largest=1, clients=3).bits == 2
    assert ResidueLayout.of_sum(size=1, largest=1, clients=4).bits == 3
    assert ResidueLayout.of_sum(size=1, largest=6400, clients=600).bits == 22
    assert ResidueLayout(13_706, 22).num_bytes == 16 + (13_706 * 22 + 7) // 8
    with pytest.raises(ValueError, match=f"more than {MOST_SUM_BITS}"):
        ResidueLayout.of_sum(size=1, largest=1 << 22, clients=1 << 23)


@pytest.mark.parametrize(("bits", "dtype"), [(1, "u1"), (8, "u1"), (9, "u2"), (22, "u4"), (44, "u8")])
def test_an_expansion_is_the_keystream(bits: int, dtype: str) -> None:
    size = 100_003  # more than one chunk, and no whole one at the end
    layout = ResidueLayout(size, bits)
    zeros = bytes(16 + size * layout.dtype.itemsize)
    stream = Cipher(algorithms.ChaCha20(SEED, bytes(16)), mode=None).encryptor().update(zeros)
    found = expanded((SEED,), layout)
    assert layout.dtype == np.dtype(f"<{dtype}")
    assert found.checks.tobytes() == stream[:16]
    assert found.counts.tobytes() == stream[16:]
    twice = expanded((SEED, SEED), layout)
    assert np.array_equal(twice.reduced, 2 * found.reduced % (1 << bits))


def test_check_words_are_random_linear_combinations() -> None:
    counts = np.random.default_rng(1).integers(0, 7000, 20_000)
    for word, found in enumerate(check_words(counts, seed=SEED)):
        coefficients = Keystream(SEED, nonce=1 + word).words(0, len(counts)).tolist()
        expected = sum(c * r for c, r in zip(counts.tolist(), coefficients, strict=True)) % 2**64
        assert int(found) == expected


@pytest.fixture
def sums() -> tuple[ResidueLayout, list[Residues], list[Residues]]:
    layout = ResidueLayout.of_sum(size=30, largest=50, clients=9)
    counts = np.random.default_rng(7).integers(0, 51, (5, 30))
    sent = [share(mine, layout=layout, aggregators=2, check_seed=SEED) for mine in counts]
    seeds = list(zip(*(each.seeds for each in sent), strict=True))
    return layout, [each.share for each in sent], [expanded(column, layout) for column in seeds]


@pytest.mark.parametrize("change", ["one count", "top bit", "check word", "left out", "twice", "other seed"])
def test_what_is_not_the_sum_does_not_fit_its_check(
    sums: tuple[ResidueLayout, list[Residues], list[Residues]], change: str
) -> None:
    layout, shares, expansions = sums
    reconstruct(shares, expansions, layout=layout, check_seed=SEED)
    match change:
        case "one count":
            expansions[0].counts[3] += 1
        case "top bit":
            expansions[1].counts[0] ^= 1 << (layout.bits - 1)
        case "check word":
            expansions[0].checks[1] += np.uint64(1)
        case "left out":
            shares = shares[:-1]
        case "twice":
            shares = [*shares, shares[0]]
        case "other seed":
            expansions[0] = expanded((bytes(32),), layout)
    with pytest.raises(CheckFailed, match="does not fit its check"):
        reconstruct(shares, expansions, layout=layout, check_seed=SEED)


def test_bits_above_the_modulus_do_not_matter(
    sums: tuple[ResidueLayout, list[Residues], list[Residues]],
) -> None:
    layout, shares, expansions = sums
    before = reconstruct(shares, expansions, layout=layout, check_seed=SEED)
    expansions[0].counts[:] += np.array(1 << layout.bits, layout.dtype)
    assert np.array_equal(reconstruct(shares, expansions, layout=layout, check_seed=SEED), before)


@pytest.mark.parametrize("counts", [np.array([1, -1]), np.array([0, 16]), np.array([1]), np.array([[1, 2]])])
def test_counts_that_do_not_fit_are_refused(counts: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"fit in 4 bits|counts are"):
        share(counts, layout=ResidueLayout(2, 4), aggregators=1, check_seed=SEED)


@pytest.mark.parametrize("bits", [1, 9, 25, 32, 44])
def test_many_shares_are_read_as_their_sum(bits: int) -> None:
    layout = ResidueLayout(size=13, bits=bits)
    generator = np.random.default_rng(bits)
    total, texts = layout.zero(), []
    for _ in range(70):
        counts = generator.integers(0, 1 << bits, 13).astype(layout.dtype)
        one = Residues(layout, counts, generator.integers(0, 1 << 63, 2).astype("<u8"))
        total.add(one)
        texts.append(one.to_bytes())
    found = Residues.from_bytes(*texts, layout=layout)
    assert np.array_equal(found.reduced, total.reduced)
    assert np.array_equal(found.checks, total.checks)
    with pytest.raises(ValueError, match="bytes, got"):
        Residues.from_bytes(*texts, b"", layout=layout)
