"""The clone pair against enumeration, fifty digits, other implementations' values and real shuffles."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from brute_force import extreme_channel, hockey_stick, neighbours, shuffled_law
from scipy import special, stats
from thinning import first_fast

from shuffle_plugins.accounting.published.shuffles import ClonePair, binary_pair, clone_pair

TABLE = [  # ε0, n, δ, ε of the 2021 pair, ε of the binary pair
    (0.5, 10**4, 1e-6, 0.0204015, 0.0181174),
    (1.0, 10**4, 1e-6, 0.0530054, 0.0432062),
    (2.0, 10**4, 1e-6, 0.1550453, 0.1143997),
    (4.0, 10**4, 1e-6, 0.6009091, 0.4108125),
    (1.0, 10**6, 1e-8, 0.0061255, 0.0050116),
    (2.0, 10**6, 1e-8, 0.0175589, 0.0130369),
    (4.0, 10**6, 1e-8, 0.0641969, 0.0450730),
    (2.0, 10**9, 1e-11, 0.0006459, 0.0004814),
    (4.0, 10**9, 1e-11, 0.0023255, 0.0016396),
]


def exact_law(pair: ClonePair) -> list[tuple[Fraction, Fraction]]:
    """P and Q masses of the pair straight from its definition, in exact arithmetic."""
    n = pair.cohort
    p = Fraction(pair.blanket.mass)
    e = Fraction(math.exp(pair.blanket.local_epsilon))
    true = e / (1 + e)
    outcomes = []
    for c in range(n):
        weight = math.comb(n - 1, c) * p**c * (1 - p) ** (n - 1 - c)
        for a in range(c + 2):
            fewer = Fraction(math.comb(c, a - 1), 2**c) if a else Fraction(0)
            same = Fraction(math.comb(c, a), 2**c)
            outcomes.append(
                (weight * (true * fewer + (1 - true) * same), weight * ((1 - true) * fewer + true * same))
            )
    return outcomes


@pytest.mark.parametrize("build", [clone_pair, binary_pair])
@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("local_epsilon", [0.3, 2.0])
def test_delta_is_the_pairs_own(build: Callable[..., ClonePair], n: int, local_epsilon: float) -> None:
    pair = build(local_epsilon=local_epsilon, cohort=n)
    law = exact_law(pair)
    for epsilon in np.linspace(0, 0.9 * local_epsilon, 6):
        factor = Fraction(math.exp(epsilon))
        exact = float(sum(max(x - factor * y, Fraction(0)) for x, y in law))
        lower, upper = pair.delta(float(epsilon))
        assert lower - 1e-12 <= exact <= upper + 1e-15
        assert upper == pytest.approx(exact, rel=2e-2, abs=1e-4)


@pytest.mark.parametrize(("local_epsilon", "n", "delta", "clone", "binary"), TABLE)
def test_values_that_other_implementations_found(
    local_epsilon: float, n: int, delta: float, clone: float, binary: float
) -> None:
    for pair, expected in ((clone_pair, clone), (binary_pair, binary)):
        lower, upper = pair(local_epsilon=local_epsilon, cohort=n).epsilon(delta)
        assert lower <= expected * (1 + 1e-4)
        assert expected * (1 - 1e-4) <= upper <= expected * (1 + 4e-4)
        assert upper <= lower * (1 + 8e-4)


@first_fast(("local_epsilon", "n"), [(0.4, 3), (2.0, 4), (1.0, 5)])
def test_both_pairs_dominate_random_channels(local_epsilon: float, n: int) -> None:
    pairs = [module(local_epsilon=local_epsilon, cohort=n) for module in (clone_pair, binary_pair)]
    rng = np.random.default_rng(n)
    for _ in range(4):
        channel = extreme_channel(rng, local_epsilon=local_epsilon, records=3, outputs=4)
        for one, two in neighbours(3, n):
            first, second = shuffled_law(channel, one), shuffled_law(channel, two)
            for epsilon in np.linspace(0, local_epsilon, 5):
                exact = hockey_stick(first, second, float(epsilon))
                assert all(exact <= pair.delta(float(epsilon))[1] + 1e-12 for pair in pairs)
            orders = np.array([1.5, 2.0, 9.0])
            moments = [
                math.log(sum(x**a * second[h] ** (1 - a) for h, x in first.items())) / (a - 1) for a in orders
            ]
            assert all(np.all(moments <= pair.rdp(orders) + 1e-12) for pair in pairs)


@pytest.mark.parametrize(("local_epsilon", "n"), [(0.5, 30), (2.0, 60), (4.0, 25)])
def test_rdp_is_the_pairs_own_where_every_count_fits(local_epsilon: float, n: int) -> None:
    pair = clone_pair(local_epsilon=local_epsilon, cohort=n)
    law = np.array([(float(x), float(y)) for x, y in exact_law(pair)])
    law = law[law.min(axis=1) > 0]
    for order in (1.01, 2.0, 17.5, 300.0):
        exponent = order * np.log(law[:, 0]) + (1 - order) * np.log(law[:, 1])
        exact = float(np.logaddexp.reduce(exponent)) / (order - 1)
        value = pair.rdp([order])[0]
        assert exact * (1 - 1e-10) <= value <= exact * (1 + 1e-3)


def renyi_by_summing(pair: ClonePair, orders: list[float]) -> np.ndarray:
    """Every clone count and every fall of the coins, in logarithms, with scipy's own binomial masses."""
    moment = np.full(len(orders), -np.inf)
    others, p = pair.cohort - 1, pair.blanket.mass
    clones_seen = min(others, int(others * p + 14 * math.sqrt(others * p) + 30))
    masses = stats.binom.logpmf(np.arange(clones_seen + 1), others, p)
    for m, mass in enumerate(masses, start=1):
        faces = np.arange(m + 1)
        balance = math.tanh(pair.blanket.local_epsilon / 2) * (2 * faces - m) / m
        loss = 2 * np.arctanh(balance)
        coins = special.gammaln(m + 1) - special.gammaln(faces + 1) - special.gammaln(m - faces + 1)
        each = mass + coins - m * math.log(2) + np.log1p(-balance)
        exponents = np.add.outer(np.zeros(len(orders)), each) + np.multiply.outer(orders, loss)
        moment = np.logaddexp(moment, special.logsumexp(exponents, axis=1))
    return moment / (np.array(orders) - 1)


@pytest.mark.parametrize(
    ("local_epsilon", "n", "orders"),
    [
        (2.0, 10_000, [100.0, 500.0, 1000.0, 3000.0]),
        (0.5, 1_000, [300.0, 1000.0, 3000.0, 30_000.0]),
        (2.0, 1_000, [50.0, 150.0, 1000.5]),
        (6.0, 20_000, [2.0, 20.0, 200.0]),
    ],
)
def test_rdp_is_the_pairs_own_where_few_clones_decide(
    local_epsilon: float, n: int, orders: list[float]
) -> None:
    pair = clone_pair(local_epsilon=local_epsilon, cohort=n)
    exact, value = renyi_by_summing(pair, orders), pair.rdp(orders)
    assert np.all(value >= exact)
    assert np.all(value <= exact * 1.25)


def test_rdp_of_a_large_shuffle_is_that_of_its_quadratic_limit() -> None:
    """ε(α) → α·Var(loss)/2, the variance of the loss being 4·tanh²(ε0/2)·E[1/m]."""
    pair = binary_pair(local_epsilon=1.0, cohort=10**7)
    limit = 2 * math.tanh(0.5) ** 2 / (10**7 * pair.blanket.mass)
    value = pair.rdp([1.5, 3.0]) / np.array([1.5, 3.0])
    assert np.all(value >= limit * (1 - 3e-5))
    assert np.all(value <= limit * (1 + 4e-3))
