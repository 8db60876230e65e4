"""Epochs of a shuffled loader and reports that follow earlier ones: against enumeration of small cases."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from brute_force import extreme_channel, hockey_stick, k_ary_response, shuffled_law
from histories import accountant_of, shuffled
from thinning import first_fast

from shuffle_plugins.accounting import Blanket, EpsilonInterval, ShuffleRound
from shuffle_plugins.accounting.rounds.sums import SumRound
from shuffle_plugins.accounting.rounds.tags import Tag, TaggedRound
from shuffle_plugins.mechanisms import get

VIOLATION = 1e-12
SHARES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95)  # of ε0

Transcript = tuple[tuple[int, ...], ...]
Law = dict[Transcript, float]


def epoch(
    cohort: int = 60, *, population: int = 60_000, local_epsilon: float = 3.0, **more: object
) -> ShuffleRound:
    return shuffled(local_epsilon, population, cohort, **{"sampling": "epoch", "channel_fixed": False} | more)


def epoch_laws(
    channel_after: Callable[[Transcript], np.ndarray], *, clients: int, batches: Sequence[int], ordered: bool
) -> tuple[Law, Law]:
    """Laws of what the batches of one epoch release, for two datasets that differ in client 0.

    Straight from the definition: clients come in a uniformly random order, those of one batch report through
    one channel, which follows from all that was released before. Its rows are the inputs of client 0, of its
    replacement and of the other clients. A batch is released in order or sorted. Clients that no batch holds
    are left out. States are sets of clients that have reported, with the probabilities of the two datasets.
    """
    released: dict[Transcript, dict[frozenset[int], np.ndarray]] = {(): {frozenset(): np.ones(2)}}
    for size in batches:
        longer: dict[Transcript, dict[frozenset[int], np.ndarray]] = {}
        for history, states in released.items():
            channel = channel_after(history)
            reports = {(): states}
            for _ in range(size):
                grown: dict[tuple[int, ...], dict[frozenset[int], np.ndarray]] = {}
                for report, sets in reports.items():
                    for (heard, masses), output in itertools.product(sets.items(), range(channel.shape[1])):
                        for client in set(range(clients)) - heard:
                            rows = [0, 1] if client == 0 else [client + 1] * 2
                            into = grown.setdefault((*report, output), defaultdict(lambda: np.zeros(2)))
                            chance = channel[rows, output] / (clients - len(heard))
                            into[heard | {client}] = into[heard | {client}] + masses * chance
                reports = grown
            for report, sets in reports.items():
                seen = (*history, report if ordered else tuple(sorted(report)))
                into = longer.setdefault(seen, defaultdict(lambda: np.zeros(2)))
                for heard, masses in sets.items():
                    into[heard] = into[heard] + masses
        released = longer
    masses = {seen: sum(states.values()) for seen, states in released.items()}
    return ({seen: m[0] for seen, m in masses.items()}, {seen: m[1] for seen, m in masses.items()})


def fresh(pool: Sequence[np.ndarray], rng: np.random.Generator) -> Callable[[Transcript], np.ndarray]:
    """A channel of its own for every history."""
    chosen: dict[Transcript, np.ndarray] = {}
    return lambda history: chosen.setdefault(history, pool[rng.integers(len(pool))])


def channels(
    rng: np.random.Generator, *, local_epsilon: float, records: int, outputs: int
) -> list[np.ndarray]:
    """Extreme channels, inputs of K-ary response, everybody else at one value, and no information."""
    response = k_ary_response(local_epsilon, outputs)
    found = [response[rng.integers(outputs, size=records)] for _ in range(6)]
    found += [response[[0, 1] + [value] * (records - 2)] for value in {1, outputs - 1}] * 3
    found.append(np.tile(rng.dirichlet(np.ones(outputs)), (records, 1)))
    of = {"local_epsilon": local_epsilon, "records": records, "outputs": outputs}
    return found + [extreme_channel(rng, **of) for _ in range(4)]


def batchings(clients: int, heard: int) -> list[tuple[int, ...]]:
    """All ways to cut an order of ``heard`` reports into batches."""
    sizes = itertools.product(range(1, clients + 1), repeat=heard)
    return sorted({cut[:j] for cut in sizes for j in range(1, heard + 1) if sum(cut[:j]) == heard})


@pytest.mark.parametrize("ordered", [True, False])
@first_fast("local_epsilon", [0.3, 4.0, 1.5], fast=2)
@first_fast(("clients", "outputs"), [(2, 4), (3, 3), (4, 2)], fast=2)
def test_an_epoch_hides_a_report_among_all_however_channels_follow_earlier_reports(
    clients: int, outputs: int, local_epsilon: float, ordered: bool
) -> None:
    rng = np.random.default_rng(clients)
    accountant = accountant_of(epoch(1, population=clients, local_epsilon=local_epsilon))
    bounds = {share: accountant.delta(share * local_epsilon).upper for share in SHARES}
    pool = channels(rng, local_epsilon=local_epsilon, records=clients + 1, outputs=outputs)
    worst = 0.0
    for _, batches in itertools.product(range(12), batchings(clients, clients)):
        p, q = epoch_laws(fresh(pool, rng), clients=clients, batches=batches, ordered=ordered)
        assert sum(p.values()) == pytest.approx(1)
        for share, bound in bounds.items():
            # The other direction is that of negative ε: H_E(P‖Q) = 1 − E + E·H_{1/E}(Q‖P).
            exact = max(hockey_stick(*pair, share * local_epsilon) for pair in ((p, q), (q, p)))
            assert exact <= bound + VIOLATION
            worst = max(worst, exact / bound)
    assert worst > 0.7


@pytest.mark.parametrize(("clients", "heard"), [(3, 1), (3, 2), (4, 3)])
def test_reports_of_a_cohort_may_follow_earlier_ones_too(clients: int, heard: int) -> None:
    rng = np.random.default_rng(heard)
    for local_epsilon in (0.5, 2.0):
        sampled = shuffled(local_epsilon, clients, heard, channel_fixed=False)
        accountant = accountant_of(sampled)
        pool = channels(rng, local_epsilon=local_epsilon, records=clients + 1, outputs=3)
        for _, batches in itertools.product(range(8), batchings(clients, heard)):
            p, q = epoch_laws(fresh(pool, rng), clients=clients, batches=batches, ordered=True)
            for share in SHARES:
                bound = accountant.delta(share * local_epsilon).upper
                for pair in ((p, q), (q, p)):
                    assert hockey_stick(*pair, share * local_epsilon) <= bound + VIOLATION


def subsets(local_epsilon: float, categories: int, size: int) -> np.ndarray:
    sets = list(itertools.combinations(range(categories), size))
    rows = [[math.exp(local_epsilon * (x in s)) for s in sets] for x in range(categories)]
    return np.array(rows) / sum(rows[0])


def hadamard(local_epsilon: float) -> np.ndarray:
    signs = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    odds = np.exp(local_epsilon * (signs + 1) / 2)
    return odds / odds.sum(axis=1, keepdims=True)


def own(name: str, dim: int, **options: int) -> Callable[[float], Blanket]:
    return lambda e: get(name, local_epsilon=e, dim=dim, **options).blanket()


MECHANISMS = {
    "k-rr": (lambda e: k_ary_response(e, 3), own("k-rr", 3)),
    "k-rr of 4": (lambda e: k_ary_response(e, 4), own("k-rr", 4)),
    "subset-selection": (lambda e: subsets(e, 4, 2), own("subset-selection", 4, size=2)),
    "hadamard-response": (hadamard, own("hadamard-response", 3)),
    "binary-rr": (lambda e: k_ary_response(e, 2), Blanket.bit),
}


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanisms_own_law_holds_for_inputs_that_follow_earlier_reports(
    name: str, local_epsilon: float
) -> None:
    law, blanket = (build(local_epsilon) for build in MECHANISMS[name])
    records, outputs = law.shape
    rng = np.random.default_rng(records)
    for clients in (2, 3) if outputs > 2 else (2, 3, 4):
        one = epoch(1, population=clients, local_epsilon=local_epsilon, mechanism=name, blanket=blanket)
        accountant = accountant_of(one)
        bounds = {share: accountant.delta(share * local_epsilon).upper for share in SHARES}
        # Any inputs, also the same for both datasets, and with the records' names and outputs exchanged.
        pool = [law[rng.integers(records, size=clients + 1)][:, rng.permutation(outputs)] for _ in range(30)]
        pool += [law[[0, 1] + [records - 1] * (clients - 1)]] * 10
        for _ in range(8):
            p, q = epoch_laws(fresh(pool, rng), clients=clients, batches=[1] * clients, ordered=True)
            for share, bound in bounds.items():
                for pair in ((p, q), (q, p)):
                    assert hockey_stick(*pair, share * local_epsilon) <= bound + VIOLATION


def test_the_order_of_a_fixed_channel_tells_nothing_beyond_the_histogram() -> None:
    local_epsilon, clients = 1.2, 4
    channel = k_ary_response(local_epsilon, 3)
    rows = channel[[0, 1, 2, 2, 2]]
    orders = epoch_laws(lambda _: rows, clients=clients, batches=[1] * clients, ordered=True)
    counts = [shuffled_law(channel, (first, 2, 2, 2)) for first in (0, 1)]
    accountant = accountant_of(epoch(2, population=clients, local_epsilon=local_epsilon))
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        attained = hockey_stick(*orders, epsilon)
        assert attained == pytest.approx(hockey_stick(*counts, epsilon), abs=1e-14)
        assert attained <= accountant.delta(epsilon).upper * (1 + 1e-6)
        instances = dict(accountant._attained(lambda composed, at=epsilon: composed.delta(at)))
        assert instances["3-RR instance"] == pytest.approx(attained, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "steps", "population"), [("pld", 20, 60_000), ("rdp", 20, 60_000), ("pld", 1, 600)]
)
def test_an_epoch_costs_what_a_round_of_everybody_costs_at_any_batch_size(
    method: str, steps: int, population: int
) -> None:
    any_order = shuffled(3.0, population, population, sampling="full", channel_fixed=False)
    whole = replace(any_order, channel_fixed=True)  # then a little more is known

    def answer(shuffle_round: ShuffleRound) -> EpsilonInterval:
        accountant = accountant_of((shuffle_round, steps), method=method)
        return accountant.epsilon(1e-5)

    shared, found = answer(whole), answer(epoch(60, population=population))
    assert found == answer(epoch(population, population=population))
    assert found.upper == answer(any_order).upper
    assert (found.lower, found.lower_bound) == (shared.lower, shared.lower_bound)
    assert found.upper >= shared.upper
    if (method, steps) == ("pld", 20):
        assert 0.35 < found.lower < found.upper <= 0.3685


@pytest.mark.slow
def test_a_server_that_knows_the_batches_finds_a_client_in_its_batch_alone() -> None:
    known = accountant_of((epoch(6_000, adversary="server"), 20)).epsilon(1e-5)
    batch = shuffled(3.0, 6_000, 6_000, sampling="full", channel_fixed=False)
    alone = accountant_of((batch, 20)).epsilon(1e-5)
    single = shuffled(3.0, 60_000, 6_000, sampling="single-pass", channel_fixed=False)
    assert (known.lower, known.upper) == (alone.lower, alone.upper)
    assert known.upper == accountant_of((single, 20)).epsilon(1e-5).upper
    assert known.adversary == "server"


def test_counted_bits_of_batches_are_accounted_as_reports() -> None:
    bits = {"mechanism": "binary-rr", "blanket": Blanket.bit(3.0)}
    hidden = accountant_of((epoch(**bits), 20)).epsilon(1e-5)
    assert hidden.upper_bound == "blanket pair, PLD"
    assert hidden.upper == accountant_of((epoch(), 20)).epsilon(1e-5).upper
    assert 0 < hidden.lower < hidden.upper
    batch = epoch(adversary="server", channel_fixed=True, **bits)
    known = accountant_of((batch, 20)).epsilon(1e-5)
    assert known.upper_bound == "crowd pair, PLD"


def test_the_delta_of_reports_is_charged_for_everybody() -> None:
    reports = {"local_delta": 1e-14, "local_epsilon": 2.0, "population": 2_000}
    everybody = ShuffleRound(cohort=2_000, sampling="full", **reports)
    one = epoch(20, **reports)
    assert one.replacement_distance == everybody.replacement_distance > 0
    assert accountant_of((one, 3)).epsilon(1e-5) == accountant_of((everybody, 3)).epsilon(1e-5)
    too_large = accountant_of(epoch(20, **(reports | {"local_delta": 1e-7}))).epsilon(1e-5)
    assert (too_large.upper, too_large.upper_bound) == (2.0, "local epsilon, no amplification")


@pytest.mark.parametrize(
    "build",
    [
        lambda sampling: SumRound(
            sensitivity=4.0, trials=10_000, dim=3, population=100, cohort=10, sampling=sampling
        ),
        lambda sampling: TaggedRound(
            tags=(Tag(local_epsilon=1.0, count=2, places=True),), population=100, cohort=10, sampling=sampling
        ),
    ],
)
def test_sums_of_an_epochs_batches_are_refused(build: Callable[[str], object]) -> None:
    build("single-pass")
    with pytest.raises(ValueError, match="draw k of n"):
        build("epoch")
