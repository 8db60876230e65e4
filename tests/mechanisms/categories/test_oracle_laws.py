"""Frequency oracles by enumeration: all of ε0 is spent, and the blanket is that of the law, not only a bound.

The conformance suite shows that laws sum to one, keep to ε0 and are sampled, and that estimates are unbiased.
"""

import itertools
import math

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.mechanisms import get

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
EPSILONS = [1.5, 1e-4, 4.0]


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


@first_fast("epsilon", EPSILONS)
def test_a_report_may_spend_its_whole_local_epsilon(case, epsilon):
    _, logs = law(build(case, epsilon))
    spent = float((logs.amax(dim=0) - logs.amin(dim=0)).max())
    assert spent <= epsilon * (1 + 1e-11) + 1e-14
    assert spent >= epsilon * (1 - 1e-6) - 1e-14


@first_fast("epsilon", EPSILONS)
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
    best = 0.0  # of the third records of all pairs
    for one, two in itertools.permutations(range(mechanism.dim), 2):
        atoms = torch.stack([chances[one] / least, chances[two] / least, least], dim=1).tolist()
        found = Blanket.from_atoms(local_epsilon=epsilon, atoms=atoms)
        for part in ("differing", "low", "high"):
            assert getattr(found, part) == pytest.approx(getattr(own, part), rel=1e-6, abs=1e-11)
        if own.outside:
            strong = [chances[a] > chances[b] * 1.00001 for a, b in ((one, two), (two, one))]
            for third in set(range(mechanism.dim)) - {one, two}:
                weak = chances[third] <= least * 1.00001
                best = max(best, min(float(least[weak & side].sum()) for side in strong))
    assert best >= own.outside * (1 - 1e-6)


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
def test_beyond_the_reach_of_thresholds_the_blanket_is_only_a_bound(name):
    quiet, loud = (get(name, local_epsilon=epsilon, dim=5).blanket() for epsilon in (20.0, 90.0))
    assert quiet.exact
    assert not loud.exact
    assert loud.outside == 0
    assert loud.differing <= 1 / (math.exp(90) + 1) * (1 + 1e-9)
