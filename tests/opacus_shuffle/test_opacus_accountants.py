from __future__ import annotations

import functools
import importlib
import io
from typing import Any

import opacus
import opacus_shuffle
import pytest
import torch
from opacus.accountants import IAccountant, RDPAccountant, create_accountant
from opacus.accountants import registry as opacus_registry
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer
from opacus_shuffle import (
    Girgis2021Accountant,
    PrivacyEngine,
    ShufflePrivacyError,
    SubsampledShufflePLDAccountant,
    SubsampledShuffleRDPAccountant,
)
from opacus_shuffle.accountants import register_accountants

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound

A = ShuffleRound(local_epsilon=1.0, population=1000, cohort=100)
B = ShuffleRound(local_epsilon=2.0, population=1000, cohort=100)
BOTH = [SubsampledShuffleRDPAccountant, SubsampledShufflePLDAccountant]


@pytest.fixture(params=BOTH, ids=["rdp", "pld"])
def accountant(request: Any) -> Any:
    return request.param()


@pytest.mark.parametrize("cls", [*BOTH, Girgis2021Accountant])
def test_opacus_creates_it_by_the_name_it_calls_itself(cls: Any) -> None:
    assert type(create_accountant(cls.mechanism())) is cls
    assert type(opacus.PrivacyEngine(accountant=cls.mechanism()).accountant) is cls
    assert issubclass(cls, IAccountant)


def test_epsilon_is_the_core_accountants_own(accountant: Any) -> None:
    core = ShuffleAccountant(method=accountant.method)
    for shuffle_round, steps in ((A, 3), (B, 2), (A, 5)):
        accountant.record(shuffle_round, num_steps=steps)
        core.step(shuffle_round, num_steps=steps)
    interval = core.epsilon(1e-5)
    assert accountant.get_epsilon(1e-5) == interval.upper
    assert accountant.get_epsilon_interval(1e-5) == interval
    assert interval.neighbouring_relation == "replace-one"
    assert 0 < interval.lower < interval.upper
    with pytest.raises(ShufflePrivacyError, match="record"):  # as a hook of Opacus's would
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    assert len(accountant) == 10


@pytest.mark.parametrize("name", ["subsampled_shuffle_rdp", "subsampled_shuffle_pld"])
def test_opacus_noise_search_refuses_instead_of_looping(name: str) -> None:
    with pytest.raises(ShufflePrivacyError, match="history"):
        get_noise_multiplier(
            target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, epochs=1, accountant=name
        )


# ---- state -------------------------------------------------------------------------------------------------


def test_state_survives_torch_save_under_weights_only(accountant: Any) -> None:
    accountant.record(A, num_steps=3)
    accountant.record(B)
    buffer = io.BytesIO()
    torch.save(accountant.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert state["core"]["neighbouring_relation"] == "replace-one"
    restored = type(accountant)()
    restored.load_state_dict(state)
    assert restored.history == accountant.history
    assert restored.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)


# ---- registration ------------------------------------------------------------------------------------------


def test_registering_again_and_reloading_are_harmless() -> None:
    register_accountants()
    importlib.reload(opacus_shuffle)
    assert type(create_accountant("subsampled_shuffle_rdp")) is SubsampledShuffleRDPAccountant


def test_a_foreign_class_under_the_name_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(opacus_registry._ACCOUNTANTS, "subsampled_shuffle_rdp", RDPAccountant)
    with pytest.raises(ShufflePrivacyError, match="RDPAccountant"):
        register_accountants()
    assert type(create_accountant("subsampled_shuffle_rdp")) is RDPAccountant


# ---- the hook ----------------------------------------------------------------------------------------------


def test_the_hook_refuses_a_plain_dp_optimizer_before_its_step(
    dataset: Any, make_model: Any, refused: Any, step: Any
) -> None:
    accountant, module = SubsampledShuffleRDPAccountant(), opacus.GradSampleModule(make_model())
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
    )
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=0.2))
    with refused(accountant, module, "DPOptimizer"):
        step(module, optimizer, next(iter(torch.utils.data.DataLoader(dataset, batch_size=8))))


def test_the_hook_checks_the_rate_it_was_made_for(
    make_private: Any, step: Any, refused: Any, accountant: Any
) -> None:
    _, module, optimizer, loader = make_private()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / 6))
    with refused(accountant, module, "sample_rate"):
        step(module, optimizer, next(iter(loader)))


def test_the_engine_takes_only_an_accountant_that_knows_rounds(make_private: Any) -> None:
    for name in ("prv", "rdp", "gdp"):
        with pytest.raises(ShufflePrivacyError, match="subsampled_shuffle_pld"):
            PrivacyEngine(accountant=name)
    engine = PrivacyEngine()
    engine.accountant = RDPAccountant()
    with pytest.raises(ShufflePrivacyError, match="subsampled_shuffle_pld"):
        make_private(engine=engine)


def test_a_run_by_the_published_theorem_keeps_to_its_target_or_is_refused(make_private: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(2000, 6), torch.zeros(2000).long())
    private = functools.partial(make_private, data=data, batch_size=500)
    engine, *_ = private(
        engine=PrivacyEngine(accountant="girgis-2021"),
        randomizer="privunit",
        target_epsilon=2.0,
        target_delta=1e-5,
        num_steps=12,
    )
    plan = engine.training_plan
    accountant = Girgis2021Accountant()
    accountant.record(engine._optimizers[-1].round, num_steps=12)
    assert 0.98 * 2.0 < accountant.get_epsilon(1e-5) <= 2.0
    assert plan.epsilon == pytest.approx(accountant.get_epsilon(1e-5))
    for choice in (
        {"randomizer": "vector-sum", "local_epsilon": None, "noise_multiplier": 1.0},
        {"randomizer": "privunit", "local_epsilon": 1.0, "sampling": "poisson"},
    ):
        with pytest.raises(ValueError, match="Theorem 1"):
            private(engine=PrivacyEngine(accountant="girgis-2021"), **choice)
