"""Gradient oracles: unbiased, as noisy as they say, and charged what they cost."""

import math
from dataclasses import replace

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleAccountant, ShuffleRound, SumRound
from shuffle_plugins.mechanisms import Norm
from shuffle_plugins.optim import Local, OneMessage, PanPrivate, Unprotected, VectorSums
from shuffle_plugins.optim.oracles import GradientTarget, Participation
from shuffle_plugins.randomness import SeededRandomness

F64 = torch.float64
TARGET = GradientTarget(dim=3, radius=2.0, epsilon=1.0, delta=1e-5)
BATCHES = Participation(sampling=Sampling.SINGLE_PASS, population=400, cohort=40, num_steps=10)
EVERYBODY = Participation(sampling=Sampling.FULL, population=60, cohort=60, num_steps=3)
COHORTS = Participation(sampling=Sampling.WITHOUT_REPLACEMENT, population=400, cohort=40, num_steps=5)
SELF = Participation(sampling=Sampling.POISSON, population=400, cohort=40, num_steps=5)
PERMUTED = Participation(sampling=Sampling.EPOCH, population=400, cohort=1, num_steps=400)

CASES = [
    (VectorSums(), BATCHES),
    (VectorSums(), EVERYBODY),
    (VectorSums(overhead=0.2), COHORTS),
    (VectorSums(honest_fraction=0.5), BATCHES),
    (PanPrivate(), BATCHES),
    (OneMessage(), BATCHES),
    (OneMessage(), COHORTS),
    (OneMessage(), SELF),
    (OneMessage(mechanism="gaussian"), PERMUTED),
    (OneMessage(), PERMUTED),
    (OneMessage(mechanism="gaussian"), COHORTS),
    (Local(), BATCHES),
    (Local(), COHORTS),
]
ONE_OF_EACH = (0, 4, 5, 8, 11)
"""A case of each kind of oracle."""
OF_OTHER_COHORTS = (7, 9)
"""Cases of single messages whose cohorts are drawn otherwise."""
NAMES = [f"{type(m).__name__}-{p.sampling}-{i}" for i, (m, p) in enumerate(CASES)]


@pytest.mark.parametrize(("model", "participation"), CASES, ids=NAMES)
def test_rounds_of_a_plan_keep_to_the_target_and_use_it_up(model, participation):
    oracle = model.open(participation, TARGET)
    accountant = ShuffleAccountant()
    accountant.step(oracle.round, num_steps=participation.releases)
    assert accountant.epsilon(TARGET.delta, lower=False).upper <= TARGET.epsilon
    assert accountant.epsilon(TARGET.delta, lower=False).upper > 0.97 * TARGET.epsilon
    assert oracle.round.adversary is Adversary.MODEL_OBSERVER


GEOMETRIES = [
    ("linf", OneMessage(), COHORTS),
    ("l1", OneMessage(), COHORTS),
    ("linf", OneMessage(mechanism="privunit-g"), COHORTS),  # in the ℓ2 ball around the ℓ∞ ball
    ("linf", VectorSums(overhead=0.2), COHORTS),
    ("l1", OneMessage(mechanism="laplace"), COHORTS),
]
ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}


@first_fast(
    ("norm", "model", "participation"),
    [
        *(("l2", *CASES[place]) for place in ONE_OF_EACH),
        *GEOMETRIES,
        *(("l2", *CASES[place]) for place in OF_OTHER_COHORTS),
    ],
    fast=len(ONE_OF_EACH) + 1,
)
def test_means_are_clipped_unbiased_and_as_noisy_as_said(norm, model, participation):
    oracle = model.open(participation, replace(TARGET, norm=Norm(norm)))
    x = torch.randn(participation.cohort, 3, generator=torch.Generator().manual_seed(1), dtype=F64) / 4
    x[0] = torch.tensor([30.0, -15.0, 0])  # clipped to 2
    clipped = x * (2 / torch.linalg.vector_norm(x, ord=ORDERS[norm], dim=1, keepdim=True).clamp(min=2))
    randomness = SeededRandomness(2)
    draws = torch.stack([oracle.mean(x, randomness=randomness) for _ in range(400)])
    assert draws.dtype == F64
    away = draws - clipped.mean(0)
    assert (away.mean(0).norm() ** 2) < 16 * oracle.noise / 400
    assert 0.3 * oracle.noise < float(away.square().sum(1).mean()) < 1.25 * oracle.noise


@pytest.mark.parametrize(
    ("norm", "mechanism"), [("l2", "privunit-g"), ("linf", "linf-block"), ("l1", "l1-hadamard")]
)
def test_a_geometry_has_its_mechanism(norm, mechanism):
    for model in (OneMessage(), Local()):
        assert mechanism in str(model.open(COHORTS, replace(TARGET, norm=Norm(norm))))


@pytest.mark.parametrize("model", [VectorSums(), PanPrivate()])
def test_the_noise_of_a_plan_is_that_of_the_oracle(model):
    opened = model.open(BATCHES, TARGET).noise
    assert model.noise(BATCHES, TARGET) == pytest.approx(opened, rel=0.1)


def test_exact_means_are_exact_and_have_no_round():
    oracle = Unprotected().open(EVERYBODY, TARGET)
    x = torch.eye(3, dtype=F64)
    assert torch.equal(oracle.mean(x, randomness=SeededRandomness(0)), x.mean(0))
    assert oracle.round is None
    assert oracle.noise == 0
    assert "NOT private" in oracle.says


def test_a_pass_is_one_round_at_the_batch_and_cohorts_are_sampled():
    once = VectorSums().open(BATCHES, TARGET).round
    assert isinstance(once, SumRound)
    assert (once.sampling, once.cohort, once.population) == (Sampling.SINGLE_PASS, 40, 400)
    assert BATCHES.releases == 1
    drawn = OneMessage().open(COHORTS, TARGET).round
    assert isinstance(drawn, ShuffleRound)
    assert (drawn.sampling, drawn.cohort, COHORTS.releases) == (Sampling.WITHOUT_REPLACEMENT, 40, 5)
    secret = OneMessage().open(SELF, TARGET).round
    assert secret.sampling is Sampling.POISSON


def test_clients_that_take_part_once_are_charged_as_an_epoch():
    permuted, batches = (OneMessage().open(part, TARGET).round for part in (PERMUTED, BATCHES))
    assert (permuted.sampling, permuted.cohort, permuted.population) == (Sampling.EPOCH, 1, 400)
    assert (batches.sampling, batches.cohort, batches.population) == (Sampling.EPOCH, 40, 400)
    assert permuted.local_epsilon == batches.local_epsilon
    assert permuted.mechanism == "privunit-g"
    assert PERMUTED.releases == BATCHES.releases == 1
    means = Participation(sampling=Sampling.EPOCH, population=400, cohort=8, num_steps=50)
    assert OneMessage().open(means, TARGET).round.population == 50


def test_approximate_reports_of_a_permutation_are_charged_by_clones():
    approximate = OneMessage(mechanism="gaussian").open(PERMUTED, TARGET)
    assert approximate.round.local_delta > 0
    assert approximate.round.replacement_distance * (1 + math.e) < 0.2 * TARGET.delta
    assert approximate.round.pair_name == "clones pair"


def test_nobody_shuffles_in_the_local_model():
    oracle = Local().open(COHORTS, TARGET)
    assert oracle.round.local_epsilon == pytest.approx(TARGET.epsilon / 5)
    accountant = ShuffleAccountant()
    accountant.step(oracle.round, num_steps=5)
    assert accountant.epsilon(TARGET.delta).upper == pytest.approx(TARGET.epsilon, rel=1e-2)


def test_gradients_that_are_not_finite_release_nothing():
    x = torch.ones(40, 3, dtype=F64)
    x[3, 1] = math.nan
    for model in (VectorSums(), PanPrivate(), OneMessage(), Unprotected()):
        with pytest.raises(ValueError, match="nothing was released"):
            model.open(BATCHES, TARGET).mean(x, randomness=SeededRandomness(0))


def test_batches_are_disjoint_and_cohorts_have_their_law():
    order = SeededRandomness(0).permutation(400)
    seen = torch.cat([BATCHES.drawn(t, order=order, randomness=SeededRandomness(t)) for t in range(1, 11)])
    assert seen.sort().values.tolist() == list(range(400))
    source = SeededRandomness(5)
    assert len(COHORTS.drawn(1, order=order, randomness=source).unique()) == 40
    counts = torch.tensor([len(SELF.drawn(1, order=order, randomness=source)) for _ in range(500)]).double()
    assert counts.mean() == pytest.approx(40, abs=1.5)
    assert counts.var() == pytest.approx(36, rel=0.25)
