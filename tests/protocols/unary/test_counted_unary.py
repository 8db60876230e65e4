"""Counted unary encoding: what clients send, what is estimated, how seldom weights exceed their limit."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from accounted import accounted
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import BitEncoding, Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.pairs.bits import BitResponse
from shuffle_plugins.mechanisms import get, registry
from shuffle_plugins.protocols import CountedUnary, HistogramSum, UnaryL1Sum
from shuffle_plugins.protocols.unary import exceeding_probability
from shuffle_plugins.randomness import WHOLE, SeededRandomness

ENCODINGS = ["symmetric", "optimal"]


def held(clients: int, length: int) -> torch.Tensor:
    return torch.arange(clients) % length


@pytest.mark.parametrize(
    ("encoding", "oracle", "factor"), [("symmetric", "rappor", 2), ("optimal", "oue", 1)]
)
def test_a_client_flips_as_the_oracle_of_that_name(encoding: str, oracle: str, factor: int) -> None:
    protocol = CountedUnary(length=5, cohort=30, bit_epsilon=1.25, encoding=encoding)
    single = get(oracle, local_epsilon=factor * 1.25, dim=5)
    assert protocol.round().local_epsilon == pytest.approx(single.local_epsilon)
    assert protocol.worst_variance == pytest.approx(30 * single.worst_variance)
    same = protocol.randomize(held(30, 5), randomness=SeededRandomness(2))
    again = single.randomize(held(30, 5), randomness=SeededRandomness(2))
    assert torch.equal(same.fields[0].values, again.fields[0].values)


def test_bits_and_categories_are_the_same_data() -> None:
    protocol = CountedUnary(length=4, cohort=20, bit_epsilon=2.0, held=2)
    bits = torch.nn.functional.one_hot(held(20, 4), 4)
    first = protocol.randomize(bits, randomness=SeededRandomness(1))
    assert torch.equal(
        first.fields[0].values,
        protocol.randomize(held(20, 4), randomness=SeededRandomness(1)).fields[0].values,
    )
    loud = CountedUnary(length=4, cohort=20, bit_epsilon=40.0, held=3)
    bits[::3, 0] = bits[::3, 3] = 1
    assert torch.allclose(loud.randomize_sum(bits), bits.sum(dim=0).double())
    assert torch.equal(loud.total(loud.randomize(bits.bool())), bits.sum(dim=0))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("length", "ones"), [(1, 1), (7, 1), (12, 3), (40, 2)])
def test_weights_beyond_a_limit_are_as_seldom_as_exact_fractions_say(
    encoding: str, length: int, ones: int
) -> None:
    bit = getattr(BitResponse, encoding)(1.7)
    own, other = Fraction(bit.one), Fraction(bit.zero)
    thresholds = round(own * WHOLE), round(other * WHOLE)
    law = [Fraction(1)]
    for p in [own] * ones + [other] * (length - ones):
        law = [a * (1 - p) + b * p for a, b in zip([*law, 0], [0, *law], strict=True)]
    for limit in range(length + 1):
        exact = sum(law[limit + 1 :], Fraction(0))
        found = exceeding_probability(limit, length, ones, *thresholds)
        assert exact <= found <= exact * (1 + Fraction(1, 10**8))


def test_a_limit_is_the_one_of_the_draft() -> None:
    """draft-wang-ppm-differential-privacy, as its proof of concept computes it."""
    for bit_epsilon, length, rate in ((8.0, 50, 1 / 200), (5.0, 1000, 1e-6), (3.0, 100, 1e-9)):
        p = 1 / (math.exp(bit_epsilon) + 1)
        thresholds = CountedUnary(length=length, cohort=2, bit_epsilon=bit_epsilon)._thresholds
        found = next(k for k in range(1, length) if exceeding_probability(k, length, 1, *thresholds) <= rate)
        # The draft counts the client's own bit as always set; here it is flipped as well.
        assert round(stats.binom.isf(rate, length - 1, p)) + 1 - found in (0, 1)


def test_reports_keep_to_the_limit_and_others_are_refused() -> None:
    protocol = CountedUnary(length=20, cohort=500, bit_epsilon=1.0, max_weight=6)
    free = CountedUnary(length=20, cohort=500, bit_epsilon=1.0)
    sent = protocol.randomize(held(500, 20), randomness=SeededRandomness(4))
    weights = sent.fields[0].values.sum(dim=1, dtype=torch.int64)
    assert int(weights.max()) == 6
    assert int(free.randomize(held(500, 20)).fields[0].values.sum(dim=1, dtype=torch.int64).max()) > 6
    forged = protocol.layout.reports(torch.ones(1, 20, dtype=torch.uint8))
    with pytest.raises(ValueError, match="more than 6 ones"):
        protocol.total(forged)
    # So low a limit changes what clients send, and is charged: nothing is hidden by counting.
    assert accounted(protocol.round()).epsilon(1e-5).upper == pytest.approx(2.0)


def test_a_limit_that_nobody_meets_costs_next_to_nothing() -> None:
    limited = CountedUnary.calibrated(length=50, cohort=2_000, epsilon=1.0, delta=1e-6)
    assert limited.max_weight is not None
    assert 0 < limited.false_positive_rate * 2_000 <= 2.0**-40
    one_less = CountedUnary(
        length=50, cohort=2_000, bit_epsilon=limited.bit_epsilon, max_weight=limited.max_weight - 1
    )
    assert one_less.false_positive_rate * 2_000 > 2.0**-40
    free = CountedUnary(length=50, cohort=2_000, bit_epsilon=limited.bit_epsilon)
    costs = []
    for protocol in (limited, free):
        costs.append(accounted(protocol.round()).epsilon(1e-6))
    assert costs[1].upper <= costs[0].upper <= 1.0
    assert costs[0].upper == pytest.approx(costs[1].upper, rel=1e-4)
    assert costs[0].lower >= 0.98 * costs[0].upper


@pytest.mark.slow
def test_the_noise_is_near_that_of_coins_and_the_optimal_encoding_has_less_for_rare_bits() -> None:
    target = {"cohort": 20_000, "epsilon": 1.0, "delta": 1e-6}
    coins = HistogramSum.calibrated(categories=20, **target).noise_variance
    noise = {e: CountedUnary.calibrated(length=20, encoding=e, **target).variance(0.0) for e in ENCODINGS}
    assert noise["symmetric"] < 1.45 * coins
    assert noise["optimal"] < 0.98 * coins


@pytest.mark.slow
def test_a_limit_is_chosen_for_all_steps_together() -> None:
    """A probability of 2^-40 for each of 10,000 steps alone would cost more than δ."""
    target = {"epsilon": 0.3, "delta": 1e-8, "num_steps": 10_000, "population": 100_000}
    found = UnaryL1Sum.calibrated(dim=100, cohort=1_000, **target)
    assert found.false_positive_rate * 100 * 10_000 * (1 + math.exp(0.3)) < 1.001e-2 * 1e-8
    cost = accounted(found.round(population=100_000), num_steps=10_000).epsilon(1e-8)
    assert 0.26 < cost.lower <= cost.upper <= 0.3


def test_an_l1_sum_with_noise_is_worth_the_gaussian_of_that_multiplier() -> None:
    protocol = UnaryL1Sum.with_noise(dim=3, cohort=4_000, noise_multiplier=20.0, radius=0.5)
    # Two counts of variance σ²/2 make one coordinate: those of both signs.
    assert 2 * protocol.variance(0.0) * 0.25 == pytest.approx((20.0 * 0.5) ** 2, rel=1e-6)


@first_fast(
    ("bit_epsilon", "deviation", "least", "most"),
    [(7.0, 9.5580, 10.11, 11.36), (6.5, 12.2800, 8.81, 10.17), (5.0, 26.1337, 5.28, 6.39)],
    fast=2,
)
def test_the_draft_s_deviation_and_what_whole_reports_cost(
    bit_epsilon: float, deviation: float, least: float, most: float
) -> None:
    """See the draft's table in test_counted_rounds.py; here the same reports are shuffled whole as well."""
    protocol = CountedUnary(length=1_000, cohort=100_000, bit_epsilon=bit_epsilon)
    assert protocol.variance(0.0) ** 0.5 == pytest.approx(deviation, abs=1e-4)
    whole, counted = ShuffleAccountant(), ShuffleAccountant()
    whole.step(
        ShuffleRound(
            local_epsilon=2 * bit_epsilon,
            population=100_000,
            cohort=100_000,
            sampling=Sampling.FULL,
            mechanism="rappor",
            blanket=registry.blanket("rappor", local_epsilon=2 * bit_epsilon, dim=1_000),
        )
    )
    found = whole.epsilon(1e-9)
    assert least < found.lower < found.upper < most
    counted.step(protocol.round())
    assert found.lower > 10 * counted.epsilon(1e-9).upper


@pytest.mark.parametrize("encoding", list(BitEncoding))
@pytest.mark.parametrize(("length", "held", "limit"), [(3, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (2, 2, 2)])
def test_a_limited_report_costs_one_client_no_more_than_it_says(
    encoding: BitEncoding, length: int, held: int, limit: int
) -> None:
    protocol = CountedUnary(
        length=length, cohort=2, bit_epsilon=1.0, held=held, encoding=encoding, max_weight=limit
    )

    def law(bits: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        found = {}
        for sent in itertools.product((0, 1), repeat=length):
            if sum(sent) <= limit:
                ones = [protocol.own if bit else protocol.other for bit in bits]
                found[sent] = math.prod(p if bit else 1 - p for p, bit in zip(ones, sent, strict=True))
        whole = math.fsum(found.values())
        return {sent: mass / whole for sent, mass in found.items()}

    laws = [law(bits) for bits in itertools.product((0, 1), repeat=length) if sum(bits) <= held]
    worst = max(math.log(p[sent] / q[sent]) for p in laws for q in laws for sent in p)
    assert worst <= protocol.local_epsilon * (1 + 1e-9)


def test_no_limit_where_more_than_half_of_the_bits_may_be_set() -> None:
    with pytest.raises(ValueError, match="leave it out"):  # its report has 3.10, its bits have 3
        CountedUnary(length=3, cohort=2, bit_epsilon=1.0, held=2, max_weight=2)
    assert CountedUnary.calibrated(length=100, cohort=1000, epsilon=8, delta=1e-6, held=80).max_weight is None


def test_false_positives_are_those_of_the_bits_as_they_are_flipped() -> None:
    for level in (5.0, 30.0, 40.0):  # from 22 on multiples of 2**-62 are coarser than floats
        protocol = CountedUnary(length=1_000_000, cohort=2, bit_epsilon=level, max_weight=1)
        others, other = 999_999, protocol.other
        # One more one beside the client's own, or two where that is lost.
        more = -math.expm1(others * math.log1p(-other))
        several = float(stats.binom.sf(1, others, other))
        exact = protocol.own * more + (1 - protocol.own) * several
        assert exact * (1 - 1e-12) <= protocol.false_positive_rate <= exact * (1 + 1e-8)
