"""Clients with several records, of which they report on some: against enumeration of all small datasets."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from brute_force import extreme_channel, hockey_stick, k_ary_response, sampled_records_law
from histories import accountant_of, shuffled
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import (
    Blanket,
    FederatedAccountant,
    FederatedRound,
    Round,
    SampledRecordsRound,
    SeveralReportsRound,
    ShuffleRound,
    calibrate_cohort,
    calibrate_local_epsilon,
    compare,
)
from shuffle_plugins.accounting.losses import FINE
from shuffle_plugins.accounting.pairs.reports import two_level_atoms
from shuffle_plugins.accounting.pairs.slots import bundle_losses_from_below
from shuffle_plugins.auditing import audit_round
from shuffle_plugins.mechanisms import get

VIOLATION = 1e-12
SHARES = np.array([0.0, 0.03, 0.1, 0.25, 0.5, 0.8])  # of ε0


def sampled(
    records: int, samples: int = 1, *, population: int = 1_000, cohort: float = 100, **more: object
) -> SampledRecordsRound:
    arguments = {"local_epsilon": 1.0, "population": population, "cohort": cohort} | more
    return SampledRecordsRound(**arguments, records_per_client=records, samples_per_client=samples)


def cost(kind: Round, *, steps: int = 1, delta: float = 1e-6) -> tuple[float, float]:
    accountant = accountant_of((kind, steps))
    found = accountant.epsilon(delta)
    return found.lower, found.upper


def deltas(kind: Round, epsilons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    accountant = accountant_of(kind)
    found = [accountant.delta(epsilon) for epsilon in epsilons.tolist()]
    return np.array([each.lower for each in found]), np.array([each.upper for each in found])


def worst_deltas(
    channel: np.ndarray, clients: int, *, records: int, samples: int, epsilons: np.ndarray, **drawn: float
) -> np.ndarray:
    """δ over all pairs of datasets that differ in one record of one client."""
    inputs = range(len(channel))
    worst = np.zeros(len(epsilons))
    held = list(itertools.combinations_with_replacement(inputs, records))
    for others in itertools.combinations_with_replacement(held, clients - 1):
        for own in itertools.combinations_with_replacement(inputs, records - 1):
            laws = [
                sampled_records_law(channel, [(x, *own), *others], samples=samples, **drawn) for x in inputs
            ]
            for one, two in itertools.permutations(laws, 2):
                found = [hockey_stick(one, two, epsilon) for epsilon in epsilons.tolist()]
                worst = np.maximum(worst, found)
    return worst


CASES = [  # categories, clients, cohort, records, samples, ε0
    (2, 2, 1, 2, 1, 2.0),
    (2, 2, 2, 2, 1, 2.0),
    (2, 3, 2, 3, 1, 3.0),
    (3, 2, 1, 2, 1, 1.5),
    (2, 2, 1, 2, 2, 2.0),
    (2, 3, 1, 2, 2, 1.0),
    (2, 2, 1, 3, 2, 1.0),
    (3, 2, 1, 2, 2, 1.5),
    (2, 3, 2, 3, 2, 2.0),
    (2, 3, 3, 3, 2, 2.0),
    (3, 2, 2, 3, 2, 1.0),
    (3, 3, 2, 2, 2, 0.5),
    (2, 3, 1, 3, 3, 3.0),
]


@first_fast(("categories", "clients", "cohort", "records", "samples", "local_epsilon"), CASES, fast=10)
def test_no_dataset_tells_more(categories, clients, cohort, records, samples, local_epsilon):
    epsilons = SHARES * local_epsilon
    truth = worst_deltas(
        k_ary_response(local_epsilon, categories),
        clients, records=records, samples=samples, epsilons=epsilons, cohort=cohort,
    )  # fmt: skip
    generic = sampled(records, samples, population=clients, cohort=cohort, local_epsilon=local_epsilon)
    assert (deltas(generic, epsilons)[1] - truth > -VIOLATION).all()
    law = (local_epsilon, (math.exp(local_epsilon) + categories - 1) ** -1)
    own = Blanket.bit(local_epsilon) if categories == 2 else Blanket(
        local_epsilon=law[0], differing=law[1], low=(categories - 2) * law[1], high=0.0
    )  # fmt: skip
    lower, upper = deltas(replace(generic, mechanism="response", blanket=own), epsilons)
    assert (upper - truth > -VIOLATION).all()
    assert (lower - truth < VIOLATION).all()


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_no_channel_tells_more(seed, samples):
    rng = np.random.default_rng(seed)
    channel = extreme_channel(rng, local_epsilon=1.5, records=3, outputs=3)
    epsilons = SHARES * 1.5
    truth = worst_deltas(channel, 2, records=2, samples=samples, epsilons=epsilons, cohort=1 + seed % 2)
    found = sampled(2, samples, population=2, cohort=1 + seed % 2, local_epsilon=1.5)
    assert (deltas(found, epsilons)[1] - truth > -VIOLATION).all()


@pytest.mark.parametrize(("records", "samples"), [(2, 1), (3, 2), (2, 2)])
def test_no_dataset_of_self_sampled_clients_tells_more(records, samples):
    epsilons = SHARES * 2.0
    channel = k_ary_response(2.0, 2)
    truth = worst_deltas(channel, 2, records=records, samples=samples, epsilons=epsilons, rate=0.4)
    found = sampled(records, samples, population=2, cohort=0.8, local_epsilon=2.0, sampling="poisson")
    assert (deltas(found, epsilons)[1] - truth > -VIOLATION).all()


def worst_deltas_of_clients(
    channel: np.ndarray, clients: int, *, reports: int, epsilons: np.ndarray, cohort: int
) -> np.ndarray:
    """δ over all pairs of datasets that differ in all that one client reports on."""
    held = list(itertools.combinations_with_replacement(range(len(channel)), reports))
    worst = np.zeros(len(epsilons))
    for others in itertools.combinations_with_replacement(held, clients - 1):
        laws = [sampled_records_law(channel, [own, *others], samples=reports, cohort=cohort) for own in held]
        for one, two in itertools.permutations(laws, 2):
            worst = np.maximum(worst, [hockey_stick(one, two, epsilon) for epsilon in epsilons.tolist()])
    return worst


@first_fast(
    ("categories", "clients", "cohort", "reports", "local_epsilon"),
    [(2, 3, 2, 2, 1.5), (2, 2, 2, 3, 1.0), (3, 2, 1, 2, 2.0), (2, 3, 3, 2, 3.0), (2, 4, 1, 2, 0.5)],
    fast=2,
)
def test_no_client_tells_more_by_several_reports(categories, clients, cohort, reports, local_epsilon):
    epsilons = SHARES * local_epsilon * reports
    truth = worst_deltas_of_clients(
        k_ary_response(local_epsilon, categories),
        clients, reports=reports, epsilons=epsilons, cohort=cohort,
    )  # fmt: skip
    one = shuffled(local_epsilon, clients, cohort)
    several = SeveralReportsRound.of(one, reports_per_client=reports)
    found = deltas(several, epsilons)[1]
    assert (found - truth > -VIOLATION).all()
    assert truth[0] > 0.05  # which is not said of nothing
    own = get("k-rr", local_epsilon=local_epsilon, dim=categories).round(population=clients, cohort=cohort)
    least = deltas(SeveralReportsRound.of(own, reports_per_client=reports), epsilons)[0]
    assert (truth - least > -VIOLATION).all()
    assert least[0] > 0.9 * truth[0]
    seen = replace(several, adversary="server")
    alone = worst_deltas_of_clients(
        k_ary_response(local_epsilon, categories), cohort, reports=reports, epsilons=epsilons, cohort=cohort
    )
    assert (deltas(seen, epsilons)[1] - alone > -VIOLATION).all()


@pytest.mark.parametrize(
    ("clients", "cohort", "reports"), [(1, 1, 3), (3, 3, 2), (10, 5, 2), (1_000, 100, 10)]
)
def test_the_reports_of_one_client_are_composed_exactly(clients, cohort, reports):
    """Binary response with everybody else at 0: the count of ones is all that there is to see."""
    p = 1 / (math.e + 1)
    atoms = two_level_atoms(local_epsilon=1.0, shares={(1, 0, 0): p, (0, 1, 1): p})
    slots, rate = cohort * reports, cohort / clients
    others = stats.binom(slots - reports, p).pmf(np.arange(slots - reports + 1))
    x, other = (np.convolve(others, stats.binom(reports, q).pmf(np.arange(reports + 1))) for q in (1 - p, p))
    sampled_law = rate * x + (1 - rate) * other
    for law, laws in (
        (atoms, (sampled_law, other)),
        (tuple((v, u, m) for u, v, m in atoms), (other, sampled_law)),
    ):
        _, first, second = bundle_losses_from_below(
            atoms=law, slots=slots, changed=reports, participation=rate
        )
        for epsilon in (0.0, 0.05, 0.2, 0.5):
            exact = np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0).sum()
            found = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert found <= exact * (1 + 1e-12) + 1e-18
            assert found == pytest.approx(exact, rel=2e-3, abs=1e-14)


def test_a_dataset_and_its_neighbour_can_be_exchanged():
    """Of bits with everybody else at one of the two, one direction tells more; both are rounded down."""
    one = get("k-rr", local_epsilon=1.5, dim=2).round(population=6, cohort=3)
    several = SeveralReportsRound.of(one, reports_per_client=2)
    (family,) = several.lower_families
    forward, backward = several.lower_losses(family, FINE), several.lower_losses(family, FINE, exchanged=True)

    def spent(law, epsilon):
        return float(np.maximum(law.p - math.exp(epsilon) * law.q, 0).sum())

    for epsilon in (0.0, 0.3, 0.5):
        exact = spent(forward.reversed(), epsilon)  # its losses were rounded down, and are now rounded up
        assert exact * (1 - 1e-9) < spent(backward, epsilon) <= exact
    assert spent(forward, 0.3) > 1.3 * spent(backward, 0.3)


@pytest.mark.parametrize(
    ("name", "options", "reports", "ratio"),
    [("generic", {}, 10, 1.05), ("privunit-g", {"dim": 100}, 2, 1.07), ("laplace", {"dim": 1}, 5, 1.05)],
)
def test_both_ends_of_several_reports_meet(name, options, reports, ratio):
    drawn = {"population": 60_000, "cohort": 10_000}
    one = ShuffleRound(local_epsilon=1.0, **drawn, channel_fixed=True)
    if options:
        one = get(name, local_epsilon=1.0, **options).round(**drawn)
    lower, upper = cost(SeveralReportsRound.of(one, reports_per_client=reports), steps=100)
    assert 0 < lower <= upper < ratio * lower


@pytest.mark.parametrize(("population", "delta"), [(10**10, 1e-9), (10**15, 1e-12)])
def test_any_number_of_reports_is_bounded_from_below(population, delta):
    one = ShuffleRound(local_epsilon=2.0, population=population, cohort=10**9, channel_fixed=True)
    lower, upper = cost(SeveralReportsRound.of(one, reports_per_client=10), steps=10, delta=delta)
    assert upper / 1.02 < lower <= upper


@pytest.mark.parametrize(
    "sampling", ["without-replacement", "poisson", "full", "single-pass", "check-in", "epoch"]
)
@pytest.mark.parametrize("adversary", ["model-observer", "server"])
def test_one_record_is_the_plain_round(sampling, adversary):
    cohort = 1_000 if sampling == "full" else 100
    plain = shuffled(1.0, 1_000, cohort, sampling=sampling, adversary=adversary)
    same = SampledRecordsRound.of(plain, records_per_client=1)
    assert same.clients == plain
    assert cost(same, steps=3)[1] == pytest.approx(cost(plain, steps=3)[1], rel=2e-3)
    many = cost(SampledRecordsRound.of(plain, records_per_client=50), steps=3)
    assert many[1] < cost(plain, steps=3)[1] / 20
    assert many[0] == 0 if sampling == "single-pass" else 0.8 * many[1] < many[0] <= many[1]


def test_several_reports_are_hidden_by_the_draw_of_clients_too():
    """Remark C.1.1 of the thesis has amplification by s/m alone, which is what a server sees here."""
    clients = {"population": 20_000, "cohort": 400}
    found, seen = (
        cost(sampled(20, 5, **clients, adversary=who), steps=100) for who in ("model-observer", "server")
    )
    assert found[1] < seen[1] / 8
    assert found[0] > 0.7 * found[1]


@pytest.mark.slow
def test_a_random_number_of_clients_costs_little_more():
    clients = {"population": 20_000, "cohort": 400}
    found, poisson = (
        cost(sampled(20, 5, **clients, sampling=how), steps=100) for how in ("without-replacement", "poisson")
    )
    assert found[1] <= poisson[1] < 1.1 * found[1]
    assert poisson[0] == 0


@pytest.mark.parametrize("adversary", ["model-observer", "server"])
def test_random_cohorts_are_grouped_by_their_size(adversary):
    """Each size belongs to one group, which has the least size and the largest rate of its sizes."""
    fixed = sampled(20, 5, adversary=adversary)._cohorts()
    assert fixed == [(100, 0.1 if adversary == "model-observer" else 1.0, 1.0)]
    groups = sampled(20, 5, sampling="poisson", adversary=adversary)._cohorts()
    others = stats.binom(999 if adversary == "server" else 1_000, 0.1)
    own = 1 if adversary == "server" else 0
    sizes = [clients - own for clients, _, _ in groups]
    assert len(groups) > 20
    assert sizes == sorted(set(sizes))
    for place, (clients, rate, mass) in enumerate(groups):
        following = sizes[place + 1] if place + 1 < len(sizes) else 1_001
        assert mass == pytest.approx(others.cdf(following - 1) - others.cdf(clients - own - 1), rel=1e-6)
        if own:
            assert rate == 1.0
        elif place + 1 < len(sizes):
            assert rate == (following - 1) / 1_000


def test_thousands_of_reports_of_one_client_are_told_apart():
    reports, lean = 4_000, 1e-3
    _, p, q = bundle_losses_from_below(
        atoms=((lean, -lean, 0.5), (-lean, lean, 0.5)), slots=reports, changed=reports, participation=1.0
    )
    up, down = (stats.binom.pmf(np.arange(reports + 1), reports, 0.5 + way * lean / 2) for way in (1, -1))
    found, exact = (np.maximum(one - two, 0.0).sum() for one, two in ((p, q), (up, down)))
    assert exact * (1 - 1e-3) < found <= exact


def test_reports_beyond_number_are_refused():
    many = shuffled(1.0, 10**8, 10**8)
    with pytest.raises(ValueError, match="send more than"):
        SeveralReportsRound.of(many, reports_per_client=10**8)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2])
def test_calibrations_know_records(samples):
    goal = {"target_epsilon": 0.1, "delta": 1e-6, "population": 1_000, "num_steps": 10}
    records = {"records_per_client": 20, "samples_per_client": samples}
    found = calibrate_local_epsilon(**goal, cohort=100, **records, channel_fixed=True)
    assert 0.099 < cost(sampled(20, samples, local_epsilon=found), steps=10)[1] <= 0.1
    assert found > 2 * calibrate_local_epsilon(**goal, cohort=100, channel_fixed=True)
    most = calibrate_cohort(**goal, local_epsilon=found, **records, channel_fixed=True)
    assert most >= 100
    assert cost(sampled(20, samples, local_epsilon=found, cohort=most), steps=10)[1] <= 0.1
    if most < 1_000:
        assert cost(sampled(20, samples, local_epsilon=found, cohort=most + 1), steps=10)[1] > 0.1


def test_comparisons_and_audits_know_records():
    beside = compare(shuffle_round=sampled(20, 2), num_steps=1, delta=1e-6)
    assert {each.reason for each in beside.out_of_range} >= {
        "stated for clients with one record and one report each"
    }
    assert {bound.source for bound in beside.bounds if "PLD" in bound.name} != set()
    with pytest.raises(ValueError, match="one report of each client"):
        audit_round(get("k-rr", local_epsilon=1.0, dim=3), sampled(20), delta=1e-6)


def test_a_federated_history_knows_what_a_record_costs():
    randomizer = get("privunit-g", local_epsilon=2.0, dim=20)
    federated = FederatedAccountant()
    for each in range(3):
        part = FederatedRound.drawn(randomizer, candidates=200, invited=40, reports=40)
        federated.step(part, participants=[f"{each}-{i}" for i in range(40)])
    kind = SampledRecordsRound.of(randomizer.round(population=200, cohort=40), records_per_client=10)
    accountant = accountant_of((kind, 3))
    found = federated.records_epsilon(1e-6, records_per_client=10)
    assert found.upper == pytest.approx(accountant.epsilon(1e-6).upper, rel=1e-9)
    assert 0 < found.lower <= found.upper < federated.epsilon(1e-6).upper / 5
    seen = federated.records_epsilon(1e-6, records_per_client=10, adversary="server")
    assert seen.lower == 0
    assert found.upper < seen.upper < federated.epsilon(1e-6, adversary="server").upper
    summed = FederatedAccountant()
    vectors = get("vector-sum", dim=4, cohort=40, noise_multiplier=5.0)
    part = FederatedRound.drawn(vectors, candidates=200, invited=40, reports=40)
    summed.step(part, participants=[str(i) for i in range(40)])
    with pytest.raises(ValueError, match="use epsilon"):
        summed.records_epsilon(1e-6, records_per_client=10)
