"""Federated rounds against enumeration of small ones, and histories against each client's own."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from brute_force import Law, extreme_channel, hockey_stick, k_ary_response, neighbours, shuffled_law
from histories import accountant_of, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from thinning import first_fast

from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    FederatedAccountant,
    FederatedRound,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    pair_epsilon_interval,
)
from shuffle_plugins.accounting import accountant as accountants
from shuffle_plugins.accounting.accountant import _digest
from shuffle_plugins.accounting.federated.rounds import Cohort, ParticipationCounts, RecordedRound
from shuffle_plugins.mechanisms import registry

VIOLATION = 1e-12
DELTA = 1e-5


@dataclass(frozen=True)
class Randomizer:
    """The least that a round asks of a mechanism."""

    local_epsilon: float
    local_delta: float = 0.0
    bit: bool = False

    def round(
        self, *, population: int, cohort: float, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=population,
            cohort=cohort,
            sampling=sampling,
            mechanism="binary-rr" if self.bit else "generic",
            blanket=Blanket.bit(self.local_epsilon) if self.bit else None,
            local_delta=self.local_delta,
        )


GENERIC = Randomizer(1.5)


def drawn(reports: int, *, candidates: int = 1000, invited: int = 100) -> FederatedRound:
    return FederatedRound.drawn(GENERIC, candidates=candidates, invited=invited, reports=reports)


def people(count: int, *, start: int = 0) -> list[str]:
    return [f"node-{i}" for i in range(start, start + count)]


def bound(shuffle_round: ShuffleRound, epsilon: float) -> float:
    accountant = accountant_of(shuffle_round)
    return accountant.delta(epsilon).upper


def channels(local_epsilon: float) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    drawn = [extreme_channel(rng, local_epsilon=local_epsilon, records=3, outputs=3) for _ in range(3)]
    return [*(k_ary_response(local_epsilon, k) for k in (2, 3)), *drawn]


# -- one round, enumerated --------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 3, 4, 5])
def test_with_secret_participation_a_server_that_sees_the_count_learns_no_more_than_is_charged(
    clients: int,
) -> None:
    rate, local_epsilon = 0.4, 1.5
    epsilons = [share * local_epsilon for share in (0.0, 0.2, 0.5, 0.8)]
    checked = 0
    for reports in range(1, clients + 1):
        charged = FederatedRound.secret(Randomizer(local_epsilon), answered=clients, reports=reports).server
        bounds = [bound(charged, epsilon) for epsilon in epsilons]
        for channel in channels(local_epsilon):
            for one, two in neighbours(len(channel), clients):
                laws = [kept(shuffled_law(channel, data, rate=rate), reports) for data in (one, two)]
                for epsilon, most in zip(epsilons, bounds, strict=True):
                    assert hockey_stick(*laws, epsilon) <= most + VIOLATION
                    checked += 1
    assert checked > 100


def kept(law: Law, reports: int) -> Law:
    """The law given the number of reports."""
    law = {histogram: mass for histogram, mass in law.items() if sum(histogram) == reports}
    total = sum(law.values())
    return {histogram: mass / total for histogram, mass in law.items()}


def drawn_law(
    channel: np.ndarray, dataset: tuple[int, ...], *, invited: int, answers: list[float]
) -> dict[int, Law]:
    """For each number of reports, its chance times the law of the histogram: straight from the protocol."""
    law: dict[int, Law] = defaultdict(lambda: defaultdict(float))
    clients = len(dataset)
    draws = list(itertools.combinations(range(clients), invited))
    for draw in draws:
        for pattern in itertools.product((False, True), repeat=invited):
            chance = math.prod(
                answers[c] if there else 1 - answers[c] for c, there in zip(draw, pattern, strict=True)
            )
            taking_part = [dataset[c] for c, there in zip(draw, pattern, strict=True) if there]
            if taking_part and chance:
                for histogram, mass in shuffled_law(channel, taking_part).items():
                    law[len(taking_part)][histogram] += mass * chance / len(draws)
    return law


@first_fast(("clients", "invited"), [(3, 2), (4, 3), (4, 2), (5, 3)], fast=2)
@first_fast("answering", [0.5, 1.0, 0.9], fast=2)
def test_drop_outs_leak_no_more_to_an_observer_than_is_charged(
    clients: int, invited: int, answering: float
) -> None:
    local_epsilon = 1.5
    epsilons = [share * local_epsilon for share in (0.0, 0.2, 0.5, 0.8)]
    counts = range(1, invited + 1) if answering < 1 else [invited]
    charged = {
        reports: FederatedRound.drawn(
            Randomizer(local_epsilon), candidates=clients, invited=invited, reports=reports
        )
        for reports in counts
    }
    bounds = {r: [bound(charged[r].observer, epsilon) for epsilon in epsilons] for r in counts}
    for channel in channels(local_epsilon)[:3]:
        for one, two in neighbours(len(channel), clients):
            laws = [
                drawn_law(channel, data, invited=invited, answers=[answering] * clients)
                for data in (one, two)
            ]
            for reports in counts:
                pair = [kept(law[reports], reports) for law in laws]
                for epsilon, most in zip(epsilons, bounds[reports], strict=True):
                    assert hockey_stick(*pair, epsilon) <= most + VIOLATION


@pytest.mark.parametrize("small", [(1, 2), (2, 2), (2, 3), (2, 4), (3, 4)])
def test_what_a_size_covers_costs_no_more(small: tuple[int, int]) -> None:
    reports, hiding = small
    channel = k_ary_response(1.2, 3)

    def worst(k: int, n: int, epsilon: float) -> float:
        return max(
            hockey_stick(shuffled_law(channel, one, cohort=k), shuffled_law(channel, two, cohort=k), epsilon)
            for one, two in neighbours(3, n)
        )

    for epsilon in (-0.3, 0.0, 0.3, 0.8):
        most = worst(reports, hiding, epsilon)
        for n in range(2, 6):
            for k in range(1, n + 1):
                if Cohort(0, hiding, reports).covers(Cohort(0, n, k)):
                    assert worst(k, n, epsilon) <= most + VIOLATION


# -- what a round is charged as ---------------------------------------------------------------------------


def test_those_who_drop_out_earn_nothing() -> None:
    for candidates, invited, reports in [(1000, 100, 100), (1000, 100, 37), (997, 31, 30), (50, 50, 49)]:
        one = drawn(reports, candidates=candidates, invited=invited)
        assert one.observer.sampling_rate >= invited / candidates
        assert one.observer.population >= reports
        assert (one.server.population, one.server.cohort) == (reports, reports)
        assert one.server.sampling is Sampling.FULL
        assert not one.is_secret


def test_secret_participation_is_the_same_before_the_server() -> None:
    one = FederatedRound.secret(GENERIC, answered=500, reports=40)
    assert one.observer == one.server
    assert (one.server.population, one.server.cohort, one.is_secret) == (500, 40, True)


def test_no_more_clients_hide_a_report_than_are_honest_and_tossed_a_coin() -> None:
    def hiding(**of: float) -> int:
        return FederatedRound.secret(GENERIC, **of).observer.population

    assert hiding(answered=1, reports=1, honest_fraction=0.1) == 1
    assert hiding(answered=10, reports=1, honest_fraction=0.1) == 1
    assert hiding(answered=100, reports=10, honest_fraction=0.55) == 55
    assert hiding(answered=100, reports=10, honest_fraction=0.29) == 29
    assert hiding(answered=10**15, reports=10, honest_fraction=0.1234567890123459) == 123_456_789_012_345
    assert hiding(answered=100, reports=10, rate=0.25) == 40
    assert hiding(answered=100, reports=10, rate=0.05) == 100
    assert hiding(answered=100, reports=1, rate=0.9) == 1
    for rate in (0.0, 1.5):
        with pytest.raises(ValueError, match="rate"):
            hiding(answered=100, reports=10, rate=rate)


def test_a_round_is_made_of_views_of_one_round() -> None:
    one = drawn(50)
    views = {"observer": one.observer, "server": one.server, "local_epsilon": 1.5, "local_delta": 0.0}
    louder = FederatedRound.drawn(Randomizer(1.0), candidates=1000, invited=100, reports=50)
    wrong = [
        ({"server": drawn(51).server}, "observer and server"),
        ({"server": louder.server}, "local_epsilon"),
        ({"observer": one.server, "server": one.observer}, "more than the server"),
        ({"server": replace(one.server, mechanism="binary-rr", blanket=Blanket.bit(1.5))}, "one mechanism"),
        ({"observer": "a round"}, "made of rounds, got 'a round'"),
        ({"local_delta": 1.0}, "local_delta must be in"),
        ({"local_epsilon": 0.5}, r"local_epsilon is 0\.5, a round's 1\.5"),
    ]
    for change, said in (
        ({"sampling": "poisson"}, "the cohort's size must be known"),
        ({"adversary": "server"}, "leave the rounds' adversary alone"),
    ):
        wrong += [({view: replace(views[view], **change)}, said) for view in ("observer", "server")]
    for change, said in wrong:
        with pytest.raises(ValueError, match=said):
            FederatedRound(**(views | change))
    with pytest.raises(ValueError, match="with nobody trusted"):
        one.before(Adversary.LOCAL)


# -- histories --------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_the_servers_number_bounds_every_clients_own(data: st.DataObject) -> None:
    kinds = [Randomizer(1.0), Randomizer(2.0), Randomizer(1.0, bit=True)]
    names = people(6)
    rounds: list[tuple[FederatedRound, list[str]]] = []
    for _ in range(data.draw(st.integers(1, 7))):
        mechanism = data.draw(st.sampled_from(kinds))
        there = data.draw(st.lists(st.sampled_from(names), min_size=2, unique=True))
        reports = data.draw(st.integers(1, len(there)))
        if data.draw(st.booleans()):
            rounds.append((FederatedRound.secret(mechanism, answered=len(there), reports=reports), there))
        else:
            one = FederatedRound.drawn(mechanism, candidates=12, invited=len(there), reports=reports)
            rounds.append((one, there))
    accountant = FederatedAccountant()
    own = {name: ShuffleAccountant() for name in names}
    for one, there in rounds:
        accountant.step(one, participants=there)
        for name in there:
            own[name].step(one.server)
    delta = 0.01
    found = accountant.spending(delta)
    costliest = max(each.epsilon(delta).upper for each in own.values())
    assert found.server.upper >= costliest * (1 - 1e-3)
    assert accountant.epsilon(delta, adversary=Adversary.SERVER, lower=False).upper >= costliest * (1 - 1e-3)
    assert found.server.lower <= costliest * (1 + 1e-9)
    assert found.server.adversary == "server"
    taken = Counter(name for _, there in rounds for name in there)
    assert found.worst_client_rounds == max(taken.values())
    local = {name: sum(one.local_epsilon for one, there in rounds if name in there) for name in names}
    assert found.local_epsilon == pytest.approx(max(local.values()))


def test_one_kind_in_which_somebody_was_always_there_is_exact() -> None:
    accountant, own, observer = FederatedAccountant(), ShuffleAccountant(), ShuffleAccountant()
    for reports in (80, 90, 100, 95, 80):
        accountant.step(drawn(reports), participants=people(100))
        own.step(drawn(reports).server)
        observer.step(drawn(reports).observer)
    found = accountant.spending(DELTA)
    assert found.server.upper == pytest.approx(own.epsilon(DELTA).upper, rel=1e-4)
    assert found.server.lower == pytest.approx(own.epsilon(DELTA).lower, rel=1e-3)
    assert found.observer.upper == pytest.approx(observer.epsilon(DELTA).upper, rel=1e-4)
    assert found.observer.lower <= found.observer.upper
    assert found.local_epsilon == 7.5


def test_clients_that_never_meet_pay_for_their_own_rounds_only() -> None:
    apart, always = FederatedAccountant(), FederatedAccountant()
    for index in range(6):
        apart.step(drawn(100), participants=people(100, start=100 * index))
        always.step(drawn(100), participants=people(100))
    once = recorded((drawn(100), people(100)))
    server = {a: a.spending(DELTA).server.upper for a in (apart, always, once)}
    assert server[apart] == pytest.approx(server[once], rel=1e-6)
    assert server[always] > 2 * server[once]
    assert apart.spending(DELTA).observer.upper == always.spending(DELTA).observer.upper
    assert apart.worst_client_rounds == 1


def test_reports_thrown_away_cost_before_the_server_alone() -> None:
    accountant = FederatedAccountant()
    accountant.step(drawn(3), participants=people(3), released=False)
    found = accountant.spending(DELTA)
    assert found.observer.upper == 0.0
    assert found.server.upper > 0.5
    assert found.num_rounds == 1


def test_too_few_participants_are_refused_and_nothing_is_recorded() -> None:
    accountant = FederatedAccountant()
    with pytest.raises(ValueError, match="somebody's round"):
        accountant.step(drawn(100), participants=people(99))
    with pytest.raises(ValueError, match="somebody's round"):
        accountant.step(drawn(3), participants=["a", "a", "b"])
    with pytest.raises(TypeError, match="many names"):
        accountant.step(drawn(3), participants="abc")
    with pytest.raises(TypeError, match="named by str"):
        accountant.step(drawn(3), participants=[1, 2, 3])  # type: ignore[list-item]
    assert (accountant.num_rounds, accountant.epsilon(DELTA, lower=False).upper) == (0, 0.0)


def test_local_delta_is_paid_for_at_every_report() -> None:
    mechanism = Randomizer(1.0, local_delta=1e-7)
    accountant = FederatedAccountant()
    one = FederatedRound.drawn(mechanism, candidates=1000, invited=100, reports=100)
    for _ in range(3):
        accountant.step(one, participants=people(100))
    assert accountant.spending(1e-4).local_epsilon == 3.0
    assert accountant.epsilon(2e-7, adversary=Adversary.LOCAL, lower=False).upper == math.inf
    assert accountant.epsilon(1e-4, adversary=Adversary.SERVER, lower=False).upper <= 3.0
    with pytest.raises(ValueError, match="δ0"):
        accountant.spending(2e-7)


def varying(rounds: int, *, secret: bool = False, seed: int = 3) -> list[FederatedRound]:
    rng = np.random.default_rng(seed)
    counts = [int(count) for count in rng.binomial(1000, 0.1, size=rounds)]
    if secret:
        return [FederatedRound.secret(GENERIC, answered=1000, reports=count) for count in counts]
    return [drawn(min(count, 120), candidates=1200, invited=120) for count in counts]


@pytest.mark.slow
@pytest.mark.parametrize("secret", [False, True])
def test_the_quick_number_is_close_never_below_and_never_falls(secret: bool) -> None:
    accountant, names = FederatedAccountant(), people(120)
    shown = dict.fromkeys(Adversary, 0.0)
    for index, one in enumerate(varying(30, secret=secret), start=1):
        accountant.step(one, participants=names)
        for adversary in Adversary:
            spent = accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
            assert spent >= shown[adversary]
            shown[adversary] = spent
        if index in (1, 7, 30):
            found = accountant.spending(DELTA)
            exact = {
                Adversary.MODEL_OBSERVER: found.observer.upper,
                Adversary.SERVER: found.server.upper,
                Adversary.LOCAL: found.local_epsilon,
            }
            for adversary, upper in exact.items():
                assert upper <= shown[adversary] <= upper * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", list(Adversary))
def test_a_budget_holds_and_is_used(adversary: Adversary) -> None:
    budget = {Adversary.MODEL_OBSERVER: 0.9, Adversary.SERVER: 9.0, Adversary.LOCAL: 40.0}[adversary]
    accountant, names = FederatedAccountant(), people(120)
    worst = drawn(60, candidates=1200, invited=120)
    steps = 0
    for one in itertools.cycle(varying(50)):
        if accountant.would_exceed(worst, max_epsilon=budget, delta=DELTA, adversary=adversary):
            break
        accountant.step(one, participants=names)
        steps += 1
        assert accountant.epsilon(DELTA, adversary=adversary, lower=False).upper <= budget
    assert steps > 20
    # It stopped as the worst round would not fit, no earlier.
    longer = FederatedAccountant()
    longer.load_state_dict(accountant.state_dict())
    longer.step(worst, participants=names)
    assert longer.epsilon(DELTA, adversary=adversary, lower=False).upper > budget * (1 - 1e-3)
    assert accountant.spending(DELTA).observer.upper <= accountant.epsilon(DELTA, lower=False).upper * (
        1 + 1e-3
    )


def history(name: str, rounds: int) -> list[FederatedRound]:
    """Rounds of cohorts of changing sizes, at ε0 = 2."""
    rng = np.random.default_rng(11)
    mechanism = Randomizer(2.0)
    if name == "drawn, drop-outs":
        invited = rng.binomial(1000, 0.1, size=rounds)
        counts = [(int(m), int(rng.binomial(m, 0.9))) for m in invited]
        return [FederatedRound.drawn(mechanism, candidates=1000, invited=m, reports=k) for m, k in counts]
    if name == "50 of a changing population":
        sizes = map(int, rng.integers(200, 2001, size=rounds))
        return [FederatedRound.drawn(mechanism, candidates=n, invited=50, reports=50) for n in sizes]
    answered = [int(n) for n in rng.integers(500, 1501, size=rounds)]
    return [FederatedRound.secret(mechanism, answered=n, reports=int(rng.binomial(n, 0.1))) for n in answered]


@first_fast("name", ["drawn, drop-outs", "50 of a changing population", "secret"])
def test_cohorts_of_changing_sizes_cost_what_they_cost_one_by_one(name: str) -> None:
    rounds = history(name, 60)
    accountant = FederatedAccountant()
    for one in rounds:
        accountant.step(one, participants=None)
    for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        alone = ShuffleAccountant()
        for one in rounds:
            alone.step(one.before(adversary))
        least, exact = pair_epsilon_interval(alone, DELTA)
        found = accountant.epsilon(DELTA, adversary=adversary)
        charged = accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
        assert least <= found.upper == charged <= 1.005 * exact
        # A budget is compared with that number and no other.
        longer = FederatedAccountant()
        longer.load_state_dict(accountant.state_dict())
        longer.step(rounds[0], participants=None)
        after = longer.epsilon(DELTA, adversary=adversary, lower=False).upper
        for budget, too_much in ((after * (1 + 1e-6), False), (after * (1 - 1e-6), True)):
            asked = accountant.would_exceed(rounds[0], max_epsilon=budget, delta=DELTA, adversary=adversary)
            assert asked is too_much


@pytest.mark.slow
def test_of_rounds_whose_losses_take_long_few_sizes_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, mechanism = np.random.default_rng(3), registry.get("k-rr", local_epsilon=2.0, dim=5)
    accountant, exact = FederatedAccountant(), ShuffleAccountant()
    for reports in rng.integers(400, 600, size=150).tolist():
        one = FederatedRound.drawn(mechanism, candidates=10_000, invited=reports, reports=reports)
        accountant.step(one, participants=None)
        exact.step(one.before(Adversary.MODEL_OBSERVER))
    read: set[Round] = set()
    laws = partial(
        lambda of, each, resolution: read.add(each) or of(each, resolution), accountants.upper_losses
    )
    monkeypatch.setattr(accountants, "upper_losses", laws)
    found = accountant.epsilon(DELTA)
    assert 32 < len(read) <= 64
    assert len({each for each, _ in exact.history}) > 90
    monkeypatch.undo()
    each = exact.epsilon(DELTA)
    # The few sizes are resolved more finely than each of the many.
    assert 0.99 * each.lower < found.lower <= each.lower
    assert 0.995 * each.upper < found.upper < 1.01 * each.upper


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [20, 60])
def test_a_client_of_some_rounds_pays_for_as_many_of_the_smallest(rounds: int) -> None:
    rng = np.random.default_rng(2)
    accountant = FederatedAccountant()
    sizes = [int(size) for size in rng.integers(40, 160, size=rounds)]
    taken = Counter[int]()
    for size in sizes:
        there = [int(client) for client in rng.choice(400, size=size, replace=False)]
        taken.update(there)
        one = FederatedRound.drawn(GENERIC, candidates=1000, invited=size, reports=size)
        accountant.step(one, participants=[str(client) for client in there])
    alone = ShuffleAccountant()
    for size in sorted(sizes)[: max(taken.values())]:
        alone.step(drawn(size, invited=size).server)
    least, exact = pair_epsilon_interval(alone, DELTA)
    found = accountant.epsilon(DELTA, adversary=Adversary.SERVER)
    assert least <= found.upper <= 1.005 * exact
    assert 0 < found.lower < found.upper


@pytest.mark.slow
def test_a_question_costs_no_more_after_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted are transforms of laws: all that grows with the history is how long each is."""
    transforms = 0
    real = np.fft.rfft

    def counted(*args: object, **named: object) -> object:
        nonlocal transforms
        transforms += 1
        return real(*args, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(np.fft, "rfft", counted)
    accountant, worst = FederatedAccountant(), drawn(60, candidates=1200, invited=120)
    done = []
    for one in varying(160):
        assert not accountant.would_exceed(worst, max_epsilon=50.0, delta=DELTA)
        accountant.step(one, participants=None)
        accountant.epsilon(DELTA, lower=False)
        done.append(transforms)
    assert done[-1] - done[79] <= done[79]


# -- checkpoints ------------------------------------------------------------------------------------------


def mixed() -> FederatedAccountant:
    secret = FederatedRound.secret(GENERIC, answered=95, reports=20)
    accountant = recorded((drawn(90), people(95)), (drawn(80), None), (secret, people(95, start=5)))
    accountant.step(drawn(2), participants=people(2), released=False)
    bits = FederatedRound.drawn(Randomizer(0.5, bit=True), candidates=500, invited=50, reports=50)
    accountant.step(bits, participants=people(50, start=40))
    return accountant


def test_a_state_survives_json() -> None:
    accountant = mixed()
    # A kind that was asked about and never recorded must not shift the others.
    asked = FederatedRound.drawn(Randomizer(3.0), candidates=50, invited=5, reports=5)
    assert accountant.would_exceed(asked, max_epsilon=0.1, delta=DELTA)
    restored = FederatedAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.spending(DELTA) == accountant.spending(DELTA)
    for each in (restored, accountant):
        each.step(drawn(90), participants=people(95))
    assert restored.spending(DELTA) == accountant.spending(DELTA)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 1},
        {"method": "rdp"},
        {"neighbouring_relation": "add-remove"},
        {"history": (((), True, True),)},
        {"history": 7},
        {"participation": ()},
        {"participation": (((("x",), {"a": 1}),),)},
    ],
)
def test_damaged_states_are_refused_and_change_nothing(damage: dict[str, object]) -> None:
    accountant = mixed()
    before = accountant.spending(DELTA)
    with pytest.raises(ValueError, match=r"damaged|version|method|neighbouring"):
        accountant.load_state_dict(resealed({**accountant.state_dict(), **damage}))
    assert accountant.spending(DELTA) == before


def resealed(state: dict[str, object]) -> dict[str, object]:
    return {**state, "digest": _digest(state)}


def test_what_would_lower_epsilon_is_missed_in_a_saved_state() -> None:
    """A cohort that was halved, and participants with fewer rounds than there were reports."""
    accountant = FederatedAccountant()
    for _ in range(4):
        accountant.step(drawn(50), participants=[f"client {place}" for place in range(50)])
    state = json.loads(json.dumps(accountant.state_dict()))
    halved = json.loads(json.dumps(state).replace("50", "25"))
    [[[kind, named]]] = state["participation"]
    rarer = {**state, "participation": [[[kind, dict.fromkeys(named, (1, 0))]]]}
    for damaged, why in (
        (halved, "not what was written"),
        (rarer, "not what was"),
        (resealed(rarer), "missing"),
    ):
        with pytest.raises(ValueError, match=why):
            FederatedAccountant().load_state_dict(damaged)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        *(
            (wrong, "whole number of rounds")
            for wrong in ({"a": (1.0, 0)}, {"a": (True, 0)}, {1: (1, 0)}, {"a": (0, 1.0)})
        ),
        *((wrong, "or may have been") for wrong in ({"a": (0, 0)}, {"b": (-1, 0)}, {"b": (1, -1)})),
        ({"a": (2, 0)}, "more rounds than there were"),
        ({"a": (1, 1)}, "more rounds than there were"),
        ({}, "missing"),
    ],
)
def test_who_took_part_is_named_and_in_no_more_rounds_than_there_were(
    named: dict[object, object], said: str
) -> None:
    one = drawn(50)
    record = RecordedRound(one, unnamed=False, released=True)
    with pytest.raises(ValueError, match=said):
        FederatedAccountant.from_records([record], participation=[{one.kind: named}])
    for flags in ({"unnamed": 1, "released": True}, {"unnamed": True, "released": 0}):
        with pytest.raises(ValueError, match="true or false"):
            FederatedAccountant.from_records([RecordedRound(one, **flags)], participation=[])


def test_a_round_whose_participants_are_unknown_counts_for_every_client() -> None:
    other = FederatedRound.drawn(Randomizer(1.0), candidates=1000, invited=20, reports=20)
    counts = ParticipationCounts()
    for one, names in (
        (drawn(10), ["a", "b"]),
        (drawn(10), ["a"]),
        (other, ["b"]),
        (other, None),
        (other, None),
    ):
        counts.of(one).recorded += 1
        counts.add(one, names)
    weight = {drawn(10).kind: 1.0, other.kind: 10.0}
    assert counts.worst_client(lambda kind: weight[kind.example.kind]) == 1 + 10 + 20  # b's, and the unknown
    assert counts.taken(Adversary.SERVER) == {0: 2, 1: 3}
    for names, after in ((None, 4), (["a"], 3), (["b", "c"], 4)):
        assert counts.after(other, names, adversary=Adversary.SERVER) == {0: 2, 1: after}


def test_a_budget_counts_the_round_that_is_asked_about() -> None:
    """Where no client was in all rounds, too; a question records nothing."""
    sizes = (50, 60, 40)
    for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        accountant = FederatedAccountant()
        for place, size in enumerate(sizes):
            accountant.step(drawn(size), participants=people(size, start=1000 * place))
        assert not accountant._is_whole(Adversary.SERVER)
        longer = FederatedAccountant()
        longer.load_state_dict(accountant.state_dict())
        longer.step(drawn(30), participants=people(30))
        cost = longer.epsilon(DELTA, adversary=adversary, lower=False).upper
        for share, exceeds in ((0.99, True), (1.01, False)):
            asked = {"max_epsilon": share * cost, "delta": DELTA, "adversary": adversary}
            assert accountant.would_exceed(drawn(30), **asked) is exceeds


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_clients_that_join_may_be_any_that_left(data: st.DataObject) -> None:
    """People come, leave and come back under other names; none is charged less than its own rounds."""
    accountant, truth, names = FederatedAccountant(), Counter[int](), dict(enumerate("abcdef"))
    assert not accountant.would_exceed(drawn(2), max_epsilon=50.0, delta=DELTA)  # of which nothing is kept
    for place in range(data.draw(st.integers(1, 12))):
        back = data.draw(st.sets(st.sampled_from(range(6)), max_size=2))
        names |= {person: f"{person} since {place}" for person in back}
        if back:
            accountant.join([names[person] for person in back])
        there = data.draw(st.sets(st.sampled_from(range(6)), min_size=2))
        least = max([truth[person] + 1 for person in there] + list(truth.values()))
        called = [names[person] for person in there]
        after = accountant._participation.after(drawn(2), called, adversary=Adversary.SERVER)[0]
        accountant.step(drawn(2), participants=called)
        truth.update(there)
        assert max(truth.values()) == least <= accountant.worst_client_rounds == after <= place + 1
    restored = FederatedAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.state_dict() == accountant.state_dict()
    assert restored.worst_client_rounds == accountant.worst_client_rounds


def test_clients_that_join_may_have_been_in_rounds_of_another_kind() -> None:
    """A client that trained, and answers a query under another name, spent both; with nobody trusted, too."""
    accountant = recorded(*((drawn(10), people(10)) for _ in range(5)))
    query = registry.get("linf-block", local_epsilon=0.5, dim=10)
    other = FederatedRound.drawn(query, candidates=10, invited=10, reports=10)
    trained = accountant.spending(DELTA).local_epsilon
    accountant.join(people(10, start=10))
    assert accountant.spending(DELTA).local_epsilon == trained
    accountant.step(other, participants=people(10, start=10))
    assert accountant.spending(DELTA).local_epsilon == pytest.approx(trained + 0.5)
    assert accountant.worst_client_rounds == 6


def test_a_history_is_saved_where_clients_join_before_the_first_round_under_new_names() -> None:
    accountant = recorded((drawn(10), people(10)))
    accountant.rename()
    accountant.join(people(10, start=10))
    restored = FederatedAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.worst_client_rounds == 1


def test_clients_that_join_are_no_evidence_for_a_lower_end() -> None:
    accountant = recorded((drawn(10), people(10)), (drawn(10), people(10)))
    accountant.join(people(10, start=10))
    known = accountant.client_spread(DELTA)
    accountant.step(drawn(10), participants=people(10, start=10))
    assert accountant.worst_client_rounds == 3
    always = recorded(*((drawn(10), people(10)) for _ in range(3)))
    twice = recorded(*((drawn(10), people(10)) for _ in range(2)))
    found, most, least = (one.spending(DELTA).server for one in (accountant, always, twice))
    assert found.upper == pytest.approx(most.upper)
    assert found.lower <= least.upper
    assert known is None or known.clients == 10
    assert accountant.client_spread(DELTA) is None


def test_before_an_observer_who_knows_the_order_clients_pay_for_their_own_rounds() -> None:
    """Cohorts whose draw is no secret, ten of them after one another, each twice."""
    one = FederatedRound.drawn(GENERIC, candidates=50, invited=50, reports=50)
    accountant = FederatedAccountant()
    budget = accountant_of((one.server, 2)).epsilon(DELTA, lower=False).upper * 1.0001
    for place in range(20):
        names = people(50, start=50 * (place % 10))
        for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
            asked = {"max_epsilon": budget, "delta": DELTA, "adversary": adversary}
            assert not accountant.would_exceed(one, participants=names, **asked)
            assert accountant.would_exceed(one, participants=people(1), **asked) == (place > 10)
            assert accountant.would_exceed(one, **asked) == (place > 10)
        accountant.step(one, participants=names)
        for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
            assert accountant.epsilon(DELTA, adversary=adversary, lower=False).upper <= budget
    found = accountant.spending(DELTA)
    assert found.observer.upper == pytest.approx(found.server.upper, rel=1e-9)
    assert found.observer.lower == 0 < found.server.lower
    # One round of the kind that sampling hides, and all are charged.
    accountant.step(drawn(50), participants=people(50))
    assert accountant.epsilon(DELTA, lower=False).upper > 2 * found.observer.upper


def test_what_a_budget_allowed_for_some_it_did_not_allow_for_everybody() -> None:
    one = FederatedRound.drawn(GENERIC, candidates=50, invited=50, reports=50)
    accountant = recorded((one, people(50)))
    budget = accountant_of((one.server, 1)).epsilon(DELTA, lower=False).upper * 1.0001
    asked = {"max_epsilon": budget, "delta": DELTA, "adversary": Adversary.SERVER}
    assert not accountant.would_exceed(one, participants=people(50, start=50), **asked)
    assert accountant.would_exceed(one, participants=people(50), **asked)
    accountant.step(one, participants=None)
    assert accountant.epsilon(DELTA, adversary=Adversary.SERVER, lower=False).upper > budget


def test_names_that_do_not_last_add_up() -> None:
    # Ten clients in every round of three runs; in each run they go by other names.
    accountant = FederatedAccountant()
    truth = FederatedAccountant()
    for run in range(3):
        for _ in range(4):
            accountant.step(drawn(10), participants=[f"{run}-{client}" for client in range(10)])
            truth.step(drawn(10), participants=people(10))
        accountant.rename()
    assert accountant.worst_client_rounds == truth.worst_client_rounds == 12
    found, right = accountant.spending(DELTA), truth.spending(DELTA)
    assert found.server.upper == pytest.approx(right.server.upper)
    assert found.local_epsilon == right.local_epsilon
    assert found.server.lower <= right.server.lower
    assert found.observer == right.observer
    restored = FederatedAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.spending(DELTA) == found


def test_names_that_do_not_last_add_up_over_kinds_of_rounds() -> None:
    accountant = FederatedAccountant()
    other = FederatedRound.drawn(Randomizer(1.0), candidates=1000, invited=20, reports=20)
    accountant.step(drawn(10), participants=people(10))
    accountant.rename()
    accountant.step(other, participants=people(20))
    accountant.step(drawn(10), participants=people(10))
    accountant.rename()
    accountant.step(other, participants=people(20))
    assert accountant.worst_client_rounds == 4
    assert accountant.spending(DELTA).local_epsilon == pytest.approx(
        2 * drawn(10).local_epsilon + 2 * other.local_epsilon
    )
