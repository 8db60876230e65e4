"""What must hold for rounds of every kind: monotone, ordered, indifferent to the order of rounds."""

from __future__ import annotations

import dataclasses
import math

import pytest
from histories import accountant_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_plugins.accounting import Blanket, ShuffleRound
from shuffle_plugins.mechanisms import registry

NUMERICAL = 2e-3  # numerical intervals are narrower
LAWS = ("generic", "clones", "bit", "k-rr", "hadamard-response", "rappor", "oue", "laplace", "privunit")
SCHEMES = ("without-replacement", "poisson", "full", "single-pass", "check-in", "epoch")


def blanket_of(law: str, local_epsilon: float) -> Blanket | None:
    if law == "generic":
        return None
    if law == "clones":
        return Blanket.clones(local_epsilon)
    if law == "bit":
        return Blanket.bit(local_epsilon)
    return registry.blanket(law, local_epsilon=local_epsilon, dim=8)


def round_of(law: str, scheme: str, local_epsilon: float, population: int, share: float) -> ShuffleRound:
    cohort = population if scheme == "full" else max(1, int(share * population))
    return ShuffleRound(
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        sampling=scheme,
        mechanism=law,
        blanket=blanket_of(law, local_epsilon),
    )


def upper(*entries: tuple[ShuffleRound, int], delta: float = 1e-6) -> float:
    return accountant_of(*entries).epsilon(delta, lower=False).upper


rounds = st.builds(
    round_of,
    law=st.sampled_from(LAWS),
    scheme=st.sampled_from(SCHEMES),
    local_epsilon=st.floats(0.05, 6.0),
    population=st.integers(2, 5_000),
    share=st.floats(0.01, 1.0),
)
slow = settings(deadline=None, max_examples=6)


@pytest.mark.slow
@slow
@given(rounds, st.integers(1, 50), st.integers(2, 40))
def test_more_rounds_cost_more(shuffle_round: ShuffleRound, steps: int, more: int) -> None:
    assert upper((shuffle_round, steps)) <= upper((shuffle_round, steps + more)) * (1 + NUMERICAL)


@pytest.mark.slow
@slow
@given(rounds, st.integers(1, 50), st.floats(1e-10, 1e-2), st.floats(1.5, 100.0))
def test_less_delta_costs_more(shuffle_round: ShuffleRound, steps: int, delta: float, factor: float) -> None:
    strict, lax = (upper((shuffle_round, steps), delta=d) for d in (delta / factor, delta))
    assert lax <= strict * (1 + NUMERICAL)


@pytest.mark.slow
@slow
@given(
    st.sampled_from([law for law in LAWS if law != "privunit"]),
    st.sampled_from(SCHEMES),
    st.floats(0.05, 4.0),
    st.floats(1.02, 1.5),
    st.integers(2, 3_000),
    st.integers(1, 30),
)
def test_louder_reports_cost_more(
    law: str, scheme: str, local_epsilon: float, factor: float, population: int, steps: int
) -> None:
    soft, loud = (
        upper((round_of(law, scheme, level, population, 0.3), steps))
        for level in (local_epsilon, factor * local_epsilon)
    )
    assert soft <= loud * (1 + 5 * NUMERICAL)


@pytest.mark.slow
@slow
@given(
    st.sampled_from([law for law in LAWS if law != "bit"]),
    st.sampled_from(("without-replacement", "poisson")),
    st.floats(0.05, 5.0),
    st.integers(50, 5_000),
    st.floats(0.02, 0.5),
    st.floats(1.2, 2.0),
)
def test_larger_cohorts_of_a_population_cost_more(
    law: str, scheme: str, local_epsilon: float, population: int, share: float, factor: float
) -> None:
    few, many = (
        upper((round_of(law, scheme, local_epsilon, population, s), 10)) for s in (share, factor * share)
    )
    assert few <= many * (1 + 5 * NUMERICAL)


@pytest.mark.slow
@slow
@given(rounds, rounds, rounds, st.integers(1, 20), st.integers(1, 20))
def test_the_order_of_rounds_does_not_matter(
    first: ShuffleRound, second: ShuffleRound, third: ShuffleRound, some: int, more: int
) -> None:
    entries = [(first, some), (second, more), (third, 1)]
    assert upper(*entries) == pytest.approx(upper(*entries[::-1]), rel=1e-6)


@pytest.mark.slow
@slow
@given(rounds, st.integers(1, 200), st.sampled_from([1e-2, 1e-6, 1e-10]))
def test_bounds_are_ordered_and_capped(shuffle_round: ShuffleRound, steps: int, delta: float) -> None:
    accountant = accountant_of((shuffle_round, steps))
    interval = accountant.epsilon(delta)
    assert 0 <= interval.lower <= interval.upper <= steps * shuffle_round.local_epsilon * (1 + 1e-9)
    assert math.isfinite(interval.upper)
    assert accountant.delta(interval.upper).upper <= delta * (1 + 1e-3)
    own = Blanket.generic(shuffle_round.local_epsilon)
    generic = dataclasses.replace(shuffle_round, mechanism="of one's own", blanket=own)
    if shuffle_round.mechanism != "clones":
        assert interval.upper <= upper((generic, steps), delta=delta) * (1 + 5 * NUMERICAL)
