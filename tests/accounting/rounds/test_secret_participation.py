"""Sums to which everybody adds noise and a secret few add data: exact laws, by enumeration and quadrature."""

import itertools
import math

import numpy as np
import pytest
from histories import accountant_of
from scipy.stats import binom, norm
from thinning import first_fast

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    SumRound,
    Tag,
    TaggedRound,
)
from shuffle_plugins.accounting.pairs.noise import gaussian_profile, participation_profile
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.protocols import BallSum, HistogramSum, ScalarSum, VectorSum

DELTA = 1e-6


def single(**changes):
    fields = {"sensitivity": 20.0, "attained": 20, "trials": 4 * 90**2, "dim": 3, "population": 500}
    return SumRound(**(fields | {"cohort": 500, "participation": 0.2, "norm": 10.0} | changes))


def cost(one, *, num_steps=1, delta=DELTA):
    accountant = accountant_of((one, num_steps))
    return accountant.epsilon(delta)


def stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


# -- sums on a lattice, everything enumerated ---------------------------------------------------------------


def seen(data, *, coins, share, reach):
    """The law of Σ b_i·x_i + coins, b_i the clients' own coins, on a box, by all that can take part."""
    dim = len(data[0])
    counts = np.arange(-reach, coins + reach + 1)
    found = np.zeros([len(counts)] * dim)
    for taking in itertools.product((0, 1), repeat=len(data)):
        weight = math.prod(share if b else 1 - share for b in taking)
        total = np.array(taking) @ np.array(data)
        law = np.ones(())
        for shift in total:
            law = np.multiply.outer(law, binom.pmf(counts - shift, coins, 0.5))
        found += weight * law
    return found


BALL = [x for x in itertools.product(range(-2, 3), repeat=2) if math.hypot(*x) <= 2]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_dataset_of_two_clients_costs_more_than_certified(share):
    coins = 100
    one = single(
        sensitivity=4.0,
        attained=4,
        trials=coins,
        dim=2,
        population=2,
        cohort=2,
        participation=share,
        norm=2.0,
    )
    accountant = accountant_of(one)
    bounds = {epsilon: accountant.delta(epsilon) for epsilon in (0.05, 0.2, 0.5, 1.0)}
    worst = dict.fromkeys(bounds, 0.0)
    for other in [(0, 0), (2, 0), (1, -1)]:
        laws = {x: seen([x, other], coins=coins, share=share, reach=4) for x in BALL}
        for x, changed in itertools.permutations(BALL, 2):
            for epsilon in bounds:
                worst[epsilon] = max(worst[epsilon], stick(laws[x], laws[changed], epsilon))
    for epsilon, bound in bounds.items():
        assert bound.lower * (1 - 1e-9) <= worst[epsilon] <= bound.upper
    assert bounds[0.05].upper < 1.3 * worst[0.05]  # of which the cover of so few coins takes most


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_categories_and_numbers_are_covered_too(share):
    """One-hot vectors are √2 apart but 1 from zero; numbers have zero at their end."""
    coins = 100
    histogram = HistogramSum(cohort=2, categories=3, levels=3, coins=50)
    numbers = ScalarSum(cohort=2, levels=3, coins=50)
    cases = [(histogram, [(3, 0, 0), (0, 3, 0), (0, 0, 3)]), (numbers, [(0,), (1,), (2,), (3,)])]
    for protocol, data in cases:
        accountant = accountant_of(protocol.round(participation=share))
        for other in (data[0], data[-1]):
            laws = [seen([x, other], coins=coins, share=share, reach=6) for x in data]
            for p, q in itertools.permutations(laws, 2):
                for epsilon in (0.1, 0.4, 1.0):
                    assert stick(p, q, epsilon) <= accountant.delta(epsilon).upper
        real = max(
            stick(p, q, 0.1)
            for p, q in itertools.permutations(
                [seen([x, 0 * np.array(x)], coins=coins, share=share, reach=6) for x in data], 2
            )
        )
        assert accountant.delta(0.1).lower * (1 - 1e-9) <= real


# -- the Gaussian pair, by quadrature -----------------------------------------------------------------------


@first_fast(("mu", "share"), [(1.0, 0.1), (1.0, 0.6), (3.0, 0.3)])
def test_opposite_records_are_the_worst_in_a_disc(mu, share):
    """All pairs of a disc, its centre among them, by a sum over a fine grid of the plane."""
    grid = np.linspace(-7, 7, 301)
    a, b = np.meshgrid(grid, grid, indexing="ij")

    def density(x):
        both = share * norm.pdf(a - x[0]) * norm.pdf(b - x[1])
        return (both + (1 - share) * norm.pdf(a) * norm.pdf(b)) * (grid[1] - grid[0]) ** 2

    records = [
        (r * math.cos(w), r * math.sin(w)) for r in (mu / 2, mu / 4, 0) for w in np.arange(8) * math.pi / 4
    ]
    laws = [density(x) for x in records]
    losses, deltas = participation_profile(mu=mu, centre=mu / 2, participation=share, cells=32)
    for at in range(0, len(losses) // 3, len(losses) // 12):
        found = max(stick(p, q, losses[at]) for p, q in itertools.permutations(laws, 2))
        assert found <= deltas[at] * (1 + 2e-3)  # what the grid leaves open
        attained = stick(laws[4], laws[0], losses[at])
        assert attained == pytest.approx(deltas[at], rel=2e-3)


@pytest.mark.parametrize("centre", [0.5, 0.7, 1.0])
def test_with_everybody_taking_part_it_is_the_gaussian_mechanism(centre):
    losses, deltas = participation_profile(mu=0.4, centre=centre * 0.4, participation=1.0, cells=32)
    np.testing.assert_allclose(deltas, gaussian_profile(losses, mu=0.4), rtol=1e-8)


def test_zero_at_a_record_is_a_sample_of_the_gaussian_mechanism():
    """With x' = 0 it is γ·δ(1 + (E − 1)/γ), the bound without replacement."""
    losses, deltas = participation_profile(mu=0.4, centre=0.4, participation=0.1, cells=32)
    whole = gaussian_profile(np.log1p(np.expm1(losses) / 0.1), mu=0.4)
    np.testing.assert_allclose(deltas, 0.1 * whole, rtol=1e-8)


def test_drawing_and_secret_participation_multiply():
    """Who answers is drawn as well, which an observer of the model does not see."""
    both = single(cohort=250, sampling="without-replacement", participation=0.2)
    rare = cost(single(participation=0.1), num_steps=10)
    assert cost(both, num_steps=10).upper == pytest.approx(rare.upper, rel=0.15)
    assert cost(both, num_steps=10).lower == pytest.approx(rare.lower, rel=1e-3)
    assert cost(both, num_steps=10).upper >= rare.lower
    server = single(cohort=250, sampling="without-replacement", adversary=Adversary.SERVER)
    assert cost(server).upper == pytest.approx(cost(single()).upper, rel=1e-9)


# -- tagged messages ----------------------------------------------------------------------------------------


def test_secret_participation_in_tagged_rounds_by_enumeration():
    """Two tags, three clients: data −1, 0 or 1 under each tag, every dataset of the others."""
    epsilon0, share = 1.2, 0.4
    gain = math.tanh(epsilon0 / 2)
    one = TaggedRound(
        tags=(Tag(local_epsilon=epsilon0, count=2, places=False),),
        population=3,
        cohort=3,
        participation=share,
        opposite=True,
    )
    accountant = accountant_of(one)

    def bits(values):
        law = np.ones(1)
        for value in values:
            law = np.convolve(law, [(1 - gain * value) / 2, (1 + gain * value) / 2])
        return law

    def view(data):
        found = np.zeros((4, 4))
        for taking in itertools.product((0, 1), repeat=3):
            weight = math.prod(share if b else 1 - share for b in taking)
            held = [x if b else (0, 0) for b, x in zip(taking, data, strict=True)]
            found += weight * np.multiply.outer(bits([x[0] for x in held]), bits([x[1] for x in held]))
        return found

    records = list(itertools.product((-1, 0, 1), repeat=2))
    worst = dict.fromkeys((0.1, 0.4, 0.8, 1.5), 0.0)
    for others in itertools.product(records, repeat=2):
        laws = [view([x, *others]) for x in records]
        for p, q in itertools.permutations(laws, 2):
            for epsilon in worst:
                worst[epsilon] = max(worst[epsilon], stick(p, q, epsilon))
    for epsilon, found in worst.items():
        assert found <= accountant.delta(epsilon).upper * (1 + 1e-12)
    assert cost(one).lower == 0
    assert one.opened().participation is None


# -- federated rounds ---------------------------------------------------------------------------------------


def test_before_a_server_that_sees_the_sum_alone_a_round_costs_what_it_costs_an_observer():
    protocol = VectorSum.with_noise(dim=20, cohort=40, noise_multiplier=6.0, overhead=0.3)
    names = [str(client) for client in range(40)]
    costs = {}
    for hides in (True, False):
        one = FederatedRound.secret_sum(protocol, answered=40, rate=0.1, hides_shares=hides)
        assert one.is_secret == hides
        assert FederatedRound.from_state(one.state()) == one
        accountant = FederatedAccountant()
        for _ in range(6):
            accountant.step(one, participants=names)
        restored = FederatedAccountant()
        restored.load_state_dict(accountant.state_dict())
        costs[hides] = found = accountant.spending(DELTA)
        assert restored.spending(DELTA) == found
        secret = cost(protocol.round(participation=0.1), num_steps=6)
        assert found.observer.upper == pytest.approx(secret.upper, rel=1e-9)
    opened = cost(protocol.round(), num_steps=6)
    assert costs[True].server.upper == costs[True].observer.upper
    assert costs[False].server.upper == pytest.approx(opened.upper, rel=1e-9)
    assert costs[False].server.upper > 5 * costs[True].server.upper
    kinds = {
        FederatedRound.secret_sum(protocol, answered=40, rate=r, hides_shares=h).kind
        for r in (0.1, 0.2)
        for h in (True, False)
    }
    assert len(kinds) == 4


def test_a_client_pays_for_the_rounds_in_which_it_answered():
    protocol = VectorSum.with_noise(dim=20, cohort=40, noise_multiplier=6.0, overhead=0.3)
    one = FederatedRound.secret_sum(protocol, answered=40, rate=0.1)
    accountant = FederatedAccountant()
    for start in (0, 40, 80):
        accountant.step(one, participants=[str(client) for client in range(start, start + 40)])
    found = accountant.spending(DELTA)
    assert found.worst_client_rounds == 1
    once = cost(protocol.round(participation=0.1))
    assert found.server.upper == pytest.approx(once.upper, rel=1e-9)
    assert found.observer.upper == found.server.upper  # who sees less than the server is charged no more


def test_a_sum_of_which_nothing_is_known_is_refused():
    reports = registry.get("linf-block", local_epsilon=1.0, dim=20)
    with pytest.raises(ValueError, match="no accounting for clients that take part in secret"):
        FederatedRound.secret_sum(reports, answered=40, rate=0.5)
    ball = BallSum.with_noise(dim=4, cohort=40, noise_multiplier=6.0)
    assert FederatedRound.secret_sum(ball, answered=40, rate=0.5).observer.participation == 0.5
