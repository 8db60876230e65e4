"""The books see every release: whatever moves private parameters is recorded, refused, or marked."""

from __future__ import annotations

import gc
import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch
from opacus_shuffle import (
    Delivery,
    PrivacyBudgetExceeded,
    PrivacyEngine,
    ShufflePrivacyError,
    SubsampledShufflePLDAccountant,
    SubsampledShuffleRDPAccountant,
    accountants,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from shuffle_plugins import cli
from shuffle_plugins.accounting import Cover, DataAccess, Unit


def backward(module: nn.Module, optimizer: Any, batch: Any) -> None:
    x, y = batch
    optimizer.zero_grad()
    cross_entropy(module(x), y).backward()


def private(engine: PrivacyEngine, module: nn.Module, loader: Any, *, optimizer: Any = None) -> Any:
    return engine.make_private(
        module=module,
        optimizer=optimizer or torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1),
        data_loader=loader,
        randomizer="linf-coordinate",
        local_epsilon=2.0,
        max_grad_norm=1.0,
    )


# ---- inside a release --------------------------------------------------------------------------------------


def test_the_step_hook_cannot_be_switched_off(make_private: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private()
    optimizer.step_hook = None
    with pytest.raises(ShufflePrivacyError, match="attach_step_hook"):
        optimizer.step_hook = lambda _: None
    assert train(module, optimizer, loader) == len(engine.accountant) == 5


def test_a_release_by_hand_is_recorded_before_it_is_written_and_happens_once(make_private: Any) -> None:
    engine, module, optimizer, loader = make_private()
    seen: list[Any] = []
    optimizer.attach_step_hook(
        lambda o: seen.append((len(engine.accountant), [p.summed_grad for p in o.params]))
    )
    backward(module, optimizer, next(iter(loader)))
    optimizer.clip_and_accumulate()
    optimizer.add_noise()
    assert seen == [(1, [None] * 4)]
    released = [p.grad.clone() for p in module.parameters()]
    with pytest.raises(ShufflePrivacyError, match="not taken in as a whole"):
        optimizer.add_noise()
    with pytest.raises(ShufflePrivacyError, match="a step was taken on it already"):
        optimizer.clip_and_accumulate()
    assert all(torch.equal(p.grad, before) for p, before in zip(module.parameters(), released, strict=True))
    assert len(engine.accountant) == 1


def test_a_part_of_a_poisson_round_is_not_released_by_hand(make_private: Any) -> None:
    engine, module, optimizer, _ = make_private(sampling="poisson")
    optimizer.expect_batch(Delivery(rows=8, part=0, parts=2))
    backward(module, optimizer, (torch.randn(8, 6), torch.zeros(8).long()))
    optimizer.clip_and_accumulate()
    with pytest.raises(ShufflePrivacyError, match="not taken in as a whole"):
        optimizer.add_noise()
    assert len(engine.accountant) == 0


# ---- other optimizers --------------------------------------------------------------------------------------


class Lookahead(torch.optim.Optimizer):
    """Steps with an optimizer inside."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


@pytest.mark.parametrize("which", ["another", "original", "gaussian"])
def test_a_raw_step_on_private_parameters_is_refused(
    make_private: Any, make_model: Any, dataset: Any, train: Any, flat: Any, which: str
) -> None:
    _, module, optimizer, loader = make_private()
    train(module, optimizer, loader)
    raw: Any = optimizer.original_optimizer
    if which == "another":
        raw = torch.optim.Adam([next(module.parameters())])
    if which == "gaussian":
        _, raw, loader = opacus.PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(dataset, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
    before = flat(module)
    backward(module, raw, next(iter(loader)))
    with pytest.raises(ShufflePrivacyError, match="a new model"):
        raw.step()
    assert torch.equal(flat(module), before)
    public = make_model()
    public.load_state_dict(module.to_standard_module().state_dict())
    fine_tuned = torch.optim.SGD(public.parameters(), lr=0.1)
    backward(public, fine_tuned, (torch.randn(4, 6), torch.zeros(4).long()))
    fine_tuned.step()
    assert not torch.equal(flat(public), before)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_raw_step_on_the_rest_of_a_private_model_is_refused(
    make_model: Any, dataset: Any, train: Any, frozen: bool
) -> None:
    """Also where the rest was frozen at first, as in fine-tuning."""
    model = make_model()
    head, body = model[-1], model[0]
    body.requires_grad_(not frozen)
    module, optimizer, loader = private(
        PrivacyEngine(),
        model,
        DataLoader(dataset, batch_size=8),
        optimizer=torch.optim.SGD(head.parameters(), lr=0.1),
    )
    rest = torch.optim.SGD(body.parameters(), lr=0.1)
    before, trained = body.weight.clone(), head.weight.clone()
    assert train(module, optimizer, loader) == 5
    assert not torch.equal(head.weight, trained)
    body.requires_grad_()
    backward(module, optimizer, next(iter(loader)))
    assert frozen or len(body.weight.grad_sample) == 8  # of this batch alone
    with pytest.raises(ShufflePrivacyError, match="every parameter that you train"):
        rest.step()
    assert torch.equal(body.weight, before)


def test_a_step_moves_no_parameter_that_is_frozen_again(make_model: Any, dataset: Any) -> None:
    """Its optimizer holds it, and it has a gradient from when it was not frozen."""
    model = make_model()
    body = model[0].requires_grad_(False)
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine, model, DataLoader(dataset, batch_size=8))
    before = body.weight.clone()
    body.requires_grad_()
    backward(module, optimizer, next(iter(loader)))
    body.requires_grad_(False)
    optimizer.step()
    assert torch.equal(body.weight, before)
    assert len(engine.accountant) == 1


def test_optimizers_of_other_parameters_and_inner_ones_step(
    make_private: Any, make_model: Any, train: Any, flat: Any
) -> None:
    """A generator beside a private discriminator, an average of the weights, an optimizer in an optimizer."""
    engine, discriminator, optimizer, loader = make_private()
    generator = nn.Linear(2, 6)
    plain = torch.optim.SGD(generator.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(6, 3))
    inner = Lookahead(torch.optim.SGD(discriminator.parameters(), lr=0.1))
    _, ahead, batches = private(engine, discriminator, loader, optimizer=inner)
    before = flat(generator)
    for pair in ((optimizer, loader), (ahead, batches)):  # two private optimizers of the same parameters
        assert train(discriminator, *pair) == 5
        plain.zero_grad()
        optimizer.zero_grad()
        discriminator(generator(torch.randn(4, 2))).sum().backward()
        plain.step()
    average.update_parameters(nn.Linear(6, 3))
    assert not torch.equal(flat(generator), before)


def test_after_the_private_optimizer_is_gone_its_parameters_are_free(make_model: Any, dataset: Any) -> None:
    model = make_model()
    objects: Any = private(PrivacyEngine(), model, DataLoader(dataset, batch_size=8), optimizer=None)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ShufflePrivacyError, match="trained privately"):
        plain.step()
    del objects
    gc.collect()
    plain.step()


# ---- a second engine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", ["optimizer", "model", "orphaned model", "frozen model", "loader"])
def test_what_another_engine_trained_is_continued_or_refused(
    dataset: Any, make_model: Any, train: Any, taken: str
) -> None:
    first, model, plain = PrivacyEngine(), make_model(), DataLoader(dataset, batch_size=8)
    module, optimizer, loader = private(first, model, plain)
    train(module, optimizer, loader)
    accountant, history = first.accountant, first.accountant.state_dict()
    arguments: dict[str, Any] = {"module": module, "loader": plain}
    if taken == "optimizer":
        arguments |= {"optimizer": optimizer, "loader": loader}
    elif taken == "frozen model":
        arguments["module"] = nn.Sequential(module.to_standard_module(), nn.Linear(3, 3))
        model.requires_grad_(False)
    elif taken == "loader":
        arguments = {"module": make_model(), "loader": loader}
    elif taken == "orphaned model":
        del first, optimizer, loader
        gc.collect()
    with pytest.raises(ShufflePrivacyError, match=r"5 rounds .* engine\.accountant = "):
        private(PrivacyEngine(), **arguments)
    other_method = PrivacyEngine(accountant="subsampled_shuffle_rdp")
    with pytest.raises(ShufflePrivacyError, match="another engine's accountant"):
        private(other_method, **arguments)
    by_state, by_object = PrivacyEngine(), PrivacyEngine()
    by_state.accountant.load_state_dict(history)
    by_object.accountant = accountant
    arguments["module"], *_ = private(by_state, **arguments)
    assert train(*private(by_object, **arguments)) == 5
    assert len(by_object.accountant) == 10
    assert by_object.get_epsilon(1e-5) > by_state.get_epsilon(1e-5)


@pytest.mark.parametrize("rounds", [0, 5])
def test_a_model_that_another_engine_took_over_is_trained_by_that_one_only(
    dataset: Any, make_model: Any, train: Any, step: Any, rounds: int
) -> None:
    first, second, plain = PrivacyEngine(), PrivacyEngine(), DataLoader(dataset, batch_size=8)
    module, optimizer, loader = private(first, make_model(), plain)
    if rounds:
        train(module, optimizer, loader)
        second.accountant.load_state_dict(first.accountant.state_dict())
    _, *taken = private(second, module, plain)
    with pytest.raises(ShufflePrivacyError, match=r"another engine .* engine\.accountant = "):
        step(module, optimizer, next(iter(loader)))
    assert len(first.accountant) == rounds
    assert train(module, *taken) == len(second.accountant) - rounds == 5


@pytest.mark.parametrize("whole_first", [True, False])
def test_engines_on_a_model_and_on_a_part_of_it_are_seen(
    dataset: Any, make_model: Any, train: Any, step: Any, whole_first: bool
) -> None:
    """The engine of the whole model trains its last layer only, and the other one the first."""
    model, plain = make_model(), DataLoader(dataset, batch_size=8)

    def of_the_whole(engine: PrivacyEngine) -> Any:
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        return private(engine, model, plain, optimizer=head)

    def of_a_part(engine: PrivacyEngine) -> Any:
        return private(engine, model[0], plain)

    first, then = (of_the_whole, of_a_part) if whole_first else (of_a_part, of_the_whole)
    engine = PrivacyEngine()
    module, optimizer, loader = first(engine)
    x, y = next(iter(loader))
    backward_through = model if whole_first else module
    optimizer.zero_grad()
    cross_entropy(backward_through(x), y).backward()
    optimizer.step()
    module.remove_hooks()
    with pytest.raises(ShufflePrivacyError, match=r"1 rounds .* engine\.accountant = "):
        then(PrivacyEngine())
    shared = PrivacyEngine()
    shared.accountant = engine.accountant
    then(shared)


def test_an_engine_taken_over_in_part_steps_no_more(dataset: Any, make_model: Any, step: Any) -> None:
    model, plain = make_model(), DataLoader(dataset, batch_size=8)
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    module, optimizer, loader = private(PrivacyEngine(), model, plain, optimizer=head)
    module.remove_hooks()
    private(PrivacyEngine(), model[0], plain)[0].remove_hooks()
    module.add_hooks()
    with pytest.raises(ShufflePrivacyError, match="another engine has made this model private"):
        step(module, optimizer, next(iter(loader)))


def test_an_engine_for_every_federated_round_shares_one_accountant(
    dataset: Any, make_model: Any, train: Any
) -> None:
    net, accountant = make_model(), SubsampledShufflePLDAccountant()

    def fit() -> float:
        engine = PrivacyEngine()
        engine.accountant = accountant
        module, *rest = private(engine, net, DataLoader(dataset, batch_size=8))
        train(module, *rest)
        module.to_standard_module()  # without Opacus's hooks, so that the next round can add its own
        return engine.get_epsilon(1e-5)

    spent = [fit() for _ in range(3)]
    assert spent == sorted(spent)
    assert len(accountant) == 15


@pytest.mark.parametrize("cls", [SubsampledShuffleRDPAccountant, SubsampledShufflePLDAccountant])
def test_opacus_own_engine_refuses_the_accountant_before_training(
    dataset: Any, make_model: Any, make_private: Any, train: Any, cls: Any
) -> None:
    engine = opacus.PrivacyEngine(accountant=cls.mechanism())
    model = make_model()
    with pytest.raises(ShufflePrivacyError, match=r"DPOptimizer does not .* opacus_shuffle\.PrivacyEngine"):
        engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
    _, module, optimizer, loader = make_private()
    optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(sample_rate=8 / 40))
    assert train(module, optimizer, loader) == len(engine.accountant) == 5


# ---- saved states ------------------------------------------------------------------------------------------


def test_the_state_of_an_optimizer_brings_its_history(make_private: Any, train: Any, tmp_path: Path) -> None:
    engine, module, optimizer, loader = make_private(randomness=None)
    train(module, optimizer, loader)
    weights = module.state_dict()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    state = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    torch.optim.SGD(module.parameters(), lr=0.1).load_state_dict(state)  # a plain one takes it

    second, module, optimizer, loader = make_private(randomness=None)
    module.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert second.accountant.history == engine.accountant.history
    train(module, optimizer, loader)
    assert len(second.accountant) == 10
    optimizer.load_state_dict(state)  # whose rounds the books have
    assert len(second.accountant) == 10
    assert any("taken over from a checkpoint" in warning for warning in second.statement().warnings)


def test_the_state_of_an_optimizer_that_lacks_rounds_is_refused(make_private: Any, train: Any) -> None:
    _, module, optimizer, loader = make_private(randomness=None)
    train(module, optimizer, loader)
    state = optimizer.state_dict()
    other, module, others, loader = make_private(randomness=None, local_epsilon=1.0)
    train(module, others, loader)
    with pytest.raises(ShufflePrivacyError, match="that the saved history does not hold"):
        others.load_state_dict(state)
    assert len(other.accountant) == 5
    with pytest.raises(ShufflePrivacyError, match="the state holds no history"):
        others.load_state_dict(others.original_optimizer.state_dict())
    with pytest.raises(ShufflePrivacyError, match="rounds of 2 accountants, and 1 are attached"):
        others.load_state_dict({**state, "privacy_accountants": state["privacy_accountants"] * 2})


# ---- progress ----------------------------------------------------------------------------------------------


def test_progress_is_logged_at_most_every_few_seconds(
    calibrated: Any, train: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(accountants.time, "monotonic", lambda: now[0])
    _, module, optimizer, loader = calibrated(target_epsilon=3.0, target_delta=1e-4, num_steps=5)
    optimizer.attach_step_hook(lambda _: now.__setitem__(0, now[0] + 6.0))
    with caplog.at_level(logging.INFO, logger="opacus_shuffle.accountants"):
        train(module, optimizer, loader)
    assert [record.getMessage() for record in caplog.records] == [
        "step 3 of 5, after 12 s",
        "step 5 of 5, after 24 s",
    ]


@pytest.fixture(params=["rdp", "pld"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trained(make_private: Any, train: Any, method: str, tmp_path: Any) -> Any:
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"), max_grad_norm=0.5
    )
    train(module, optimizer, loader)
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=module, optimizer=optimizer, checkpoint_dict={"epoch": 1})
    return engine, module, optimizer, path


@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_run_continues_the_history(
    trained: Any, make_private: Any, train: Any, flat: Any, method: str, stream: bool
) -> None:
    engine, module, _, path = trained
    path = io.BytesIO(path.read_bytes()) if stream else path
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, second, optimizer, loader = make_private(engine=resumed, max_grad_norm=0.5)
    checkpoint = resumed.load_checkpoint(path=path, module=second, optimizer=optimizer)
    assert checkpoint["epoch"] == 1
    assert torch.equal(flat(second), flat(module))
    assert resumed.get_epsilon_interval(1e-5) == engine.get_epsilon_interval(1e-5)
    train(second, optimizer, loader)
    assert len(resumed.accountant) == 10
    assert len(resumed.accountant.history) == 1
    assert len(engine.accountant) == 5


def test_loading_cannot_forget_rounds_that_were_released(trained: Any, flat: Any) -> None:
    engine, module, _, path = trained
    saved = flat(module)
    round_, steps = engine.accountant.core.history[-1]
    engine.accountant.record(round_, num_steps=3)
    before = engine.get_epsilon(1e-5)
    with torch.no_grad():
        module.get_parameter("_module.0.bias").zero_()
    engine.load_checkpoint(path=path, module=module)  # back to earlier weights
    assert torch.equal(flat(module), saved)
    assert engine.get_epsilon(1e-5) == before
    assert len(engine.accountant) == steps + 3
    other = PrivacyEngine(accountant=engine.accountant.mechanism())
    with pytest.raises(ShufflePrivacyError, match="already trained past this state"):
        other.load_checkpoint(path=path, module=module)
    assert len(other.accountant) == 0


def test_a_state_lacks_the_rounds_of_another_engine_that_went_on_from_the_same_one(trained: Any) -> None:
    engine, module, _, path = trained
    branch, late = (PrivacyEngine(accountant=engine.accountant.mechanism()) for _ in range(2))
    branch.load_checkpoint(path=path, module=module)
    round_ = engine.accountant.core.history[-1][0]
    for each in (engine, branch):
        each.accountant.record(round_, num_steps=3)
    for each in (late, engine):  # whose own history is as long, and looks the same
        with pytest.raises(ShufflePrivacyError, match="already trained past this state"):
            each.accountant.load_state_dict(branch.accountant.state_dict())


def test_the_loaded_history_counts_against_the_budget(
    trained: Any, make_private: Any, step: Any, method: str
) -> None:
    engine, _, _, path = trained
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, module, optimizer, loader = make_private(
        engine=resumed, target_epsilon=engine.get_epsilon(1e-5), target_delta=1e-5
    )
    resumed.load_checkpoint(path=path, module=module, optimizer=optimizer)
    with pytest.raises(PrivacyBudgetExceeded):
        step(module, optimizer, next(iter(loader)))


def test_rounds_of_two_runs_are_not_taken_for_those_of_one(
    trained: Any, make_private: Any, step: Any
) -> None:
    engine, _, first, path = trained
    other = PrivacyEngine(accountant=engine.accountant.mechanism())
    _, module, optimizer, loader = make_private(engine=other)
    step(module, optimizer, next(iter(loader)))
    for load in (
        lambda: other.load_checkpoint(path=path, module=module, optimizer=optimizer),
        lambda: optimizer.load_state_dict(first.state_dict()),
    ):
        with pytest.raises(ShufflePrivacyError, match="use a new engine"):
            load()
    assert len(other.accountant) == 1


@pytest.mark.parametrize("damage", ["history", "entry", "missing", "truncated", "other method"])
def test_a_damaged_checkpoint_is_refused_before_anything_loads(
    trained: Any, make_private: Any, flat: Any, method: str, damage: str
) -> None:
    path = trained[3]
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["privacy_accountant_state_dict"]
    if damage == "history":
        state["core"] = "lost"
    elif damage == "entry":
        state["core"]["history"] = [(state["core"]["history"][0][0], -3)]
    elif damage == "other method":
        state["mechanism"] = f"subsampled_shuffle_{ {'rdp': 'pld', 'pld': 'rdp'}[method] }"
    elif damage == "missing":
        del checkpoint["privacy_accountant_state_dict"]
    torch.save(checkpoint, path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    engine, module, _, _ = make_private(engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"))
    weights = flat(module)
    expected = RuntimeError if damage == "truncated" else ShufflePrivacyError
    with pytest.raises(expected):
        engine.load_checkpoint(path=path, module=module)
    assert torch.equal(flat(module), weights)
    assert len(engine.accountant) == 0


# ---- a run that goes on otherwise than it began -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"local_epsilon": 3.0},
            "with local_epsilon=2 .*linf-coordinate with local_epsilon=3",
        ),
        ({"batch_size": 4}, r"k=8, .*k=4,"),
        (
            {"randomizer": "vector-sum", "local_epsilon": None, "noise_multiplier": 5.0},
            "the next are a sum with coins",
        ),
    ],
)
def test_other_rounds_than_the_checkpoints_are_told(
    trained: Any, make_private: Any, method: str, options: dict[str, Any], told: str
) -> None:
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, module, optimizer, _ = make_private(engine=resumed, max_grad_norm=0.5, **options)
    with pytest.warns(UserWarning, match=f"does not go on.*{told}"):
        resumed.load_checkpoint(path=trained[3], module=module, optimizer=optimizer)
    assert len(resumed.accountant) == 5


def test_a_target_that_was_dropped_is_told(make_private: Any, train: Any, tmp_path: Any) -> None:
    target = {"target_epsilon": 9.0, "target_delta": 1e-5}
    engine, module, optimizer, loader = make_private(**target)
    train(module, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)
    state = optimizer.state_dict()
    resumed, module, optimizer, _ = make_private()
    dropped = r"stop at .* \(9\.0, 1e-05\), and no target is set now"
    with pytest.warns(UserWarning, match=dropped) as told:
        resumed.load_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)
    assert len(told) == 1
    _, module, optimizer, _ = make_private(local_epsilon=1.0)
    with pytest.warns(UserWarning, match=f"its last rounds were .*{dropped}") as told:
        optimizer.load_state_dict(state)  # as Lightning, Accelerate and a Trainer resume
    assert len(told) == 1
    same, module, optimizer, _ = make_private(**target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.load_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)


Privately = Callable[..., tuple[PrivacyEngine, nn.Module, Any, Any]]


def test_a_run_is_stated_with_its_trust_its_clipping_and_its_budget(
    make_private: Privately, train: Callable[..., int]
) -> None:
    engine, *objects = make_private(target_epsilon=9.0, target_delta=1e-5, randomness=None)
    nothing = engine.statement()
    assert "nothing recorded" in str(nothing)
    assert nothing.guarantees[0].delta == 1e-5  # the plan's
    assert train(*objects) == 5
    found = engine.statement(delta=1e-6)
    (only,) = found.guarantees  # reports never leave the process: nobody sees them with names
    assert (only.adversary, only.epsilon) == ("model-observer", engine.get_epsilon_interval(1e-6))
    assert (found.unit, found.num_rounds) == (Unit.RECORD, 5)
    assert "sees every record and is trusted with all of them" in found.trust[0]
    assert found.clipping == (
        "every sample's gradient over all 53 trained parameters is clipped, as a whole to the linf ball of "
        "radius 1"
    )
    assert (found.target.epsilon, found.target.delta, found.target.exceeded) == (9.0, 1e-5, False)
    assert found.target.spent == engine.get_epsilon(1e-5)
    assert found.warnings == ()
    assert "client" not in str(found)
    assert "taken for one record: rows that repeat one are seen only where" in found.trust[-1]
    assert {"torch", "opacus"} <= dict(found.versions).keys()
    with pytest.raises(ValueError, match="delta"):
        engine.statement(delta=2.0)


def test_an_engine_without_a_run_knows_neither_delta_nor_clipping() -> None:
    engine = PrivacyEngine()
    with pytest.raises(ShufflePrivacyError, match="nothing is planned yet"):
        engine.statement()
    assert engine.statement(delta=1e-5).clipping.startswith("unknown")


def test_seeds_void_it_and_clipping_is_described_as_it_is(make_private: Privately) -> None:
    engine, *_ = make_private(clipping="per_layer", max_grad_norm=[1.0, 2.0, 0.5, 0.5])
    found = engine.statement()
    assert "SeededRandomness was used" in found.warnings[0]
    assert "each parameter's part by itself" in found.clipping
    make_private(engine=engine, clipping="adaptive", randomness=None)
    found = engine.statement()
    assert "SeededRandomness was used" in found.warnings[0]  # of an earlier run, whose rounds are in ε
    assert "which moves with a private number" in found.clipping
    told = DataAccess(
        what="accuracy on the training set", cover=Cover.NOT_COVERED, detail="printed every epoch"
    )
    accesses = engine.statement(accesses=[told]).accesses
    assert told in accesses
    assert all(each.cover is not Cover.UNKNOWN for each in accesses)


@pytest.mark.slow
def test_a_checkpoint_is_stated_by_the_command_line(
    make_private: Privately, train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, module, optimizer, loader = make_private(target_epsilon=9.0, target_delta=1e-5)
    train(module, optimizer, loader)
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=module, optimizer=optimizer)
    assert cli.main(["statement", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"]["name"] == "record"
    assert found["guarantees"][0]["upper"] == engine.get_epsilon(1e-5)
    assert found["budget"]["epsilon"] == 9.0
    resumed, module, optimizer, _ = make_private()
    resumed.load_checkpoint(path=path, module=module, optimizer=optimizer)
    resumed.save_checkpoint(path=path, module=module, optimizer=optimizer)
    assert cli.main(["statement", str(path), "--delta", "1e-5", "--json"]) == 0
    assert "taken over from a checkpoint" in json.loads(capsys.readouterr().out)["warnings"][0]
    path.write_bytes(path.read_bytes()[:200])
    assert cli.main(["statement", str(path)]) == 2
    assert "cannot be read by torch.load" in capsys.readouterr().err
