"""Laplace and Gaussian noise on grids: what is spent, to the last digit, and what is paid for the grid."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special
from scripted_randomness import Far
from thinning import first_fast

from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.noise import (
    _whole_ball_information,
    discrete_laplace_information,
    discrete_laplace_instances,
    gaussian_blanket,
    laplace_ball_information,
    noise_ratio,
    rounded_distance,
)

NAMES = ["laplace", "discrete-laplace", "gaussian", "discrete-gaussian"]
EPSILONS = [1e-4, 1.5, 50.0]


def on_a_line(mechanism, points):
    """Log-probabilities of all outcomes of a scalar mechanism (outcomes, points)."""
    outcomes = mechanism.outcomes()
    xs = torch.linspace(-1, 1, points, dtype=torch.float64) * mechanism.radius
    return torch.stack([mechanism.log_likelihood(outcomes, x.reshape(1)) for x in xs], dim=1), xs


def codes(mechanism, values):
    """Reports of given multiples of the step (reports, dim)."""
    return mechanism.layout.reports(values + mechanism.limit)


@pytest.mark.parametrize("epsilon", EPSILONS)
@first_fast("bits", [8, 12])
def test_scalar_laplace_spends_epsilon_exactly(epsilon, bits):
    mechanism = get("discrete-laplace", local_epsilon=epsilon, dim=1, radius=0.7, bits=bits)
    law, xs = on_a_line(mechanism, 97)
    torch.testing.assert_close(law.exp().sum(dim=0), torch.ones(97, dtype=torch.float64))
    spent = float((law.amax(dim=1) - law.amin(dim=1)).max())
    assert spent <= epsilon * (1 + 1e-12)
    rate = 1 / float(mechanism.grid.scale)
    whole = mechanism.grid.whole_radius is not None
    assert spent >= epsilon * (1 - 1e-6) * (1 if whole else rate / math.expm1(rate))
    values = torch.stack([mechanism.sum(mechanism.outcomes().narrow(i, i + 1)) for i in range(len(law))])
    means = values.double().T @ law.exp()
    assert float((means - xs).abs().max()) < 1e-6 * float(values.abs().max())
    variances = values.double().square().T @ law.exp() - means.square()
    torch.testing.assert_close(
        variances.squeeze(0), mechanism.variance(xs.unsqueeze(1)), rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_vector_laplace_never_exceeds_epsilon(epsilon):
    """Reports of the plane whose two outermost rows of codes on either side stand for all beyond them."""
    mechanism = get("discrete-laplace", local_epsilon=epsilon, dim=2, radius=0.7, bits=8)
    line = torch.arange(-mechanism.limit, mechanism.limit + 1, 3)
    outcomes = codes(mechanism, torch.cartesian_prod(line, line))
    angles = torch.linspace(0, 2 * math.pi, 33, dtype=torch.float64)
    around = torch.stack([angles.cos(), angles.sin()], dim=1)
    around *= mechanism.radius / around.abs().sum(dim=1, keepdim=True)
    vertices = mechanism.radius * torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1.0]], dtype=torch.float64)
    rows = torch.cat([around, vertices, around / 3])
    law = torch.stack([mechanism.log_likelihood(outcomes, row) for row in rows])
    spent = float((law.amax(dim=0) - law.amin(dim=0)).max())
    assert spent <= epsilon
    rate = 1 / float(mechanism.grid.scale)
    assert spent >= 0.95 * epsilon * 2 * rate / (math.expm1(rate) + rate)


def test_rounding_spends_more_than_the_noise_alone_and_no_more_than_is_accounted():
    """The worst case of the proof: one row spread over many coordinates, the other on an axis."""
    dim = 2000
    mechanism = get("discrete-laplace", local_epsilon=4.0, dim=dim, radius=1.0, bits=8)
    spread = torch.full((dim,), 1 / (dim - 1), dtype=torch.float64)
    axis = torch.zeros(dim, dtype=torch.float64)
    spread[0], axis[0] = 0, -1
    report = codes(mechanism, torch.full((1, dim), 40))
    spent = float(mechanism.log_likelihood(report, spread) - mechanism.log_likelihood(report, axis))
    noise_alone = 2 * mechanism.grid.radius_in_steps / float(mechanism.grid.scale)
    assert noise_alone * 1.05 < spent <= 4.0
    assert spent > 0.99 * 4.0


@pytest.mark.parametrize("name", ["laplace", "discrete-laplace"])
@pytest.mark.parametrize("dim", [1, 5])
def test_rows_outside_by_rounding_spend_no_more(name, dim):
    mechanism = get(name, local_epsilon=3.0, dim=dim, radius=0.5)
    row = torch.zeros(dim, dtype=torch.float64)
    row[0] = 0.5 * (1 + 9e-6)
    reports = mechanism.randomize(torch.stack([row, -row]).float().repeat(500, 1))
    spent = mechanism.log_likelihood(reports, row) - mechanism.log_likelihood(reports, -row)
    assert float(spent.abs().max()) <= 3.0 * (1 + 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_codes_leave_room_for_the_noise(name):
    for epsilon in (1e-9, 1e-4, 1.5, 50.0, 500.0):
        for dim in (1, 5, 1000):
            mechanism = get(name, local_epsilon=epsilon, dim=dim)
            room = (mechanism.limit - mechanism.radius / mechanism.step) * mechanism.step
            noise = (mechanism.worst_variance / dim) ** 0.5
            assert room >= (19 if "laplace" in name else 9.4) * noise * 0.99
            assert mechanism.bits_per_report == mechanism.bits * dim


def hockey_stick(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("bits", [8, 10])
def test_rounded_gaussian_spends_delta(epsilon, bits):
    """Exact probabilities of the codes: δ at ε0 between the ends, with and without the grid."""
    mechanism = get("gaussian", local_epsilon=epsilon, dim=1, radius=0.5, local_delta=1e-3, bits=bits)
    cuts = (np.arange(-mechanism.limit, mechanism.limit) + 0.5) * mechanism.step

    def law(x):
        below = special.ndtr(np.append(np.append(-np.inf, (cuts - x) / mechanism.sigma), np.inf))
        return np.diff(below)

    spent = hockey_stick(law(0.5), law(-0.5), epsilon)
    assert spent <= 1e-3
    assert spent >= (0.9 if bits == 10 else 0.75) * 1e-3


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("bits", [7, 10])
def test_discrete_gaussian_spends_at_most_delta(epsilon, bits):
    """In one and in two dimensions by enumeration, for rows on the grid and between."""
    for dim in (1, 2) if bits == 7 else (1,):
        mechanism = get(
            "discrete-gaussian", local_epsilon=epsilon, dim=dim, radius=0.5, local_delta=1e-2, bits=bits
        )
        sigma = mechanism.grid.sigma
        support = np.arange(-14 * sigma, 14 * sigma + 1)
        noise = np.exp(-(support**2) / (2 * sigma**2))
        noise /= noise.sum()

        def law(x, *, noise=noise, step=mechanism.step):
            scaled = x / step
            up = scaled - math.floor(scaled)
            return np.roll((1 - up) * noise + up * np.roll(noise, 1), math.floor(scaled))

        for direction in ([1.0, 0.0], [0.6, 0.8], [0.97, math.sqrt(1 - 0.97**2)])[: 3 if dim == 2 else 1]:
            for length in (0.5, 0.5 - mechanism.step / 2):
                ends = [sign * length * np.array(direction[:dim]) for sign in (1, -1)]
                parts = [[law(x) for x in end] for end in ends]
                joint = [np.outer(*p).ravel() if dim == 2 else p[0] for p in parts]
                assert hockey_stick(joint[0], joint[1], epsilon) <= 1e-2


@pytest.mark.parametrize(("epsilon", "delta"), [(33.0, 1e-6), (6.0, 1e-18), (1.5, 1e-20), (500.0, 0.1)])
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_a_record_can_send_what_its_neighbour_sends_with_probability_delta(epsilon, delta, dim):
    """Noise that ended at 9.3σ could not take -r to where r sends more than δ0 of its reports."""
    mechanism = get("gaussian", local_epsilon=epsilon, local_delta=delta, dim=dim)
    row = torch.zeros(1, dim, dtype=torch.float64)
    row[0, 0] = -1
    sent = 1 - mechanism.sigma * float(special.ndtri(delta))
    reach = (sent + 1) / mechanism.sigma / math.cos(math.pi / 8)
    calls = math.ceil(reach**2 / 2 / math.log(2) / 10)
    report = mechanism.randomize(row, randomness=Far(calls, lambda count: torch.full((count,), 1 << 62)))
    # Zero words, then a pair as far out as is wanted, 22.5° off an axis.
    assert float(mechanism._multiples(report)[0, 0]) * mechanism.step >= sent


@pytest.mark.parametrize("dim", [1, 9, 300])
@pytest.mark.parametrize("radius", [0.3, 4.0, 60.0])
def test_rounded_rows_are_seldom_farther_apart_than_assumed(dim, radius):
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(dim, generator=generator, dtype=torch.float64)
    row *= radius / row.norm()
    uniform = torch.rand(4000, dim, generator=generator, dtype=torch.float64)
    apart = ((row + uniform).floor() - (uniform - row).floor()).norm(dim=1)
    for miss in (0.3, 1e-3):
        limit = rounded_distance(radius, dim=dim, miss=miss)
        assert float((apart > limit).double().mean()) <= miss
        assert limit <= 2 * radius + math.sqrt(dim)
    assert float(apart.max()) <= 2 * radius + math.sqrt(dim)


@pytest.mark.parametrize("name", ["gaussian", "discrete-gaussian"])
def test_rounds_of_approximate_mechanisms(name):
    vectors = get(name, local_epsilon=2.0, dim=5, local_delta=1e-9)
    assert vectors.local_delta == 1e-9
    with pytest.raises(ValueError, match="use its round"):
        vectors.blanket()
    accounted = vectors.round(population=1000, cohort=100)
    assert (accounted.local_epsilon, accounted.local_delta, accounted.blanket) == (2.0, 1e-9, None)
    number = get(name, local_epsilon=2.0, dim=1, local_delta=1e-9, radius=3.0)
    accounted = number.round(population=1000, cohort=100)
    assert accounted.local_delta == 0
    assert accounted.blanket == number.blanket()
    if name == "gaussian":
        law = gaussian_blanket(sigma=number.sigma, radius=3.0)
        assert number.blanket().mass == pytest.approx(law.mass, rel=1e-9)
    loud = get(name, local_epsilon=500.0, dim=1)
    assert loud.round(population=1000, cohort=100).local_delta == 1e-6
    assert "local_delta=1e-09" in repr(vectors)


def test_a_grid_too_coarse_for_the_noise_is_refused():
    with pytest.raises(ValueError, match="allow more bits"):
        get("discrete-gaussian", local_epsilon=0.1, dim=1000, bits=8)
    with pytest.raises(ValueError, match="raise local_epsilon"):
        get("discrete-gaussian", local_epsilon=1e-9, dim=10**9, local_delta=1e-12)


@pytest.mark.parametrize("local_delta", [1e-30, 1e-18, 1e-6, 0.1])
@pytest.mark.parametrize("local_epsilon", [1e-9, 1e-8, 1e-6, 1e-4, 0.5, 5.0])
def test_calibrated_noise_keeps_its_delta_at_every_size(local_epsilon, local_delta):
    mpmath = pytest.importorskip("mpmath")
    ratio = noise_ratio(local_epsilon=local_epsilon, local_delta=local_delta)
    with mpmath.workdps(80):
        half, shift = 1 / (2 * mpmath.mpf(ratio)), local_epsilon * mpmath.mpf(ratio)
        spent = mpmath.ncdf(half - shift) - mpmath.exp(local_epsilon) * mpmath.ncdf(-half - shift)
        assert 1 - 1e-5 < spent / local_delta <= 1


@pytest.mark.parametrize(("epsilon", "steps"), [(0.3, 1), (1.5, 5), (4.0, 12)])
def test_laplace_reports_tell_most_of_the_ends(epsilon, steps):
    """Sums over all reports, of any three records; and of records in a plane, which tell more."""
    rate = epsilon / steps
    reports = np.arange(-60 * steps, 61 * steps)
    laws = [np.tanh(rate / 2) * np.exp(-rate * np.abs(reports - record)) for record in range(steps + 1)]
    told = {
        (x, y, z): ((laws[x] - laws[y]) ** 2 / laws[z]).sum()
        for x, y, z in itertools.product(range(steps + 1), repeat=3)
    }
    information = discrete_laplace_information(local_epsilon=epsilon, steps=steps)
    assert max(told.values()) == pytest.approx(information, rel=1e-6)
    assert told[0, steps, steps] == pytest.approx(information, rel=1e-6)
    line, plane = (
        max(
            sum(m * (u - v) ** 2 for u, v, m in each)
            for each in discrete_laplace_instances(rate=rate, steps=steps, axes=axes)
        )
        for axes in (1, 2)
    )
    assert line == pytest.approx(information, rel=3e-3)
    if steps % 2 == 0:
        low, middle, high = (laws[place] for place in (0, steps // 2, steps))
        x, y, z = np.outer(high, middle), np.outer(middle, high), np.outer(low, middle)
        opposite = ((x - y) ** 2 / z).sum()
        x, y, z = np.outer(high, middle), np.outer(low, middle), np.outer(middle, high)
        aside = ((x - y) ** 2 / z).sum()
        assert plane == pytest.approx(max(line, opposite, aside), rel=1e-2)
        assert plane > 1.2 * line


def test_laplace_reports_of_rounded_vectors_tell_no_more():
    """Sums over all reports about vectors of a disc of the l1 norm, on the grid's points and between them."""
    rate, radius = 0.25, 4.0
    reports = np.arange(-90, 91)
    whole = np.array([np.tanh(rate / 2) * np.exp(-rate * np.abs(reports - at)) for at in range(-5, 6)])

    def law(vector):
        parts = []
        for number in vector:
            below = math.floor(number)
            parts.append(whole[below + 5] * (below + 1 - number) + whole[below + 6] * (number - below))
        return np.outer(*parts)

    axes = np.array([[radius, 0], [0, radius], [-radius, 0], [0, -radius], [0, 0], [2, 2], [3, -1], [1, -3]])
    laws = [law(vector) for vector in axes]
    told = max(((x - y) ** 2 / z).sum() for x, y, z in itertools.product(laws, repeat=3))
    most = _whole_ball_information(rate * radius, rate)
    assert told <= most <= 1.03 * told
    rng = np.random.default_rng(2)
    between = []
    for _ in range(60):
        vector = rng.dirichlet([0.3, 0.3]) * rng.choice([-1, 1], size=2)
        between.append(law(radius * vector))
    bound = laplace_ball_information(rate=rate, radius=radius, dim=2)
    for x, y, z in itertools.product(between[:20], between[20:40], [*between[40:], *laws[:4]]):
        assert ((x - y) ** 2 / z).sum() <= bound
