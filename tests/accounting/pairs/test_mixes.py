"""The pair of others of three types, against enumeration: exact rounds, mixes of types, sums of draws."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from brute_force import hockey_stick, k_ary_response, mixed_bound, shuffled_law

from shuffle_plugins.accounting import EpsilonInterval, Round, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.numerics.sums import Floats, MixedSums, expected_positive_part
from shuffle_plugins.accounting.pairs import others
from shuffle_plugins.accounting.pairs.others import MixPair, others_losses
from shuffle_plugins.accounting.pairs.reports import RecordTypes
from shuffle_plugins.mechanisms import registry

FACTORS = np.array([1.0, 1.05, 1.3, 2.0, 3.5])  # E


def epsilon_of(shuffle_round: ShuffleRound, steps: int = 1) -> EpsilonInterval:
    accountant = ShuffleAccountant()
    accountant.step(shuffle_round, num_steps=steps)
    return accountant.epsilon(1e-6)


def random_channel(rng: np.random.Generator, *, records: int, outputs: int, local_epsilon: float) -> Floats:
    """An ε0-LDP channel, most of them with two likelihoods to each output."""
    likely = rng.random((records, outputs)) < 0.5 if rng.random() < 0.7 else rng.random((records, outputs))
    channel = rng.dirichlet(np.ones(outputs)) * np.exp(local_epsilon * likely)
    channel /= channel.sum(axis=1, keepdims=True)
    return np.asarray(channel)


def level(channel: Floats) -> float:
    return float(np.log(channel.max(axis=0) / channel.min(axis=0)).max())


def exact_round(channel: Floats, own: int, others: tuple[int, ...], cohort: int) -> Floats:
    """The law of the list of reports of a uniform ordered sample of clients."""
    rows = [channel[own], *(channel[z] for z in others)]
    total = np.zeros(channel.shape[1] ** cohort)
    orders = list(itertools.permutations(range(len(rows)), cohort))
    for order in orders:
        law = np.ones(1)
        for client in order:
            law = np.outer(law, rows[client]).ravel()
        total += law
    return total / len(orders)


def generic_pair(local_epsilon: float, population: int, slots: int, participation: float = 1.0) -> MixPair:
    return MixPair(
        local_epsilon=local_epsilon,
        others=RecordTypes.generic(local_epsilon).thinned(participation),
        population=population,
        slots=slots,
    )


def closest_round(channel: Floats, population: int, cohort: int, bound: Floats, *, factors: Floats) -> float:
    """The largest share of the first bound that any dataset reaches; none passes any bound."""
    closest = 0.0
    for held in itertools.combinations_with_replacement(range(3), population - 1):
        p, q = (exact_round(channel, own, held, cohort) for own in (0, 1))
        for first, second in ((p, q), (q, p)):
            exact = np.maximum(first - factors[:, None] * second, 0.0).sum(axis=1)
            assert np.all(exact <= bound + 1e-12)
            closest = max(closest, float(exact[0] / bound[0]))
    return closest


@pytest.mark.parametrize(("population", "cohort"), [(2, 1), (3, 2), (3, 3), (4, 3)])
def test_rounds_of_few_clients_are_below_the_worst_mix(population: int, cohort: int) -> None:
    rng = np.random.default_rng([population, cohort])
    closest = 0.0
    for _ in range(8):
        channel = random_channel(
            rng, records=3, outputs=int(rng.integers(2, 4)), local_epsilon=rng.uniform(0.3, 3)
        )
        if level(channel) < 1e-9:  # all records alike
            continue
        pair = generic_pair(level(channel), population, cohort)
        bound = mixed_bound(pair, FACTORS)
        closest = max(closest, closest_round(channel, population, cohort, bound, factors=FACTORS))
        buckets, left_out = pair.buckets()
        computed = others._profile(pair, buckets, np.log(FACTORS), smoothing=1e-3)
        inside = pair.largest_ratio > FACTORS
        assert np.all(bound[inside] <= computed[inside] + left_out)
    assert 0.2 < closest <= 1  # the bound says something even here


@pytest.mark.parametrize(("population", "rate"), [(2, 0.3), (4, 0.5)])
def test_random_cohorts_may_be_everybody(population: int, rate: float) -> None:
    """The number of reports is public, so losses go on beyond those of a cohort of the mean size."""
    local_epsilon = 2.0
    pair = generic_pair(local_epsilon, population, population, rate)
    _, p, q, missing = others_losses(pair, tolerance=6e-3)
    mean_size = math.log1p(rate * math.expm1(local_epsilon))
    for channel in (k_ary_response(local_epsilon, 2), k_ary_response(local_epsilon, 3)):
        others = (len(channel) - 1,) * (population - 1)
        first, second = (shuffled_law(channel, (own, *others), rate=rate) for own in (0, 1))
        for epsilon in (0.0, mean_size, (mean_size + local_epsilon) / 2, 0.95 * local_epsilon):
            exact = hockey_stick(first, second, epsilon)
            assert exact > 1e-6
            assert exact <= np.maximum(p - math.exp(epsilon) * q, 0.0).sum() + missing


def test_sums_of_every_mix_are_below_the_bound() -> None:
    """All mixes of twelve draws, by enumeration of their counts; and one type of many draws, a second way."""
    rng = np.random.default_rng(3)
    types = []
    for atoms in (2, 2, 3):
        values, masses = rng.normal(size=(2, atoms)), rng.dirichlet(np.ones(atoms))
        types.append((values - (values @ masses)[:, None], masses))
    own = (np.array([[1.0, -1.0], [2.0, -2.0]]), np.array([0.5, 0.5]))
    shift = np.array([-1.0, -8.0])
    drawn = [(values, 0.7 * masses) for values, masses in types]
    found = MixedSums(shift=shift, types=drawn, trials=12, further=[(own, 1)]).largest(1e-3)
    for row in range(2):
        worst = 0.0
        for mix in itertools.product(range(13), repeat=3):
            if sum(mix) != 12:
                continue
            value, mass = shift[row] + own[0][row], own[1]
            for (values, masses), count in zip(types, mix, strict=True):
                counts = [
                    c for c in itertools.product(range(count + 1), repeat=len(masses)) if sum(c) <= count
                ]
                grid = np.array(counts, dtype=np.float64)
                rest = count - grid.sum(axis=1)
                ways = np.array(
                    [
                        math.factorial(count) / math.prod(map(math.factorial, [*c, count - sum(c)]))
                        for c in counts
                    ]
                )
                weight = ways * np.prod((0.7 * masses) ** grid, axis=1) * 0.3**rest
                value = (value[:, None] + grid @ values[row]).ravel()
                mass = np.outer(mass, weight).ravel()
            assert mass.sum() == pytest.approx(1)
            worst = max(worst, float(mass @ np.maximum(value, 0.0)))
        assert worst <= found[row] < (1.1, 5)[row] * worst


@pytest.mark.parametrize("trials", [0, 1, 4])
def test_sums_of_few_draws_are_below_the_bound_in_every_order(trials: int) -> None:
    rng = np.random.default_rng(trials)
    types = []
    for atoms in (2, 3):
        values, masses = rng.normal(size=(3, atoms)), rng.dirichlet(np.ones(atoms))
        types.append((values - (values @ masses)[:, None], masses))
    own = (np.array([[3.0, -1.0]] * 3), np.array([0.25, 0.75]))
    shift = np.array([0.2, -1.0, -3.5])
    sums = MixedSums(
        shift=shift,
        types=[(values, 0.7 * masses) for values, masses in types],
        further=[((own[0], 0.4 * own[1]), 1)],
        trials=trials,
    )
    worst = np.zeros(3)
    for mix in itertools.product(range(2), repeat=trials):
        value, mass = np.column_stack([shift, shift[:, None] + own[0]]), np.array([0.6, 0.1, 0.3])
        for drawn in (types[i] for i in mix):
            further = np.column_stack([np.zeros(3), drawn[0]])
            value = (value[:, :, None] + further[:, None, :]).reshape(3, -1)
            mass = np.outer(mass, [0.3, *0.7 * drawn[1]]).ravel()
        worst = np.maximum(worst, np.maximum(value, 0.0) @ mass)
    assert np.all(sums.largest(1e-3) >= worst)


def test_three_equal_types_are_one() -> None:
    values, masses = np.array([[2.0, -1.0]] * 3), np.array([1 / 6, 1 / 3])
    shift = np.array([0.0, -100.0, -600.0])
    found = MixedSums(shift=shift, types=[(values, masses)] * 3, trials=10_000).largest(1e-5)
    direct = expected_positive_part(values=values, masses=masses, trials=10_000, shift=shift, share=1e-5)
    np.testing.assert_allclose(found, direct, rtol=1e-3)


@pytest.mark.parametrize("local_epsilon", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("population", [2, 1000, 10**9])
def test_buckets_of_shares_hold_the_whole_law(population: int, local_epsilon: float) -> None:
    pair = generic_pair(local_epsilon, population, 1)
    buckets, left_out = pair.buckets()
    assert math.fsum(each.mass for each in buckets) + left_out == pytest.approx(1, abs=1e-10)
    assert left_out < (1e-30 if population > 1000 else 0.01)
    kept, own = [pair.kept(each) for each in buckets], [pair.own_weight(each) for each in buckets]
    assert kept == sorted(kept, reverse=True)
    assert 0 < kept[-1] <= kept[0] <= 1
    assert own == sorted(own)


@pytest.mark.parametrize("local_epsilon", [0.3, 1.5])
def test_lower_and_upper_bounds_of_a_generic_round_meet(local_epsilon: float) -> None:
    generic = ShuffleRound(local_epsilon=local_epsilon, population=60_000, cohort=10_000, channel_fixed=True)
    found = epsilon_of(generic, 100)
    assert found.lower <= found.upper < found.lower * 1.006


def test_the_pair_of_mixes_is_symmetric_and_whole() -> None:
    _, p, q, missing = others_losses(generic_pair(1.0, 500, 200), tolerance=6e-3)
    np.testing.assert_allclose(np.sort(p), np.sort(q), atol=1e-15)
    assert p.sum() + missing == pytest.approx(1)


def test_more_clients_cost_less_and_more_reports_cost_more() -> None:
    losses = np.linspace(0.0, 0.01, 21)

    def bound(population: int, slots: int, local_epsilon: float) -> Floats:
        pair = generic_pair(local_epsilon, population, slots)
        return others._profile(pair, pair.buckets()[0], losses, smoothing=1e-4)

    middle = bound(20_000, 4_000, 1.0)
    assert np.all(bound(30_000, 4_000, 1.0) < middle)
    assert np.all(middle < bound(20_000, 5_000, 1.0))
    assert np.all(middle < bound(20_000, 4_000, 1.1))


@pytest.mark.parametrize(
    ("mechanism", "dim"),
    [
        ("generic", 1),
        ("binary-rr", 1),
        ("linf-coordinate", 4),
        ("rappor", 9),
        ("l2-block", 8),
        ("gaussian", 2),
    ],
)
def test_channels_that_follow_reports_keep_the_blanket(mechanism: str, dim: int) -> None:
    """Types, information and counts are proved for one channel that all share, fixed before the round."""
    everybody = {"population": 1000, "cohort": 1000}
    following = ShuffleRound(local_epsilon=1.0, **everybody)
    shared = replace(following, channel_fixed=True)
    if mechanism != "generic":
        options = {"local_delta": 1e-12} if mechanism == "gaussian" else {}
        built = registry.get(mechanism, local_epsilon=1.0, dim=dim, **options)
        shared = built.round(**everybody, sampling="full")
        following = replace(shared, channel_fixed=False)
    epoch = replace(shared, sampling="epoch")
    assert following.comparable != shared.comparable
    assert Round.from_state(following.state()) == following
    assert epsilon_of(shared).upper < 0.98 * epsilon_of(following).upper
    assert epsilon_of(following).upper == epsilon_of(epoch).upper


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 2), (4, 0, 1)])
def test_sums_of_every_mix_of_several_groups_are_below_the_bound(sizes: tuple[int, ...]) -> None:
    """Every group has two types of its own; all numbers of draws of the first one, in each."""
    rng = np.random.default_rng(len(sizes))
    shift = np.array([0.3, -1.0, -3.0])
    groups = []
    for size in sizes:
        types = []
        for atoms in (2, 3):
            values, masses = rng.normal(size=(3, atoms)), rng.dirichlet(np.ones(atoms))
            types.append((values - (values @ masses)[:, None], masses))
        groups.append(((types[0], types[1]), size))
    (first, trials), *more = groups
    worst = np.zeros(3)
    for mix in itertools.product(*(range(size + 1) for size in sizes)):
        value, mass = shift[:, None], np.ones(1)
        for (types, size), of_first in zip(groups, mix, strict=True):
            for values, masses in [types[0]] * of_first + [types[1]] * (size - of_first):
                value = (value[:, :, None] + values[:, None, :]).reshape(3, -1)
                mass = np.outer(mass, masses).ravel()
        worst = np.maximum(worst, np.maximum(value, 0.0) @ mass)
    found = MixedSums(shift=shift, types=list(first), trials=trials, groups=more).largest(1e-3)
    assert np.all(worst <= found)
