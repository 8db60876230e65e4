"""What floating point adds to PrivUnit's law: no grid in what is released, whichever way it was drawn.

Box-Muller makes normal values in pairs whose ratio is the tangent of a grid angle, and neither normalising
nor scaling changes a ratio. Where the grid shows, a report that is uniform on the sphere is told from one
that leans towards its client, and a sum's coordinates that nobody uses from those that somebody does.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from shuffle_plugins.mechanisms import get
from shuffle_plugins.randomness import SeededRandomness

P_VALUE = 1e-4
COARSE = 2 * math.pi * 2.0**-24


def distances_to_grid(first, second, *, step):
    """Distances of the pairs' angles, taken near the axes, to the nearest multiple of ``step``, in steps."""
    angles = np.arctan2(second, first).ravel()
    angles = angles[np.abs(np.sin(2 * angles)) < 0.3] / step
    return np.abs(angles - np.round(angles))


def is_uniform(distances):
    return stats.kstest(2 * distances, "uniform").pvalue > P_VALUE


def reports_of(mechanism, row, *, count, seed):
    """Reports of one client in a call each, so that the pairs of normal values lie within a report."""
    source = SeededRandomness(seed)
    drawn = [mechanism.randomize(row, randomness=source).fields[0].values[0] for _ in range(count)]
    return torch.stack(drawn).double().numpy()


def generic_row(dim):
    row = torch.randn(1, dim, generator=torch.Generator().manual_seed(1))
    return 0.9999 * row / row.norm()


def axis_row(dim):
    row = torch.zeros(1, dim)
    row[0, 0] = 1
    return row


@pytest.mark.parametrize("dim", [64, 512])
def test_reports_show_no_grid_whether_uniform_or_leaning(dim):
    mechanism = get("privunit", local_epsilon=30.0, dim=dim)
    assert mechanism.parameters.plain_probability < 0.05
    half, found, excess = dim // 2, {}, {}
    for seed, (kind, row) in enumerate(
        {"uniform": torch.zeros(1, dim), "leaning": generic_row(dim), "axis": axis_row(dim)}.items()
    ):
        reports = reports_of(mechanism, row, count=20_000 // dim, seed=seed)
        found[kind] = distances_to_grid(reports[:, :half], reports[:, half:], step=COARSE)
        assert is_uniform(found[kind]), kind
        low_bits = np.bincount(reports.astype(np.float32).ravel().view(np.uint32) & 255, minlength=256)
        if kind != "axis":
            assert stats.chisquare(low_bits).pvalue > P_VALUE, kind
        excess[kind] = np.linalg.norm(reports, axis=1) - 1
        assert np.abs(excess[kind]).max() < 2**-24
        assert np.all(reports != 0)
    assert stats.ks_2samp(excess["uniform"], excess["leaning"]).pvalue > P_VALUE
    assert stats.ks_2samp(found["uniform"], found["leaning"]).pvalue > P_VALUE


@pytest.mark.parametrize("clients", [1, 8, 32, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_show_no_grid_in_coordinates_that_nobody_uses(clients, dtype):
    dim, half = 512, 256
    mechanism = get("privunit", local_epsilon=1.0, dim=dim)
    rows = torch.randn(clients, dim, dtype=dtype, generator=torch.Generator().manual_seed(2))
    rows[:, :128] = rows[:, half : half + 128] = 0
    source = SeededRandomness(3)
    sums = torch.stack([mechanism.randomize_sum(rows, randomness=source) for _ in range(60)])
    assert sums.dtype == dtype
    assert torch.equal(sums.float().double(), sums.double())
    sums = sums.double().numpy()
    distances = distances_to_grid(sums[:, :128], sums[:, half : half + 128], step=COARSE)
    assert is_uniform(distances)
    low_bits = np.bincount(sums[:, :128].astype(np.float32).ravel().view(np.uint32) & 255, minlength=256)
    assert stats.chisquare(low_bits).pvalue > P_VALUE


@pytest.mark.parametrize("mechanism", ["privunit-g", "blanket-mixed-gaussian"])
def test_reports_of_half_spaces_have_no_digits_below_a_public_grid(mechanism):
    """Finer digits of values next to zero would tell the record: there are fewer where it is zero."""
    plain = get(mechanism, local_epsilon=3.0, dim=64)
    unscaled = get(mechanism, local_epsilon=3.0, dim=64, radius=plain.parameters.mean)
    rows, source = axis_row(64).repeat(2_000, 1), SeededRandomness(5)
    reports = plain.randomize(rows, randomness=source).fields[0].values.double()
    for values in (reports, unscaled.randomize_sum(rows, randomness=source).double()):
        assert torch.equal((values * 2**24).round(), values * 2**24)
    assert reports.abs().min() < 2.0**-14
