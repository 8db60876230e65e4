"""Rounding of rows in a ball: its law digit by digit, its moments and bound, and equal bits on every path."""

import math
from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from thinning import first_fast

from shuffle_plugins.core import Rows
from shuffle_plugins.protocols import VectorSum, lattices
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.randomness import Keystream, SeededRandomness

DRAW = Keystream(bytes(range(1, 33)))
INSIDE = 1 - 1e-12


class BallRounding:
    """A lattice with a limit of its own on lengths, asked with given draws."""

    def __init__(self, *, radius, levels, limit):
        self.kind = type("Limited", (FixedPoint,), {"norm_bound": limit})
        self.fields = {"radius": radius, "levels": levels}

    def rows(self, rows, *, draw):
        source = SimpleNamespace(keystream=lambda: draw)
        return self.kind(dim=rows.dim, **self.fields).encode(rows, randomness=source)

    def total(self, rows, *, draw):
        source = SimpleNamespace(keystream=lambda: draw)
        return self.kind(dim=rows.dim, **self.fields).encoded_sum(rows, randomness=source)


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(lattices, "compiled_kernels", lambda: None)
    elif lattices.compiled_kernels() is None:
        pytest.skip("numba does not run here")
    return request.param


@cache
def drawn(row, column, *, stride):
    """A draw of 62 bits, read from the keystreams as the module's docstring lays them out."""
    place = row * stride + column
    coin = int(DRAW.words(place // 4, 1)) >> (16 * (place % 4)) & 0xFFFF
    further = int(DRAW.following.words(8 * place, 1)) >> 18 & ((1 << 46) - 1)
    return ((coin ^ 0x8000) << 46) | further


def expected(value, draw):
    """The whole number below y + u, in whole numbers: y cut to 62 digits after the point."""
    whole = math.floor(Fraction(value) * (1 << 62))
    return (whole + draw) >> 62


@first_fast("levels", [50, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_entry_is_rounded_by_all_digits_of_its_draw(path, dtype, levels):
    """Entries are made such that for each of them the first 16 digits leave the carry open."""
    widths, rows = (7, 600), 3
    radius = 1e3
    factor = levels / radius * INSIDE
    generator = np.random.default_rng(0)
    values = np.zeros((rows, sum(widths)))
    draws = {}
    for row in range(rows):
        for column in range(sum(widths)):
            draw = drawn(row, column, stride=608)
            draws[row, column] = draw
            open_ = (0xFFFF - (draw >> 46) + generator.random()) / 2**16
            values[row, column] = (int(generator.integers(-2, 2)) + open_) / factor
    x = torch.from_numpy(values).to(dtype)
    rule = BallRounding(radius=radius, levels=levels, limit=1e9)
    split = Rows([x[:, :7], x[:, 7:].clone()])
    found = rule.rows(split, draw=DRAW)
    scaled = x.double().numpy() * (factor * 1.0)
    wanted = [
        [expected(float(scaled[row, column]), draws[row, column]) for column in range(sum(widths))]
        for row in range(rows)
    ]
    assert found.tolist() == wanted
    up = found.numpy() - np.floor(scaled)
    assert 0.3 < up.mean() < 0.7
    assert torch.equal(rule.total(split, draw=DRAW), found.sum(dim=0))


@first_fast("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], fast=2)
@pytest.mark.parametrize(
    ("radius", "levels"), [(1.0, 7), (0.5, 3000), pytest.param(2.0, 1 << 24, marks=pytest.mark.slow)]
)
def test_compiled_and_torch_round_alike(monkeypatch, dtype, radius, levels):
    if lattices.compiled_kernels() is None:
        pytest.skip("numba does not run here")
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(40, 1300, generator=generator).to(dtype)
    wide[3] = 0
    wide[4] *= 1e-3
    rows = Rows([wide[:, :1], wide[:, 5:1290:2], wide[:, 100:612], wide[:, 20:20].clone()])
    rule = BallRounding(radius=radius, levels=levels, limit=1e12)
    compiled = rule.rows(rows, draw=DRAW), rule.total(rows, draw=DRAW)
    monkeypatch.setattr(lattices, "compiled_kernels", lambda: None)
    by_torch = rule.rows(rows, draw=DRAW), rule.total(rows, draw=DRAW)
    assert torch.equal(compiled[0], by_torch[0])
    assert torch.equal(compiled[1], by_torch[1])
    assert torch.equal(compiled[0].sum(dim=0), compiled[1])


def test_threads_do_not_change_a_sum():
    x = torch.randn(33, 70_000, generator=torch.Generator().manual_seed(2))
    rule = BallRounding(radius=1.0, levels=900, limit=1e9)
    before = torch.get_num_threads()
    try:
        totals = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            totals.append(rule.total(Rows.of(x), draw=DRAW))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


def test_mean_and_variance_are_those_of_independent_roundings(path):
    """Each entry goes up with its own probability, uncorrelated with its neighbours and other rows."""
    values = torch.tensor([0.0, 0.25, -0.5, 0.9, 1.5, -2.125, 3.0, -0.001])
    count = 40_000
    rule = BallRounding(radius=1e3, levels=1000, limit=1e9)
    found = rule.rows(Rows.of(values.repeat(count, 1)), draw=DRAW).double()
    y = values.double() * INSIDE
    fraction = y - y.floor()
    error = found.mean(dim=0) - y
    deviation = (fraction * (1 - fraction) / count).sqrt()
    assert bool((error.abs() <= 5 * deviation + 1e-9).all())
    assert bool((found >= y.floor()).all())
    assert bool((found <= y.floor() + 1).all())
    assert torch.allclose(found.var(dim=0), fraction * (1 - fraction), atol=5 / count**0.5)
    noisy = (found - y)[:, (fraction > 0.01) & (fraction < 0.99)]
    correlation = torch.corrcoef(noisy.T) - torch.eye(noisy.shape[1])
    assert float(correlation.abs().max()) < 5 / count**0.5
    between = torch.corrcoef(torch.stack([noisy[:-1].flatten(), noisy[1:].flatten()]))[0, 1]
    assert abs(float(between)) < 5 / noisy.numel() ** 0.5


def test_no_rounded_row_is_longer_than_the_limit(path):
    """A limit that most rows would pass: those are rounded towards zero, in the rows and in their sum."""
    x = torch.randn(200, 530, generator=torch.Generator().manual_seed(3))
    rule = BallRounding(radius=1.0, levels=20, limit=22.1)
    found = rule.rows(Rows.of(x), draw=DRAW)
    lengths = (found.double() ** 2).sum(dim=1)
    assert float(lengths.max()) <= 22.1**2
    scaled = torch.nn.functional.normalize(x.double()) * 20 * INSIDE
    cut = (found == scaled.trunc()).all(dim=1)
    assert 10 < int(cut.sum()) < 190
    assert torch.equal(rule.total(Rows.of(x), draw=DRAW), found.sum(dim=0))


@pytest.mark.parametrize("kind", ["dense", "one-hot", "halves"])
def test_replacing_a_client_moves_a_sum_by_no_more_than_is_accounted_for(kind):
    lattice = FixedPoint(dim=1000, radius=1.0, levels=9)
    row = {
        "dense": torch.randn(1000, generator=torch.Generator().manual_seed(4)) * 100,
        "one-hot": torch.eye(1000)[3] * 1e30,
        "halves": torch.full((1000,), 0.5 / 9),
    }[kind]
    batch = torch.stack([row, -row]).repeat(50, 1)
    encoded = lattice.encode(batch, randomness=SeededRandomness(5)).double()
    assert float(encoded.abs().max()) <= 9
    moved = (encoded[::2] - encoded[1::2]).norm(dim=1)
    assert float(moved.max()) <= lattice.sensitivity


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 599, 1029])
def test_a_row_that_is_not_finite_is_rounded_as_zeros(path, bad, place):
    x = torch.randn(5, 1030)
    x[2] = 0
    rule = BallRounding(radius=1.0, levels=10, limit=1e9)
    wanted = rule.rows(Rows.of(x), draw=DRAW)
    x[2, place] = bad
    assert torch.equal(rule.rows(Rows.of(x), draw=DRAW), wanted)
    assert not wanted[2].any()
    assert torch.equal(rule.total(Rows.of(x), draw=DRAW), wanted.sum(dim=0))


def test_a_seed_fixes_a_sum_and_no_two_rounds_share_draws():
    protocol = VectorSum(dim=700, cohort=6, levels=50, coins=300)
    x = torch.randn(6, 700)
    one, again = (protocol.randomize_sum(x, randomness=SeededRandomness(6)) for _ in range(2))
    assert torch.equal(one, again)
    source = SeededRandomness(6)
    first, second = (protocol.share(x, randomness=source) for _ in range(2))
    assert not torch.equal(first, second)


def test_an_empty_batch_sums_to_nothing(path):
    rule = BallRounding(radius=1.0, levels=10, limit=1e9)
    empty = Rows.of(torch.zeros(0, 20))
    assert rule.rows(empty, draw=DRAW).shape == (0, 20)
    assert rule.total(empty, draw=DRAW).tolist() == [0] * 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_many_short_rows_do_not_overflow(dtype):
    rule = BallRounding(radius=1.0, levels=32_767, limit=1e9)
    x = torch.ones(70_000, 1, dtype=dtype)
    expected_total = int(rule.rows(Rows.of(x), draw=DRAW).sum())
    assert expected_total > 1 << 31
    assert rule.total(Rows.of(x), draw=DRAW).tolist() == [expected_total]
