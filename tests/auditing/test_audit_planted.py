"""Broken randomizers are caught, and sound ones are not accused more often than the confidence allows."""

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import audit_local, audit_round
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.mechanisms import BinaryRandomizedResponse, PrivUnit, get
from shuffle_plugins.mechanisms.sign_patterns import cap_parameters
from shuffle_plugins.randomness import Randomness, SeededRandomness


class DoubleEpsilon(BinaryRandomizedResponse):
    """Flips as if it had twice the ε0 that it declares."""

    def __init__(self, **parameters):
        super().__init__(**parameters)
        self._cap = cap_parameters(local_epsilon=2 * self.local_epsilon, signs=1)


class SometimesForgetsToFlip(BinaryRandomizedResponse):
    """Sends one sign in fifty as it is."""

    share = 0.02

    def randomize_rows(self, x, norms, randomness):
        sound = super().randomize_rows(x, norms, randomness)
        forgets = randomness.bernoulli(torch.full((x.num_rows,), int(self.share * 2**62)))
        truth = (x.dense().squeeze(1) > 0).to(torch.uint8)
        signs = torch.where(forgets, truth, sound.fields[0].values)
        return Reports(mechanism=self.name, dim=1, fields=(Field(signs, 1),))


class SometimesInTheClear(PrivUnit):
    """Sends the direction itself, one report in a hundred: a leak that only a δ of 0.01 would cover."""

    def randomize_rows(self, x, norms, randomness):
        sound = super().randomize_rows(x, norms, randomness)
        forgets = randomness.bernoulli(torch.full((x.num_rows,), 2**62 // 100))
        clear = (x.dense() / norms.clamp(min=1e-30).unsqueeze(1)).float()
        vectors = torch.where(forgets.unsqueeze(1), clear, sound.fields[0].values)
        return Reports(mechanism=self.name, dim=self.dim, fields=(Field(vectors, 32),))


class NamesTheClient(BinaryRandomizedResponse):
    """Adds a field with the client's place in the batch."""

    def randomize_rows(self, x, norms, randomness):
        sound = super().randomize_rows(x, norms, randomness)
        place = Field(torch.arange(x.num_rows), 30)
        return Reports(mechanism=self.name, dim=1, fields=(*sound.fields, place))

    def log_likelihood(self, reports, x):
        sound = Reports(mechanism=self.name, dim=1, fields=reports.fields[:1])
        return super().log_likelihood(sound, x)


class FingerprintsTheRecord(PrivUnit):
    """Adds a field with a checksum of the record."""

    def randomize_rows(self, x, norms, randomness):
        sound = super().randomize_rows(x, norms, randomness)
        checksum = (x.dense().double().sum(dim=1) * 1000).round().long().remainder(1 << 16)
        return Reports(mechanism=self.name, dim=self.dim, fields=(*sound.fields, Field(checksum, 16)))


class LowWords(Randomness):
    """Words with a bias towards zero: each bit is one with probability 1/4."""

    def __init__(self, source):
        self.source = source

    def words(self, count, *, device="cpu"):
        return self.source.words(count) & self.source.words(count)


class BiasedGenerator(BinaryRandomizedResponse):
    """Draws its signs from biased words."""

    def randomize_rows(self, x, norms, randomness):
        return super().randomize_rows(x, norms, LowWords(randomness))


class RepeatsItsBits(BinaryRandomizedResponse):
    """Starts every batch from the same seed."""

    def randomize_rows(self, x, norms, randomness):
        return super().randomize_rows(x, norms, SeededRandomness(7))


CONFIDENCE = 0.999


def crowd(mechanism, *, delta, cohort, population=None):
    """A round of the mechanism and what it would cost if the mechanism were sound."""
    shuffle_round = ShuffleRound(
        local_epsilon=mechanism.local_epsilon, population=population or cohort, cohort=cohort
    )
    accountant = ShuffleAccountant()
    accountant.step(shuffle_round)
    return shuffle_round, accountant.epsilon(delta, lower=False).upper


@pytest.mark.parametrize(
    ("mechanism", "num_trials"),
    [
        (DoubleEpsilon(local_epsilon=1.0), 2000),
        (SometimesForgetsToFlip(local_epsilon=1.0), 200_000),
        (SometimesInTheClear(local_epsilon=1.0, dim=3), 20_000),
        (FingerprintsTheRecord(local_epsilon=1.0, dim=3), 2000),
        (BiasedGenerator(local_epsilon=1.0), 2000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_report_gives_a_broken_mechanism_away(mechanism, num_trials):
    result = audit_local(
        mechanism, num_trials=num_trials, confidence=CONFIDENCE, randomness=SeededRandomness(1)
    )
    assert result.violates(mechanism.local_epsilon), str(result)
    sound = get(mechanism.name, local_epsilon=1.0, dim=mechanism.dim)
    same = audit_local(sound, num_trials=num_trials, confidence=CONFIDENCE, randomness=SeededRandomness(1))
    assert same.consistent_with(1.0), str(same)


@first_fast(
    ("mechanism", "delta", "clients", "num_trials"),
    [
        (DoubleEpsilon(local_epsilon=1.0), 1e-2, {"cohort": 20}, 8000),
        (DoubleEpsilon(local_epsilon=1.5), 1e-2, {"cohort": 20, "population": 40}, 8000),
        (SometimesInTheClear(local_epsilon=1.0, dim=3), 1e-4, {"cohort": 20}, 8000),
        (SometimesInTheClear(local_epsilon=1.0, dim=3), 1e-4, {"cohort": 5, "population": 10}, 40_000),
        (FingerprintsTheRecord(local_epsilon=1.0, dim=3), 1e-2, {"cohort": 20}, 2000),
        (BiasedGenerator(local_epsilon=2.0), 1e-2, {"cohort": 3}, 8000),
    ],
    ids=lambda value: type(value).__name__,
    fast=2,
)
def test_shuffled_rounds_give_a_broken_mechanism_away(mechanism, delta, clients, num_trials):
    shuffle_round, upper = crowd(mechanism, delta=delta, **clients)
    result = audit_round(
        mechanism,
        shuffle_round,
        delta=delta,
        num_trials=num_trials,
        confidence=CONFIDENCE,
        randomness=SeededRandomness(1),
    )
    assert result.violates(upper), f"{result}, certified {upper}"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [NamesTheClient, RepeatsItsBits])
def test_what_depends_on_the_batch_shows_when_every_cohort_is_a_call(broken):
    mechanism = broken(local_epsilon=1.5)
    shuffle_round, upper = crowd(mechanism, delta=1e-2, cohort=20)
    result = audit_round(
        mechanism,
        shuffle_round,
        delta=1e-2,
        num_trials=600,
        confidence=CONFIDENCE,
        rounds_per_call=1,
        randomness=SeededRandomness(1),
    )
    assert result.violates(upper), f"{result}, certified {upper}"


def test_delta_covers_rare_leaks():
    mechanism = SometimesInTheClear(local_epsilon=1.0, dim=3)
    covered = audit_local(
        mechanism, delta=0.02, num_trials=20_000, confidence=CONFIDENCE, randomness=SeededRandomness(1)
    )
    assert covered.consistent_with(1.0)


@pytest.mark.slow
def test_sound_mechanisms_are_accused_no_more_often_than_stated():
    """Binary randomized response spends ε0 exactly: the least excess would be a false alarm."""
    mechanism = get("binary-rr", local_epsilon=1.0, dim=1)
    audits = [
        audit_local(mechanism, num_trials=400, confidence=0.8, randomness=SeededRandomness(seed))
        for seed in range(200)
    ]
    assert 0 < sum(result.violates(1.0) for result in audits) <= 40
    assert sum(result.violates(0.5) for result in audits) > 180
