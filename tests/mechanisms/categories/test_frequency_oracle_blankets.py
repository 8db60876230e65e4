"""Blankets of the standard oracles against their definition, and their bounds against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from brute_force import hockey_stick, k_ary_response, mixed_bound, neighbours, shuffled_law
from thinning import first_fast

from shuffle_plugins.accounting import Blanket, RecordTypes, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.pairs import others as others_module
from shuffle_plugins.accounting.pairs.others import MixPair
from shuffle_plugins.mechanisms import get

VIOLATION = 1e-12
LEVELS = (0.4, 1.3, 3.0)


def unary(categories: int, *, kept: float, set_: float) -> np.ndarray:
    words = np.array(list(itertools.product((0, 1), repeat=categories)))
    rows = []
    for category in range(categories):
        chance = np.where(words == 1, set_, 1 - set_)
        chance[:, category] = np.where(words[:, category] == 1, kept, 1 - kept)
        rows.append(chance.prod(axis=1))
    return np.array(rows)


def subsets(categories: int, size: int, local_epsilon: float) -> np.ndarray:
    chosen = list(itertools.combinations(range(categories), size))
    weights = np.array([[math.exp(local_epsilon * (c in s)) for s in chosen] for c in range(categories)])
    return weights / weights.sum(axis=1, keepdims=True)


def hadamard(size: int, local_epsilon: float) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    weights = np.exp(local_epsilon * (matrix[1:] > 0))
    return weights / weights.sum(axis=1, keepdims=True)


def one_bit(size: int, local_epsilon: float) -> np.ndarray:
    """A group, every one as likely, and whether the row is plus there, which is likely to be told."""
    told = (hadamard(size, math.log(2)) * size > 1).astype(float)
    kept = 1 / (1 + math.exp(-local_epsilon))
    return np.concatenate([1 - kept + (2 * kept - 1) * answer for answer in (told, 1 - told)], axis=1) / size


def hashed(categories: int, buckets: int, local_epsilon: float) -> np.ndarray:
    response = k_ary_response(local_epsilon, buckets)
    functions = list(itertools.product(range(buckets), repeat=categories))
    return np.array(
        [np.concatenate([response[h[c]] for h in functions]) / len(functions) for c in range(categories)]
    )


def cases(local_epsilon: float) -> dict[str, tuple[np.ndarray, Blanket]]:
    half, e = math.exp(local_epsilon / 2), math.exp(local_epsilon)

    def own(name: str, dim: int, **options: int) -> Blanket:
        return get(name, local_epsilon=local_epsilon, dim=dim, **options).blanket()

    return {
        "3-RR": (k_ary_response(local_epsilon, 3), own("k-rr", 3)),
        "5-RR": (k_ary_response(local_epsilon, 5), own("k-rr", 5)),
        "hadamard": (hadamard(8, local_epsilon), own("hadamard-response", 7)),
        "subsets": (subsets(5, 2, local_epsilon), own("subset-selection", 5, size=2)),
        "rappor": (unary(4, kept=half / (half + 1), set_=1 / (half + 1)), own("rappor", 4)),
        "oue": (unary(4, kept=0.5, set_=1 / (e + 1)), own("oue", 4)),
        "hashing": (hashed(3, 3, local_epsilon), own("local-hashing", 3, buckets=3)),
        "limited-hadamard": (one_bit(4, local_epsilon), own("limited-hadamard", 3)),
    }


@pytest.mark.parametrize("name", list(cases(1.0)))
@pytest.mark.parametrize(("population", "cohort"), [(3, 3), (4, 2)])
def test_no_dataset_exceeds_the_upper_bound_nor_all_fall_short_of_the_lower(
    name: str, population: int, cohort: int
) -> None:
    local_epsilon = 1.3
    channel, blanket = cases(local_epsilon)[name]
    channel = channel[:3]
    used = channel.max(axis=0) > 0
    # Outputs that no category here can tell apart are one output.
    ratios = np.round(channel[:, used] / channel[:, used].max(axis=0), 9)
    groups = np.unique(ratios, axis=1, return_inverse=True)[1].ravel()
    merged = np.stack([np.bincount(groups, weights=row) for row in channel[:, used]])
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local_epsilon, population=population, cohort=cohort, mechanism=name, blanket=blanket
        )
    )
    grid = np.linspace(0.0, local_epsilon, 5)
    worst = np.zeros(len(grid))
    for one, two in neighbours(len(merged), population):
        p, q = (shuffled_law(merged, data, cohort=cohort) for data in (one, two))
        worst = np.maximum(worst, [hockey_stick(p, q, epsilon) for epsilon in grid])
    for epsilon, exact in zip(grid, worst, strict=True):
        answer = accountant.delta(float(epsilon))
        assert exact <= answer.upper + VIOLATION
        assert answer.lower <= exact + VIOLATION


def mixed_cases(local_epsilon: float) -> dict[str, tuple[np.ndarray, RecordTypes]]:
    """The mechanisms whose others are of three types."""
    found = cases(local_epsilon).items()
    return {name: (channel, law.others) for name, (channel, law) in found if law.others}


@pytest.mark.parametrize("local_epsilon", LEVELS)
@pytest.mark.parametrize("name", list(mixed_cases(1.0)))
def test_records_are_of_the_three_types(name: str, local_epsilon: float) -> None:
    channel, others = mixed_cases(local_epsilon)[name]
    for one, two in itertools.permutations(range(len(channel)), 2):
        for third in range(len(channel)):
            gains = np.stack([channel[one], channel[two]]) / channel[third] - 1
            kind = 0 if third == one else 1 if third == two else 2
            wanted = np.array(others.types[kind])
            # The law is known by its values at as many points as there are.
            for u, v, _ in wanted:
                near = np.all(np.abs(gains.T - (u, v)) < 1e-9, axis=1)
                same = np.all(np.abs(wanted[:, :2] - (u, v)) < 1e-9, axis=1)
                assert channel[third][near].sum() == pytest.approx(wanted[same, 2].sum(), rel=1e-9)


@first_fast(
    ("name", "population", "cohort"),
    [
        ("rappor", 3, 2),
        *((name, n, k) for name in mixed_cases(1.0) for n, k in ((2, 1), (3, 3))),
        ("limited-hadamard", 4, 3),
    ],
    fast=1,
)
def test_all_datasets_are_below_the_worst_mix(name: str, population: int, cohort: int) -> None:
    factors = np.array([1.0, 1.2, 1.7, 2.6])
    for local_epsilon in (0.4, 1.5):
        channel, others = mixed_cases(local_epsilon)[name]
        # Reports that are as likely as others for each of three categories are one report.
        ratios = np.round(channel[:3] / channel[:3].max(axis=0), 9)
        groups = np.unique(ratios, axis=1, return_inverse=True)[1].ravel()
        merged = np.stack([np.bincount(groups, weights=row) for row in channel[:3]])
        pair = MixPair(local_epsilon=local_epsilon, others=others, population=population, slots=cohort)
        bound = mixed_bound(pair, factors)
        worst = np.zeros(len(factors))
        for one, two in neighbours(len(merged), population):
            p, q = (shuffled_law(merged, data, cohort=cohort) for data in (one, two))
            worst = np.maximum(worst, [hockey_stick(p, q, math.log(factor)) for factor in factors])
        assert np.all(worst <= bound + VIOLATION)
        assert worst[0] > 0.3 * bound[0]
        buckets, left_out = pair.buckets()
        computed = others_module._profile(pair, buckets, np.log(factors), smoothing=1e-3)
        inside = pair.largest_ratio > factors
        assert np.all(bound[inside] <= computed[inside] + left_out)
