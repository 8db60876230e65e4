"""Rounds are simulated as declared, and scores are the log-likelihood ratios they are said to be."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from shuffle_plugins.accounting import ShuffleRound
from shuffle_plugins.auditing import Frequencies, LikelihoodRatio, Neighbours, Projection
from shuffle_plugins.auditing.attacks import Target
from shuffle_plugins.auditing.simulation import Dataset, ReleasedRounds, RoundSimulator, extreme_neighbours
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.mechanisms import BinaryRandomizedResponse, Mechanism, Norm, PrivUnit, get
from shuffle_plugins.randomness import SeededRandomness


class InTheClear(BinaryRandomizedResponse):
    """Reports the record, a whole number, as it is."""

    norm = Norm.LINF

    def randomize_rows(self, x, norms, randomness):
        return Reports(mechanism=self.name, dim=1, fields=(Field(x.dense().squeeze(1).long(), 4),))


CLEAR = Neighbours(
    name="labels",
    original=torch.tensor([1.0]),
    replacement=torch.tensor([2.0]),
    others=torch.tensor([[3.0], [4.0], [5.0]]),
)


def simulate(mechanism, pair, *, rounds_per_call=None, seed=0, **fields):
    return RoundSimulator(
        mechanism=mechanism,
        neighbours=pair,
        shuffle_round=ShuffleRound(local_epsilon=mechanism.local_epsilon, **fields),
        rounds_per_call=rounds_per_call,
        randomness=SeededRandomness(seed),
    )


def labels(dataset=Dataset.ORIGINAL, *, num_rounds=4000, **fields):
    """One row of reported labels per round."""
    simulator = simulate(InTheClear(local_epsilon=1.0, radius=9), CLEAR, **fields)
    found, sizes, populations = [], [], []
    for rounds in simulator.released(dataset, num_rounds=num_rounds):
        assert len(rounds.reports) == int(rounds.sizes.sum())
        values = rounds.reports.fields[0].values
        found += [part.numpy() for part in values.split(rounds.sizes.tolist())]
        sizes += rounds.sizes.tolist()
        populations += rounds.populations.tolist()
    assert len(found) == num_rounds
    return found, np.array(sizes), np.array(populations)


@pytest.mark.parametrize("rounds_per_call", [None, 1, 300])
def test_full_participation_releases_everybody_in_uniform_order(rounds_per_call):
    found, sizes, populations = labels(population=6, cohort=6, rounds_per_call=rounds_per_call)
    assert set(sizes) == {6}
    assert set(populations) == {6}
    table = np.stack(found)
    assert (np.sort(table, axis=1) == [1, 3, 3, 4, 4, 5]).all()
    _, orders = np.unique(table, axis=0, return_counts=True)
    assert len(orders) == math.factorial(6) // 4
    assert stats.chisquare(orders).pvalue > 1e-3


def test_cohorts_without_replacement_are_uniform():
    found, sizes, populations = labels(population=5, cohort=3, num_rounds=6000)
    assert set(sizes) == {3}
    assert set(populations) == {5}
    clients = [1, 3, 3, 4, 5]
    law = {}
    for chosen in itertools.combinations(clients, 3):
        law[chosen] = law.get(chosen, 0) + 0.1
    seen, counts = np.unique(np.sort(np.stack(found), axis=1), axis=0, return_counts=True)
    assert len(seen) == len(law)
    expected = [law[tuple(row)] * 6000 for row in seen.tolist()]
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_poisson_clients_join_independently():
    found, sizes, populations = labels(population=4, cohort=1.2, sampling="poisson", num_rounds=20000)
    assert set(populations) == {4}
    joined = np.array([[label in row for label in (1, 3, 4, 5)] for row in found])
    assert (joined.sum(axis=1) == sizes).all()
    np.testing.assert_allclose(joined.mean(axis=0), 0.3, atol=0.015)
    np.testing.assert_allclose(np.corrcoef(joined.T), np.eye(4), atol=0.03)


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
def test_a_server_sees_only_cohorts_with_client_one(sampling):
    found, sizes, populations = labels(population=6, cohort=3, sampling=sampling, adversary="server")
    assert all((row == 1).sum() == 1 for row in found)
    np.testing.assert_array_equal(sizes, populations)
    if sampling == "poisson":
        assert abs(sizes.mean() - (1 + 5 * 0.5)) < 0.1
    else:
        assert set(sizes) == {3}


@pytest.mark.parametrize("rounds_per_call", [None, 1])
def test_labelled_reports_are_whose_they_are_said_to_be(rounds_per_call):
    simulator = simulate(
        InTheClear(local_epsilon=1.0, radius=9),
        CLEAR,
        population=9,
        cohort=3,
        sampling="poisson",
        rounds_per_call=rounds_per_call,
    )
    samples = simulator.labelled(num_rounds=200)
    assert (samples.original.fields[0].values == 1).all()
    assert (samples.replacement.fields[0].values == 2).all()
    assert set(samples.others.fields[0].values.tolist()) == {3, 4, 5}
    assert len(samples.original) == len(samples.replacement) == 200


def test_chunks_do_not_show():
    mechanism = get("privunit", local_epsilon=1.0, dim=3000)
    simulator = simulate(mechanism, extreme_neighbours(mechanism)[0], population=40, cohort=40)
    sizes = [len(rounds.sizes) for rounds in simulator.released(Dataset.ORIGINAL, num_rounds=20)]
    assert sum(sizes) == 20
    assert max(sizes) * 40 * 3000 <= 1 << 20


@pytest.mark.parametrize("sampling", ["single-pass", "check-in", "epoch"])
def test_passes_are_refused(sampling):
    with pytest.raises(ValueError, match="full participation"):
        simulate(get("binary-rr", local_epsilon=1.0, dim=1), CLEAR, population=9, cohort=3, sampling=sampling)


# -- neighbours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dim"), [("binary-rr", 1), ("linf-coordinate", 5), ("privunit", 5)])
def test_extreme_records_lie_on_the_ball_and_are_accepted(name, dim):
    mechanism = get(name, local_epsilon=1.0, dim=dim, radius=0.3)
    pairs = extreme_neighbours(mechanism)
    assert len({pair.name for pair in pairs}) == len(pairs) == 4 + (dim > 1)
    for pair in pairs:
        records = torch.cat([pair.original[None], pair.replacement[None], pair.others])
        mechanism.randomize(records)
        norm = 2 if mechanism.norm is Norm.L2 else math.inf
        assert torch.allclose(torch.linalg.vector_norm(records[:2], ord=norm, dim=1), torch.tensor(0.3))


@pytest.mark.parametrize("dim", [2, 3, 4, 7])
@pytest.mark.parametrize("norm", [Norm.L1, Norm.L2])
def test_the_record_between_is_as_far_from_both_and_on_the_ball(dim, norm):
    class Ball(BinaryRandomizedResponse):
        dim = radius = None

    Ball.norm, Ball.dim, Ball.radius = norm, dim, 2.0
    pair = extreme_neighbours(Ball.__new__(Ball))[-1]
    assert abs(float(pair.others[0] @ pair.original)) < 1e-6
    assert float(torch.linalg.vector_norm(pair.others[0], ord=int(norm.value[1]))) == pytest.approx(2.0)


# -- attacks --------------------------------------------------------------------------------------------


def sign_rounds(pluses, cohort, population):
    """One round for each number of pluses."""
    signs = torch.cat([torch.tensor([1] * plus + [0] * (cohort - plus)) for plus in pluses])
    return ReleasedRounds(
        reports=Reports(mechanism="binary-rr", dim=1, fields=(Field(signs.to(torch.uint8), 1),)),
        sizes=torch.full((len(pluses),), cohort),
        populations=torch.full((len(pluses),), float(population), dtype=torch.float64),
    )


def count_law(records, cohort, odds):
    """Exact law of the number of pluses if a uniform cohort of these records (±1) reports."""
    law = [Fraction(0)] * (cohort + 1)
    cohorts = list(itertools.combinations(records, cohort))
    for chosen in cohorts:
        for signs in itertools.product((0, 1), repeat=cohort):
            mass = Fraction(1, len(cohorts))
            for record, sign in zip(chosen, signs, strict=True):
                mass *= (odds if (record > 0) == bool(sign) else 1) / (odds + 1)
            law[sum(signs)] += mass
    return law


@pytest.mark.parametrize(("population", "cohort"), [(4, 4), (5, 3), (6, 1)])
@pytest.mark.parametrize("elsewhere", [-1, 1])
def test_the_score_is_the_exact_log_likelihood_ratio(population, cohort, elsewhere):
    odds = Fraction(3)
    mechanism = get("binary-rr", local_epsilon=math.log(3), dim=1)
    pair = Neighbours(
        name="signs",
        original=torch.tensor([1.0]),
        replacement=torch.tensor([-1.0]),
        others=torch.tensor([[float(elsewhere)]]),
    )
    others = [elsewhere] * (population - 1)
    original = count_law([1, *others], cohort, odds)
    replacement = count_law([-1, *others], cohort, odds)
    exact = [math.log(p / q) for p, q in zip(original, replacement, strict=True)]
    score = LikelihoodRatio().prepare(Target(mechanism=mechanism, neighbours=pair, draw=lambda: None))
    scores = score(sign_rounds(range(cohort + 1), cohort, population))
    np.testing.assert_allclose(scores.numpy(), exact, atol=2e-9)


@pytest.mark.parametrize("attack", [Frequencies(), Projection()], ids=lambda attack: attack.name)
def test_learned_scores_come_close_to_the_likelihood_ratio(attack):
    mechanism = get("binary-rr", local_epsilon=1.5, dim=1)
    pair = extreme_neighbours(mechanism)[2]
    simulator = simulate(mechanism, pair, population=30, cohort=8)
    target = Target(mechanism=mechanism, neighbours=pair, draw=lambda: simulator.labelled(num_rounds=20_000))
    rounds = sign_rounds(range(9), 8, 30)
    learned, exact = attack.prepare(target)(rounds), LikelihoodRatio().prepare(target)(rounds)
    np.testing.assert_allclose(learned.numpy(), exact.numpy(), atol=0.01)


def test_attacks_say_where_they_do_not_apply():
    dense = get("privunit", local_epsilon=1.0, dim=3)
    pair = extreme_neighbours(dense)[0]
    simulator = simulate(dense, pair, population=4, cohort=4)
    target = Target(mechanism=dense, neighbours=pair, draw=lambda: simulator.labelled(num_rounds=100))
    assert Frequencies().prepare(target) is None
    assert Projection().prepare(target) is not None
    assert LikelihoodRatio().prepare(target) is not None
    silent = SaysNothingOfItsLaw(local_epsilon=1.0, dim=3)
    target = Target(mechanism=silent, neighbours=pair, draw=lambda: None)
    assert LikelihoodRatio().prepare(target) is None
    with_law = LikelihoodRatio(law=lambda mechanism, reports, record: torch.zeros(len(reports)))
    score = with_law.prepare(target)
    assert score(sign_rounds([0, 3], 3, 3)).tolist() == [0.0, 0.0]


class SaysNothingOfItsLaw(PrivUnit):
    log_likelihood = Mechanism.log_likelihood
