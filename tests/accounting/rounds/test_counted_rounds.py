"""Rounds of counted unary encoding, against enumeration of every dataset; the table of an internet draft."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import mpmath
import numpy as np
import pytest
from histories import accountant_of
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import FINE, BitEncoding, CountedRound, LossComposition, Sampling
from shuffle_plugins.accounting.pairs.bits import BitResponse, counted_instance

EPSILONS = (0.0, 0.1, 0.4, 1.0, 2.0)
SAMPLED = Sampling.WITHOUT_REPLACEMENT
Record = tuple[int, ...]


def counted(
    bit_epsilon: float, length: int, population: int, cohort: int | None = None, **more: object
) -> CountedRound:
    who = {"population": population, "cohort": cohort or population}
    sampling = SAMPLED if cohort and cohort < population else Sampling.FULL
    return CountedRound(bit_epsilon=bit_epsilon, length=length, sampling=sampling, **who, **more)


def probabilities(encoding: str, bit_epsilon: float) -> tuple[float, float]:
    """Of a one, sent for a zero and for a one."""
    other = 1 / (math.exp(bit_epsilon) + 1)
    return other, (1 - other if encoding == "symmetric" else 0.5)


def sums_law(cohort: Sequence[Record], sent: tuple[float, float]) -> np.ndarray:
    """The law of the sums of all bits: an array with an axis for each bit."""
    by_bit = []
    for column in zip(*cohort, strict=True):
        law = np.ones(1)
        for held in column:
            law = np.convolve(law, [1 - sent[held], sent[held]])
        by_bit.append(law)
    return functools.reduce(np.multiply.outer, by_bit)


def records(length: int, ones: int) -> list[Record]:
    return [bits for bits in itertools.product((0, 1), repeat=length) if sum(bits) <= ones]


def profiles(
    *, population: int, cohort: int, length: int, ones: int, sent: tuple[float, float]
) -> Iterator[np.ndarray]:
    """δ at EPSILONS, of every dataset and its every neighbour."""
    every = records(length, ones)
    subsets = list(itertools.combinations(range(population), cohort))

    def law(people: Sequence[Record]) -> np.ndarray:
        return sum(sums_law([people[i] for i in subset], sent) for subset in subsets) / len(subsets)

    for others in itertools.combinations_with_replacement(every, population - 1):
        laws = [law((first, *others)) for first in every]
        for p, q in itertools.permutations(laws, 2):
            yield np.array([np.maximum(p - math.exp(e) * q, 0).sum() for e in EPSILONS])


@pytest.mark.parametrize(
    ("encoding", "bit_epsilon", "length", "ones", "population", "cohort"),
    [
        ("optimal", 2.0, 3, 1, 3, 3),
        ("symmetric", 1.5, 3, 1, 3, 3),
        ("optimal", 3.0, 4, 1, 3, 3),
        ("optimal", 0.7, 2, 1, 5, 5),
        ("symmetric", 3.0, 4, 2, 3, 3),
        ("optimal", 1.0, 4, 2, 3, 3),
        ("optimal", 1.2, 3, 2, 3, 3),
        ("symmetric", 1.5, 1, 1, 6, 6),
        ("optimal", 2.0, 3, 1, 4, 2),
        ("symmetric", 2.0, 3, 1, 4, 2),
        ("symmetric", 1.0, 3, 2, 4, 3),
        ("symmetric", 3.0, 3, 1, 6, 3),
        ("optimal", 3.0, 3, 1, 6, 2),
        ("symmetric", 4.0, 4, 1, 5, 3),
        ("optimal", 1.5, 4, 1, 5, 2),
        ("symmetric", 1.5, 2, 1, 7, 5),
    ],
)
def test_no_dataset_costs_more_and_one_costs_at_least(
    encoding: str, bit_epsilon: float, length: int, ones: int, population: int, cohort: int
) -> None:
    accountant = accountant_of(counted(bit_epsilon, length, population, cohort, ones=ones, encoding=encoding))
    sent = probabilities(encoding, bit_epsilon)
    found = profiles(population=population, cohort=cohort, length=length, ones=ones, sent=sent)
    worst = np.max(list(found), axis=0)
    for epsilon, exact in zip(EPSILONS, worst, strict=True):
        certified = accountant.delta(epsilon)
        assert certified.lower <= exact * (1 + 1e-9)
        assert certified.upper >= exact * (1 - 1e-9) - 1e-15  # which rounding adds where none is left
    if length >= 2 * ones:
        assert accountant.delta(0.0).upper <= 1.35 * worst[0]
        assert accountant.delta(0.0).lower >= 0.5 * worst[0]


@pytest.mark.parametrize("encoding", ["symmetric", "optimal"])
def test_a_report_alone_has_its_local_epsilon(encoding: str) -> None:
    sent = probabilities(encoding, 1.3)
    for length, ones in ((4, 1), (3, 2), (1, 1), (5, 2)):
        worst = max(
            float(np.log(sums_law([x], sent) / sums_law([y], sent)).max())
            for x, y in itertools.permutations(records(length, ones), 2)
        )
        each = counted(1.3, length, 9, ones=ones, encoding=encoding)
        assert each.local_epsilon == pytest.approx(worst, rel=1e-9)


# draft-wang-ppm-differential-privacy (github.com/wangshan/draft-wang-ppm-differential-privacy at 146ec39),
# table "Utility of Pure Client Randomization for histogram use case": n = 100,000, δ = 1e-9.
DRAFT = {5.0: (0.317, 26.1337), 6.5: (0.906, 12.2800), 7.0: (1.528, 9.5580)}
CERTIFIED = {5.0: (0.29741, 0.29806), 6.5: (0.70016, 0.70180), 7.0: (0.95046, 0.95269)}


@pytest.mark.parametrize("bit_epsilon", DRAFT)
def test_the_table_of_the_draft(bit_epsilon: float) -> None:
    accountant = accountant_of(counted(bit_epsilon, 1_000, 100_000))
    found = accountant.epsilon(1e-9)
    lower, upper = CERTIFIED[bit_epsilon]
    assert found.lower == pytest.approx(lower, rel=5e-4)
    assert found.upper == pytest.approx(upper, rel=5e-4)
    assert found.upper < DRAFT[bit_epsilon][0]


@first_fast(
    ("encoding", "flips", "cohort", "within"),
    [
        ("optimal", 2, 100, 1.12),
        ("symmetric", 1, 100, 1.4),
        ("symmetric", 8, 10_000, 1.1),
        ("optimal", 24, 1_000, 1.07),
    ],
)
@pytest.mark.parametrize(("rounds", "delta"), [(1, 1e-5), (1, 1e-7), (100, 1e-5)])
def test_with_few_flips_on_a_sample_the_ends_are_near(
    encoding: str, flips: int, cohort: int, within: float, rounds: int, delta: float
) -> None:
    accountant = accountant_of(
        (counted(math.log(cohort / flips - 1), 200, 6 * cohort, cohort, encoding=encoding), rounds)
    )
    found = accountant.epsilon(delta)
    assert found.upper < within * found.lower


@pytest.mark.parametrize("bit_epsilon", [37.0, 60.0, 300.0])
@pytest.mark.parametrize("cohort", [300, 100])
def test_bits_that_are_hardly_ever_flipped_are_answered(bit_epsilon: float, cohort: int) -> None:
    accountant = accountant_of(counted(bit_epsilon, 5, 300, cohort))
    found = accountant.epsilon(1e-6)
    assert found.lower <= found.upper <= 2 * bit_epsilon * (1 + 1e-9)


@first_fast("held", [40, 0, 1, 100, 299], fast=0)
@pytest.mark.parametrize(
    "encoding", [BitEncoding.OPTIMAL, pytest.param(BitEncoding.SYMMETRIC, marks=pytest.mark.slow)]
)
def test_no_crowd_on_a_sample_costs_more(encoding: BitEncoding, held: int) -> None:
    """A crowd of which ``held`` have a further bit and all others the one that client 1 changes to."""
    bit, gamma, others = getattr(BitResponse, encoding)(4.8), 1 / 6, 299

    def law(ones: int) -> tuple[np.ndarray, np.ndarray]:
        crowd = np.convolve(
            stats.binom(ones, bit.one).pmf(np.arange(ones + 1)),
            stats.binom(others - ones, bit.zero).pmf(np.arange(others - ones + 1)),
        )
        zero, one = (np.convolve(crowd, [1 - p, p]) for p in (bit.zero, bit.one))
        seen = zero + one > 1e-13
        return zero[seen], one[seen]

    share = held / others
    (left, left_one), (right, right_one), (third, third_one) = law(0), law(others - held), law(held)

    def joint(first: np.ndarray, second: np.ndarray, last: np.ndarray) -> np.ndarray:
        return np.multiply.outer(np.multiply.outer(first, second), last)

    absent = share * joint(left, right, third_one) + (1 - share) * joint(left, right_one, third)
    p = gamma * joint(left_one, right, third) + (1 - gamma) * absent
    q = gamma * joint(left, right_one, third) + (1 - gamma) * absent
    accountant = accountant_of(counted(4.8, 3, 1_800, 300, encoding=encoding))
    for epsilon in (0.05, 0.2, 0.4, 0.8):
        exact = max(
            np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()
        )
        assert accountant.delta(epsilon).upper >= exact - 1e-10


def test_many_clients_hold_what_is_asked() -> None:
    """A dataset in which the optimal encoding's fair coins make most of the noise is covered too."""
    n, bit_epsilon = 400, 4.0
    other, own = probabilities("optimal", bit_epsilon)
    accountant = accountant_of(counted(bit_epsilon, 3, n, encoding="optimal"))
    certified = [accountant.delta(e).upper for e in EPSILONS]
    for held in (0, 1, 5, 20, 100, 399):
        noise = np.ones(1)
        for sent, many in ((own, held), (other, n - 1 - held)):
            for _ in range(many):
                noise = np.convolve(noise, [1 - sent, sent])
        p, q = (np.convolve(noise, [1 - a, a]) for a in (own, other))
        both, exchanged = np.multiply.outer(p, q), np.multiply.outer(q, p)
        for epsilon, bound in zip(EPSILONS, certified, strict=True):
            exact = np.maximum(both - math.exp(epsilon) * exchanged, 0).sum()
            assert exact <= bound * (1 + 1e-9)
            if held == 0 and epsilon < 1:
                assert bound <= 1.02 * exact


@pytest.mark.parametrize("held", [False, True])
def test_one_counts_instance_is_never_above_its_exact_law_however_small_delta_is(held: bool) -> None:
    """Outcomes at the edge of what is listed of the others' noise seem less likely than they are."""
    response, others = BitResponse.optimal(2.0), 1999
    law = LossComposition([counted_instance(response, others=others, resolution=FINE, held=held)], [1])
    with mpmath.workdps(40):
        share = mpmath.mpf(response.one if held else response.zero)

        def noise(count: int) -> mpmath.mpf:
            return mpmath.binomial(others, count) * share**count * (1 - share) ** (others - count)

        at = [noise(count) for count in range(others + 1)]
        pairs = [
            (response.not_one * same + response.one * less, response.not_zero * same + response.zero * less)
            for same, less in zip([*at, 0], [0, *at], strict=True)
        ]
        for epsilon in (0.0, 0.1, 0.5, 1.0):
            exact = mpmath.fsum(max(p - mpmath.exp(epsilon) * q, 0) for p, q in pairs)
            assert law.delta(epsilon) <= exact * (1 + 1e-9)
    assert law.delta(0.1) > 1e-11


def test_a_distance_is_taken_off_the_lower_end_and_put_on_the_upper() -> None:
    def interval(distance: float) -> tuple[float, float]:
        accountant = accountant_of(counted(4.0, 9, 900, distance=distance))
        found = accountant.epsilon(1e-5)
        return found.lower, found.upper

    exact, near, far = interval(0.0), interval(1e-7), interval(2e-6)
    assert far[0] < near[0] < exact[0] < exact[1] < near[1] < far[1]
