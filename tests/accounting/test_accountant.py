"""The accountant, its checkpoints and its refusals."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
from histories import accountant_of, shuffled
from hypothesis import given
from hypothesis import strategies as st
from thinning import first_fast

from shuffle_plugins.accounting import (
    Blanket,
    SampledRecordsRound,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_cohort,
    calibrate_local_epsilon,
    calibrate_num_steps,
    pair_epsilon_interval,
)
from shuffle_plugins.accounting.accountant import _digest
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses import FINE

ROUND = shuffled(1.0, 10_000, 1_000)
OTHER = shuffled(0.5, 10_000, 500)
SPENT = ShuffleAccountant().epsilon(1e-5)
FLEETING = shuffled(1.0, 10_000, 1_000, sampling="poisson")


def test_an_empty_history_costs_nothing() -> None:
    interval = ShuffleAccountant().epsilon(1e-5)
    assert (interval.lower, interval.upper) == (0.0, 0.0)
    assert ShuffleAccountant().delta(0.5).upper == 0.0
    assert pair_epsilon_interval(ShuffleAccountant(), 1e-5) == (0.0, 0.0)


def test_numerics_are_not_said_to_be_exact_where_one_round_is_known_through_another() -> None:
    """The pair composed from below is a stand-in's, whose distance from the round is charged to δ."""
    own = shuffled(1.0, 500, 250, mechanism="sequential", blanket=Blanket.clones(1.0))
    close = shuffled(1.0, 500, 250, local_delta=1e-12)
    alone, together = accountant_of(own), accountant_of(own, close)
    below, above = pair_epsilon_interval(alone, 1e-6)
    assert alone.epsilon(1e-6).lower < 0.999 * above < below
    found = together.epsilon(1e-6)
    assert pair_epsilon_interval(together, 1e-6) == (found.lower, found.upper)


def test_interval_says_what_it_is() -> None:
    interval = accountant_of((ROUND, 100)).epsilon(1e-5)
    assert interval.neighbouring_relation == "replace-one"
    assert interval.adversary == "model-observer"
    assert interval.upper_bound == "crowd pair, PLD"
    assert interval.lower_bound == "3-RR instance"
    assert 0 < interval.lower < interval.upper < 100
    for part in ("replace-one", "model-observer", "δ = 1e-05", "crowd pair, PLD", "3-RR instance"):
        assert part in str(interval)
    assert accountant_of((ROUND, 100), method="rdp").epsilon(1e-5).upper_bound == "crowd pair, RDP"


@given(
    st.floats(0, 1e3), st.floats(0, 1e3), st.sampled_from([".0f", ".3f", "9.2e", ".1%", "g", ".5g", ",.2f"])
)
def test_an_interval_takes_a_format_of_numbers_and_rounds_outwards(
    lower: float, more: float, spec: str
) -> None:
    interval = dataclasses.replace(SPENT, lower=lower, upper=lower + more)
    below, above = f"{interval:{spec}}".removeprefix("[").removesuffix("]").rsplit(", ", 1)
    share = 100 if spec.endswith("%") else 1
    below, above = (Fraction(end.strip().rstrip("%").replace(",", "")) / share for end in (below, above))
    assert below <= interval.lower <= interval.upper <= above
    assert below >= 0.9 * interval.lower - 1
    assert above <= 1.1 * interval.upper + 1


def test_an_interval_without_a_lower_end_says_so() -> None:
    batches = accountant_of(shuffled(1.5, 6000, 1000, sampling="single-pass"))
    assert str(batches.epsilon(1e-5)).startswith("ε ≤ ")
    assert str(batches.delta(0.1)).startswith("δ ≤ ")


def test_intervals_compare_by_the_guarantee() -> None:
    interval = dataclasses.replace(SPENT, lower=0.9, upper=1.1)
    assert interval <= 1.1
    assert interval < 2
    assert interval > 1  # so what stops above a budget stops here
    assert not interval <= 1.0
    worse = dataclasses.replace(interval, lower=0.5, upper=1.2)
    assert max(worse, interval) is worse
    with pytest.raises(ValueError, match="at δ = 1e-05 and at δ = 1e-06 have no order"):
        _ = interval < dataclasses.replace(interval, delta=1e-6)
    with pytest.raises(TypeError):
        _ = interval < "1"
    assert interval != 1.1


def test_would_exceed_agrees_with_epsilon() -> None:
    accountant = accountant_of((OTHER, 5))
    target = accountant_of((OTHER, 5), (ROUND, 40)).epsilon(1e-6, lower=False).upper
    taken = 0
    while not accountant.would_exceed(ROUND, target_epsilon=target, delta=1e-6):
        accountant.step(ROUND)
        taken += 1
        assert taken < 60
    assert taken == 40
    assert accountant.epsilon(1e-6, lower=False).upper <= target
    assert accountant.would_exceed(OTHER, num_steps=10**6, target_epsilon=target, delta=1e-6)
    assert accountant.num_steps == 45


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_checkpoints_are_plain_and_exact(method: str) -> None:
    e = math.exp(1.0)
    blanket = Blanket(local_epsilon=1.0, differing=1 / (e + 4), low=3 / (e + 4), exact=False)
    own = dataclasses.replace(ROUND, mechanism="mine", blanket=blanket)
    accountant = accountant_of((ROUND, 3), (own, 2), (FLEETING, 5), method=method)
    state = accountant.state_dict()

    def plain(value: object) -> bool:
        if type(value) in (tuple, dict):
            items = value.items() if isinstance(value, dict) else value
            return all(map(plain, items))
        return type(value) in (str, int, float, bool, type(None))

    assert plain(state)
    restored = ShuffleAccountant(method=method)
    restored.load_state_dict(json.loads(json.dumps(state)))
    assert restored.history == accountant.history
    assert restored.epsilon(1e-5) == accountant.epsilon(1e-5)


def damaged_states() -> list[object]:
    good = accountant_of((ROUND, 3)).state_dict()
    (entry, steps), *_ = good["history"]
    damaged: list[object] = [None, {}, [], {**good, "version": 99}, {**good, "method": "rdp"}]
    damaged += [{k: v for k, v in good.items() if k != "history"}, {**good, "history": 3}]
    damaged += [{**good, "neighbouring_relation": "add-remove"}]
    for wrong in (0, -1, 1.5, "3", True, None):
        damaged.append({**good, "history": ((entry, wrong),)})
    for position in (place for place, field in enumerate(entry) if field is not None):
        broken = list(entry)
        broken[position] = None
        damaged.append({**good, "history": ((tuple(broken), steps),)})
    damaged.append({**good, "history": ((entry[:-1], steps),)})
    damaged.append({**good, "history": ((entry, steps), ("nonsense", 1))})
    whole = [each if each in ([], None) else {**each, "digest": _digest(each)} for each in damaged]
    cheaper = tuple(field / 2 if field == ROUND.cohort else field for field in entry)
    return [*whole, {**good, "history": ((cheaper, steps),)}, {**good, "history": ((entry, steps - 1),)}]


@pytest.mark.parametrize("state", damaged_states())
def test_damaged_checkpoints_are_refused_and_lose_nothing(state: object) -> None:
    accountant = accountant_of((OTHER, 2))
    before = copy.deepcopy(accountant.history)
    with pytest.raises(ValueError, match=r"\w"):
        accountant.load_state_dict(state)
    assert accountant.history == before


def test_a_state_of_an_earlier_moment_is_refused() -> None:
    """The rounds since then were released, or others in their place; a history that went on may be loaded."""
    accountant = accountant_of((ROUND, 2))
    earlier = accountant.state_dict()
    accountant.step(OTHER)
    history = accountant.history
    with pytest.raises(ValueError, match="would be forgotten"):
        accountant.load_state_dict(earlier)
    assert accountant.history == history
    for other in (accountant_of((ROUND, 30)), accountant_of((OTHER, 2), (ROUND, 9))):
        with pytest.raises(ValueError, match="would be forgotten"):
            accountant.load_state_dict(other.state_dict())
    longer = accountant_of((ROUND, 2), (OTHER, 4), ROUND)
    accountant.load_state_dict(longer.state_dict())
    assert accountant.history == longer.history


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2.0, math.nan, math.inf, True, "1e-5", None])
def test_bad_delta(delta: object) -> None:
    accountant = accountant_of(ROUND)
    for ask in (
        accountant.epsilon,
        partial(accountant.epsilon, lower=False),
        partial(pair_epsilon_interval, accountant),
        accountant.bounds,
    ):
        with pytest.raises(ValueError, match="delta"):
            ask(delta)


TARGET = {"target_epsilon": 1.0, "delta": 1e-6}


def test_calibrated_steps_are_the_largest() -> None:
    found = calibrate_num_steps(**TARGET, shuffle_round=ROUND)
    assert accountant_of((ROUND, found)).epsilon(1e-6, lower=False).upper <= 1.0
    assert accountant_of((ROUND, found + 1)).epsilon(1e-6, lower=False).upper > 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "steps", "target", "sampling", "wrong"),
    [(500, 30, 1.0, "without-replacement", 1), (100, 3, 1.5, "single-pass", -1)],
)
def test_calibrated_cohort_is_the_best(
    population: int, steps: int, target: float, sampling: str, wrong: int
) -> None:
    """The largest; hidden only by its cohort a client wants a large one (of epochs: ``test_epochs.py``)."""

    def upper(cohort: int) -> float:
        each = shuffled(1.0, population, cohort, sampling=sampling)
        return accountant_of((each, steps)).epsilon(1e-6, lower=False).upper

    asked = {"population": population, "num_steps": steps, "target_epsilon": target, "sampling": sampling}
    found = calibrate_cohort(**asked, local_epsilon=1.0, delta=1e-6, channel_fixed=True)
    assert 1 < found < population
    assert upper(found) <= target < upper(found + wrong)


@pytest.mark.slow
def test_a_client_with_several_reports_is_calibrated_as_such() -> None:
    """The largest cohort that fits, out of all of them; a client's two records are not one."""
    goal = {"population": 12, "local_epsilon": 0.5, "num_steps": 4}
    records = {"records_per_client": 2, "samples_per_client": 2}

    def upper(cohort: int) -> float:
        clients = shuffled(0.5, 12, cohort)
        return accountant_of((SampledRecordsRound.of(clients, **records), 4)).epsilon(1e-4, lower=False).upper

    costs = [upper(cohort) for cohort in range(1, 13)]
    for target in (costs[4] * 1.001, costs[9] * 1.001, costs[11] * 1.001):
        found = calibrate_cohort(target_epsilon=target, delta=1e-4, **goal, **records, channel_fixed=True)
        assert costs[found - 1] <= target
        assert found == 12 or costs[found] > target
    with pytest.raises(ValueError, match="no cohort of 12"):
        calibrate_cohort(target_epsilon=min(costs) / 2, delta=1e-4, **goal, **records, channel_fixed=True)


def test_an_epochs_cost_says_nothing_about_its_batches() -> None:
    with pytest.raises(ValueError, match="the same at every batch size"):
        calibrate_cohort(**TARGET, population=100, local_epsilon=1.0, num_steps=1, sampling="epoch")


def test_bounds_that_cross_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is wrong then, and nobody knows which."""
    monkeypatch.setattr(ShuffleAccountant, "_lower_epsilon", lambda *_, **__: (99.0, "planted"))
    with pytest.raises(ArithmeticError, match="the bounds cross: planted gives at least 99"):
        accountant_of((ROUND, 3)).epsilon(1e-6)


def test_unreachable_targets_end_with_an_explanation() -> None:
    with pytest.raises(ValueError, match="fewer rounds"):
        calibrate_local_epsilon(
            target_epsilon=1e-6, delta=1e-9, population=10, cohort=10, num_steps=10**6, channel_fixed=True
        )
    with pytest.raises(ValueError, match="single round"):
        calibrate_num_steps(target_epsilon=1e-4, delta=1e-9, shuffle_round=ROUND)
    with pytest.raises(ValueError, match="no cohort"):
        calibrate_cohort(
            target_epsilon=1e-6,
            delta=1e-9,
            population=100,
            local_epsilon=4.0,
            num_steps=10**5,
            channel_fixed=True,
        )
    with pytest.raises(ValueError, match="nothing is left to choose"):
        calibrate_cohort(
            **TARGET, population=100, local_epsilon=1.0, num_steps=1, sampling="full", channel_fixed=True
        )
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="target_epsilon"):
            calibrate_num_steps(target_epsilon=bad, delta=1e-6, shuffle_round=ROUND)
    assert calibrate_local_epsilon(
        target_epsilon=100.0, delta=1e-6, population=10, cohort=10, num_steps=1, channel_fixed=True
    ) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("local_epsilon", "population", "cohort", "steps", "delta"),
    [
        (1e-4, 10, 10, 1, 1e-5),
        (20.0, 10, 10, 3, 1e-5),
        (1.0, 1, 1, 1, 1e-5),
        (1.0, 1, 1, 1000, 1e-5),
        (8.0, 10**9, 10**9, 10, 1e-12),
        (0.1, 10**9, 10**5, 10**6, 1e-15),
        (2.0, 10**9, 10**8, 10**6, 1e-15),
        (5.0, 10**3, 10, 10**6, 1e-12),
    ],
)
@first_fast("sampling", ["without-replacement", "poisson"])
def test_extremes_stay_ordered_and_finite(local_epsilon, population, cohort, steps, delta, sampling) -> None:
    shuffle_round = shuffled(local_epsilon, population, cohort, sampling=sampling)
    interval = accountant_of((shuffle_round, steps)).epsilon(delta)
    assert 0 <= interval.lower <= interval.upper <= local_epsilon * steps
    assert math.isfinite(interval.upper)


def test_an_allowance_does_not_outlive_the_history_it_was_made_for() -> None:
    loud = dataclasses.replace(ROUND, local_epsilon=1.1)
    accountant = accountant_of((ROUND, 10))
    assert not accountant.would_exceed(loud, target_epsilon=1.0, delta=1e-5)
    accountant.step(ROUND, num_steps=100_000)
    assert accountant.would_exceed(loud, target_epsilon=1.0, delta=1e-5)


def test_a_blanket_without_its_mechanisms_name_is_refused() -> None:
    e = math.exp(1.0)
    blanket = Blanket(local_epsilon=1.0, differing=1 / (e + 4), low=3 / (e + 4))
    with pytest.raises(ValueError, match="mechanism's name"):
        dataclasses.replace(ROUND, blanket=blanket)


@pytest.mark.parametrize("local_epsilon", [30.0, 36.5, 37.5, 43.0, 50.0, 400.0, 500.0])
@pytest.mark.parametrize(
    "scheme",
    [
        {"population": 1, "cohort": 1},
        {"population": 10, "cohort": 10},
        {"population": 1_000, "cohort": 1},
        {"population": 1_000, "cohort": 1_000},
        {"population": 1_000, "cohort": 100, "sampling": "poisson"},
        {"population": 1_000, "cohort": 100, "sampling": "poisson", "adversary": "server"},
    ],
)
@first_fast("steps", [1, 3])
def test_a_loud_report_is_never_accounted_as_silence(
    local_epsilon: float, scheme: dict[str, object], steps: int
) -> None:
    """So large an ε0 shows the report as it is: if it is drawn, the loss is log γe^ε0 or more."""
    shuffle_round = ShuffleRound(local_epsilon=local_epsilon, **scheme, channel_fixed=True)
    rate = 1.0 if shuffle_round.adversary == "server" else shuffle_round.sampling_rate
    interval = accountant_of((shuffle_round, steps)).epsilon(1e-5)
    drawn = local_epsilon + math.log(rate)
    # A second, independent report among k hides it with probability far below δ at these ε0.
    least = drawn - math.log(shuffle_round.cohort) if shuffle_round.population > 1 else drawn
    assert interval.upper >= 0.98 * least
    assert interval.lower <= steps * local_epsilon


@pytest.mark.parametrize(
    ("local_epsilon", "cohort"), [(1e-4, 0.1), (1e-2, 1e-3), (1.0, 1e-5), (4.0, 2e-6), (1e-6, 10.0)]
)
def test_rare_participation_is_not_free(local_epsilon: float, cohort: float) -> None:
    shuffle_round = shuffled(local_epsilon, 1_000, cohort, sampling="poisson")
    accountant = accountant_of(shuffle_round)
    # In all: the client takes part with probability γ and then tells at least tanh(ε0/2) in total variation
    # apart among at most a handful of others.
    ceiling = shuffle_round.sampling_rate * math.tanh(local_epsilon / 2)
    floor = ceiling * (1 + cohort) ** -1 / 4
    assert floor <= accountant.delta(0.0).upper <= ceiling * 1.01
    assert accountant_of((shuffle_round, 50)).delta(0.0).upper >= accountant.delta(0.0).upper


def test_a_single_pass_claims_no_lower_bound() -> None:
    shuffle_round = shuffled(1.0, 1_000, 100, sampling="single-pass")
    interval = accountant_of((shuffle_round, 3)).epsilon(1e-5)
    assert interval.lower == 0.0
    assert interval.lower_bound == "none"
    assert interval.upper > 0


def test_a_mechanism_merely_bounded_by_the_worst_case_claims_no_lower_bound() -> None:
    bounded = dataclasses.replace(ROUND, mechanism="mine", blanket=Blanket.generic(1.0, exact=False))
    interval = accountant_of((bounded, 10)).epsilon(1e-5)
    # Its randomizers may follow what others report; of one that all share a little more is known.
    shared = accountant_of((ROUND, 10)).epsilon(1e-5).upper
    assert shared < interval.upper < 1.2 * shared
    assert (interval.lower, interval.lower_bound) == (0.0, "none")


@pytest.mark.parametrize("local_epsilon", [1e-6, 1e-4, 1e-2, 1.0])
def test_delta_at_zero_is_rounded_outwards(local_epsilon):
    """One report alone: δ(0) is tanh(ε0/2); the upper end once lay a part in 10**10 below it."""
    accountant = accountant_of(shuffled(local_epsilon, 1, 1, sampling="full"))
    answer = accountant.delta(0.0)
    exact = math.tanh(local_epsilon / 2)
    assert answer.lower <= exact <= answer.upper <= exact * (1 + 1e-5)


def by_its_blanket(generic: ShuffleRound) -> ShuffleRound:
    """The same round of randomizers that may follow others' reports: bounded from below as from above."""
    return dataclasses.replace(generic, mechanism="any", blanket=Blanket.generic(generic.local_epsilon))


MANY = [
    by_its_blanket(each)
    for each in (
        *(FLEETING.received(900 + 7 * i) for i in range(20)),
        *(dataclasses.replace(ROUND, local_epsilon=0.5 + 0.05 * i) for i in range(15)),
        *(dataclasses.replace(OTHER, population=5_000 + 100 * i) for i in range(10)),
        FLEETING.received(907),
        ROUND,
    )
]


@pytest.mark.slow
def test_many_kinds_of_rounds_cost_the_same_whenever_it_is_asked() -> None:
    delta = 1e-12
    asked, silent = ShuffleAccountant(), ShuffleAccountant()
    for i, shuffle_round in enumerate(MANY):
        for accountant in (asked, silent):
            accountant.step(shuffle_round, num_steps=1 + i % 3)
        if i % 5 == 0 and i > 25:
            asked.epsilon(delta)
            asked.would_exceed(OTHER, target_epsilon=50.0, delta=delta)
            asked.would_exceed(shuffle_round, target_epsilon=50.0, delta=delta)
            asked = pickle.loads(pickle.dumps(copy.deepcopy(asked)))
    restored = ShuffleAccountant()
    restored.load_state_dict(asked.state_dict())
    expected = silent.epsilon(delta)
    for each in (asked, restored):  # what was folded in another order is off by roundoff
        found = each.epsilon(delta)
        ends = pytest.approx((expected.lower, expected.upper), rel=1e-12)
        assert (found.lower, found.upper) == ends
    found = asked.epsilon(delta)
    assert asked.delta(found.upper).upper == pytest.approx(delta, rel=1e-3)


@first_fast("delta", [1e-5, 1e-12])
def test_a_growing_history_is_bounded_as_one_composed_at_once(delta: float) -> None:
    accountant = ShuffleAccountant()
    for shuffle_round in MANY:
        accountant.step(shuffle_round)
        if len(accountant.history) > 32:
            found = accountant.epsilon(delta)
    steps = Counter(MANY)
    least = [each.upper_losses_from_below(FINE) for each in steps]
    finest = [each.upper_losses(FINE) for each in steps]
    at_once = LossComposition(finest, list(steps.values())).epsilon(delta)
    assert LossComposition(least, list(steps.values())).epsilon(delta) <= found.upper
    assert found.upper == pytest.approx(at_once, rel=5e-3)
    attained = [each.lower_losses(each.lower_families[0], FINE) for each in steps]
    lower = LossComposition(attained, list(steps.values())).epsilon(delta)
    assert found.lower == pytest.approx(lower, rel=5e-3)
    assert found.lower < at_once


@pytest.mark.slow
def test_a_loaded_history_is_composed_anew() -> None:
    """What was composed of forty kinds of rounds is no part of an answer about more steps of them."""
    rounds = [shuffled(1 + i / 100, 10_000, 1000) for i in range(40)]

    short, long = ShuffleAccountant(), ShuffleAccountant()
    for accountant in (short, long):
        for each in rounds:
            accountant.step(each, num_steps=10)
    for each in rounds[:20]:
        long.step(each, num_steps=3)
    before, expected = short.epsilon(1e-6), long.epsilon(1e-6)
    assert before.upper < expected.upper
    short.load_state_dict(long.state_dict())
    assert short.epsilon(1e-6) == expected
