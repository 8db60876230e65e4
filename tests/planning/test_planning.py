import math
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from histories import accountant_of, shuffled
from thinning import first_fast

from shuffle_plugins.accounting import (
    EpsilonInterval,
    Sampling,
    ShuffleAccountant,
    calibrate_local_epsilon,
)
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import Plan, PlanRow, expected_noise, plan
from shuffle_plugins.planning.errors import LEAST_RATIO, gaussian_mse, report_error, sampling_error
from shuffle_plugins.planning.plans import Edge
from shuffle_plugins.planning.search import PRECISION
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.randomness import SeededRandomness

N, DELTA, DIM = 40_000, 1e-5, 20

planned = partial(plan, target_epsilon=0.5, delta=DELTA, population=N, dim=DIM, mechanism="privunit")


@pytest.fixture(scope="module")
def searched() -> Plan:
    """k and T left open, of two mechanisms."""
    return planned(mechanism=("privunit", "binary-rr"))


def recomputed(row: PlanRow, found: Plan) -> ShuffleAccountant:
    who = {"sampling": found.sampling, "adversary": found.adversary, "mechanism": row.mechanism}
    again = shuffled(row.local_epsilon, found.population, row.cohort, dim=found.dim, **who)
    return accountant_of((again, row.num_steps), method=found.method)


# -- the answer ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_beats_every_point_of_a_grid(searched: Plan) -> None:
    for name, cohort, num_steps in (("privunit", 7, 1000), ("privunit", N, 1), ("linf-coordinate", N, 1000)):
        level = calibrate_local_epsilon(
            target_epsilon=0.5,
            delta=DELTA,
            population=N,
            cohort=cohort,
            num_steps=num_steps,
            mechanism=name,
            blanket_factory=lambda e0, name=name: registry.blanket(name, local_epsilon=e0, dim=DIM),
        )
        mechanism = registry.get(name, local_epsilon=level, dim=DIM)
        noise = float(mechanism.variance(torch.zeros(1, DIM))[0]) / cohort
        error = (noise + (N - cohort) / (N - 1) / cohort) / num_steps
        assert searched.best.average_mse <= error * (1 + 2e-3)


@pytest.mark.slow
def test_every_row_is_certified_afresh(searched: Plan) -> None:
    for row in (*searched.rows[::5], searched.best, searched.thrifty):
        again = recomputed(row, searched).epsilon(DELTA)
        assert (row.epsilon.lower, row.epsilon.upper) == (again.lower, again.upper)
        assert 0.5 * (1 - 40 * PRECISION) < row.epsilon.upper <= 0.5
        assert row.epsilon.neighbouring_relation == "replace-one"


@pytest.mark.slow
def test_the_thrifty_row_saves_communication_within_the_tolerance(searched: Plan) -> None:
    best, thrifty = searched.best, searched.thrifty
    assert best.average_mse <= thrifty.average_mse <= best.average_mse * 1.05
    assert thrifty.total_bits < best.total_bits / 2
    assert thrifty.cohort == best.cohort
    assert "less communication" in " ".join(searched.remarks())


def test_an_edge_that_is_not_the_population_is_flagged() -> None:
    found = planned(num_steps=(5, 10), cohorts=(20, 40))
    assert (found.best.cohort, found.best.num_steps) == (40, 10)
    assert (found.cohort_edge, found.steps_edge) == (Edge.HIGHEST, Edge.HIGHEST)
    told = " ".join(found.remarks())
    assert "may lie beyond k = 40" in told
    assert "more rounds than 10" in told


@pytest.mark.slow
def test_the_grid_is_refined_around_an_interior_optimum(searched: Plan) -> None:
    best = searched.best
    assert searched.steps_edge is Edge.INTERIOR
    tried = sorted(row.num_steps for row in searched.rows if row.cohort == best.cohort)
    place = tried.index(best.num_steps)
    assert tried[place + 1] / tried[place - 1] < 4  # 100 on the first grid


@pytest.mark.slow
def test_the_mechanisms_left_out_are_named_with_the_reason(searched: Plan) -> None:
    reasons = {each.name: each.reason for each in searched.dismissed}
    assert "dim=1" in reasons["binary-rr"]
    assert searched.best.mechanism == "privunit"
    assert (
        planned(population=400, dim=1, mechanism="best", num_steps=3, cohorts=(400,)).best.bits_per_report
        == 1
    )


@pytest.mark.slow
def test_a_dismissed_mechanism_could_not_have_won() -> None:
    given = {"population": 400, "num_steps": 3, "cohorts": (40,)}
    both = planned(mechanism=("linf-coordinate", "privunit"), **given)
    alone = planned(mechanism="linf-coordinate", norm="l2", **given)
    assert [each.name for each in both.dismissed] == ["linf-coordinate"]
    assert "ε0 = 20" in both.dismissed[0].reason
    assert alone.best.average_mse > both.best.average_mse
    for row, other in zip(alone.curve(), both.curve(), strict=True):
        assert row.average_mse > other.average_mse


def test_a_single_pass_hears_everybody() -> None:
    found = planned(sampling="single-pass", num_steps=2, cohorts=(100, N))
    part, whole = found.rows
    assert part.cohort == 100
    assert part.sampling_mse > 0
    assert part.num_reports == whole.num_reports == 2 * N
    assert part.average_mse == pytest.approx(part.noise_mse * 100 / (2 * N))
    assert recomputed(part, found).epsilon(DELTA).upper <= 0.5


@pytest.mark.slow
def test_an_epoch_hears_everybody_and_may_have_any_batches() -> None:
    found = planned(sampling="epoch", num_steps=2, cohorts=(20, N))
    few, all_at_once = found.rows
    whole = planned(sampling="full", num_steps=2).best
    assert few.num_reports == all_at_once.num_reports == 2 * N
    assert few.local_epsilon == pytest.approx(whole.local_epsilon, rel=3 * PRECISION)
    assert few.average_mse == pytest.approx(whole.average_mse, rel=10 * PRECISION)


def test_the_server_gives_no_amplification_by_sampling() -> None:
    server = planned(adversary="server", num_steps=2, cohorts=(100,))
    alone = planned(population=100, sampling="full", num_steps=2)
    assert server.best.local_epsilon == pytest.approx(alone.best.local_epsilon, rel=3 * PRECISION)
    assert any("server" in said for said in server.remarks())


@pytest.mark.slow
def test_baselines_are_what_they_say(searched: Plan) -> None:
    by_name = {each.name.split(",")[0]: each for each in searched.baselines}
    alone, curator = by_name["no shuffler"], by_name["trusted curator"]
    expected = report_error(searched.best.mechanism, local_epsilon=0.5, dim=DIM, radius=1.0, norm="l2")
    assert alone.average_mse == pytest.approx(expected.variance / N)
    assert curator.average_mse < searched.best.average_mse < 0.1 * alone.average_mse
    assert by_name["a cohort of 1 %"].average_mse > searched.best.average_mse


# -- refusals -----------------------------------------------------------------------------------------------


def test_what_is_out_of_reach_is_listed() -> None:
    found = planned(population=400, target_epsilon=1e-3, delta=1e-15, num_steps=(1, 1000), cohorts=(400,))
    assert [(row.cohort, row.num_steps) for row in found.rows] == [(400, 1)]
    assert found.infeasible == (("privunit", 400, 1000),)
    assert any("exceed the target" in said for said in found.remarks())


# -- the error model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON])
def test_noise_and_sampling_add_up_to_the_error_of_simulated_rounds(sampling: Sampling) -> None:
    population, cohort, dim, level, trials = 12, 4, 3, 2.0, 4000
    rng = np.random.default_rng(7)
    records = rng.uniform(-1, 1, (population, dim))
    mechanism = registry.get("linf-coordinate", local_epsilon=level, dim=dim)
    if sampling is Sampling.POISSON:
        joined = rng.random((trials, population)) < cohort / population
    else:
        joined = rng.random((trials, population)).argsort(axis=1) < cohort
    trial, client = np.nonzero(joined)
    reports = mechanism.randomize(torch.tensor(records[client]), randomness=SeededRandomness(3))
    coordinates = reports.fields[0].values.numpy()
    signs = 2.0 * reports.fields[1].values.numpy() - 1
    estimates = np.zeros((trials, dim))
    np.add.at(estimates, (trial, coordinates), signs * mechanism.report_value / cohort)
    squares = ((estimates - records.mean(axis=0)) ** 2).sum(axis=1)

    centre = 0.0 if sampling is Sampling.POISSON else records.mean(axis=0)
    spread = math.sqrt(((records - centre) ** 2).sum(axis=1).mean())
    expected = float(mechanism.variance(torch.tensor(records)).mean()) / cohort
    expected += sampling_error(population=population, cohort=cohort, sampling=sampling, spread=spread)
    assert abs(squares.mean() - expected) < 4 * squares.std() / math.sqrt(trials)
    worst = report_error("linf-coordinate", local_epsilon=level, dim=dim, radius=1.0, norm="linf").variance
    assert expected < worst / cohort + sampling_error(
        population=population, cohort=cohort, sampling=sampling, spread=math.sqrt(dim)
    )


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.1])
@pytest.mark.parametrize("target", [1e-3, 0.3, 3.0, 20.0])
def test_the_gaussian_baseline_spends_exactly_its_delta(target: float, delta: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    sigma = math.sqrt(gaussian_mse(target_epsilon=target, delta=delta, sensitivity=1.0, dim=1))
    with mpmath.workdps(40):
        ratio = mpmath.mpf(sigma)
        spent = mpmath.ncdf(1 / (2 * ratio) - target * ratio) - mpmath.exp(target) * mpmath.ncdf(
            -1 / (2 * ratio) - target * ratio
        )
    assert float(spent) == pytest.approx(delta, rel=1e-6)
    assert gaussian_mse(target_epsilon=target, delta=delta, sensitivity=3.0, dim=5) == pytest.approx(
        45 * sigma**2
    )


# -- around it ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_mechanism_of_vectors_needs_torch_for_its_error() -> None:
    script = (
        "import sys; from shuffle_plugins.planning import plan; "
        "plan(target_epsilon=1, delta=1e-5, population=50, dim=4, num_steps=1, cohorts=(50,)); "
        "from shuffle_plugins.planning.choosing import choices; "
        "print(len(choices(local_epsilon=2.0, dim=20, norm='l2')[0]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    vectors = len(registry.available(registry.Kind.VECTORS))
    assert done.stdout.split() == [str(vectors - 1), "False"]  # binary-rr takes single numbers


# -- expected noise -----------------------------------------------------------------------------------------


def aligned(norm: str, *, rows: int, dim: int, radius: float) -> torch.Tensor:
    """Equal rows, as long in l2 as a ball of this norm allows."""
    entry = radius if norm == "linf" else radius / math.sqrt(dim)
    return torch.full((rows, dim), entry, dtype=torch.float64)


def local(name: str) -> Any:
    return partial(registry.get, name, local_epsilon=2.0)


def added(kind: Any) -> Any:
    return partial(kind.with_noise, cohort=40, noise_multiplier=3.0)


@first_fast(
    ("build", "slack"),  # a sum's bound holds for every input, and at most inputs there is less noise
    [
        (local("privunit"), 1.1),
        (added(VectorSum), 2.5),
        (local("linf-coordinate"), 1.1),
        (local("l2-block"), 1.1),
        (added(BallSum), 2.5),
    ],
    fast=2,
)
def test_expected_noise_is_that_of_simulated_rounds(build: Any, slack: float) -> None:
    mechanism, coins = build(dim=24, radius=0.5), SeededRandomness(1)
    found = expected_noise(mechanism, cohort=40)
    rows = aligned(mechanism.norm, rows=40, dim=24, radius=0.5)
    for vectors, signal in ((rows, found.largest_signal), (0 * rows, 0.0)):
        mean = vectors.mean(dim=0)
        assert float(mean.norm()) == pytest.approx(signal)
        errors = [
            float((mechanism.randomize_sum(vectors, randomness=coins) / 40 - mean).square().sum())
            for _ in range(400)
        ]
        assert math.sqrt(np.mean(errors)) <= found.noise * 1.1
    assert found.noise <= slack * math.sqrt(np.mean(errors))  # at zero, where it is worst
    assert found.signal_to_noise_ratio == pytest.approx(found.largest_signal / found.noise)
    assert (found.local_epsilon is None) == (slack > 2)


def test_more_reports_and_rounds_raise_the_ratio_as_square_roots() -> None:
    mechanism = registry.get("privunit", local_epsilon=2.0, dim=50)
    few, many = (expected_noise(mechanism, cohort=k) for k in (100, 400))
    assert many.signal_to_noise_ratio == pytest.approx(2 * few.signal_to_noise_ratio)
    assert few.signal_to_noise_ratio_over(9) == pytest.approx(3 * few.signal_to_noise_ratio)
    assert any("vector-sum" in each for each in few.remedies())


def test_a_run_is_warned_of_exactly_when_its_ratio_is_too_small() -> None:
    noise = expected_noise(registry.get("privunit", local_epsilon=1.0, dim=500), cohort=10)
    enough = math.ceil((LEAST_RATIO / noise.signal_to_noise_ratio) ** 2)
    assert enough > 1
    assert noise.warning(num_steps=enough) is None
    told = noise.warning(num_steps=enough - 1)
    assert told is not None
    assert f"{enough - 1:,} steps" in told
    assert (noise.warning() is None) == (enough <= 1000)
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match="num_steps"):
            noise.warning(num_steps=steps)


# -- the search of a large grid ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_grid_is_searched_along_its_best_lines_alone() -> None:
    few, whole = (planned(num_steps=(1, 100), whole_grid=all_of_it) for all_of_it in (False, True))
    assert len(few.rows) < len(whole.rows)
    assert few.best.average_mse == pytest.approx(whole.best.average_mse, rel=4 * PRECISION)
    assert few.best.cohort == whole.best.cohort
    for row in few.rows:
        assert row.epsilon.upper <= 0.5
    told = {(row.cohort, row.num_steps): row.local_epsilon for row in whole.rows}
    for row in few.rows:
        if (row.cohort, row.num_steps) in told:
            assert row.local_epsilon == pytest.approx(told[row.cohort, row.num_steps], rel=2 * PRECISION)


@pytest.mark.slow
def test_a_combination_takes_few_certified_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[ShuffleAccountant] = set()
    bound = ShuffleAccountant.epsilon

    def counted(self: ShuffleAccountant, delta: float, *, lower: bool = True) -> EpsilonInterval:
        if not lower:
            asked.add(self)
        return bound(self, delta, lower=lower)

    monkeypatch.setattr(ShuffleAccountant, "epsilon", counted)
    found = planned(population=10**6, delta=1e-8)
    assert len(asked) < 2.7 * len(found.rows)
