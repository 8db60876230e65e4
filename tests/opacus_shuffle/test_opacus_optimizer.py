from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import (
    CohortLoader,
    CohortMismatch,
    Delivery,
    FixedSizeSampler,
    PoissonSampler,
    PrivacyEngine,
    ShuffleDPOptimizer,
    ShufflePrivacyError,
    SubsampledShufflePLDAccountant,
    SubsampledShuffleRDPAccountant,
)
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import LInfCoordinate, registry
from shuffle_plugins.randomness import SeededRandomness


def wrap(module: nn.Module, *, announce: bool = True, **options: Any) -> ShuffleDPOptimizer:
    """An optimizer that takes whatever the module is called with as a batch just delivered."""
    arguments = {
        "randomizer": "linf-coordinate",
        "local_epsilon": 2.0,
        "max_grad_norm": 1.0,
        "population": 40,
        "cohort": 8,
        "randomness": SeededRandomness(1),
        **options,
    }
    optimizer = ShuffleDPOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), **arguments)
    accountant = SubsampledShuffleRDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=0.2))
    optimizer.accountant = accountant
    if announce:
        module.register_forward_pre_hook(
            lambda _, inputs: optimizer.expect_batch(Delivery(rows=len(inputs[0])))
        )
    return optimizer


def backward(module: nn.Module, x: torch.Tensor) -> None:
    module(x).square().mean().backward()


# ---- what a step computes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_reduction", ["mean", "sum"])
@pytest.mark.parametrize("grad_sample_mode", ["hooks", "functorch", "ew"])
def test_without_coins_a_step_is_opacus_own_without_noise(
    make_private: Any,
    make_model: Any,
    dataset: Any,
    transparent: Any,
    loss_reduction: str,
    grad_sample_mode: str,
) -> None:
    _, module, optimizer, loader = make_private(
        randomizer=transparent,
        max_grad_norm=0.3,
        loss_reduction=loss_reduction,
        grad_sample_mode=grad_sample_mode,
    )
    reference = GradSampleModule(make_model(), loss_reduction=loss_reduction)
    plain = DPOptimizer(
        torch.optim.SGD(reference.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.3,
        expected_batch_size=8,
        loss_reduction=loss_reduction,
    )
    criterion = nn.CrossEntropyLoss(reduction=loss_reduction)
    for x, y in loader:
        for model, stepper in ((module, optimizer), (reference, plain)):
            stepper.zero_grad()
            criterion(model(x), y).backward()
            stepper.step()
    for p, q in zip(module.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_tied_layers_spend_one_report_a_sample(make_private: Any, transparent: Any, step: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.outer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(self.inner(x).tanh()))

    engine, module, optimizer, loader = make_private(randomizer=transparent, module=Tied())
    step(module, optimizer, next(iter(loader)))
    assert transparent.batches == [(8, 42 + 21)]
    assert len(engine.accountant) == 1


def test_the_seed_decides_the_run_and_nothing_else_does(make_private: Any, train: Any, flat: Any) -> None:
    def run(**options: Any) -> torch.Tensor:
        _, module, optimizer, loader = make_private(**options)
        train(module, optimizer, loader)
        return flat(module)

    assert torch.equal(run(), run())
    assert not torch.equal(run(), run(randomness=SeededRandomness(2)))
    assert not torch.equal(run(randomness=None), run(randomness=None))


# ---- BatchMemoryManager ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
def test_physical_batches_add_up_to_one_round(
    make_private: Any, transparent: Any, flat: Any, step: Any, sampling: str
) -> None:
    def run(limit: int) -> tuple[Any, torch.Tensor]:
        engine, module, optimizer, loader = make_private(
            randomizer=transparent, sampling=sampling, max_grad_norm=0.3
        )
        for _ in range(2):
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=limit, optimizer=optimizer
            ) as split:
                for batch in split:
                    step(module, optimizer, batch)
        return engine, flat(module)

    engine, parameters = run(3)
    whole_engine, whole_parameters = run(1000)
    assert len(engine.accountant) == len(whole_engine.accountant) == 10
    assert engine.get_epsilon(1e-5) == whole_engine.get_epsilon(1e-5)
    assert torch.allclose(parameters, whole_parameters, atol=1e-5)


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_leftovers_of_a_broken_off_iteration_do_not_meet_the_next_cohort(
    make_private: Any, dataset: Any, transparent: Any, step: Any, sampling: str, num_workers: int
) -> None:
    given = DataLoader(dataset, batch_size=20, num_workers=num_workers)
    engine, module, optimizer, loader = make_private(loader=given, randomizer=transparent, sampling=sampling)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=6, optimizer=optimizer) as split:
        step(module, optimizer, next(iter(split)))
    assert optimizer._under_way.received > 0
    transparent.batches.clear()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=6, optimizer=optimizer) as split:
        released = []
        for batch in split:
            rows = sum(b for b, _ in transparent.batches)
            steps = len(engine.accountant)
            step(module, optimizer, batch)
            if len(engine.accountant) > steps:
                released.append(rows + len(batch[0]))
                transparent.batches.clear()
    assert len(released) == 2
    assert sum(released) == 40 if sampling == "without-replacement" else sum(released) > 0


# ---- refusals: nothing released, nothing recorded ----------------------------------------------------------


@pytest.fixture
def refused_step(refused: Any) -> Any:
    def check(optimizer: Any, module: nn.Module, match: str, error: Any = ShufflePrivacyError) -> None:
        with refused(optimizer.accountant, module, match, error=error):
            optimizer.step()
        assert all(p.grad is None for p in module.parameters() if p.requires_grad)

    return check


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_a_gradient_that_is_not_finite_counts_as_zeros(
    transparent: Any, flat: Any, value: float, clipping: str, mode: str
) -> None:
    """The others' stay as they are, also under the mean of losses of which one is NaN."""
    model = nn.Sequential(
        nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3), nn.LayerNorm(3)
    )
    x = torch.randn(8, 1, 6)
    moved = []
    for bad in (False, True):
        module = GradSampleModule(copy.deepcopy(model), force_functorch=mode == "functorch")
        limits = [0.1] * 8 if clipping == "per_layer" else 0.1
        optimizer = wrap(module, randomizer=transparent, max_grad_norm=limits, clipping=clipping)
        given = x.clone()
        if bad:
            given[3, 0, 2] = value
        nn.functional.cross_entropy(module(given), torch.arange(8) % 3).backward()
        if not bad:
            for p in module.parameters():
                p.grad_sample[3] = 0
        optimizer.step()
        moved.append(flat(module))
    assert torch.equal(*moved)
    assert bool(moved[0].isfinite().all())


@pytest.mark.parametrize("randomizer", ["linf-coordinate", "privunit"])
def test_a_gradient_that_is_not_finite_is_refused_on_demand(refused_step: Any, randomizer: str) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module, randomizer=randomizer, on_nonfinite="raise")
    x = torch.randn(8, 6)
    x[3, 2] = math.nan
    backward(module, x)
    refused_step(optimizer, module, "leave on_nonfinite out")
    optimizer.zero_grad()
    backward(module, torch.randn(8, 6))
    optimizer.step()
    assert len(optimizer.accountant) == 2  # the batch that was refused is one that was passed over
    with pytest.raises(ShufflePrivacyError, match="'zero' or 'raise'"):
        wrap(module, on_nonfinite="skip")


def test_training_that_diverged_spends_nothing_more(refused_step: Any) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    with torch.no_grad():
        module._module.bias[1] = math.inf
    backward(module, torch.randn(8, 6))
    refused_step(optimizer, module, "diverged")


@pytest.mark.parametrize("received", [1, 7, 9])
def test_a_cohort_of_another_size(refused_step: Any, received: int) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    backward(module, torch.randn(received, 6))
    refused_step(optimizer, module, f"processed {received} .* cohort is 8", CohortMismatch)


def test_an_empty_poisson_batch_is_a_round_like_any_other(flat: Any) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module, sampling="poisson")
    before = flat(module)
    module(torch.zeros(0, 6)).sum().backward()
    optimizer.step()
    assert len(optimizer.accountant) == 1
    assert torch.equal(flat(module), before)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda model: wrap(model), "original_optimizer"),
        (lambda model: torch.optim.LBFGS(model.parameters()), "several gradients"),
    ],
    ids=["private", "LBFGS"],
)
def test_an_optimizer_that_cannot_be_wrapped_is_refused(made: Any, match: str) -> None:
    with pytest.raises(ShufflePrivacyError, match=match):
        ShuffleDPOptimizer(
            made(nn.Linear(6, 3)),
            randomizer="privunit",
            local_epsilon=1.0,
            max_grad_norm=1.0,
            population=40,
            cohort=8,
        )


def without_backward(module: Any) -> None:
    module(torch.randn(8, 6))
    backward(module, torch.randn(8, 6))


def in_two_passes(module: Any) -> None:
    for _ in range(2):
        backward(module, torch.randn(4, 6))


def without_the_last_layer(module: Any) -> None:
    module._module[0](torch.randn(8, 6)).sum().backward()


def checkpointed(module: Any) -> None:
    first, second = module._module
    second(checkpoint(lambda x: first(x).tanh(), torch.randn(8, 6), use_reentrant=False)).sum().backward()


def time_before_batch(module: Any) -> None:
    first, second = module._module
    second(first(torch.randn(5, 8, 6)).mean(0)).sum().backward()


@pytest.mark.parametrize(
    ("train_on_a_batch", "error", "said"),
    [
        (without_backward, ShufflePrivacyError, "no_grad"),
        (in_two_passes, ShufflePrivacyError, "GAN's discriminator .* added up before one"),
        (without_the_last_layer, ShufflePrivacyError, "requires_grad=False"),
        (checkpointed, ShufflePrivacyError, "switch activation .* checkpointing off"),
        (time_before_batch, CohortMismatch, "batch_first=False"),
    ],
)
def test_gradients_that_are_not_one_for_each_record_are_explained(
    refused_step: Any, train_on_a_batch: Any, error: type[Exception], said: str
) -> None:
    module = GradSampleModule(nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)))
    optimizer = wrap(module, announce=False)
    optimizer.expect_batch(Delivery(rows=8))
    train_on_a_batch(module)
    refused_step(optimizer, module, said, error)


@pytest.mark.parametrize("stepped", [False, True])
def test_gradients_of_an_earlier_batch_are_not_stepped_on(refused_step: Any, stepped: bool) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    backward(module, torch.randn(8, 6))
    if stepped:
        optimizer.step()
    optimizer.expect_batch(Delivery(rows=8))
    refused_step(optimizer, module, "of an earlier batch")
    backward(module, torch.randn(8, 6))
    optimizer.step()
    assert len(optimizer.accountant) == 3  # the first batch, stepped on or not, the refused one, the last


def test_without_a_sampler_every_step_is_refused(refused_step: Any) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module, announce=False)
    backward(module, torch.randn(8, 6))
    refused_step(optimizer, module, "call sampler.attach")


def test_a_sampler_of_other_rounds_is_refused() -> None:
    optimizer = wrap(nn.Linear(6, 3))
    for other in ({"population": 400}, {"cohort": 4}):
        with pytest.raises(ShufflePrivacyError, match="accounts for"):
            FixedSizeSampler(**{"population": 40, "cohort": 8, **other}).attach(optimizer)
    with pytest.raises(ShufflePrivacyError, match="accounts for"):
        PoissonSampler(population=40, cohort=8).attach(optimizer)


@pytest.mark.parametrize("freeze", ["one", "all"])
def test_parameters_frozen_after_backward_do_not_move_by_their_raw_gradient(flat: Any, freeze: str) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    backward(module, torch.randn(8, 6))
    parameters = list(module.parameters())
    for p in parameters if freeze == "all" else parameters[:1]:
        p.requires_grad_(False)
    before = flat(module)
    with pytest.raises(ShufflePrivacyError, match="make_private again"):
        optimizer.step()
    assert torch.equal(flat(module), before)
    assert all(p.grad is None for p in parameters)


def test_no_accountant_no_release(refused_step: Any) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    optimizer._hooks = ()
    optimizer.attach_step_hook(lambda _: None)
    backward(module, torch.randn(8, 6))
    refused_step(optimizer, module, "no shuffle accountant")


def test_a_hook_that_fails_leaves_parameters_alone_and_never_under_counts(flat: Any) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("disk full")

    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    optimizer.attach_step_hook(fail)
    backward(module, torch.randn(8, 6))
    before = flat(module)
    with pytest.raises(RuntimeError, match="disk full"):
        optimizer.step()
    assert torch.equal(flat(module), before)
    assert len(optimizer.accountant) == 1


def test_an_inner_optimizer_that_fails_leaves_the_step_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module)
    recorded = []

    def fail() -> None:
        recorded.append(len(optimizer.accountant))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(optimizer.original_optimizer, "step", fail)
    backward(module, torch.randn(8, 6))
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert recorded == [1]
    assert len(optimizer.accountant) == 1


@pytest.mark.parametrize("bad_chunk", [0, 1, 2])
def test_after_a_refusal_the_rest_of_the_logical_batch_is_dropped(
    make_private: Any, transparent: Any, step: Any, flat: Any, bad_chunk: int
) -> None:
    """Under Poisson sampling any number of gradients is a cohort, so leftovers would go unnoticed."""
    engine, module, optimizer, loader = make_private(
        randomizer=transparent,
        sampling="poisson",
        batch_size=20,
        randomness=SeededRandomness(3),
        on_nonfinite="raise",
    )
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=6, optimizer=optimizer) as split:
        before = flat(module)
        batches = iter(split)
        chunk, last = 0, False
        while not last:
            x, y = next(batches)
            last = not optimizer._check_skip_next_step(pop_next=False)
            if chunk == bad_chunk:
                with pytest.raises(ShufflePrivacyError, match="NaN"):
                    step(module, optimizer, (x * math.nan, y))
            else:
                step(module, optimizer, (x, y))
            chunk += 1
        assert chunk > bad_chunk
        assert torch.equal(flat(module), before)
        assert len(engine.accountant) == 0
        transparent.batches.clear()
        rest = [len(x) for x, y in batches if step(module, optimizer, (x, y)) is None]
    assert len(engine.accountant) == 2  # the batch that was refused is one that was passed over
    assert [b for b, _ in transparent.batches] == rest
    assert not torch.equal(flat(module), before)


def test_batches_that_the_sampler_did_not_draw(
    make_private: Any, dataset: Any, step: Any, refused: Any
) -> None:
    """Training on one's own loader after make_private: k is right, the draws are not."""
    engine, module, optimizer, loader = make_private()
    foreign = DataLoader(dataset, batch_size=8, shuffle=True)
    step(module, optimizer, next(iter(loader)))
    with refused(engine.accountant, module, "not drawn by the sampler"):
        step(module, optimizer, next(iter(foreign)))
    assert sum(1 for batch in loader if step(module, optimizer, batch) is None) == 5
    assert len(engine.accountant) == 6


# ---- kinds of parameters -----------------------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor([3]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.amount


class Widen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def test_scalar_frozen_and_integer_parameters_and_several_precisions(transparent: Any) -> None:
    linear = nn.Linear(6, 3)
    linear.bias.requires_grad_(False)
    module = GradSampleModule(nn.Sequential(Scale(), linear, Shift(), Widen(), nn.Linear(3, 2).double()))
    optimizer = wrap(module, randomizer=transparent, max_grad_norm=1e6)
    backward(module, torch.randn(8, 6))
    trainable = [p for p in module.parameters() if p.requires_grad]
    resting = [p for p in module.parameters() if not p.requires_grad]
    assert [(p.dim(), p.dtype.itemsize) for p in trainable] == [(0, 4), (2, 4), (2, 8), (1, 8)]
    assert {p.dtype for p in resting} == {torch.float32, torch.int64}
    gradient = [p.grad.clone() for p in trainable]
    before = [p.clone() for p in resting]
    optimizer.step()
    assert transparent.batches == [(8, 1 + 18 + 6 + 2)]
    for p, g in zip(trainable, gradient, strict=True):
        assert (p.grad.shape, p.grad.dtype) == (p.shape, p.dtype)
        assert torch.allclose(p.grad, g, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(p, q) for p, q in zip(resting, before, strict=True))


def test_complex_parameters_are_refused(refused_step: Any) -> None:
    module = nn.ParameterList([torch.randn(6, dtype=torch.complex64)])
    optimizer = wrap(module, announce=False)
    optimizer.expect_batch(Delivery(rows=8))
    module[0].grad_sample = torch.zeros(8, 6, dtype=torch.complex64)
    refused_step(optimizer, module, "floating", ValueError)


# ---- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("randomizer", "match"),
    [
        (LInfCoordinate(local_epsilon=2.0, dim=21), "instance"),
        (7, "registered name"),
        ("no-such-thing", "no-such-thing"),
        (lambda **kw: object(), "not a LocalRandomizer"),
        (lambda **kw: LInfCoordinate(local_epsilon=9.0, dim=21, radius=1.0), "asked for"),
        (lambda **kw: LInfCoordinate(local_epsilon=2.0, dim=21, radius=5.0), "asked for"),
        (lambda **kw: LInfCoordinate(local_epsilon=2.0, dim=5, radius=1.0), "asked for"),
    ],
)
def test_a_randomizer_that_is_not_what_was_asked_for_is_refused(randomizer: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        wrap(nn.Linear(6, 3), randomizer=randomizer)


# ---- schedules ---------------------------------------------------------------------------------------------


def test_local_epsilon_is_read_afresh_at_every_step(make_private: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private()
    core = ShuffleAccountant(method="rdp")
    for local_epsilon in (2.0, 1.0, 0.5):
        optimizer.local_epsilon = local_epsilon
        assert optimizer.mechanism.local_epsilon == local_epsilon
        steps = train(module, optimizer, loader)
        signs = LInfCoordinate(local_epsilon=local_epsilon, dim=53)
        core.step(signs.round(population=40, cohort=8), num_steps=steps)
    assert [entry[1] for entry in engine.accountant.history] == [5, 5, 5]
    assert engine.get_epsilon(1e-5) == core.epsilon(1e-5).upper


def test_the_randomizer_cannot_change_inside_a_round(make_private: Any, step: Any) -> None:
    engine, module, optimizer, loader = make_private()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as split:
        batches = iter(split)
        step(module, optimizer, next(batches))
        with pytest.raises(ShufflePrivacyError, match="inside a round"):
            optimizer.local_epsilon = 9.0
        with pytest.raises(ShufflePrivacyError, match="inside a round"):
            optimizer.max_grad_norm = 9.0
        step(module, optimizer, next(batches))
        optimizer.local_epsilon = 1.0
    assert engine.accountant.core.history[0][0].local_epsilon == 2.0


def test_noise_schedulers_of_opacus_are_told_to_schedule_local_epsilon() -> None:
    optimizer = wrap(nn.Linear(6, 3))
    assert not hasattr(optimizer, "noise_multiplier")
    with pytest.raises(AttributeError, match=r"assign optimizer\.local_epsilon between steps"):
        _ = optimizer.noise_multiplier
    with pytest.raises(ValueError, match="noise_multiplier"):
        ExponentialNoise(optimizer, gamma=0.9)
    with pytest.raises(ShufflePrivacyError, match="local_epsilon"):
        optimizer.noise_multiplier = 1.0


@pytest.mark.parametrize("accountant", [RDPAccountant, PRVAccountant, GaussianAccountant])
def test_an_accountant_of_opacus_cannot_count_our_steps(accountant: Any) -> None:
    foreign = accountant()
    optimizer = wrap(nn.Linear(6, 3))
    with pytest.raises(ShufflePrivacyError, match="SubsampledShufflePLDAccountant"):
        optimizer.attach_step_hook(foreign.get_optimizer_hook_fn(sample_rate=0.2))
    assert foreign.history == []


@pytest.mark.parametrize("accountant", ["subsampled_shuffle_rdp", "girgis-2021"])
def test_a_hook_may_log_what_our_accountant_says(make_private: Any, train: Any, accountant: str) -> None:
    engine, module, optimizer, loader = make_private(engine=PrivacyEngine(accountant=accountant))
    books, logged = engine.accountant, []
    optimizer.attach_step_hook(lambda _: logged.append(books.get_epsilon(1e-3)))
    assert train(module, optimizer, loader) == len(logged) == 5
    assert logged == sorted(logged)
    assert logged[-1] == engine.get_epsilon(1e-3)


def test_schedulers_move_the_radius_and_the_learning_rate(make_private: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private(learning_rate=0.5)
    radius = ExponentialGradClip(optimizer, gamma=0.5)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    train(module, optimizer, loader)
    radius.step()
    rate.step()
    assert optimizer.max_grad_norm == optimizer.mechanism.radius == 0.5
    assert optimizer.original_optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert train(module, optimizer, loader) == 5
    assert [steps for _, steps in engine.accountant.history] == [10]  # a round costs the same at any radius


def test_the_noise_to_log_is_that_of_the_released_sum() -> None:
    """The deviation over many rounds of one zero gradient, where the randomizer is loudest."""
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = wrap(module, randomness=SeededRandomness(4))
    rows = Rows.of(torch.zeros(8, 21))
    mechanism = optimizer.mechanism
    sums = torch.stack(
        [mechanism.randomize_sum(rows, randomness=SeededRandomness(seed)) for seed in range(2_000)]
    )
    measured = float(sums.pow(2).mean().sqrt()) / optimizer.max_grad_norm
    assert optimizer.effective_noise_multiplier == pytest.approx(measured, rel=0.03)


def test_a_second_hook_disconnects_nothing(make_private: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private()
    seen: list[int] = []
    second = SubsampledShufflePLDAccountant()
    optimizer.attach_step_hook(lambda o: seen.append(len(engine.accountant)))
    optimizer.attach_step_hook(second.get_optimizer_hook_fn(sample_rate=8 / 40))
    train(module, optimizer, loader)
    assert len(engine.accountant) == len(second) == 5
    assert seen == [1, 2, 3, 4, 5]


# ---- the route without an engine ---------------------------------------------------------------------------


@pytest.mark.parametrize("randomizer", ["linf-coordinate", "privunit"])
def test_the_parts_work_without_an_engine(dataset: Any, make_model: Any, train: Any, randomizer: str) -> None:
    module = GradSampleModule(make_model())
    sampler = FixedSizeSampler(population=40, cohort=8, num_steps=12)
    optimizer = ShuffleDPOptimizer(
        torch.optim.Adam(module.parameters(), lr=0.01),
        randomizer=randomizer,
        local_epsilon=3.0,
        max_grad_norm=0.5,
        population=sampler.population,
        cohort=sampler.cohort,
        sampling=sampler.sampling,
    )
    sampler.attach(optimizer)
    accountant = SubsampledShufflePLDAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=sampler.sample_rate))
    loader = CohortLoader(dataset, batch_sampler=sampler)
    optimizer.watch(module)
    assert train(module, optimizer, loader) == 12
    core = ShuffleAccountant(method="pld")
    mechanism = registry.get(randomizer, local_epsilon=3.0, dim=53)
    core.step(mechanism.round(population=40, cohort=8), num_steps=12)
    assert accountant.get_epsilon_interval(1e-5) == core.epsilon(1e-5)
