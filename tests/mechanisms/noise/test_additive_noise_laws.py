"""Blankets of additive noise: their laws, their worst records, and what they cost, from first principles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_force import hockey_stick, neighbours, shuffled_law
from scipy import optimize, stats

from shuffle_plugins.accounting import Blanket, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.pairs.shuffle import alike_pair
from shuffle_plugins.accounting.pairs.slots import slot_losses_from_below
from shuffle_plugins.mechanisms import get, registry
from shuffle_plugins.mechanisms.noise import (
    discrete_gaussian_instance,
    discrete_laplace_blanket,
    gaussian_blanket,
    gaussian_instance,
)

# ε0, n, δ of the published comparisons.
SETTINGS = [
    (0.5, 10**4, 1e-6),
    (1.0, 10**4, 1e-6),
    (2.0, 10**4, 1e-6),
    (4.0, 10**4, 1e-6),
    (1.0, 10**6, 1e-8),
    (2.0, 10**6, 1e-8),
    (4.0, 10**6, 1e-8),
]
VARIATION_RATIO = [0.017143, 0.039618, 0.103476, 0.386055, 0.004631, 0.011885, 0.042786]
BENNETT = [0.020148, 0.045018, 0.112056, 0.402670, 0.005020, 0.012252, 0.041087]


def spent(blanket: Blanket, *, clients: int) -> ShuffleAccountant:
    """What a round of all clients costs by this blanket alone."""
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=blanket.local_epsilon,
            population=clients,
            cohort=clients,
            sampling="full",
            mechanism="noise",
            blanket=blanket,
        )
    )
    return accountant


def delta_at(blanket: Blanket, *, clients: int, epsilon: float) -> float:
    return spent(blanket, clients=clients).delta(epsilon).upper


def epsilon_at(blanket: Blanket, *, clients: int, delta: float) -> float:
    return spent(blanket, clients=clients).epsilon(delta, lower=False).upper


def edge_cells(kind: str, scale: float, cells: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Mean weights and ω masses of thin cells of the upper half of the reports, from distribution functions.

    Records ±1; ``scale`` is that of the noise.
    """
    noise = stats.laplace(scale=scale) if kind == "laplace" else stats.norm(scale=scale)
    largest = 1.0 if kind == "laplace" else 1.0 - noise.ppf(1e-20)
    y = np.append(np.linspace(0.0, largest, cells), np.inf)
    # Upper tails keep their accuracy; ω is the density of the other end.
    blanket = -np.diff(noise.sf(y + 1))
    record = -np.diff(noise.sf(y - 1))
    return record / blanket, blanket


def convolved_delta(kind: str, scale: float, *, clients: int, epsilon: float) -> float:
    """H_E of the round by one large FFT on a fine lattice, tilted; second order in the lattice."""
    weight, mass = edge_cells(kind, scale)
    e = math.exp(epsilon)
    value = np.concatenate([weight - e, 1 - e * weight, [0.0]])
    mass = np.concatenate([mass, mass, [1 - 2 * mass.sum()]])
    deviation = math.sqrt(float(mass @ value**2))
    cell = 0.02 * deviation
    tilt = (
        optimize.brentq(
            lambda t: float((mass * value * np.exp(t * value)).sum()),
            0.0,
            20 / (deviation * math.sqrt(clients)),
        )
        if value @ mass < 0
        else 0.0
    )
    index = np.floor(value / cell).astype(int)
    share = value / cell - index
    first = index.min()
    points = first + np.arange(index.max() - first + 2)
    law = np.bincount(index - first, (1 - share) * mass, len(points))
    law += np.bincount(index - first + 1, share * mass, len(points))
    law *= np.exp(tilt * points * cell)
    log_total = math.log(law.sum())
    size = 1 << math.ceil(math.log2(26 * math.sqrt(clients) / 0.02))
    wrapped = np.zeros(size)
    np.add.at(wrapped, points % size, law / law.sum())
    total = np.fft.irfft(np.fft.rfft(wrapped) ** clients, size)
    sums = np.arange(1, size // 2) * cell
    return float((sums * np.exp(clients * log_total - tilt * sums) * total[1 : size // 2]).sum()) / clients


@pytest.mark.parametrize(("local_epsilon", "clients", "delta"), SETTINGS[:4])
def test_laplace_against_direct_convolution(local_epsilon, clients, delta):
    blanket = registry.blanket("laplace", local_epsilon=local_epsilon, dim=1)
    epsilon = epsilon_at(blanket, clients=clients, delta=delta)
    kind, scale = "laplace", 2 / local_epsilon
    exact = optimize.brentq(
        lambda x: math.log(convolved_delta(kind, scale, clients=clients, epsilon=x) / delta),
        0.97 * epsilon,
        1.03 * epsilon,
        rtol=1e-5,
    )
    assert 1 - 1e-4 <= epsilon / exact <= 1.0012


def test_laplace_is_below_other_analyses():
    for (local_epsilon, clients, delta), ratio, bennett in zip(
        SETTINGS, VARIATION_RATIO, BENNETT, strict=True
    ):
        blanket = registry.blanket("laplace", local_epsilon=local_epsilon, dim=1)
        epsilon = epsilon_at(blanket, clients=clients, delta=delta)
        generic = epsilon_at(Blanket.generic(local_epsilon), clients=clients, delta=delta)
        assert epsilon < 0.98 * min(ratio, bennett)
        assert epsilon < 0.985 * generic


@pytest.mark.parametrize(("steps", "local_epsilon"), [(1, 1.0), (2, 2.0), (3, 1.5)])
def test_discrete_laplace_against_enumeration(steps, local_epsilon):
    """Reports beyond the ends say no more than the ends do, so clamping them changes nothing."""
    rate = local_epsilon / steps
    y = np.arange(-400, 400 + steps + 1)
    law = math.tanh(rate / 2) * np.exp(-rate * np.abs(y - np.arange(steps + 1)[:, None]))
    inner = law[:, (y > 0) & (y < steps)]
    channel = np.column_stack([law[:, y <= 0].sum(axis=1), inner, law[:, y >= steps].sum(axis=1)])
    blanket = discrete_laplace_blanket(local_epsilon=local_epsilon, steps=steps)
    assert blanket.exact
    assert blanket.mass == pytest.approx(channel.min(axis=0).sum(), rel=1e-9)
    for clients in (1, 2, 3):
        laws = [
            (shuffled_law(channel, a), shuffled_law(channel, b)) for a, b in neighbours(steps + 1, clients)
        ]
        for epsilon in np.linspace(0, local_epsilon, 6).tolist():
            worst = max(hockey_stick(p, q, epsilon) for p, q in laws)
            bound = delta_at(blanket, clients=clients, epsilon=epsilon)
            assert worst <= bound + 1e-12
            if clients == 1:
                assert bound == pytest.approx(worst, rel=1e-6, abs=1e-9)


def gaussian_profile(shift: float, epsilon: float) -> float:
    """H_E of two Gaussians ``shift`` deviations apart (Balle, Wang 2018)."""
    above, below = stats.norm.cdf(shift / 2 - epsilon / shift), stats.norm.cdf(-shift / 2 - epsilon / shift)
    return float(above - math.exp(epsilon) * below)


@pytest.mark.parametrize(("sigma", "delta"), [(10.0, 1e-6), (4.0, 1e-8), (3.0, 1e-5)])
def test_gaussian_against_direct_convolution(sigma, delta):
    clients = 2_000
    epsilon = epsilon_at(gaussian_blanket(sigma=sigma, radius=1.0, tail=1e-14), clients=clients, delta=delta)
    exact = optimize.brentq(
        lambda x: math.log(convolved_delta("gaussian", sigma, clients=clients, epsilon=x) / delta),
        0.9 * epsilon,
        1.05 * epsilon,
        rtol=1e-5,
    )
    assert 1 - 1e-4 <= epsilon / exact <= 1.01


@pytest.mark.parametrize("tail", [1e-2, 1e-4, 1e-8])
def test_gaussian_tail_is_charged(tail):
    blanket = gaussian_blanket(sigma=1.0, radius=1.0, tail=tail)
    assert 0.01 * tail < blanket.tail <= tail
    for epsilon in np.linspace(0, 1.3 * blanket.local_epsilon, 12):
        found = delta_at(blanket, clients=1, epsilon=float(epsilon))
        assert found >= max(gaussian_profile(2.0, float(epsilon)) * (1 - 1e-9), blanket.tail)
    # Without the charge the bound would be false beyond the largest weight.
    assert gaussian_profile(2.0, blanket.local_epsilon) > 0


def rounded_gaussian_channel(sigma: int, radius: float, *, discrete: bool) -> np.ndarray:
    """Laws of the codes of ±radius, from the definition of each noise."""
    codes = np.arange(-9 * sigma, 9 * sigma + 1)
    rows = []
    for record in (radius, -radius):
        if discrete:
            low = math.floor(record)
            parts = [
                share * np.exp(-((codes - place) ** 2) / (2 * sigma**2))
                for place, share in ((low, low + 1 - record), (low + 1, record - low))
            ]
            rows.append((parts[0] + parts[1]) / np.exp(-(codes**2) / (2 * sigma**2)).sum())
        else:
            rows.append(np.diff(stats.norm(record, sigma).cdf(np.append(codes - 0.5, codes[-1] + 0.5))))
    return np.array(rows)


@pytest.mark.parametrize("discrete", [False, True])
def test_gaussian_reports_are_bounded_from_below_by_a_dataset(discrete):
    radius = 0.6
    channel = rounded_gaussian_channel(1, radius, discrete=discrete)
    make = discrete_gaussian_instance if discrete else gaussian_instance
    truth = [shuffled_law(channel, (held, 1, 1, 1), cohort=3) for held in (0, 1)]
    _, p, q = slot_losses_from_below(
        alike_pair(make(sigma=1, radius=radius), population=4, slots=3, participation=1.0)
    )
    for epsilon in np.linspace(0, 1.2, 7):
        for one, two, laws in ((p, q, truth), (q, p, truth[::-1])):
            exact = hockey_stick(*laws, epsilon)
            found = float(np.maximum(one - math.exp(epsilon) * two, 0).sum())
            assert found <= exact + 1e-12
            assert epsilon > 0 or found > 0.9 * exact, "more than reading one sum of scores loses"


@pytest.mark.parametrize(
    ("name", "local_epsilon", "options", "ratio"),
    [
        ("gaussian", 0.5, {}, 1.04),
        ("gaussian", 4.0, {"bits": 8}, 1.25),
        ("discrete-gaussian", 1e-5, {}, 1.02),
    ],
)
def test_gaussian_noise_on_numbers_has_both_ends(name, local_epsilon, options, ratio):
    accountant = ShuffleAccountant()
    built = get(name, dim=1, local_epsilon=local_epsilon, local_delta=1e-12, **options)
    accountant.step(built.round(population=60_000, cohort=10_000), num_steps=1200)
    found = accountant.epsilon(1e-5 * min(local_epsilon, 1.0))
    assert 0 < found.lower <= found.upper <= ratio * found.lower
