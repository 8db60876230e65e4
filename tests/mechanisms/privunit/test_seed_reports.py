"""Seed reports: the public law, the search's law, what is charged, and the error of what they compress."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import special, stats

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.compressors import seeds
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms import seeds as mechanism_seeds
from shuffle_plugins.randomness import SeededRandomness

BOTH = ("privunit-g", "blanket-mixed-gaussian")
P_VALUE = 1e-6
KNOWN = {
    0: -197211839,
    1: -169086343,
    2: 123865916,
    15: 81681143,
    16: -10264517,
    99999: 373173371,
    62472: 1326549106,
}
"""Some coordinates of one vector, in units."""


def built(name="privunit-g", *, dim=30, local_epsilon=2.0, **options):
    return get(f"{name}-seed", dim=dim, local_epsilon=local_epsilon, **options)


def cell_masses():
    mass = np.full(len(seeds.cell_means()), 2.0**-24)
    mass[: 1 << 16] = 2.0**-16
    mass[:256] = mass[(1 << 16) - 256 : 1 << 16] = 0.0  # in finer cells
    return mass


class TestPublicVectors:
    def test_a_coordinate_is_the_mean_of_its_cell(self):
        values, mass = seeds.cell_means(), cell_masses()
        assert math.fsum(mass) == 1.0
        assert abs(mass @ values) < 1e-15
        assert 0.98 * seeds.LOST_VARIANCE < 1 - mass @ values**2 < seeds.LOST_VARIANCE
        assert np.all(values / seeds.UNIT == np.rint(values / seeds.UNIT))
        for cell, start, width in (
            (40_000, 40_000 * 2.0**-16, 2.0**-16),
            ((1 << 16) + 7, 7 * 2.0**-24, 2.0**-24),
        ):
            inside = special.ndtri(start + width * (np.arange(20_000) + 0.5) / 20_000)
            assert values[cell] == pytest.approx(inside.mean(), abs=2e-8)

    def test_a_seed_names_the_same_vector_everywhere(self):
        """To one unit, by which the means of cells may be rounded differently on another machine."""
        vector = seeds.expand(bytes(range(16)) + seeds.DOMAIN, 100_000)
        for place, units in KNOWN.items():
            assert abs(vector[place] / seeds.UNIT - units) <= 1
        assert abs(vector).max() == pytest.approx(4.941780515, abs=1e-8)  # the finer cells are met

    def test_the_words_choose_the_cells(self):
        """By the cipher of RFC 8439 and a search for the cell, not by tables."""
        key = bytes(range(16)) + seeds.DOMAIN
        data = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * 50_000))
        below = (np.frombuffer(data, "<u4") + 0.5) / 2**32
        np.testing.assert_allclose(seeds.expand(key, 50_000), special.ndtri(below), atol=0.2, rtol=2e-3)

    def test_sums_are_exact_in_any_order(self):
        drawn = seeds.draw_seeds(50, randomness=SeededRandomness(1))
        total = seeds.sum_expanded(drawn, dim=70)
        assert torch.equal(
            total, seeds.sum_expanded(drawn[:20], dim=70) + seeds.sum_expanded(drawn[20:], dim=70)
        )
        assert torch.equal(total, seeds.expand_all(drawn.flip(0), dim=70).sum(dim=0))
        assert torch.equal(seeds.sum_expanded(drawn[:0], dim=3), torch.zeros(3, dtype=torch.float64))

    def test_coordinates_are_normal(self):
        drawn = seeds.draw_seeds(2_000, randomness=SeededRandomness(2))
        assert (
            stats.kstest(seeds.expand_all(drawn, dim=50).flatten().numpy(), stats.norm.cdf).pvalue > P_VALUE
        )


@pytest.mark.parametrize("width", [0.2, 0.5])
def test_a_mean_of_a_blurred_step_is_nearly_the_normal_one(width):
    """The bound of the proof by enumeration, for 64 cells in place of 65,536 and up to three coordinates."""
    ends = special.ndtri(np.arange(65) / 64)
    density = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
    cells = (density[:-1] - density[1:]) * 64
    bound = 0.243 * (1 - (cells**2).mean()) / (2 * width**2)
    for direction in ((1.0,), (0.6, 0.8), (2 / 3, 1 / 3, 2 / 3)):
        along = np.array([sum(pair) for pair in product(*(weight * cells for weight in direction))])
        for step in (0.0, 0.7, 1.5):
            mean = special.ndtr((along - step) / width).mean()
            assert abs(mean - special.ndtr(-step / math.hypot(1, width))) <= bound


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("local_epsilon", [1e-3, 1.0, 4.0, 8.0])
def test_one_report_is_below_the_blanket_in_convex_order(name, local_epsilon):
    """The law of a density on an axis, cell by cell, against the blanket's weights."""
    mechanism = built(name, dim=2, local_epsilon=local_epsilon)
    law, blanket = mechanism._searched, mechanism.blanket()
    gain = math.expm1(law.steps.local_epsilon)
    density = 1 + gain * law.share(seeds.cell_means())
    mass = cell_masses()
    mean = float(mass @ density)
    assert mean == pytest.approx(
        1 / law.steps.plain_probability, rel=2 * gain * mechanism_seeds.blurred_error()
    )
    plain = blanket.mass
    weights = np.array([1.0, *(r for r, _ in blanket.edges), math.exp(local_epsilon)]) * plain
    masses = np.array([m for _, m in blanket.edges] + [blanket.differing]) / plain
    masses = np.concatenate([[1 - masses.sum()], masses])
    assert float(masses @ weights) == pytest.approx(1.0, rel=1e-12)
    for bar in np.linspace(weights[0], weights[-1], 50):
        own = float(mass @ np.maximum(density / mean - bar, 0.0))
        assert own <= float(masses @ np.maximum(weights - bar, 0.0)) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("name", BOTH)
def test_epsilon_over_an_enumerated_space_of_seeds(name):
    """Of 4,096 seeds alone: integers e^ε0 apart at most, and means that differ by what so few seeds allow."""
    mechanism = built(name, dim=20, local_epsilon=4.0)
    law = mechanism._searched
    vectors = seeds.expand_all(seeds.draw_seeds(4_096, randomness=SeededRandomness(3)), dim=20).numpy()
    records = SeededRandomness(4).normal((60, 20), dtype=torch.float64).numpy()
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    kept = np.array([[law.accepted(float(a)) for a in row] for row in records @ vectors.T], dtype=np.float64)
    assert math.log(kept.max() / kept.min()) <= 4.0
    assert kept.max() <= 2.0**62
    means = kept.mean(axis=1) / 2.0**62 * law.expected_tries
    assert abs(means - 1).max() < 6 * (kept.std() / kept.mean()) / 64
    chances = kept / kept.sum(axis=1, keepdims=True)
    apart = np.log(chances.max(axis=0) / chances.min(axis=0)).max()
    assert apart <= 4.0 + math.log(means.max() / means.min())


@pytest.mark.parametrize("tries", [None, 4])
def test_the_search_keeps_a_seed_in_proportion(tries, monkeypatch):
    """Reports of the real search, where there are only 40 seeds."""
    mechanism = built(dim=5, local_epsilon=2.0, tries=tries)
    space = seeds.draw_seeds(40, randomness=SeededRandomness(5))
    numbers = {tuple(seed.tolist()): place for place, seed in enumerate(space)}
    monkeypatch.setattr(
        mechanism_seeds, "draw_seeds", lambda count, *, randomness: space[randomness.integers(40, count)]
    )
    row = torch.tensor([[0.3, -0.2, 0.1, 0.5, 0.4]], dtype=torch.float64)
    reports = mechanism.randomize(row.expand(6_000, 5), randomness=SeededRandomness(6))
    found = np.bincount([numbers[tuple(seed.tolist())] for seed in reports.fields[0].values], minlength=40)
    length = float(row.norm())
    vectors = seeds.expand_all(space, dim=5) @ (row[0] / length)
    expected = np.zeros(40)
    for sign in (1, -1):
        kept = np.array([mechanism._searched.accepted(sign * float(a)) for a in vectors]) / 2.0**62
        missed = 0.0 if tries is None else (1 - kept.mean()) ** tries
        expected += (1 + sign * length) / 2 * ((1 - missed) * kept / kept.sum() + missed / 40)
    assert stats.chisquare(found, 6_000 * expected).pvalue > P_VALUE


@pytest.mark.parametrize("tries", [None, 9])
def test_how_many_seeds_are_looked_at_tells_nothing(tries, monkeypatch):
    """A row of zeros looks for one, too."""
    looked = []
    monkeypatch.setattr(
        mechanism_seeds, "expand", lambda key, dim: looked.append(key) or seeds.expand(key, dim)
    )
    mechanism = built(dim=4, tries=tries)
    counts = []
    for row in ([0.0] * 4, [0.5] * 4, [1.0, 0, 0, 0]):
        looked.clear()
        mechanism.randomize(torch.tensor([row]).expand(600, 4), randomness=SeededRandomness(7))
        counts.append(len(looked))
    if tries:
        assert counts == [600 * tries] * 3
    else:
        spread = math.sqrt(600 * mechanism.expected_tries * (mechanism.expected_tries - 1))
        assert all(abs(count - 600 * mechanism.expected_tries) < 5.5 * spread for count in counts)


@pytest.mark.parametrize("size", [5e-324, 1.5e-162, 1e-200, 1e300])
def test_a_row_of_any_size_is_searched_for_by_its_direction(size, monkeypatch):
    """One that is no unit vector would be told by how many seeds are looked at, and cost more than ε0."""
    searched = []
    monkeypatch.setattr(
        mechanism_seeds.SeedReports, "_search", lambda self, direction, randomness: searched.append(direction)
    )
    row = torch.full((1, 1_000), size, dtype=torch.float64)
    built(dim=1_000, local_epsilon=6.0).randomize(row, randomness=SeededRandomness(9), clip=True)
    assert np.linalg.norm(searched[0]) == pytest.approx(1.0, rel=1e-12)
    assert np.ptp(searched[0]) == 0.0


@pytest.mark.parametrize("name", BOTH)
def test_reports_follow_the_stated_density(name):
    mechanism = built(name, dim=30, local_epsilon=2.0)
    direction = torch.ones(30, dtype=torch.float64) / 30**0.5
    reports = mechanism.randomize(direction.expand(4_000, 30), randomness=SeededRandomness(8))
    vectors = seeds.expand_all(reports.fields[0].values, dim=30)
    places = np.linspace(-6, 6, 4_001)
    inside = np.exp(-(places**2) / 2) * (1 + math.expm1(2.0) * mechanism._searched.share(places))
    below = np.concatenate([[0.0], np.cumsum((inside[1:] + inside[:-1]) / 2)])
    found = stats.kstest((vectors @ direction).numpy(), lambda a: np.interp(a, places, below / below[-1]))
    assert found.pvalue > P_VALUE
    across = torch.zeros(30, dtype=torch.float64)
    across[0], across[1] = 0.6, -0.8
    across -= (across @ direction) * direction
    normal = stats.kstest((vectors @ across / across.norm()).numpy(), stats.norm.cdf)
    assert normal.pvalue > P_VALUE


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("local_epsilon", [1.0, 2.0, 4.0, 6.5])
@pytest.mark.parametrize("dim", [100, 20_000])
def test_the_error_is_that_of_what_is_compressed(name, local_epsilon, dim):
    whole = get(name, dim=dim, local_epsilon=local_epsilon)
    own = built(name, dim=dim, local_epsilon=local_epsilon)
    assert own.bits_per_report == 128
    assert own.worst_variance < whole.worst_variance * 1.003


def test_tries_that_are_enough_cost_nothing():
    mechanism = built(dim=1_000, local_epsilon=4.0)
    enough = built(dim=1_000, local_epsilon=4.0, tries=math.ceil(10 * mechanism.expected_tries))
    assert enough.worst_variance < mechanism.worst_variance * 1.0002
    assert enough.blanket() == mechanism.blanket()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("local_epsilon", "cohort"), [(1.0, 12_000), (4.0, 1_000)])
def test_epsilon_is_that_of_what_is_compressed(name, local_epsilon, cohort):
    found = []
    for each in (name, f"{name}-seed"):
        accountant = ShuffleAccountant()
        mechanism = get(each, dim=500, local_epsilon=local_epsilon)
        accountant.step(mechanism.round(population=60_000, cohort=cohort), num_steps=80)
        found.append(accountant.epsilon(1e-6))
    assert 0.97 * found[0].upper < found[1].upper < found[0].upper * (1 + 2e-3)  # a blur tells less
    assert 0.94 * found[1].upper < found[1].lower <= found[1].upper
