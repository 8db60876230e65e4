"""Reports of frequency oracles over many categories, where they are lists, ranks or flags."""

import math

import pytest
import torch

from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.oracles import elements_through, flags_through, rank, rank_bits, unrank
from shuffle_plugins.randomness import SeededRandomness

BITS = [
    ("k-rr", 2, {}, 1),
    ("k-rr", 1000, {}, 10),
    ("k-rr", 1 << 40, {}, 40),
    ("hadamard-response", 7, {}, 3),
    ("hadamard-response", 8, {}, 4),
    ("hadamard-response", 1000, {}, 10),
    ("limited-hadamard", 7, {}, 4),
    ("limited-hadamard", 1000, {}, 11),
    ("rappor", 37, {}, 37),
    ("oue", 37, {}, 37),
    ("local-hashing", 1000, {"buckets": 5}, 33),
    ("local-hashing", 1 << 13, {"buckets": 2}, 14),
    ("local-hashing", 5, {"buckets": 1 << 31}, 4 * 31),
    ("local-hashing", 2, {"buckets": 3}, 4),
    ("subset-selection", 16, {"size": 3}, 10),  # 560 sets
    ("subset-selection", 60, {"size": 20}, 52),
    ("subset-selection", 10**6, {"size": 2}, 39),
    ("subset-selection", 5000, {"size": 6}, 78),  # 6 elements of 13 bits
    ("subset-selection", 300, {"size": 80}, 300),  # flags
]


@pytest.fixture(params=BITS, ids=[f"{name}-{dim}-{bits}" for name, dim, _, bits in BITS])
def case(request):
    name, dim, options, bits = request.param
    return get(name, local_epsilon=1.5, dim=dim, **options), bits


def held(mechanism, clients, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(min(mechanism.dim, 10**9), (clients,), generator=generator)


def summable(mechanism):
    return mechanism.dim <= 1 << 20


def test_wire_size_and_round_trip(case):
    mechanism, bits = case
    reports = mechanism.randomize(held(mechanism, 37), randomness=SeededRandomness(1))
    data = reports.to_bytes()
    assert reports.bits_per_report == mechanism.bits_per_report == bits
    assert len(data) == reports.layout.header_bytes + (37 * bits + 7) // 8
    again = Reports.from_bytes(data)
    assert all(torch.equal(a.values, b.values) for a, b in zip(again.fields, reports.fields, strict=True))
    if summable(mechanism):
        assert torch.equal(mechanism.sum(again), mechanism.sum(reports))


def test_sets_of_another_size_are_refused():
    listed = get("subset-selection", local_epsilon=1.5, dim=5000, size=6)
    flagged = get("subset-selection", local_epsilon=1.5, dim=300, size=80)
    ranked = get("subset-selection", local_epsilon=1.5, dim=16, size=3)
    bad = [
        (listed, torch.tensor([[1, 2, 2, 3, 4, 5]], dtype=torch.int32)),
        (listed, torch.tensor([[2, 1, 7, 8, 9, 10]], dtype=torch.int32)),
        (flagged, torch.ones(1, 300, dtype=torch.uint8)),
        (ranked, torch.tensor([560], dtype=torch.int32)),
    ]
    for mechanism, values in bad:
        bits = mechanism.randomize(torch.tensor([0])).fields[0].bits
        forged = Reports(mechanism=mechanism.name, dim=mechanism.dim, fields=(Field(values, bits),))
        with pytest.raises(ValueError, match="forged"):
            mechanism.sum(forged)


@pytest.mark.parametrize(
    ("things", "size"), [(2, 1), (5, 1), (7, 3), (12, 6), (60, 20), (10**9, 2), (8000, 5)]
)
def test_ranks_and_sets_are_one_to_one(things, size):
    count = math.comb(things, size)
    assert rank_bits(things, size) == (count - 1).bit_length()
    if count <= 1000:
        ranks = torch.arange(count)
    else:
        ranks = torch.cat([SeededRandomness(1).integers(count, 500), torch.tensor([0, count - 1])])
    sets = unrank(ranks, things=things, size=size)
    assert bool((sets[:, 1:] > sets[:, :-1]).all())
    assert int(sets.min()) >= 0
    assert int(sets.max()) < things
    assert torch.equal(rank(sets, things=things), ranks)


def test_large_families_have_no_rank():
    assert rank_bits(70, 35) is None
    assert rank_bits(1 << 53, 1 << 40) is None
    assert rank_bits(1 << 53, 1) == 53


@pytest.mark.parametrize(("things", "size"), [(6, 3), (7, 2), (5, 1), (2, 1)])
def test_sets_through_an_anchor_are_uniform(things, size):
    draws = 24_000
    anchors = torch.arange(draws) % things
    listed = elements_through(anchors, things=things, size=size, randomness=SeededRandomness(8))
    flags = flags_through(anchors, things=things, size=size, randomness=SeededRandomness(9))
    assert bool((flags.sum(dim=1) == size).all())
    from_flags = flags.nonzero()[:, 1].reshape(draws, size)
    for sets in (listed, from_flags):
        assert bool((sets == anchors.unsqueeze(1)).any(dim=1).all())
        for anchor in (0, things - 1):
            counts = torch.bincount(rank(sets[anchors == anchor], things=things)).double()
            counts = counts[counts > 0]
            assert len(counts) == math.comb(things - 1, size - 1)
            expected = float(counts.sum()) / len(counts)
            statistic = float((counts - expected).square().sum()) / expected
            assert statistic < len(counts) + 5 * math.sqrt(2 * len(counts))
