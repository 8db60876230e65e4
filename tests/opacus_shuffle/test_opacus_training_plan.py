from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import ShuffleRound
from shuffle_plugins.mechanisms import Gaussian

Privately = Callable[..., tuple[PrivacyEngine, nn.Module, Any, DataLoader[Any]]]


@pytest.fixture
def with_epsilon(calibrated: Any) -> Callable[..., PrivacyEngine]:
    asked = {"randomizer": "privunit", "target_epsilon": 3.0, "target_delta": 1e-4, "num_steps": 6}
    return lambda **options: calibrated(**{**asked, **options})[0]


def big_data() -> TensorDataset:
    return TensorDataset(torch.zeros(4000, 6), torch.zeros(4000).long())


# -- what it will cost --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("randomizer", "sampling"),
    [("privunit", "without-replacement"), ("linf-coordinate", "poisson"), ("vector-sum", None)],
)
def test_a_plan_for_a_target_tells_the_epsilon_that_training_ends_with(
    calibrated: Any, train: Any, randomizer: str, sampling: str | None
) -> None:
    engine, *objects = calibrated(
        engine=PrivacyEngine(),
        data=big_data(),
        batch_size=1000,
        randomizer=randomizer,
        sampling=sampling,
        target_epsilon=2.0,
        target_delta=1e-4,
        num_steps=4,
    )
    plan = engine.training_plan
    assert (plan.num_steps, plan.whole_run, plan.cohort, plan.population) == (4, True, 1000, 4000)
    assert (plan.target_epsilon, plan.delta) == (2.0, 1e-4)
    train(*objects)
    assert len(engine.accountant) == 4
    assert plan.epsilon == pytest.approx(engine.get_epsilon(1e-4), rel=1e-9)  # also when first asked for now
    assert 0.98 * 2.0 <= plan.epsilon <= 2.0
    assert "after 4 steps" in str(plan)
    assert "of the target 2" in str(plan)
    with pytest.raises(PrivacyBudgetExceeded):
        train(*objects)


def test_without_a_target_it_tells_what_one_epoch_costs(make_private: Privately, train: Any) -> None:
    engine, *objects = make_private(randomizer="privunit", local_epsilon=1.0)
    plan = engine.training_plan
    assert (plan.num_steps, plan.whole_run, plan.target_epsilon) == (5, False, None)
    train(*objects)
    assert len(engine.accountant) == 5
    assert plan.delta == 1e-5
    assert plan.epsilon == pytest.approx(engine.get_epsilon(1e-5), rel=1e-9)
    assert "after one epoch (5 steps)" in str(plan)


@pytest.mark.parametrize("epochs", [None, 3])
def test_a_plan_of_shuffled_epochs_counts_each_as_one_round(
    make_private: Privately, calibrated: Any, train: Any, epochs: int | None
) -> None:
    setting = {"data": big_data(), "batch_size": 1000, "sampling": "epoch", "randomizer": "privunit"}
    length = {"local_epsilon": 1.0} if epochs is None else {"target_epsilon": 2.0, "epochs": epochs}
    engine, *objects = (make_private if epochs is None else calibrated)(**setting, **length)
    plan = engine.training_plan
    assert (plan.num_steps, plan.cohort) == (4 * (epochs or 1), 1000)
    train(*objects, epochs=epochs or 1)
    assert plan.epsilon == pytest.approx(engine.get_epsilon(1e-5), rel=1e-9)


def test_it_counts_the_rounds_recorded_before_and_not_those_that_follow(make_private: Privately) -> None:
    engine, _, optimizer, _ = make_private(randomizer="privunit", local_epsilon=1.0)
    engine.accountant.record(optimizer.round, num_steps=7)
    make_private(engine=engine, randomizer="privunit", local_epsilon=1.0)
    later = engine.training_plan
    engine.accountant.record(optimizer.round, num_steps=100)
    alone = PrivacyEngine(accountant="subsampled_shuffle_rdp").accountant
    alone.record(optimizer.round, num_steps=12)
    assert later.epsilon == pytest.approx(alone.get_epsilon(1e-5), rel=1e-9)


# -- how noisy it will be -----------------------------------------------------------------------------------


def test_hopeless_noise_is_warned_of_where_the_call_is_made(with_epsilon: Any) -> None:
    with pytest.warns(UserWarning, match="the noise will drown the updates") as caught:
        with_epsilon(target_epsilon=0.05)
    assert caught[0].filename.endswith("conftest.py")
    told = str(caught[0].message)
    assert "larger cohort than 8" in told
    assert "vector-sum" in told


def test_a_target_delta_above_one_over_the_population_is_warned_of(
    with_epsilon: Any, dataset: TensorDataset
) -> None:
    told = "δ is above 1/population"
    with pytest.warns(UserWarning, match=told) as caught:
        with_epsilon(target_delta=1.01 / len(dataset))
    (said,) = (each for each in caught if told in str(each.message))
    assert said.filename.endswith("conftest.py")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=told)
        with_epsilon(target_delta=1 / len(dataset))


# -- how it is told -----------------------------------------------------------------------------------------


def test_it_is_logged_before_training(with_epsilon: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="opacus_shuffle"):
        engine = with_epsilon()
    assert str(engine.training_plan) in caplog.text
    assert "signal-to-noise ratio" in caplog.text


# -- reports with a δ0 of their own -------------------------------------------------------------------------


class ChargedGaussian(Gaussian):
    """Accounted by ε0 and δ0 alone, as an (ε0, δ0) randomizer of somebody else is."""

    def round(self, **who: Any) -> ShuffleRound:
        return ShuffleRound(local_epsilon=self.local_epsilon, local_delta=self.local_delta, **who)


def noisy(local_delta: float) -> Any:
    return partial(ChargedGaussian, local_delta=local_delta)


def test_gaussian_reports_use_up_no_delta(make_private: Privately) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*local_delta of its own")
        engine, *_ = make_private(randomizer=partial(Gaussian, local_delta=1e-4), local_epsilon=1.0)
    assert engine.training_plan.delta_warning() is None


@pytest.mark.parametrize("local_delta", [1e-6, 3e-7])
def test_without_a_target_it_is_told_when_delta_is_used_up(
    make_private: Privately, local_delta: float
) -> None:
    with pytest.warns(UserWarning, match="local_delta of its own") as caught:
        engine, _, optimizer, _ = make_private(randomizer=noisy(local_delta), local_epsilon=4.0)
    told = [str(w.message) for w in caught if "local_delta of its own" in str(w.message)]
    assert len(told) == 1
    amplified, beyond = (
        int(found.replace(",", "")) for found in re.findall(r"(?:at most|from round) ([\d,]+)", told[0])
    )
    accountant, last = engine.accountant, beyond - 1
    assert (amplified, last) == accountant.core.rounds_left(optimizer.round, delta=1e-5)
    assert last == int(1e-5 / local_delta)
    accountant.record(optimizer.round, num_steps=last)
    assert accountant.get_epsilon(1e-5) == pytest.approx(4.0 * last)
    assert accountant.core.rounds_left(optimizer.round, delta=1e-5) == (0, 0)
    accountant.record(optimizer.round)
    with pytest.raises(ValueError, match="no ε at δ"):
        accountant.get_epsilon(1e-5)


def test_the_step_without_an_epsilon_is_refused_before_its_release(
    make_private: Privately, step: Any, refused: Any
) -> None:
    with pytest.warns(UserWarning, match="local_delta of its own"):
        engine, module, optimizer, loader = make_private(
            randomizer=noisy(4e-6), local_epsilon=1.0, target_epsilon=100.0, target_delta=1e-5
        )
    batches = iter(loader)
    step(module, optimizer, next(batches))
    step(module, optimizer, next(batches))
    with refused(engine.accountant, module, error=PrivacyBudgetExceeded):
        step(module, optimizer, next(batches))
    assert engine.get_epsilon(1e-5) == pytest.approx(2.0)


def test_a_run_without_an_epsilon_is_refused_before_training(
    with_epsilon: Any, make_private: Privately
) -> None:
    with pytest.raises(ShufflePrivacyError, match="from round 1 on no epsilon"):
        make_private(randomizer=noisy(1e-4), local_epsilon=1.0, target_epsilon=9.0, target_delta=1e-5)
    with pytest.raises(ShufflePrivacyError, match="from round 3 on no epsilon"):
        with_epsilon(randomizer=noisy(4e-6), target_delta=1e-5)


def test_local_epsilon_is_found_beside_a_local_delta_that_leaves_room(with_epsilon: Any) -> None:
    engine = with_epsilon(randomizer=noisy(1e-15), target_delta=1e-5)
    plan = engine.training_plan
    assert 0.99 * plan.target_epsilon < plan.epsilon <= plan.target_epsilon
    assert plan.delta_warning() is None
