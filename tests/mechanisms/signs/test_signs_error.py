"""Error of sampled mechanisms: printed values, best parameters, what theory forbids."""

import itertools
import math

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.bit_planes import best_plan
from shuffle_plugins.mechanisms.sign_patterns import CoordinateBlocks
from shuffle_plugins.randomness import SeededRandomness

FIGURE = {1.0: (1.25, 2.06, 2.90), 4.0: (0.313, 0.188, 0.196), 8.0: (0.266, 0.094, 0.061, 0.060)}
"""Figure 3.2a of the thesis: one number in [-1/2, 1/2], s = 1, worst error for m = 1, 2, …"""


@pytest.mark.parametrize("epsilon", FIGURE)
def test_figure_3_2a(epsilon):
    for levels, printed in enumerate(FIGURE[epsilon], start=1):
        options = {"local_epsilon": epsilon, "dim": 1, "radius": 0.5, "levels": levels}
        thesis = get("linf-bit-planes", constants="thesis", **options)
        assert thesis.worst_variance == pytest.approx(printed, abs=0.0055)
        shares = math.fsum(4 ** (-k / 3) for k in [*range(1, levels), levels - 1])
        assert thesis.worst_variance == pytest.approx(shares**3 / epsilon**2 + 4.0**-levels, rel=1e-9)
        assert get("linf-bit-planes", **options).worst_variance < thesis.worst_variance


@pytest.mark.parametrize(("dim", "samples"), [(12, 1), (12, 3), (12, 12)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_theorem_3_3_1(dim, samples, epsilon):
    """Bits b as x = b - 1/2: the worst error is the printed bound, and that of given bits the exact one."""
    mechanism = get(
        "sampled-bits", local_epsilon=epsilon, dim=dim, radius=0.5, samples=samples, constants="thesis"
    )
    printed = dim**2 * (1 / samples - 1 / dim + samples / epsilon**2)
    noise = dim**2 / samples * samples**2 / epsilon**2
    worst = printed if samples < dim else noise + dim / 4 - dim / 4
    bits = (torch.arange(dim) % 3 == 0).double()
    given = noise + (dim / samples - 1) * float(bits.sum())
    assert float(mechanism.variance((bits - 0.5).unsqueeze(0))) == pytest.approx(given, rel=1e-9)
    ones = torch.full((1, dim), 0.5, dtype=torch.float64)
    assert float(mechanism.variance(ones)) == pytest.approx(worst, rel=1e-9)
    assert mechanism.worst_variance >= worst * (1 - 1e-12)
    exact = get("sampled-bits", local_epsilon=epsilon, dim=dim, radius=0.5, samples=samples)
    assert exact.worst_variance < mechanism.worst_variance


@pytest.mark.parametrize("constants", ["exact", "thesis"])
def test_worst_variance_is_attained(constants):
    values = torch.linspace(-1, 1, 33, dtype=torch.float64)
    for dim, levels, samples in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
        if samples > dim:
            continue
        mechanism = get(
            "linf-bit-planes",
            local_epsilon=2.0,
            dim=dim,
            levels=levels,
            samples=samples,
            constants=constants,
        )
        every = torch.cartesian_prod(*[values] * dim).reshape(-1, dim)
        assert float(mechanism.variance(every).max()) == pytest.approx(mechanism.worst_variance, rel=1e-9)


@pytest.mark.parametrize("constants", ["exact", "thesis"])
@first_fast("epsilon", [0.01, 4.0, 30.0])
@pytest.mark.parametrize("dim", [1, 3, 40, 13_706])
def test_the_default_plan_is_the_best(epsilon, dim, constants):
    options = {"local_epsilon": epsilon, "dim": dim, "constants": constants}
    best = get("linf-bit-planes", **options)
    for levels, samples in itertools.product(range(1, 9), (1, 2, 3, 4, 6, 9, 14, 20)):
        if samples > dim or epsilon / samples < 1e-3:
            continue
        other = get("linf-bit-planes", levels=levels, samples=samples, **options)
        assert best.worst_variance <= other.worst_variance * (1 + 1e-6)
    given = best_plan(local_epsilon=epsilon, dim=dim, levels=1, constants=best.constants)
    assert get("sampled-bits", **options).plan == given


def test_blocks_are_even_and_cover_every_coordinate():
    for dim, count in [(1, 1), (7, 3), (8, 4), (13, 5), (10, 10)]:
        blocks = CoordinateBlocks(dim=dim, count=count)
        lengths = blocks.lengths
        assert int(lengths.sum()) == dim
        assert int(lengths.max()) - int(lengths.min()) <= 1
        assert int(lengths.square().sum()) == blocks.square_lengths
        assert blocks.square_lengths <= dim * math.ceil(dim / count)
        assert torch.equal(blocks.lengths_by_coordinate, lengths.repeat_interleave(lengths))
        places = blocks.draw(4000, repeats=2, randomness=SeededRandomness(1), device=torch.device("cpu"))
        columns = places + blocks.starts
        counts = torch.bincount(columns.flatten(), minlength=dim).double()
        expected = 8000 / blocks.lengths_by_coordinate.double()
        assert float(((counts - expected).abs() / expected.sqrt()).max()) < 5


CROSSING = math.log((3 - math.sqrt(2)) / (math.sqrt(2) - 1))


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 1.0, 1.34, 1.3424, 1.345, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0])
def test_blocks_beat_one_coordinate_above_the_crossing_and_never_lose(epsilon):
    one = get("linf-coordinate", local_epsilon=epsilon, dim=13_706)
    best = get("linf-block", local_epsilon=epsilon, dim=13_706)
    assert one.bits_per_report == 15
    assert best.bits_per_report <= 15
    if epsilon > CROSSING:
        assert best.worst_variance < one.worst_variance
        assert best.block == 2
    else:
        assert best.worst_variance == pytest.approx(one.worst_variance, rel=1e-6)
        assert best.block == 1


def test_the_caps_blanket_is_that_of_the_enumerated_channel():
    for epsilon, block in [(0.5, 1), (2.0, 2), (3.0, 3), (4.0, 4)]:
        mechanism = get("linf-block", local_epsilon=epsilon, dim=12, block=block)
        own, reports = mechanism.blanket(), mechanism.outcomes()
        vectors = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=block)), dtype=torch.float64)
        laws = torch.stack([mechanism.log_likelihood(reports, v.repeat(12 // block)) for v in vectors]).exp()
        least = laws.amin(dim=0)
        weights = laws[[0, -1]] / least
        differing = (weights[0] > 1 + 1e-6) & (weights[1] < 1 + 1e-6)
        neither = (weights < 1 + 1e-6).all(dim=0)
        assert float(least[differing].sum()) == pytest.approx(own.differing, rel=1e-6)
        assert float(least[neither].sum()) == pytest.approx(own.low, rel=1e-6, abs=1e-12)
        assert own.exact
        third = laws[1] / least
        free = differing & (third < 1 + 1e-6)
        assert own.outside <= float(least[free].sum()) * (1 + 1e-6)
