"""Shuffled Gaussian vectors: what is claimed of slots and sums, against direct computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from shuffle_plugins.accounting.pairs import gaussian_reports
from shuffle_plugins.accounting.pairs.gaussian_reports import gaussian_reports_profile

_NODES = np.linspace(-10.0, 10.0, 401)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi) * (_NODES[1] - _NODES[0])


def _records(rng: np.random.Generator, radius: float) -> np.ndarray:
    """x, x' and z in a ball of five dimensions, often at its surface, near a plane or opposite each other."""
    points = rng.normal(size=(3, 5)) * rng.choice([1.0, 0.05], size=5)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points *= radius * rng.choice([1.0, 1.0, rng.uniform()], size=(3, 1))
    if rng.uniform() < 0.4:
        points[1] = -points[0]
    if rng.uniform() < 0.2:
        points[2] = points[int(rng.integers(2))]
    return points


@pytest.mark.parametrize("radius", [0.03, 0.15, 0.5])
def test_kinds_cover_all_records_of_the_ball(radius: float) -> None:
    rng = np.random.default_rng(7)
    eta, along, aside = gaussian_reports._planes(radius)
    kinds = np.stack([np.stack([along**2 + aside**2, along * eta]), np.stack([along * eta, eta**2])])
    for _ in range(2000):
        x, x1, z = _records(rng, radius)
        m, v = (x + x1) / 2 - z, (x - x1) / 2
        excess = kinds - np.array([[m @ m, m @ v], [m @ v, v @ v]])[:, :, None]
        determinant = excess[0, 0] * excess[1, 1] - excess[0, 1] ** 2
        above = (excess[0, 0] >= -1e-15) & (excess[1, 1] >= -1e-15) & (determinant >= -1e-15)
        assert above.any()
    assert np.all(np.abs(along) <= eta * (1 + 1e-12))


def test_a_slots_moment_is_at_most_the_largest_kinds() -> None:
    radius, excess, c = 0.3, 0.02, 0.1
    kinds = gaussian_reports._kinds(*gaussian_reports._planes(radius))
    most = gaussian_reports._tilted(
        kinds, excess, c, thinned=1.0, scale=1.0, participation=1.0, cut=6.5, missed_at_most=1e-2
    ).log_moment.max()
    rng = np.random.default_rng(3)
    reached = 0.0
    for _ in range(200):
        x, x1, z = _records(rng, radius)
        a, b = x - z, x1 - z
        length = math.sqrt(a @ a)
        if length < 1e-9:
            continue
        first = length * _NODES - length**2 / 2
        side = a @ b / length
        rest = math.sqrt(max(b @ b - side**2, 0.0))
        second = (side * _NODES)[:, None] + (rest * _NODES)[None, :] - b @ b / 2
        weight = np.exp(np.minimum(first, length * (length / 2 + 6.4)))[:, None]
        value = weight - (1 + excess) * np.exp(second) + excess
        moment = (_WEIGHTS[:, None] * _WEIGHTS * np.exp(c * value)).sum()
        assert math.log(moment) <= most
        reached = max(reached, math.log(moment))
    assert most <= 1.2 * reached


def _lattice(values: np.ndarray, masses: np.ndarray, *, step: float, size: int) -> np.ndarray:
    """Transform of a law spread to a lattice at equal mean."""
    place = values / step
    low = np.floor(place).astype(np.int64)
    law = np.zeros(size)
    np.add.at(law, low % size, masses * (low + 1 - place))
    np.add.at(law, (low + 1) % size, masses * (place - low))
    return np.fft.rfft(law)


@pytest.mark.parametrize(("radius", "slots", "population"), [(0.15, 1000, 1000), (0.08, 2000, 9000)])
def test_sums_of_any_owners_are_below_the_profile_and_the_worst_nearly_reaches_it(
    radius: float, slots: int, population: int
) -> None:
    """All others at x' is a real dataset; mixtures of owners are the sums that the proof bounds."""
    losses, bounds = gaussian_reports_profile(radius=radius, population=population, slots=slots)
    s = 2 * radius
    weight = np.exp(s * _NODES - s * s / 2)
    half = np.exp(radius * _NODES - radius**2 / 2)
    root = math.sqrt(slots) * s
    size, step = 1 << 16, root / 800
    offsets = step * ((np.arange(size) + size // 2) % size - size // 2)
    for y, closest in ((0.0, 0.09), (2.0, 0.3), (4.0, 0.6)):
        excess = y * root / population
        bound = np.interp(excess, np.expm1(losses), bounds)
        owners = [
            weight - 1 - excess + excess,  # at x': R_x/R_z is lognormal and R_x'/R_z one
            -(1 + excess) * (weight - 1),  # at x
            (half - 1) - (1 + excess) * (1 / half / math.exp(radius**2) - 1),  # in the middle
        ]
        assert all(abs(_WEIGHTS @ owner) < 1e-9 for owner in owners)
        transforms = [_lattice(owner, _WEIGHTS, step=step, size=size) for owner in owners]
        found = []
        for shares in ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.4, 0.2, 0.4), (0.0, 1.0, 0.0)):
            total = np.prod(
                [t ** round(share * slots) for t, share in zip(transforms, shares, strict=True)], axis=0
            )
            law = np.fft.irfft(total, size)
            found.append(float(law @ np.maximum(offsets - population * excess, 0.0)) / population)
        assert max(found) <= bound
        assert found[0] >= bound * (1 - closest)


@pytest.mark.slow
def test_more_reports_and_more_noise_cost_less() -> None:
    def epsilon(radius: float, population: int, slots: int, participation: float = 1.0) -> float:
        losses, bounds = gaussian_reports_profile(
            radius=radius, population=population, slots=slots, participation=participation
        )
        return float(np.interp(-math.log(1e-7), -np.log(bounds), losses))

    here = epsilon(0.06, 5000, 5000)
    assert epsilon(0.06, 20000, 20000) < 0.51 * here
    assert epsilon(0.03, 5000, 5000) < 0.5 * here
    assert epsilon(0.06, 50000, 5000) < 0.2 * here
    sampled, random = epsilon(0.06, 20000, 2000), epsilon(0.06, 20000, 20000, 0.1)
    assert random == pytest.approx(sampled, rel=0.01)


@pytest.mark.parametrize("reports", [2, 63, 10**12])
def test_few_and_very_many_reports(reports: int) -> None:
    """One report with its sender's name is the least that is ever known; so many that ε0 is all but gone."""
    losses, bounds = gaussian_reports_profile(radius=0.05, population=reports, slots=reports)
    mu = 0.1 if reports < 64 else 0.1 / math.sqrt(reports)
    epsilon = 4.5 * mu
    exact = float(special.ndtr(mu / 2 - 4.5) - math.exp(epsilon) * special.ndtr(-mu / 2 - 4.5))

    def bound(loss: float) -> float:
        return float(np.interp(math.expm1(loss), np.expm1(losses), bounds))

    assert bound(1.06 * epsilon) <= exact <= bound(epsilon)
