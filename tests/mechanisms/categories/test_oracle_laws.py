"""Frequency oracles by enumeration: ε0, probabilities, unbiasedness, variance, blanket; the sampler's law."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.mechanisms import get, registry
from shuffle_plugins.randomness import SeededRandomness

NAMES = [
    "k-rr",
    "hadamard-response",
    "subset-selection",
    "rappor",
    "oue",
    "local-hashing",
    "limited-hadamard",
]
CASES = [
    *((name, dim, {}) for name in NAMES for dim in (2, 3, 5, 8)),
    ("subset-selection", 9, {"size": 3}),
    ("local-hashing", 8, {"buckets": 6}),
    ("local-hashing", 4, {"buckets": 9}),
    ("limited-hadamard", 7, {"randomness_bits": 0.4}),
    ("limited-hadamard", 3, {"randomness_bits": 0.01}),
]
IDS = ["-".join(map(str, [name, dim, *options.values()])) for name, dim, options in CASES]
EPSILONS = [1e-4, 1.5, 4.0, 50.0]


@pytest.fixture(params=CASES, ids=IDS)
def case(request):
    return request.param


def build(case, epsilon):
    name, dim, options = case
    if name == "local-hashing" and epsilon > 2 and not options:
        options = {"buckets": 7}
    if "randomness_bits" in options and epsilon > 2:
        pytest.skip("so loud an answer takes less randomness than the limit")
    return get(name, local_epsilon=epsilon, dim=dim, **options)


def law(mechanism):
    """All reports, and the log-probability of each for each category."""
    reports = mechanism.outcomes()
    rows = [mechanism.log_likelihood(reports, torch.tensor(c)) for c in range(mechanism.dim)]
    return reports, torch.stack(rows)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_probabilities_sum_to_one_and_keep_to_local_epsilon(case, epsilon):
    _, logs = law(build(case, epsilon))
    torch.testing.assert_close(
        logs.exp().sum(dim=1), torch.ones(len(logs), dtype=torch.float64), rtol=1e-13, atol=1e-13
    )
    spent = float((logs.amax(dim=0) - logs.amin(dim=0)).max())
    assert spent <= epsilon * (1 + 1e-11) + 1e-14
    if epsilon < 42:
        assert spent >= epsilon * (1 - 1e-6) - 1e-14


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_estimates_are_unbiased_and_vary_by_the_formula(case, epsilon):
    mechanism = build(case, epsilon)
    reports, logs = law(mechanism)
    estimates = torch.stack([mechanism.sum(reports.narrow(i, i + 1)) for i in range(len(reports))])
    truth = torch.eye(mechanism.dim, dtype=torch.float64)
    tolerance = 1e-9 if epsilon > 1e-3 else 1e-13 * float(estimates.abs().max())
    torch.testing.assert_close(logs.exp() @ estimates, truth, rtol=0, atol=tolerance)
    squares = (estimates.unsqueeze(0) - truth.unsqueeze(1)).square().sum(dim=2)
    exact = (logs.exp() * squares).sum(dim=1)
    formula = mechanism.variance(torch.arange(mechanism.dim))
    torch.testing.assert_close(formula, exact, rtol=1e-11, atol=1e-15)
    assert mechanism.worst_variance == pytest.approx(float(exact.max()), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("epsilon", [1e-4, 1.5, 4.0])
def test_blanket_is_that_of_the_law(case, epsilon):
    mechanism = build(case, epsilon)
    own = mechanism.blanket()
    chances = law(mechanism)[1].exp()
    if own.edges:
        pytest.skip("see test_limited_hadamard.py")
    if mechanism.name in ("hadamard-response", "local-hashing", "limited-hadamard"):
        least = chances.min().expand(chances.shape[1])  # as if there were more categories
    else:
        least = chances.amin(dim=0)
    if mechanism.dim == 2 and mechanism.name in ("rappor", "oue"):
        pytest.skip("the blanket is that of three categories, of which two are a part")
    for one, two in itertools.permutations(range(mechanism.dim), 2):
        atoms = torch.stack([chances[one] / least, chances[two] / least, least], dim=1).tolist()
        found = Blanket.from_atoms(local_epsilon=epsilon, atoms=atoms)
        for part in ("differing", "low", "high"):
            assert getattr(found, part) == pytest.approx(getattr(own, part), rel=1e-6, abs=1e-11)
        if own.outside:
            strong = [chances[a] > chances[b] * 1.00001 for a, b in ((one, two), (two, one))]
            best = 0.0
            for third in set(range(mechanism.dim)) - {one, two}:
                weak = chances[third] <= least * 1.00001
                best = max(best, min(float(least[weak & side].sum()) for side in strong))
            assert best >= own.outside * (1 - 1e-6)


@pytest.mark.parametrize("dim", [2, 3, 6, 16])
@pytest.mark.parametrize("name", ["rappor", "oue"])
def test_unary_blanket_of_two_categories_says_as_much_as_is_differing(name, dim):
    mechanism = get(name, local_epsilon=1.2, dim=2)
    chances = law(mechanism)[1].exp()
    assert float(chances[0][(chances[1] > chances[0] * 1.01)].sum()) == pytest.approx(
        mechanism.blanket().differing, rel=1e-9
    )
    assert get(name, local_epsilon=1.2, dim=dim).blanket().differing == mechanism.blanket().differing


@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_reports_are_drawn_by_the_law(case, epsilon):
    mechanism = build(case, epsilon)
    every, logs = law(mechanism)
    draws = 20_000
    for category in {0, mechanism.dim - 1}:
        reports = mechanism.randomize(
            torch.full((draws,), category), randomness=SeededRandomness(100 + category)
        )
        index = {code: i for i, code in enumerate(codes(every))}
        seen = np.bincount([index[code] for code in codes(reports)], minlength=len(every))
        expected = logs[category].exp().numpy() * draws
        order = np.argsort(expected)
        groups = np.minimum(np.floor(np.cumsum(expected[order]) / 8), draws // 8 - 1).astype(int)
        pooled = np.bincount(groups, weights=expected[order]), np.bincount(groups, weights=seen[order])
        kept = pooled[0] > 0
        statistic = ((pooled[1] - pooled[0])[kept] ** 2 / pooled[0][kept]).sum()
        assert stats.chi2.sf(statistic, kept.sum() - 1) > 1e-4


def codes(reports):
    columns = [f.values.reshape(len(reports), -1).to(torch.int64) for f in reports.fields]
    return map(tuple, torch.cat(columns, dim=1).tolist())


@pytest.mark.parametrize("buckets", [2, 4, 6, 9])
def test_hash_values_of_three_categories_are_independent(buckets):
    mechanism = get("local-hashing", local_epsilon=1.0, dim=8, buckets=buckets)
    _, logs = law(mechanism)
    hit = (logs > logs.mean()).double()
    for chosen in itertools.combinations(range(8), 3):
        for size in (1, 2, 3):
            for part in itertools.combinations(chosen, size):
                assert float(hit[list(part)].prod(dim=0).mean()) == pytest.approx(buckets**-size, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_oracles_are_the_best(name):
    """Subset selection has the least error of all; k-RR, in fewer bits, is it at large ε0."""
    for epsilon, dim in itertools.product((0.5, 2.0, 6.0), (4, 100)):
        best = get("subset-selection", local_epsilon=epsilon, dim=dim).worst_variance
        assert best <= get(name, local_epsilon=epsilon, dim=dim).worst_variance * (1 + 1e-12)
    loud = {n: get(n, local_epsilon=8.0, dim=100).worst_variance for n in ("k-rr", "subset-selection")}
    assert loud["k-rr"] == pytest.approx(loud["subset-selection"], rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_knows_them(name):
    mechanism = get(name, local_epsilon=1.3, dim=20)
    assert mechanism.name == name
    assert registry.blanket(name, local_epsilon=1.3, dim=20) == mechanism.blanket()
    assert registry.summary(name)
    assert mechanism.round(population=1000, cohort=100).blanket == mechanism.blanket()


@pytest.mark.parametrize("name", NAMES)
def test_beyond_the_reach_of_thresholds_the_blanket_is_only_a_bound(name):
    quiet, loud = (get(name, local_epsilon=epsilon, dim=5).blanket() for epsilon in (20.0, 90.0))
    assert quiet.exact
    assert not loud.exact
    assert loud.outside == 0
    assert loud.differing <= 1 / (math.exp(90) + 1) * (1 + 1e-9)
