"""Counts of random bits: the Gaussian that covers them, against exact laws of small crowds."""

import itertools
import math

import numpy as np
import pytest
from histories import accountant_of
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import PoissonBinomialRound, Sampling
from shuffle_plugins.accounting.losses import COARSE, FINE
from shuffle_plugins.accounting.pairs.bits import leaning_instance
from shuffle_plugins.accounting.pairs.noise import CUT_TAIL, _fewest_coins, gaussian_profile, score_cover

DELTA = 1e-6


def counted(chances):
    """The law of a sum of independent bits."""
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return law


def single(**changes):
    fields = {"dim": 64, "bits": 3, "flip": 0.45, "distance": 9.0, "population": 2000, "cohort": 2000}
    return PoissonBinomialRound(**(fields | changes))


def cost(one, *, num_steps=1):
    accountant = accountant_of((one, num_steps))
    return accountant.epsilon(DELTA)


def crowds(size, flip, rng):
    """Chances of the others' bits: all alike, of two kinds, and anything between."""
    yield np.full(size, flip)
    yield np.full(size, 1 - flip)
    for ones in rng.integers(0, size + 1, 4):
        yield np.where(np.arange(size) < ones, 1 - flip, flip)
    for _ in range(4):
        yield flip + (1 - 2 * flip) * rng.random(size)


@pytest.mark.parametrize("epsilon0", [0.1, 0.4, 0.9])
@pytest.mark.parametrize(("crowd", "own"), [(4, 1), (6, 2), (40, 3), (150, 1)])
def test_one_count_moves_no_more_than_the_gaussian(epsilon0, crowd, own):
    """Every kink of the exact profile, for records anywhere in [−1, 1] and crowds of any makeup."""
    rng = np.random.default_rng(crowd)
    flip = 1 / (math.exp(epsilon0) + 1)
    gain = 1 - 2 * flip
    cover = score_cover(crowd=crowd, own=own, flip=flip)
    moves = [(-1, 1), (1, -1), (-1, -0.9), (1, 0.8), *rng.uniform(-1, 1, (3, 2))]
    for others in crowds(crowd, flip, rng):
        law = counted(others)
        for v, changed in moves:
            p, q = (np.convolve(law, counted([(1 + gain * x) / 2] * own)) for x in (v, changed))
            kinks = np.log(p / q)
            kinks = np.append(kinks[kinks >= 0], 0.0)
            allowed = gaussian_profile(kinks, mu=cover.shift * own * abs(v - changed))
            for kink, bound in zip(kinks, allowed, strict=True):
                found = np.maximum(p - math.exp(kink) * q, 0).sum()
                assert found <= bound * (1 + 1e-9) + 1e-15


def test_the_cover_is_nearly_the_fisher_information_of_a_large_crowd():
    """c² is at least τ²/(4·N·q(1 − q)), and little above it where bits are quiet."""
    for epsilon0, crowd, most in [(0.02, 10_000, 1.03), (0.25, 10_000, 1.1), (0.7, 100_000, 1.1)]:
        flip = 1 / (math.exp(epsilon0) + 1)
        least = (1 - 2 * flip) / (2 * math.sqrt(crowd * flip * (1 - flip)))
        assert 1 < (score_cover(crowd=crowd, own=3, flip=flip).shift / least) ** 2 < most


@pytest.mark.parametrize(("crowd", "flip"), [(400, 0.45), (20_000, 0.1), (10**6, 0.001), (10**9, 0.3)])
def test_fewer_fair_coins_are_tossed_as_rarely_as_is_charged(crowd, flip):
    coins = _fewest_coins(crowd, flip)
    assert coins > 0
    assert stats.binom.logcdf(coins - 1, crowd, 2 * flip) < -CUT_TAIL


def test_no_dataset_of_three_clients_costs_more_than_certified():
    """Two coordinates, two bits each, all data of a grid within the ball: views are enumerated."""
    flip = 0.42
    gain = 1 - 2 * flip
    grid = [v for v in itertools.product((-1, -0.5, 0, 0.5, 1), repeat=2) if math.hypot(*v) <= 1]
    one = PoissonBinomialRound(dim=2, bits=2, flip=flip, distance=2.0, population=3, cohort=3)
    accountant = accountant_of(one)
    bounds = {epsilon: accountant.delta(epsilon).upper for epsilon in (0.05, 0.2, 0.5, 1.0)}

    def view(data):
        laws = [counted([(1 + gain * x[j]) / 2 for x in data for _ in range(2)]) for j in (0, 1)]
        return np.multiply.outer(*laws)

    worst = dict.fromkeys(bounds, 0.0)
    for others in itertools.combinations_with_replacement(grid, 2):
        laws = [view([x, *others]) for x in grid]
        for p, q in itertools.permutations(laws, 2):
            for epsilon in bounds:
                worst[epsilon] = max(worst[epsilon], float(np.maximum(p - math.exp(epsilon) * q, 0).sum()))
    for epsilon, found in worst.items():
        assert found <= bounds[epsilon]
    assert worst[0.05] > 0.4 * bounds[0.05]


def test_a_vector_costs_what_its_length_does():
    """In the same ball many coordinates cost no more than few; the ball's radius counts."""
    costs = [cost(single(dim=dim)).upper for dim in (4, 64, 1024)]
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-6)
    assert cost(single(distance=4.5)).upper < 0.55 * costs[0]
    assert single(distance=0.5).noise_multiplier == pytest.approx(18 * single().noise_multiplier)


def instance(*, distance=2.0, flip=0.3, bits=2, population=3, cohort=3, participation=None, **changes):
    return PoissonBinomialRound(
        dim=3,
        bits=bits,
        flip=flip,
        distance=distance,
        population=population,
        cohort=cohort,
        participation=participation,
        sampling="full" if population == cohort else "without-replacement",
        attained=((0.8, 1), (0.4, 1)),
        **changes,
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"bits": 1}, {"population": 5}, {"participation": 0.3}, {"honest": 2}, {"flip": 0.45, "bits": 4}],
)
def test_the_lower_end_is_a_real_dataset_enumerated(changes):
    """Everybody else −v, or 0 with secret participation; values (0.8, −0.4, 0): signs do not matter."""
    one = instance(**changes)
    gain, v = 1 - 2 * one.flip, np.array([0.8, -0.4, 0.0])
    honest = one.cohort if one.honest is None else one.honest

    def view(mine, others):
        laws = [
            counted(
                [(1 + gain * x) / 2 for x in [mine[j]] * one.bits + [others[j]] * one.bits * (honest - 1)]
            )
            for j in range(3)
        ]
        return np.multiply.outer(np.multiply.outer(laws[0], laws[1]), laws[2])

    rest = -v if one.participation is None else 0 * v
    rate = one.sampling_rate * (one.participation or 1.0)
    q = view(rest, rest)
    p = rate * view(v, rest) + (1 - rate) * q
    accountant = accountant_of(one)
    for epsilon in (0.0, 0.02, 0.1, 0.3):
        exact = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))
        found = accountant.delta(epsilon)
        assert exact * (1 - 1e-3) - 1e-12 <= found.lower <= exact * (1 + 1e-9)
        assert found.lower <= found.upper
        assert found.lower_bound.startswith("opposite vectors instance") or found.lower == 0


@pytest.mark.parametrize("opposite", [True, False])
def test_many_bits_of_one_client_are_listed_as_far_as_they_reach(opposite):
    """So many that not all counts are listed, and that a client's two laws reach differently far."""
    bias, others, own = 0.06, 900, 500
    rest = 0.5 - bias if opposite else 0.5
    crowd = stats.binom.pmf(np.arange(others + 1), others, rest)
    p, q = (
        np.convolve(crowd, stats.binom.pmf(np.arange(own + 1), own, chance)) for chance in (0.5 + bias, rest)
    )
    found = leaning_instance(bias=bias, others=others, own=own, opposite=opposite, resolution=FINE)
    mean = float((p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300))).sum())
    for epsilon in (0.0, 0.5 * mean, mean, 1.2 * mean):
        exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        delta = np.maximum(found.p - math.exp(epsilon) * found.q, 0).sum()
        assert exact * (1 - 2e-2) <= delta <= exact * (1 + 1e-9)


@first_fast("flip", [0.45, 0.2, 0.499])
def test_both_ends_over_a_grid(flip):
    for bits, cohort, rate, num_steps in itertools.product((1, 31), (300, 40_000), (1.0, 0.05), (1, 40)):
        people = round(cohort / rate)
        one = single(
            flip=flip,
            bits=bits,
            cohort=cohort,
            population=people,
            sampling="full" if rate == 1 else "without-replacement",
            attained=((0.5, 60),),
            distance=8.0,
        )
        found = cost(one, num_steps=num_steps)
        assert 0 <= found.lower <= found.upper
        if flip >= 0.45 and cohort == 40_000:  # loud bits of few clients are covered loosely
            assert found.lower > 0.75 * found.upper


@pytest.mark.filterwarnings("error")
def test_losses_of_certain_outcomes_stay_finite():
    """Losses below -37 were rounded to -inf where everybody takes part, and cast to whole numbers."""
    one = PoissonBinomialRound(
        population=5,
        cohort=5,
        dim=1,
        bits=512,
        flip=0.25,
        distance=2.0,
        attained=((1.0, 1),),
        sampling=Sampling.FULL,
    )
    found = one.lower_losses(one.lower_families[0], FINE)
    assert np.isfinite(found.loss).all()
    assert found.loss.min() < -40


def test_dishonest_clients_are_not_counted():
    few = single(population=1000, cohort=1000)
    assert single(honest=1000).noise_multiplier == few.noise_multiplier
    assert single().noise_multiplier > few.noise_multiplier


MANY = PoissonBinomialRound(
    population=50, cohort=50, dim=60_000, bits=1, flip=0.499, distance=250.0, attained=((0.5, 60_000),)
)


@pytest.mark.parametrize("resolution", [COARSE, FINE])
def test_an_instance_of_many_coordinates_is_a_bound_in_both_directions(resolution):
    """What rounding takes off one coordinate's law comes to a few per cent of the mass of sixty thousand."""
    [family] = MANY.lower_families
    for law in (MANY.lower_losses(family, resolution), MANY.lower_losses(family, resolution, exchanged=True)):
        assert 0.99 < law.p.sum() <= 1
        assert law.q.sum() <= 1
        assert law.p * np.exp(-law.loss) == pytest.approx(law.q, rel=1e-9)
    exact = 60_000 * binary_kl(0.5 * 0.002 / 2, crowd=49)
    forwards = MANY.lower_losses(family, FINE)
    assert 0.99 * exact < (forwards.p * forwards.loss).sum() <= exact * (1 + 1e-9)


def binary_kl(bias: float, *, crowd: int) -> float:
    """Divergence of the counts of one bit with this bias, or the opposite, among others with the opposite."""
    others = np.array(
        [math.comb(crowd, k) * (0.5 - bias) ** k * (0.5 + bias) ** (crowd - k) for k in range(50)]
    )
    one, two = (np.convolve(others, [0.5 - b, 0.5 + b]) for b in (bias, -bias))
    return float((one * np.log(one / two)).sum())


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_ends_of_many_coordinates_do_not_cross_over_rounds(delta):
    accountant = accountant_of((MANY, 20))
    found = accountant.epsilon(delta)
    assert 0.85 * found.upper < found.lower < found.upper


def test_bits_that_too_few_others_join_hide_nobody():
    with pytest.raises(ValueError, match="that no others join"):
        score_cover(crowd=0, own=1, flip=0.1)
    assert score_cover(crowd=1, own=5, flip=0.1).shift > 1
    with pytest.raises(ValueError, match="1 bits of other clients"):
        score_cover(crowd=1, own=100, flip=1e-6)
