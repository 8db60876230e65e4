"""Pairs of which only the information is known: exact sums, exact rounds, and mechanisms' own likelihoods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from test_mixes import closest_round, level, random_channel
from thinning import first_fast

from shuffle_plugins import mechanisms
from shuffle_plugins.accounting import InformationBound, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.numerics.normal_sums import BoundedTerms, log_chernoff, positive_part_bound
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.pairs.others import SpreadPair, _profile
from shuffle_plugins.mechanisms.privunit import optimal_privunit, privunit_blanket
from shuffle_plugins.mechanisms.sign_patterns import cap_parameters, spread_information

FACTORS = np.array([1.0, 1.02, 1.1, 1.3, 2.0])  # E


def largest_information(channel: Floats) -> float:
    rows = range(len(channel))
    return max(
        float(((channel[x] - channel[y]) ** 2 / channel[z]).sum())
        for x, y, z in itertools.product(rows, repeat=3)
    )


def profile(pair: SpreadPair, factors: Floats) -> Floats:
    buckets, left_out = pair.buckets()
    return _profile(pair, buckets, np.log(factors), smoothing=1e-2) + left_out


def lattice_sum(laws: list[tuple[int, int, int]]) -> tuple[Floats, Floats, float]:
    """Values and masses of a sum of (count, up, down): ``up`` or −``down``, of mean 0; their variance."""
    total, low, variance = np.ones(1), 0, 0.0
    for count, up, down in laws:
        one = np.zeros(up + down + 1)
        one[0], one[-1] = up / (up + down), down / (up + down)
        for _ in range(count):
            total = np.convolve(total, one)
        low -= count * down
        variance = max(variance, up * down)
    return np.arange(len(total)) + low, total, variance


@pytest.mark.parametrize(
    "laws", [[(400, 3, 1)], [(400, 1, 3)], [(150, 1, 1), (250, 3, 1)], [(60, 3, 1), (340, 2, 2)]]
)
def test_sums_of_bounded_terms_of_any_laws_are_below_the_bound(laws: list[tuple[int, int, int]]) -> None:
    values, masses, variance = lattice_sum(laws)
    count = sum(each for each, *_ in laws)
    shift = -np.linspace(0, 6, 13) * math.sqrt(count * variance)
    exact = np.maximum(shift[:, None] + values, 0) @ masses
    one = np.ones(len(shift))
    each = BoundedTerms(count=count, variance=variance * one, above=3 * one, below=3 * one)
    own = BoundedTerms(count=1, variance=1e-3 * one, above=3 * one, below=3 * one)
    bound = positive_part_bound(shift, each=each, own=own)
    assert np.all(exact <= bound)
    assert np.all(np.log(np.maximum(exact, 1e-300)) <= log_chernoff(shift, each=each, own=own))
    if laws == [(400, 3, 1)]:  # as much variance and skewness as there can be
        assert bound[0] <= 1.03 * exact[0]
        assert np.all(bound[:7] <= 1.6 * exact[:7])


@pytest.mark.parametrize(("population", "cohort"), [(2, 1), (3, 2), (3, 3), (4, 3)])
def test_rounds_of_few_clients_are_below_the_bound(population: int, cohort: int) -> None:
    rng = np.random.default_rng([population, cohort, 7])
    closest = 0.0
    for _ in range(8):
        channel = random_channel(
            rng, records=3, outputs=int(rng.integers(2, 4)), local_epsilon=rng.uniform(0.3, 3)
        )
        epsilon = level(channel)
        if epsilon < 1e-9:
            continue
        information = largest_information(channel)
        common = channel.min(axis=0).sum()
        bounds = (
            InformationBound.of_any(local_epsilon=epsilon, information=information),
            InformationBound.of_blanket(local_epsilon=epsilon, information=information, mass=common),
        )
        for known in bounds:
            pair = SpreadPair(
                local_epsilon=epsilon,
                population=population,
                slots=cohort,
                information_bound=known,
                participation=1.0,
            )
            bound = profile(pair, FACTORS)
            closest = max(closest, closest_round(channel, population, cohort, bound, factors=FACTORS))
    assert closest > 0.1


@pytest.mark.parametrize(("clients", "epsilon"), [(400, 0.5), (4000, 1.5)])
def test_counted_bits_are_below_the_bound_whatever_the_others_hold(clients: int, epsilon: float) -> None:
    """Binary response, exactly: another law than any that the bound is made of."""
    e = math.exp(epsilon)
    one, zero = e / (e + 1), 1 / (e + 1)
    told = InformationBound.of_blanket(local_epsilon=epsilon, information=(e - 1) ** 2 / e, mass=2 / (e + 1))
    pair = SpreadPair(
        local_epsilon=epsilon, population=clients, slots=clients, information_bound=told, participation=1.0
    )
    factors = np.exp(np.linspace(0, 4 * math.sqrt(pair.information), 9))
    bound = profile(pair, factors)
    worst = np.zeros(len(factors))
    counts = np.arange(clients + 1)
    for ones in (0, clients // 3, clients - 1):
        rest = np.convolve(
            stats.binom.pmf(np.arange(ones + 1), ones, one),
            stats.binom.pmf(np.arange(clients - ones), clients - 1 - ones, zero),
        )
        laws = [np.convolve(rest, [1 - p, p])[counts] for p in (one, zero)]
        for p, q in (laws, laws[::-1]):
            worst = np.maximum(worst, np.maximum(p - factors[:, None] * q, 0).sum(axis=1))
    assert np.all(worst <= bound)
    assert bound[0] <= 1.04 * worst[0]
    assert np.all(bound[:5] <= 1.4 * worst[:5])


@first_fast("signs", [1, 3, 2, 4], fast=2)
@first_fast("epsilon", [0.4, 4.0, 1.5], fast=2)
def test_patterns_of_uncertain_signs_tell_no_more(signs: int, epsilon: float) -> None:
    cap = cap_parameters(local_epsilon=epsilon, signs=signs)
    patterns = np.array(list(itertools.product((1, -1), repeat=signs)))
    agreements = (patterns[:, None, :] == patterns[None]).sum(axis=2)
    least = 1 / (2**signs + math.expm1(epsilon) * cap.patterns)
    sent = least * np.where(agreements >= cap.agreements, math.exp(epsilon), 1.0)

    def law(means: Floats) -> Floats:
        return np.prod((1 + patterns * means) / 2, axis=1) @ sent

    most = spread_information(local_epsilon=epsilon, signs=signs, mean_square=1.0)
    rng = np.random.default_rng(signs)
    closest = 0.0
    for _ in range(1500):
        x, y, z = (
            rng.choice([-1.0, 0.0, 0.4, 1.0], size=signs) * rng.choice([1.0, -1.0, 0.3]) for _ in "xyz"
        )
        if rng.random() < 0.4:
            y = -x
        square = (x @ x + y @ y) / (2 * signs)
        told = float(((law(x) - law(y)) ** 2 / law(z)).sum())
        assert told <= most * square + 1e-12
        closest = max(closest, told / (most * square) if square else 0)
    assert closest > (0.99 if signs == 1 else 0.6)


def reports_of(name: str, **options: float) -> Iterator[tuple[mechanisms.LocalRandomizer, Floats]]:
    """A mechanism, and the laws of its reports for vectors and columns of its frame."""
    built = mechanisms.get(name, **options)
    frame = built._frame
    generator = torch.Generator().manual_seed(5)
    rows = torch.cat(
        [
            torch.randn(12, built.dim, generator=generator, dtype=torch.float64),
            torch.eye(built.dim, dtype=torch.float64),
            frame.reconstruct(torch.eye(frame.size, dtype=torch.float64)),
        ]
    )
    rows = rows / rows.norm(dim=1, keepdim=True)
    every = built.outcomes()
    assert every is not None
    laws = torch.stack([built.log_likelihood(every, row).exp() for row in torch.cat([rows, -rows])])
    yield built, laws.numpy()


@pytest.mark.parametrize(
    ("name", "epsilon", "dim"),
    [
        pytest.param("sqkr", 0.5, 24, marks=pytest.mark.slow),
        ("sqkr", 1.5, 8),
        ("l2-block", 1.5, 24),
        ("l2-block", 4.0, 24),
        ("l2-bit-planes", 1.0, 60),
    ],
)
def test_mechanisms_tell_no_more_than_their_blankets_say(name: str, epsilon: float, dim: int) -> None:
    for built, laws in reports_of(name, dim=dim, local_epsilon=epsilon):
        told = built.blanket().information_bound
        assert told is not None
        assert np.allclose(laws.sum(axis=1), 1)
        half = len(laws) // 2
        for i in range(half):
            for other in (laws[half + i], laws[(i + 1) % half]):
                tells = ((laws[i] - other) ** 2 / laws[:: max(1, half // 8)]).sum(axis=1)
                assert tells.max() <= told.information
        assert np.all(told.common * (told.heaviest / told.common / math.exp(epsilon)) <= 1 + 1e-9)
        assert laws.min(axis=0).sum() >= told.common * (1 - 1e-9)


@pytest.mark.slow
def test_coefficients_of_a_column_of_the_frame_are_shortened_and_others_are_not() -> None:
    built = mechanisms.get("l2-block", dim=256, local_epsilon=2.0)
    frame = built._frame
    columns = frame.reconstruct(torch.eye(frame.size)[:20])
    found = frame.represent(columns)
    assert torch.all(found.norm(dim=1) <= frame.stretch * columns.norm(dim=1) * (1 + 1e-5))
    back = frame.reconstruct(found)
    assert float((back.norm(dim=1) / columns.norm(dim=1)).max()) < 0.9
    rows = torch.randn(50, 256, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(frame.reconstruct(frame.represent(rows)), rows, atol=1e-4)


def test_vectors_that_bound_rotated_signs_from_below_are_records() -> None:
    """Their information, from the mechanism's own likelihoods, is that of the instance."""
    built = mechanisms.get("l2-bit-planes", dim=500, local_epsilon=1.5)
    blanket = built.blanket()
    (atoms,) = blanket.instances
    claimed = sum(mass * (u - v) ** 2 for u, v, mass in atoms)
    every, frame = built.outcomes(), built._frame
    assert every is not None
    best = 0.0
    for power in range(8):
        ones = torch.zeros(frame.size, dtype=torch.float64)
        ones[: 1 << power] = 1
        flat = frame.represent(torch.eye(500, dtype=torch.float64))[:, 0].sign()  # the rotation's own signs
        row = ones[:500] * flat
        row = row / row.norm()
        x, y = (built.log_likelihood(every, sign * row).exp() for sign in (1, -1))
        best = max(best, float(((x - y) ** 2 / y).sum()))
    assert best == pytest.approx(claimed, rel=1e-3)
    assert blanket.information_bound is not None
    assert best <= blanket.information_bound.information <= 1.08 * best


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 4.0])
def test_caps_of_any_three_directions_tell_no_more(epsilon: float) -> None:
    """PrivUnit in three dimensions, on points spread evenly over the sphere."""
    parameters = optimal_privunit(local_epsilon=epsilon, dim=3)
    told = privunit_blanket(local_epsilon=epsilon, dim=3).information_bound
    assert told is not None
    count = 20_000
    height = 1 - (2 * np.arange(count) + 1) / count
    around = np.pi * (1 + math.sqrt(5)) * np.arange(count)
    points = np.stack([np.cos(around), np.sin(around), height / np.sqrt(1 - height**2)]) * np.sqrt(
        1 - height**2
    )

    def law(direction: Floats) -> Floats:
        weights = np.where(direction @ points >= parameters.thresholds[0], math.exp(epsilon), 1.0)
        return np.asarray(weights / weights.sum())

    rng = np.random.default_rng(4)
    best = 0.0
    for _ in range(250):
        x, y, z = (direction / np.linalg.norm(direction) for direction in rng.normal(size=(3, 3)))
        if rng.random() < 0.5:  # z opposite to the middle of the two, all in a plane
            z = -(x + y) / np.linalg.norm(x + y)
        first, second, other = law(x), law(y), law(z)
        best = max(best, float(((first - second) ** 2 / other).sum()))
    assert 0.9 * told.information <= best <= 1.005 * told.information


def test_a_round_takes_the_smaller_bound_and_says_what_it_is_of() -> None:
    built = mechanisms.get("sqkr", dim=1000, local_epsilon=0.5)
    told = built.round(population=10_000, cohort=10_000)
    plain = ShuffleRound(
        mechanism="sqkr", local_epsilon=0.5, population=10_000, cohort=10_000,
        blanket=mechanisms.get("linf-coordinate", dim=1000, local_epsilon=0.5).blanket(),
    )  # fmt: skip
    found = []
    for each in (told, plain, ShuffleRound.from_state(told.state())):
        accountant = ShuffleAccountant()
        accountant.step(each)
        found.append(accountant.epsilon(1e-6))
    assert found[0].lower < found[0].upper < 0.5 * found[1].upper
    assert found[2] == found[0]


@pytest.mark.parametrize("cohort", [20, 100])
def test_a_bound_that_leaves_more_out_does_no_harm_in_small_rounds(cohort: int) -> None:
    """Where few reports have anything in common, what one bound leaves out is not charged to the other."""
    blanket = mechanisms.blanket("laplace", local_epsilon=4.0, dim=2)
    ends = []
    for each in (blanket, replace(blanket, information_bound=None)):
        accountant = ShuffleAccountant()
        clients = ShuffleRound(
            population=cohort, cohort=cohort, local_epsilon=4.0, mechanism="laplace", blanket=each
        )
        accountant.step(clients, num_steps=1000)
        ends.append(accountant.epsilon(1e-6).upper)
    assert ends[0] <= ends[1] * 1.0001


def test_a_tilt_beyond_floats_is_bounded_too() -> None:
    """One term of 400 times the others' size: its moment is e^400 at the tilt, not e^300."""
    shift, variance = np.array([-1.0]), np.array([1e-4])
    rare = BoundedTerms(count=1, variance=variance, above=np.array([1e4]), below=np.array([1e-3]))
    many = BoundedTerms(count=100, variance=variance, above=np.array([0.1]), below=np.array([0.1]))
    bound = positive_part_bound(shift, each=many, own=rare)
    # 10^4 with a probability of 10^-12, otherwise next to nothing; the others matter little.
    assert float(bound[0]) >= 1e-12 * (1e4 - 1)
