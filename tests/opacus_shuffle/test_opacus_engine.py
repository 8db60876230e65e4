from __future__ import annotations

import functools
import inspect
import logging
import math
import re
import warnings
from itertools import chain, islice
from typing import Any

import numpy as np
import opacus
import opacus_shuffle
import pytest
import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPPerLayerOptimizer
from opacus.schedulers import ExponentialGradClip
from opacus.validators.errors import UnsupportedModuleError
from opacus_shuffle import (
    FixedSizeSampler,
    PoissonSampler,
    PrivacyEngine,
    ShufflePrivacyError,
)
from opacus_shuffle.engine import OpacusArguments
from opacus_shuffle.sums import ClippedBall
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from shuffle_plugins.accounting import (
    BudgetExceeded,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_local_epsilon,
)
from shuffle_plugins.mechanisms import Gaussian, Norm, registry
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.randomness import SecureRandomness

DELTA = 1e-5


def core_epsilon(method: str, steps: int, **fields: Any) -> Any:
    blanket = registry.get(fields["mechanism"], local_epsilon=fields["local_epsilon"], dim=53).blanket()
    core = ShuffleAccountant(method=method)
    core.step(ShuffleRound(blanket=blanket, **fields, channel_fixed=True), num_steps=steps)
    return core.epsilon(DELTA)


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
@pytest.mark.parametrize("randomizer", ["linf-coordinate", "privunit"])
@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_the_epsilon_of_a_run_is_the_core_accountants_exactly(
    make_private: Any, train: Any, sampling: str, randomizer: str, method: str
) -> None:
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"),
        sampling=sampling,
        randomizer=randomizer,
    )
    steps = train(module, optimizer, loader, epochs=2)
    expected = core_epsilon(
        method, steps, local_epsilon=2.0, population=40, cohort=8, sampling=sampling, mechanism=randomizer
    )
    assert engine.get_epsilon_interval(DELTA) == expected
    assert engine.get_epsilon(DELTA) == engine.get_epsilon(delta=DELTA) == expected.upper
    assert 0 < expected.lower < expected.upper
    assert expected.neighbouring_relation == "replace-one"


def test_the_default_is_privunit_with_secure_coins_under_the_pld_accountant(
    dataset: Any, make_model: Any, train: Any
) -> None:
    engine, model = PrivacyEngine(), make_model()
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=8, shuffle=True),
        local_epsilon=2.0,
        max_grad_norm=1.0,
    )
    assert engine.accountant.mechanism() == "subsampled_shuffle_pld"
    assert optimizer.mechanism.name == "privunit"
    for coins in (optimizer._randomness, loader.batch_sampler._source):
        assert isinstance(coins, SecureRandomness)
    assert train(module, optimizer, loader) == 5


# ---- n and k are exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
@pytest.mark.parametrize(("n", "k"), [(100, 8), (1000, 300), (7, 7), (93, 1), (99, 10)])
def test_n_k_and_the_rate_are_exact(make_private: Any, sampling: str, n: int, k: int) -> None:
    data = TensorDataset(torch.randn(n, 6), torch.zeros(n, dtype=torch.long))
    _, _, optimizer, loader = make_private(data=data, batch_size=k, sampling=sampling)
    assert optimizer.expected_batch_size == k
    assert (optimizer.round.population, optimizer.round.cohort) == (n, k)
    assert loader.batch_sampler.sample_rate == k / n == optimizer.round.sampling_rate
    assert len(loader) == n // k


def test_options_of_the_loader_survive(dataset: Any, make_private: Any) -> None:
    def collate(rows: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(rows)
        return x * 2, y

    given = DataLoader(dataset, batch_size=8, num_workers=1, collate_fn=collate, timeout=7, prefetch_factor=3)
    *_, loader = make_private(loader=given)
    assert loader.dataset is dataset
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor) == (1, 7, 3)
    assert loader.collate_fn is collate


def test_an_already_private_loader_keeps_n_and_k(make_private: Any) -> None:
    engine, _, _, loader = make_private()
    _, _, optimizer, second = make_private(engine=engine, loader=loader, sampling="poisson")
    assert (optimizer.round.population, optimizer.round.cohort) == (40, 8)
    assert isinstance(second.batch_sampler, PoissonSampler)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("structure", ["tuple", "dict"])
def test_empty_poisson_batches_have_the_structure_of_a_batch(
    make_private: Any, structure: str, num_workers: int
) -> None:
    class Records(Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            x, y = torch.full((6,), float(index)), index % 3
            return (x, y) if structure == "tuple" else {"x": x, "y": y}

    engine, module, optimizer, loader = make_private(
        loader=DataLoader(Records(), batch_size=1, num_workers=num_workers), sampling="poisson"
    )
    sizes = []
    for batch in loader:
        x, y = (batch["x"], batch["y"]) if structure == "dict" else batch
        sizes.append(len(x))
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
        optimizer.step()
    assert 0 in sizes
    assert len(set(sizes)) > 1
    assert len(engine.accountant) == len(sizes) == 40


# ---- what is refused ---------------------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(10))


class OwnSampler(RandomSampler):
    pass


DATA = TensorDataset(torch.randn(40, 6), torch.zeros(40, dtype=torch.long))
LOADERS = {
    "iterable": (lambda: DataLoader(Stream(), batch_size=2), "make a map-style data set of it"),
    "indices twice": (
        lambda: DataLoader(Subset(DATA, [*range(40)] * 10), batch_size=8),
        r"360 of 400 rows .* weigh them in the loss",
    ),
    "one index from both ends": (lambda: DataLoader(Subset(DATA, [0, 39, -1]), batch_size=2), "1 of 3 rows"),
    "an object twice": (lambda: DataLoader(ConcatDataset([DATA, DATA]), batch_size=8), "40 of 80 rows"),
    "nested": (
        lambda: DataLoader(
            Subset(ConcatDataset([Subset(DATA, range(30)), Subset(DATA, range(20, 40))]), range(25, 40)),
            batch_size=2,
        ),
        "5 of 15 rows",
    ),
    "k above n": (
        lambda: DataLoader(DATA, batch_size=41),
        "41 cannot be drawn from a data set of 40",
    ),
    "no batches": (lambda: DataLoader(DATA, batch_size=None), "no batch_size"),
    "weighted": (
        lambda: DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler([1.0] * 40, 40)),
        "WeightedRandomSampler",
    ),
    "with replacement": (
        lambda: DataLoader(DATA, batch_size=8, sampler=RandomSampler(DATA, replacement=True)),
        "RandomSampler",
    ),
    "part of the data": (
        lambda: DataLoader(DATA, batch_size=8, sampler=RandomSampler(DATA, num_samples=16)),
        "RandomSampler",
    ),
    "own sampler": (lambda: DataLoader(DATA, batch_size=8, sampler=OwnSampler(DATA)), "OwnSampler"),
}


@pytest.mark.parametrize(("loader", "match"), LOADERS.values(), ids=LOADERS.keys())
def test_loaders_whose_sampling_would_be_undone_are_refused(
    make_private: Any, make_model: Any, loader: Any, match: str
) -> None:
    model = make_model()
    with pytest.raises(ShufflePrivacyError, match=match):
        make_private(module=model, loader=loader())
    assert not hasattr(model, "autograd_grad_sample_hooks")


def test_the_weighted_loss_that_a_refusal_advises_mixes_no_records(make_private: Any) -> None:
    sampler = WeightedRandomSampler([1.0] * 40, 40)
    with pytest.raises(ShufflePrivacyError) as refused:
        make_private(loader=DataLoader(DATA, batch_size=8, sampler=sampler))
    advice = re.search(r"cross_entropy\(.* does", str(refused.value))
    assert advice is not None
    gradients = []
    for label in (0, 1):  # of the other record
        output = torch.ones(2, 3, requires_grad=True)
        given = {"output": output, "y": torch.tensor([0, label]), "w": torch.tensor([1.0, 100.0, 1.0])}
        loss = eval(advice[0].removesuffix(" does"), {"cross_entropy": nn.functional.cross_entropy, **given})
        gradients.append(torch.autograd.grad(loss, output)[0][0])
    assert torch.equal(*gradients)


def made(kind: type, model: nn.Module) -> nn.Module:
    """The model as an instance of a wrapper, without what the wrapper does when it is made."""
    model.__class__ = type("Wrapped", (kind, type(model)), {})
    return model


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (functools.partial(made, FSDPModule), "FSDP"),
        (functools.partial(made, DifferentiallyPrivateDistributedDataParallel), "process group"),
        (lambda model: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), model), "BatchNorm"),
    ],
    ids=["sharded", "without processes", "batch norm"],
)
def test_models_whose_gradients_are_not_one_records_are_refused(
    make_private: Any, make_model: Any, change: Any, says: str
) -> None:
    with pytest.raises(Exception, match=says):  # Opacus's and torch's own errors, too
        make_private(module=change(make_model()))


@pytest.mark.parametrize(
    "change", [lambda model: model.eval(), lambda model: model.append(nn.BatchNorm1d(3))]
)
def test_what_opacus_refuses_comes_with_the_way_on(make_private: Any, make_model: Any, change: Any) -> None:
    with pytest.raises(UnsupportedModuleError) as refusal:
        make_private(module=change(make_model()))
    (note,) = refusal.value.__notes__
    assert "model.train() before make_private" in note
    assert "ModuleValidator.fix(model)" in note


def test_arguments_of_opacus_that_change_nothing_are_taken(make_private: Any, train: Any, flat: Any) -> None:
    _, plain, optimizer, loader = make_private()
    train(plain, optimizer, loader)
    _, spoken, optimizer, loader = make_private(
        clipping="flat", poisson_sampling=False, noise_generator=None, rand_on_empty=False
    )
    train(spoken, optimizer, loader)
    assert torch.equal(flat(plain), flat(spoken))


def test_poisson_sampling_of_opacus_chooses_the_law(make_private: Any) -> None:
    assert isinstance(make_private(poisson_sampling=True)[3].batch_sampler, PoissonSampler)
    assert isinstance(make_private(poisson_sampling=False)[3].batch_sampler, FixedSizeSampler)
    both = make_private(poisson_sampling=True, sampling="poisson")
    assert isinstance(both[3].batch_sampler, PoissonSampler)


SUM = {"randomizer": "vector-sum", "local_epsilon": None, "noise_multiplier": 3.0}
BY_RECORD = {"local_epsilon": [1.0, 4.0] * 20, "sampling": "poisson"}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        *(({"grad_sample_mode": mode}, "grad_sample_mode") for mode in ("ghost", "ghost_fsdp", "hook")),
        ({"clipping": "ghost"}, "whole gradient"),
        ({"clipping": "per_layer", "max_grad_norm": [1.0] * 3}, "3 radii.* 4 trainable"),
        ({"clipping": "per_layer", "max_grad_norm": [1.0, 1.0, 0.0, 1.0]}, r"max_grad_norm\[2\]"),
        ({"clipping": "flat", "target_unclipped_quantile": 0.5}, "belongs to clipping='adaptive'"),
        ({"clipping": "adaptive", "min_clipbound": 1.5}, "in order"),
        ({"clipping": "adaptive", "unclipped_num_std": 1.0}, "more than half"),
        (SUM | {"clipping": "adaptive", "unclipped_num_std": 1.0}, "smaller than 2 . unclipped_num_std"),
        ({"noise_generator": torch.Generator()}, "SeededRandomness"),
        ({"rand_on_empty": True}, "invented record"),
        ({"poisson_sampling": False, "sampling": "poisson"}, "contradict"),
        (SUM | {"noise_multiplier": None}, "needs noise_multiplier"),
        (SUM | {"local_epsilon": 1.0}, "local_epsilon"),
        (SUM | {"batch_size": 1}, r"batch_size.* is 1: .*at least 2"),
        (SUM | {"noise_multiplier": 0.05}, r"noise_multiplier=0\.05 is too little"),
        (SUM | {"randomizer": "windowed-sum"}, "kept apart in time"),
        (SUM | {"randomizer": functools.partial(WindowedSum, coefficients=(2, 1))}, "kept apart in time"),
        (BY_RECORD | {"local_epsilon": [1.0] * 39}, "one for each of the 40 records"),
        (BY_RECORD | {"local_epsilon": [0.0] * 40}, "local_epsilon"),
        (BY_RECORD | {"sampling": "without-replacement"}, "sampling='poisson'"),
        (BY_RECORD | {"clipping": "adaptive"}, "not for one of each record"),
        (SUM | BY_RECORD, "local_epsilon"),
    ],
)
def test_arguments_whose_epsilon_would_be_wrong_are_refused_before_training(
    make_private: Any, make_model: Any, other: dict[str, Any], says: str
) -> None:
    model = make_model()
    with pytest.raises((ShufflePrivacyError, TypeError), match=says):
        make_private(module=model, **other)
    assert not hasattr(model, "autograd_grad_sample_hooks")


LIMITS = [0.3, 0.05, 0.2, 0.01]


def test_per_layer_clipping_is_opacus_own(
    make_private: Any, make_model: Any, dataset: Any, transparent: Any
) -> None:
    """Without noise: the same step as Opacus's DPPerLayerOptimizer takes on the same batch."""
    _, module, optimizer, loader = make_private(
        randomizer=transparent, clipping="per_layer", max_grad_norm=LIMITS
    )
    x, y = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    theirs = GradSampleModule(make_model())
    reference = DPPerLayerOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=LIMITS,
        expected_batch_size=8,
    )
    nn.functional.cross_entropy(theirs(x), y).backward()
    reference.step()
    for ours, other in zip(module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-7)
    assert optimizer.max_grad_norm == pytest.approx(math.hypot(*LIMITS))


@pytest.mark.parametrize(
    ("randomizer", "radius"),
    [
        ("privunit", math.hypot(*LIMITS)),
        ("linf-coordinate", max(LIMITS)),
        ("l1-hadamard", sum(LIMITS)),
        ("vector-sum", math.hypot(*LIMITS)),
        ("multi-message", math.hypot(*LIMITS)),
    ],
)
def test_per_layer_clipping_fits_every_randomizers_ball_and_costs_what_flat_costs(
    make_private: Any, train: Any, randomizer: str, radius: float
) -> None:
    numbers: dict[str, Any] = {"randomizer": randomizer}
    if randomizer in ("vector-sum", "multi-message"):
        numbers |= {"local_epsilon": None, "noise_multiplier": 3.0}
    engine, *objects = make_private(clipping="per_layer", max_grad_norm=LIMITS, **numbers)
    assert objects[1].mechanism.radius == pytest.approx(radius)
    assert objects[1].max_grad_norms == tuple(LIMITS)
    train(*objects)
    flat, *others = make_private(max_grad_norm=radius, **numbers)
    train(*others)
    assert engine.get_epsilon(1e-3) == flat.get_epsilon(1e-3)


@pytest.mark.parametrize("norm", list(Norm))
def test_clipped_layers_lie_in_the_ball_they_are_said_to(norm: Norm) -> None:
    limits = ClippedBall.of_layers([0.5, 2.0, 0.1], parameters=3, norm=norm)
    parts = [
        torch.randn(50, size, dtype=torch.float64) * 10**scale for size, scale in ((3, 1), (7, 0), (2, -2))
    ]
    clipped = limits.clip(parts)
    order = {Norm.L1: 1, Norm.L2: 2, Norm.LINF: math.inf}[norm]
    whole = torch.linalg.vector_norm(torch.cat(clipped, dim=1), ord=order, dim=1)
    assert float(whole.max()) <= limits.radius * (1 + 1e-12)
    for before, after, limit in zip(parts, clipped, limits.limits, strict=True):
        lengths = torch.linalg.vector_norm(before, ord=order, dim=1)
        torch.testing.assert_close(after[lengths <= limit], before[lengths <= limit])
        assert float(torch.linalg.vector_norm(after, ord=order, dim=1).max()) <= limit * (1 + 1e-12)
    for bad in (math.nan, math.inf):
        assert not bool(limits.clip([torch.full((1, 2), bad)] * 3)[0].isfinite().all())


def test_per_layer_radii_follow_a_schedule(make_private: Any, train: Any) -> None:
    _, module, optimizer, loader = make_private(
        randomizer="privunit", clipping="per_layer", max_grad_norm=LIMITS
    )
    scheduler = ExponentialGradClip(optimizer, gamma=0.5)
    train(module, optimizer, loader)
    scheduler.step()
    assert optimizer.max_grad_norms == pytest.approx([limit / 2 for limit in LIMITS])
    optimizer.max_grad_norms = [3.0, 4.0, 0.0001, 0.0001]
    assert optimizer.max_grad_norm == pytest.approx(5.0)
    train(module, optimizer, loader)
    _, _, plain, _ = make_private()
    with pytest.raises(AttributeError, match="flat"):
        _ = plain.max_grad_norms
    with pytest.raises(AttributeError, match="flat"):
        plain.max_grad_norms = LIMITS


def test_numpy_scalars_are_numbers(calibrated: Any, make_private: Any) -> None:
    _, _, optimizer, _ = make_private(max_grad_norm=np.float32(0.5), local_epsilon=np.float64(1.5))
    assert (optimizer.max_grad_norm, optimizer.local_epsilon) == (0.5, 1.5)
    numbers = {"target_epsilon": np.float32(2.0), "target_delta": np.float64(1e-3)}
    _, _, optimizer, _ = calibrated(epochs=np.int64(2), max_grad_norm=np.float32(1), **numbers)
    assert 0.1 < optimizer.local_epsilon < 20.0


def test_a_loader_of_opacus_gives_its_data_and_its_rate(make_private: Any, dataset: Any, train: Any) -> None:
    _, module, optimizer, loader = make_private(
        loader=DPDataLoader.from_data_loader(DataLoader(dataset, batch_size=8))
    )
    assert loader.dataset is dataset
    assert loader.sample_rate == optimizer.sample_rate == 0.2
    assert {len(y) for _, y in loader} == {8}
    assert train(module, optimizer, loader) == 5


def test_a_target_that_large_local_deltas_leave_unused_is_told(calibrated: Any) -> None:
    asked = {"epochs": 1, "target_epsilon": 3.0}
    with pytest.warns(UserWarning, match="is not used up: .*Choose a δ0 far below .*partial.Gaussian, local"):
        calibrated(randomizer=functools.partial(Gaussian, local_delta=1e-7), **asked)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not used up")
        calibrated(randomizer=functools.partial(Gaussian, local_delta=1e-12), **asked)


@pytest.mark.parametrize(
    ("randomizer", "target", "said"),
    [("linf-coordinate", 1000.0, "local_epsilon=20"), ("vector-sum", 1e5, "noise_multiplier=0.25")],
)
def test_a_target_that_the_least_noise_does_not_use_up_is_told(
    calibrated: Any, randomizer: str, target: float, said: str
) -> None:
    with pytest.warns(UserWarning, match=rf"target_epsilon={target:g} is not used up: with {said}"):
        calibrated(randomizer=randomizer, target_epsilon=target, epochs=1)


def test_parameters_of_another_model_are_refused(make_model: Any, dataset: Any) -> None:
    with pytest.raises(ShufflePrivacyError, match="not the module's"):
        PrivacyEngine().make_private(
            module=make_model(),
            optimizer=torch.optim.SGD(make_model().parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=8),
            local_epsilon=1.0,
            max_grad_norm=1.0,
        )


def test_secure_mode_refuses_a_seed_and_nothing_else(make_private: Any, train: Any) -> None:
    engine = PrivacyEngine(accountant="subsampled_shuffle_rdp", secure_mode=True)
    with pytest.raises(ShufflePrivacyError, match="SeededRandomness"):
        make_private(engine=engine)
    _, module, optimizer, loader = make_private(engine=engine, randomness=None)
    assert train(module, optimizer, loader) == 5


def test_another_data_set_on_the_same_engine_warns(make_private: Any) -> None:
    engine, *_ = make_private()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_private(engine=engine)
    with pytest.warns(UserWarning, match="another data set"):
        make_private(engine=engine, data=TensorDataset(torch.randn(80, 6), torch.zeros(80).long()))


def test_the_accountant_cannot_be_swapped_under_a_running_training(make_private: Any) -> None:
    engine, *_ = make_private()
    kept = engine.accountant
    with pytest.raises(ShufflePrivacyError, match="another engine"):
        engine.accountant = type(kept)()
    assert engine.accountant is kept


@pytest.mark.parametrize("grad_sample_mode", ["hooks", "functorch"])
def test_a_model_can_stay_unwrapped(
    make_private: Any, make_model: Any, train: Any, flat: Any, grad_sample_mode: str
) -> None:
    model = make_model()
    engine, hooks, optimizer, loader = make_private(
        module=model, wrap_model=False, grad_sample_mode=grad_sample_mode
    )
    before = flat(model)
    assert train(model, optimizer, loader) == 5
    assert not torch.equal(flat(model), before)
    assert len(engine.accountant) == 5
    hooks.cleanup()


def test_gradient_accumulation_stops_at_the_step(make_private: Any) -> None:
    engine, module, optimizer, loader = make_private()
    batches = iter(loader)
    x, y = next(batches)
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    x, y = next(batches)
    nn.functional.cross_entropy(module(x), y).backward()
    with pytest.raises(ShufflePrivacyError, match="2 backward passes"):
        optimizer.step()
    assert len(engine.accountant) == 1  # the first batch was passed over


# ---- budget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_training_stops_before_the_budget_is_exceeded(
    make_private: Any, step: Any, refused: Any, method: str
) -> None:
    fields = {"local_epsilon": 1.0, "population": 40, "cohort": 8, "mechanism": "linf-coordinate"}
    target = core_epsilon(method, 7, **fields).upper
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"),
        local_epsilon=1.0,
        target_epsilon=target,
        target_delta=DELTA,
    )
    batches = chain.from_iterable(loader for _ in range(2))
    for batch in islice(batches, 7):
        step(module, optimizer, batch)
    assert engine.get_epsilon(DELTA) == target
    for batch in islice(batches, 2):
        with refused(engine.accountant, module, "step 8", error=BudgetExceeded):
            step(module, optimizer, batch)
    assert all(p.grad is None for p in module.parameters())


# ---- calibration -------------------------------------------------------------------------------------------


def test_calibration_is_the_core_functions_and_says_what_it_chose(
    calibrated: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="opacus_shuffle"):
        _, _, optimizer, _ = calibrated(num_steps=13)
    expected = calibrate_local_epsilon(
        target_epsilon=1.0,
        delta=DELTA,
        population=40,
        cohort=8,
        num_steps=13,
        mechanism="linf-coordinate",
        blanket_factory=lambda e: registry.get("linf-coordinate", local_epsilon=e, dim=53).blanket(),
        method="rdp",
        channel_fixed=True,
    )
    assert optimizer.local_epsilon == expected
    assert f"local_epsilon={expected:.6g}" in caplog.text
    assert "13 steps" in caplog.text


def test_the_engine_has_no_state_of_its_own_but_these() -> None:
    with pytest.warns(UserWarning, match="Secure RNG"):
        engine = opacus.PrivacyEngine()
    assert set(vars(engine)) == {"accountant", "secure_mode", "secure_rng", "dataset"}


def test_our_keywords_are_opacus_own_where_they_mean_the_same() -> None:
    theirs = inspect.signature(opacus.PrivacyEngine.make_private).parameters
    ours = inspect.signature(opacus_shuffle.PrivacyEngine.make_private).parameters
    assert set(theirs) - set(ours) - set(OpacusArguments.__annotations__) == {"kwargs"}
    named = {name: p for name, p in ours.items() if name not in ("self", "opacus_own")}
    assert len(named) < 19
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in named.values())
