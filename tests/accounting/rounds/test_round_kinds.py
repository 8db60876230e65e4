"""Check-ins, adaptive rounds, (ε0, δ0) reports, received counts: against enumeration of small cases."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from brute_force import hockey_stick, neighbours, shuffled_law
from histories import accountant_of, shuffled

from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    CentralGaussianRound,
    CountedRound,
    DecoyRound,
    GaussianReportsRound,
    LaplaceRound,
    PoissonBinomialRound,
    Round,
    SampledRecordsRound,
    Sampling,
    SeveralReportsRound,
    ShuffleAccountant,
    SumRound,
    Tag,
    TaggedRound,
)
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.pairs import shuffle as losses

VIOLATION = 1e-12


def response(bit: int, local_epsilon: float) -> tuple[tuple[int, float], ...]:
    right = 1 / (1 + math.exp(-local_epsilon))
    return ((bit, right), (1 - bit, 1 - right))


Histogram = tuple[int, int]


def add(histogram: Histogram, bit: int) -> Histogram:
    return (histogram[0] + 1 - bit, histogram[1] + bit)


def check_in_law(
    inputs: Callable[[int, int, Histogram | None], int], *, clients: int, local_epsilon: float
) -> dict[tuple[Histogram, Histogram], float]:
    """Law of the two histograms of a pass of two rounds; inputs(client, round, first histogram) is a bit."""
    law: dict[tuple[Histogram, Histogram], float] = defaultdict(float)
    for chosen in itertools.product((0, 1), repeat=clients):
        first: dict[Histogram, float] = {(0, 0): 1.0}
        for client in range(clients):
            if chosen[client] == 0:
                grown: dict[Histogram, float] = defaultdict(float)
                for histogram, mass in first.items():
                    for bit, chance in response(inputs(client, 0, None), local_epsilon):
                        grown[add(histogram, bit)] += mass * chance
                first = grown
        for seen, seen_mass in first.items():
            second: dict[Histogram, float] = {(0, 0): 1.0}
            for client in range(clients):
                if chosen[client] == 1:
                    grown = defaultdict(float)
                    for histogram, mass in second.items():
                        for bit, chance in response(inputs(client, 1, seen), local_epsilon):
                            grown[add(histogram, bit)] += mass * chance
                    second = grown
            for histogram, mass in second.items():
                law[seen, histogram] += seen_mass * mass / 2**clients
    return dict(law)


@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("local_epsilon", [0.6, 1.5, 3.0])
def test_a_check_in_hides_among_everybody_even_if_later_rounds_follow_earlier_ones(
    clients: int, local_epsilon: float
) -> None:
    pass_ = shuffled(local_epsilon, clients, clients / 2, sampling="check-in", channel_fixed=False)
    accountant = accountant_of(pass_)
    bounds = {share: accountant.delta(share * local_epsilon).upper for share in (0.0, 0.1, 0.3, 0.7)}
    rng = np.random.default_rng(clients)
    worst = 0.0
    for _ in range(40):
        strategy = {
            (client, seen): int(rng.integers(2))
            for client in range(clients)
            for seen in (None, *itertools.product(range(clients + 1), repeat=2))
        }

        def original(client: int, _: int, seen: Histogram | None, table: dict = strategy) -> int:
            return table[client, seen]

        def replaced(client: int, _: int, seen: Histogram | None, table: dict = strategy) -> int:
            return table[client, seen] if client else 1 - table[client, seen]

        p, q = (
            check_in_law(inputs, clients=clients, local_epsilon=local_epsilon)
            for inputs in (original, replaced)
        )
        for share, bound in bounds.items():
            exact = hockey_stick(p, q, share * local_epsilon)
            assert exact <= bound + VIOLATION
            worst = max(worst, exact / bound)
    assert worst > 0.7


def test_a_server_sees_who_checks_in() -> None:
    pass_ = shuffled(1.0, 10_000, 100, sampling="check-in", adversary="server", channel_fixed=False)
    hidden = shuffled(1.0, 10_000, 100, sampling="check-in", channel_fixed=False)
    everybody = shuffled(
        1.0, 10_000, 10_000, sampling="full", mechanism="binary-rr", blanket=Blanket.generic(1.0)
    )
    batch = shuffled(1.0, 100, 100, sampling="full")
    seen, unseen, full, alone = (
        accountant_of((r, 3)).epsilon(1e-6) for r in (pass_, hidden, everybody, batch)
    )
    assert unseen.upper == full.upper
    assert unseen.lower >= full.lower > 0
    assert full.upper < 0.2 * seen.upper
    assert alone.upper <= seen.upper <= 1.2 * alone.upper  # who checks in follows from earlier reports


def sequential_law(
    inputs: Callable[[int, tuple[int, ...]], int], *, clients: int, local_epsilon: float
) -> dict[tuple[int, ...], float]:
    """Reports in order, by clients in random order; each report's input may depend on those before it."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    orders = list(itertools.permutations(range(clients)))
    for order in orders:
        reports: dict[tuple[int, ...], float] = {(): 1.0}
        for client in order:
            reports = {
                (*seen, bit): mass * chance
                for seen, mass in reports.items()
                for bit, chance in response(inputs(client, seen), local_epsilon)
            }
        for seen, mass in reports.items():
            law[seen] += mass / len(orders)
    return dict(law)


@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("local_epsilon", [0.5, 1.5])
@pytest.mark.parametrize("blanket", [Blanket.clones, Blanket.generic])
def test_inputs_may_follow_from_earlier_reports_of_the_round(
    clients: int, local_epsilon: float, blanket: Callable[[float], Blanket]
) -> None:
    adaptive = shuffled(
        local_epsilon, clients, clients, mechanism="sequential", blanket=blanket(local_epsilon)
    )
    accountant = accountant_of(adaptive)
    rng = np.random.default_rng(clients)
    histories = [h for length in range(clients) for h in itertools.product((0, 1), repeat=length)]
    for _ in range(60):
        table = {(client, seen): int(rng.integers(2)) for client in range(clients) for seen in histories}

        def original(client: int, seen: tuple[int, ...], table: dict = table) -> int:
            return table[client, seen]

        def replaced(client: int, seen: tuple[int, ...], table: dict = table) -> int:
            return table[client, seen] if client else 1 - table[client, seen]

        p, q = (
            sequential_law(inputs, clients=clients, local_epsilon=local_epsilon)
            for inputs in (original, replaced)
        )
        for share in (0.0, 0.2, 0.6):
            bound = accountant.delta(share * local_epsilon).upper
            assert hockey_stick(p, q, share * local_epsilon) <= bound + VIOLATION


# -- (ε0, δ0) -----------------------------------------------------------------------------------------------


def leaky_channel(local_epsilon: float, local_delta: float) -> np.ndarray:
    """Binary response that shows its input with probability δ0: (ε0, δ0)-LDP."""
    right = 1 / (1 + math.exp(-local_epsilon))
    quiet = np.array([[right, 1 - right, 0, 0], [1 - right, right, 0, 0]])
    return (1 - local_delta) * quiet + local_delta * np.array([[0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("local_delta", [1e-4, 0.01])
@pytest.mark.parametrize(("population", "cohort"), [(2, 2), (4, 4), (5, 3)])
def test_approximate_reports_are_dominated(local_delta: float, population: int, cohort: int) -> None:
    channel = leaky_channel(1.0, local_delta)
    accountant = accountant_of(shuffled(1.0, population, cohort, local_delta=local_delta))
    for one, two in neighbours(2, population):
        p, q = (shuffled_law(channel, data, cohort=cohort) for data in (one, two))
        for epsilon in (0.0, 0.2, 0.7):
            assert hockey_stick(p, q, epsilon) <= accountant.delta(epsilon).upper + VIOLATION


def test_the_charge_for_approximate_reports_is_theorem_3_8s() -> None:
    exact = shuffled(1.0, 10**4, 10**4)
    approximate = shuffled(1.0, 10**4, 10**4, local_delta=1e-14)
    adaptive = shuffled(1.0, 10**4, 10**4, mechanism="sequential", blanket=Blanket.clones(1.0))
    steps, epsilon = 50, 0.4
    charge = (math.exp(epsilon) + 1) * (1 + math.exp(-1) / 2) * 1e4 * 1e-14 * steps
    pure = accountant_of((adaptive, steps)).delta(epsilon).upper
    assert accountant_of((approximate, steps)).delta(epsilon).upper == pytest.approx(pure + charge, rel=1e-9)
    for method in ("pld", "rdp"):
        found = accountant_of((approximate, steps), method=method)
        interval = found.epsilon(1e-6)
        assert interval.upper > accountant_of((exact, steps), method=method).epsilon(1e-6).upper
        assert 0 < interval.lower < interval.upper
        if method == "pld":
            assert found.delta(interval.upper).upper == pytest.approx(1e-6, rel=1e-4)
        assert interval.upper_bound == f"clones pair, {method.upper()}"


@pytest.mark.parametrize(
    ("sampling", "adversary", "reports"),
    [
        ("without-replacement", "server", 200),
        ("poisson", "model-observer", 200),
        ("poisson", "server", 1 + 999 / 5),  # the client is known to take part
        ("single-pass", "model-observer", 1_000),
        ("check-in", "model-observer", 1_000),
        ("epoch", "model-observer", 1_000),
    ],
)
def test_every_client_that_reports_is_charged(sampling: str, adversary: str, reports: float) -> None:
    leaky = shuffled(0.7, 1_000, 200, local_delta=1e-9, sampling=sampling, adversary=adversary)  # fmt: skip
    charge = reports * 1e-9 * (1 + math.exp(-0.7) / 2)
    assert leaky.replacement_distance == pytest.approx(charge, rel=1e-12)


def test_too_much_local_delta_fails_with_advice() -> None:
    loud = shuffled(1.0, 10**4, 10**4, local_delta=1e-8)
    accountant = accountant_of((loud, 1000))
    with pytest.raises(ValueError, match="smaller δ0"):
        accountant.epsilon(1e-6)
    assert accountant.would_exceed(loud, target_epsilon=5.0, delta=1e-6)
    charge = (1 + math.e) * 1e7 * 1e-8 * (1 + math.exp(-1) / 2)
    assert charge <= accountant.delta(1.0).upper <= min(1.0, 1.01 * charge + 0.7)
    # Few reports: their own guarantee, composed, still holds where the charge for all clients does not.
    few = accountant_of((loud, 10))
    assert few.epsilon(1e-6).upper == pytest.approx(10.0)
    assert few.epsilon(1e-6).upper_bound == "local epsilon, no amplification"
    with pytest.raises(ValueError, match="local_delta"):
        shuffled(1.0, 10, 10, local_delta=-0.1)
    with pytest.raises(ValueError, match="leave out its blanket"):
        shuffled(1.0, 10, 10, local_delta=0.1, mechanism="binary-rr", blanket=Blanket.bit(1.0))


# -- received counts ----------------------------------------------------------------------------------------


def test_a_received_count_costs_what_its_cohort_costs() -> None:
    announced = shuffled(1.0, 10_000, 500.5, sampling="poisson")
    for count in (1, 480, 10_000):
        received = announced.received(count)
        fixed = shuffled(1.0, 10_000, count)
        assert received == fixed
    few, many = (
        accountant_of((announced.received(k), 20)).epsilon(1e-6, lower=False).upper for k in (400, 600)
    )
    assert few < accountant_of((announced, 20)).epsilon(1e-6, lower=False).upper < many
    for bad in (0, -1, 10_001, 1.5, True):
        with pytest.raises(ValueError, match="reports"):
            announced.received(bad)
    with pytest.raises(ValueError, match="known beforehand"):
        shuffled(1.0, 10, 5).received(5)


# -- histories of all kinds ---------------------------------------------------------------------------------


EVERYBODY = {"population": 300, "cohort": 300}
TAGS = (Tag(local_epsilon=1.0, count=3, places=True, lean=0.5), Tag(local_epsilon=0.5, count=2, places=False))


@pytest.mark.parametrize(
    "one",
    [
        shuffled(1.0, 90, 9, sampling="epoch", adversary="server", channel_fixed=False),
        SampledRecordsRound(local_epsilon=1.0, **EVERYBODY, records_per_client=5, samples_per_client=2),
        SeveralReportsRound(
            report_epsilon=1.0, reports_per_client=3, mechanism="binary-rr", blanket=Blanket.bit(1.0),
            **EVERYBODY,
        ),
        GaussianReportsRound(local_epsilon=1.0, local_delta=1e-9, radius=0.3, attained=0.2, **EVERYBODY),
        CentralGaussianRound(noise_multiplier=2.0, neighbouring_relation="add-or-remove-one", **EVERYBODY),
        SumRound(
            sensitivity=20.0, attained=20, trials=90_000, dim=2, norm=15.0, participation=0.5,
            coin_ratio=1e-3, coin_distance=1e-12, **EVERYBODY,
        ),
        PoissonBinomialRound(
            dim=2, bits=4, flip=0.25, distance=2.0, honest=200, attained=((0.5, 2),), participation=0.3,
            **EVERYBODY,
        ),
        LaplaceRound(noise_epsilon=0.5, sensitivity=10, attained=7, shape=0.4, distance=1e-12, **EVERYBODY),
        DecoyRound(decoys=9.0, distance=1e-12, **EVERYBODY),
        TaggedRound(tags=TAGS, opposite=True, honest=250, participation=0.5, **EVERYBODY),
        CountedRound(bit_epsilon=2.0, length=7, ones=3, encoding="optimal", distance=1e-9, **EVERYBODY),
    ],
    ids=lambda one: one.KIND,
)  # fmt: skip
def test_a_state_comes_back_as_the_same_round(one: Round) -> None:
    state = json.loads(json.dumps(one.state()))
    assert Round.from_state(state) == type(one).from_state(state) == one
    accountant = accountant_of((one, 2))
    restored = ShuffleAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.history == accountant.history


@pytest.mark.parametrize("kind", ["upper", "lower"])
@pytest.mark.parametrize("steps", [1, 30])
def test_cohorts_of_random_size_put_together_one_by_one_keep_their_side(kind: str, steps: int) -> None:
    drawn = shuffled(2.0, 4000, 400, sampling=Sampling.POISSON, adversary=Adversary.SERVER)
    mixture = drawn.dominating_pair()
    assert len(mixture.pairs) > 10
    # All outcomes of all components, none put together.
    parts = [losses.outcomes_of(pair, kind=kind, tolerance=1e-4)[1:] for pair in mixture.pairs]
    p, q = (
        np.concatenate([mass * part[side] for mass, part in zip(mixture.masses, parts, strict=True)])
        for side in (0, 1)
    )
    law = losses.pair_losses(mixture, kind=kind)
    exact = losses.finite_losses(
        None,
        p,
        q,
        missing=law.missing,
        kind=kind,
        resolution=replace(losses.FINE, cells=2000),
        symmetric=True,
    )
    assert len(law.loss) < len(p) / 20
    found, expected = (LossComposition([each], [steps]).epsilon(1e-6) for each in (law, exact))
    assert found == pytest.approx(expected, rel=1e-3)
    if steps == 1:  # without a grid of its own
        assert found >= expected if kind == "upper" else found <= expected
