"""One step on each delivered batch; mistakes that would release more than is recorded are refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import (
    CohortLoader,
    CohortMismatch,
    FixedSizeSampler,
    PrivacyBudgetExceeded,
    PrivacyEngine,
    ShufflePrivacyError,
)
from opacus_shuffle.optimizer import ForwardWatch
from thinning import first_fast
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from shuffle_plugins.randomness import SeededRandomness

SIGNS = torch.tensor([1.0, -1, -1, -1, -1, -1, -1, -1])[:, None]


def tiny(
    data: Dataset[Any] | None = None, *, batch_size: int = 4, **options: Any
) -> tuple[PrivacyEngine, nn.Module, Any, DataLoader[Any]]:
    """n = 8 and k = 4; the gradient of a record is its sign, and one report is binary response."""
    workers = {name: options.pop(name) for name in _LOADER_OPTIONS & set(options)}
    model = nn.Linear(1, 1, bias=False)
    engine = PrivacyEngine()
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(
            TensorDataset(SIGNS) if data is None else data, batch_size=batch_size, **workers
        ),
        randomizer="linf-coordinate",
        local_epsilon=2.0,
        max_grad_norm=1.0,
        randomness=SeededRandomness(3),
        **options,
    )
    return engine, *private


_LOADER_OPTIONS = {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "collate_fn"}


def step(module: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    module(x).mean().backward()
    optimizer.step()


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def refused(
    engine: PrivacyEngine,
    module: nn.Module,
    act: Callable[[], object],
    *,
    match: str,
    error: type[Exception] = ShufflePrivacyError,
) -> None:
    """``act`` is refused before anything is recorded or released."""
    steps, before = len(engine.accountant), weights(module)
    with pytest.raises(error, match=match):
        act()
    assert len(engine.accountant) == steps
    assert torch.equal(weights(module), before)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
def test_a_physical_batch_left_out_voids_its_round(sampling: str, num_workers: int) -> None:
    """A NaN guard, ``continue`` before step(): the halves of two draws would make one round."""
    engine, module, optimizer, loader = tiny(sampling=sampling, num_workers=num_workers)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=1, optimizer=optimizer) as split:
        batches = (x for _ in range(20) for (x,) in split)

        def is_last() -> bool:
            return not optimizer._check_skip_next_step(pop_next=False)

        while next(batches) is not None and is_last():
            pass
        x = next(batches)
        refused(
            engine,
            module,
            lambda: step(module, optimizer, x),
            match="0 were",
            error=CohortMismatch,
        )
        while not is_last():
            step(module, optimizer, next(batches))
        assert len(engine.accountant) == 0
        recorded = []
        for _ in range(3):
            step(module, optimizer, next(batches))
            while not is_last():
                step(module, optimizer, next(batches))
            recorded.append(len(engine.accountant))
    assert recorded[0] > 1  # the round that was voided is recorded as well
    assert [after - before for before, after in itertools.pairwise(recorded)] == [1, 1]


def test_a_last_physical_batch_left_out_releases_nothing() -> None:
    engine, module, optimizer, loader = tiny()
    sizes = []
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as split:
        for index, (x,) in enumerate(split):
            if index == 1:
                continue
            step(module, optimizer, x)
            sizes.append(len(engine.accountant))
    assert sizes == [0, 1, 2]  # the round that was left out is recorded as well


class Views(Dataset[Any]):
    """Every record comes as several rows."""

    def __init__(self, views: int) -> None:
        self.views = views

    def __len__(self) -> int:
        return len(SIGNS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return SIGNS[index].expand(self.views, 1)


def test_augmented_rows_are_refused_and_their_mean_is_not() -> None:
    engine, module, optimizer, loader = tiny(sampling="poisson")
    batches = (x for (x,) in loader if len(x))
    x = next(batches)
    refused(engine, module, lambda: step(module, optimizer, x.repeat(4, 1)), match="records")

    engine, module, optimizer, loader = tiny(Views(2), sampling="poisson")
    x = next(iter(loader))
    optimizer.zero_grad()
    module(x).mean(1).mean().backward()
    optimizer.step()
    assert len(engine.accountant) == 1


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, None), (2, 2), (4, 4)])
def test_a_batch_is_stepped_on_once(sampling: str, num_workers: int, prefetch_factor: int | None) -> None:
    """``x, y = next(iter(loader))`` and then step after step, as one tries out a model."""
    engine, module, optimizer, loader = tiny(
        sampling=sampling, num_workers=num_workers, prefetch_factor=prefetch_factor
    )
    (x,) = next(iter(loader))
    step(module, optimizer, x)
    assert len(engine.accountant) == 1
    for _ in range(4):
        refused(engine, module, lambda: step(module, optimizer, x), match="taken on it already")


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:], lambda x: x.T.T, lambda x: x[:4]])
def test_training_on_the_first_batch_all_along_is_refused(view: Any) -> None:
    engine, module, optimizer, loader = tiny(batch_size=2)
    batches = (x for (x,) in loader)
    first = next(batches)
    step(module, optimizer, first)
    for _ in batches:
        refused(engine, module, lambda: step(module, optimizer, view(first)), match="of an earlier one")
    assert len(engine.accountant) == 4  # the batches that came meanwhile were passed over


# ---- what stays allowed ------------------------------------------------------------------------------------

LOADERS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "prefetch_factor": 4},
    {"num_workers": 2, "persistent_workers": True},
    {"pin_memory": True},
]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize("options", LOADERS, ids=lambda options: "-".join(options) or "plain")
@first_fast(("sampling", "physical"), [("without-replacement", None), ("poisson", 1)])
def test_ordinary_training_works_with_every_loader(
    options: dict[str, Any], sampling: str, physical: int | None
) -> None:
    engine, module, optimizer, loader = tiny(sampling=sampling, **options)

    def batches() -> Iterator[torch.Tensor]:
        if physical is None:
            yield from (x for (x,) in loader)
            return
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
        ) as split:
            assert isinstance(split, CohortLoader)
            yield from (x for (x,) in split)

    for _ in range(2):
        for x in batches():
            assert physical is None or len(x) <= physical
            step(module, optimizer, x)
    assert len(engine.accountant) == 4
    for x in batches():  # a look at the data
        with torch.no_grad():
            module(x)
    for x in batches():  # broken off
        step(module, optimizer, x)
        break
    for x in batches():
        step(module, optimizer, x)
    assert len(engine.accountant) in (6, 7)


@pytest.mark.parametrize("guard", ["the records", "the loss", "the gradient", "the refusal", "the rows"])
@pytest.mark.parametrize(
    "options", [{}, {"grad_sample_mode": "functorch"}, {"sampling": "epoch"}, {"batch_size": 40}]
)
def test_a_guard_that_skips_batches_leaves_the_books_as_they_are(
    make_private: Any, dataset: TensorDataset, guard: str, options: dict[str, Any]
) -> None:
    """``if not isfinite(loss): continue`` tells of one bad record; no run may look cheaper for it.

    A skipped batch also leaves nothing behind: Opacus's hooks would wait for its backward pass for ever.
    """
    books = []
    for bad in (False, True):
        x = dataset.tensors[0].clone()
        if bad:
            x[7] = math.nan
        engine, module, optimizer, loader = make_private(
            data=TensorDataset(x, dataset.tensors[1]),
            on_nonfinite="raise" if guard == "the refusal" else "zero",
            **options,
        )
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                if guard == "the records" and bool(x.isnan().any()):
                    continue
                if guard == "the rows" and bool(x.isnan().any()):
                    x, y = x[1:], y[1:]
                loss = nn.functional.cross_entropy(module(x), y)
                if guard == "the loss" and bool(loss.isnan()):
                    continue
                loss.backward()
                if guard == "the gradient" and any(bool(p.grad.isnan().any()) for p in module.parameters()):
                    continue
                with contextlib.suppress(ShufflePrivacyError):
                    optimizer.step()
        books.append(engine.accountant.history)
        assert optimizer.batches_without_step == (3 if bad else 0)
    if guard == "the records" and options == {"batch_size": 40}:
        assert books[1] == []  # nothing was trained: no batch is told from one that was only looked at
    else:
        assert books[0] == books[1]


class Centred(nn.Module):
    """Subtracts a running mean."""

    def __init__(self, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean += self.momentum * (x.detach().mean(0) - self.mean)
        return x - self.mean


class Kept(nn.Module):
    """Keeps a sum over the batch where the name says."""

    def __init__(self, *, where: str) -> None:
        super().__init__()
        self.where = where
        self.register_buffer("data", torch.full((6,), math.nan) if where == "nothing" else torch.zeros(6))
        self.register_buffer("counts", torch.zeros(6, dtype=torch.long))
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.where == "data":
                self.data.data.add_(x.sum(0))
            elif self.where == "counts":
                self.counts += (x > 0).sum(0)
            elif self.where == "frozen":
                self.frozen += x.sum(0)
        return x


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.BatchNorm1d(6, affine=False), "layer '0', a BatchNorm1d"),
        (nn.BatchNorm1d(6, affine=False, track_running_stats=False), "layer '0', a BatchNorm1d"),
        (nn.BatchNorm1d(6).requires_grad_(False), "layer '0', a BatchNorm1d"),
        (Centred(momentum=0.1), "buffer '0.mean'"),
        (Centred(momentum=0.0), None),
        (Kept(where="data"), "buffer '0.data'"),
        (Kept(where="counts"), "buffer '0.counts'"),
        (Kept(where="frozen"), "frozen parameter '0.frozen'"),
        (Kept(where="nothing"), None),
        (nn.BatchNorm1d(6).requires_grad_(False).eval(), None),
    ],
)
def test_layers_without_trained_parameters_do_not_mix_records(
    make_private: Any, step: Any, layer: nn.Module, said: str | None
) -> None:
    """Opacus looks at layers with trained parameters only."""
    engine, module, optimizer, loader = make_private(module=nn.Sequential(layer, nn.Linear(6, 3)))
    with pytest.raises(ShufflePrivacyError, match=said) if said else contextlib.nullcontext():
        step(module, optimizer, next(iter(loader)))
    assert len(engine.accountant) == int(said is None)


def test_a_discriminator_trains_on_real_and_generated_rows_by_one_backward_pass(make_private: Any) -> None:
    engine, module, optimizer, loader = make_private()
    generator = nn.Linear(2, 6)
    for real, labels in loader:
        made = generator(torch.randn(len(real), 2))
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(module(x), labels) for x in (real, made.detach())]
        sum(losses).backward()
        optimizer.step()
        module(made).sum().backward()  # the generator's own step
    assert len(engine.accountant) == len(loader)


def test_what_was_only_looked_at_is_not_recorded(make_private: Any, step: Any) -> None:
    engine, module, optimizer, loader = make_private()
    next(iter(loader))
    with torch.no_grad():
        for x, _ in loader:
            module(x)
    assert len(engine.accountant) == 0
    for number, batch in enumerate(loader):
        if number == 3:
            break
        step(module, optimizer, batch)
    step(module, optimizer, next(iter(loader)))
    assert len(engine.accountant) == 4
    assert optimizer.batches_without_step == 1 + 5 + 1
    assert "no step taken on them: 7." in engine.statement(delta=1e-5).warnings[-1]


def test_skipping_batches_in_a_row_is_warned_of_once(make_private: Any, step: Any) -> None:
    _, module, optimizer, loader = make_private()
    batches = iter(loader)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* are charged")
        module(next(batches)[0])
        step(module, optimizer, next(batches))
        module(next(batches)[0])
        module(next(batches)[0])
    with pytest.warns(UserWarning, match="^3 batches are charged"):
        module(next(batches)[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* are charged")
        for x, _ in loader:
            module(x)


def test_batches_passed_over_do_not_exceed_the_budget(make_private: Any, step: Any) -> None:
    engine, module, optimizer, loader = make_private()
    step(module, optimizer, next(iter(loader)))
    most = engine.get_epsilon(1e-5)
    engine, module, optimizer, loader = make_private(target_epsilon=most, target_delta=1e-5)
    batches = iter(loader)
    for _ in range(2):
        x, _ = next(batches)
        module(x)  # and no step
    with pytest.raises(PrivacyBudgetExceeded):
        next(batches)
    assert len(engine.accountant) == 1
    assert engine.get_epsilon(1e-5) == most


def test_a_refused_budget_forgets_no_batch_that_was_passed_over(
    make_private: Any, step: Any, flat: Any
) -> None:
    engine, module, optimizer, loader = make_private()
    for _ in range(2):
        step(module, optimizer, next(iter(loader)))
    most = engine.get_epsilon(1e-5)
    engine, module, optimizer, loader = make_private(target_epsilon=most, target_delta=1e-5)
    batches, before = iter(loader), flat(module)
    *_, batch = (next(batches) for _ in range(5))
    with pytest.raises(PrivacyBudgetExceeded):
        step(module, optimizer, batch)
    for _ in range(6):
        with pytest.raises(PrivacyBudgetExceeded):
            next(iter(loader))
    assert len(engine.accountant) == 2
    assert torch.equal(flat(module), before)


def test_earlier_batches_may_be_looked_at() -> None:
    engine, module, optimizer, loader = tiny(batch_size=2)
    kept: list[torch.Tensor] = []
    for (x,) in loader:
        step(module, optimizer, x)
        kept.append(x)
        with torch.no_grad():
            module(kept[0])
        module.eval()
        module(kept[0]).sum().item()
        module.train()
    assert len(engine.accountant) == 4


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("trained_before", [False, True])
def test_training_in_evaluation_mode_says_so(mode: str, trained_before: bool) -> None:
    engine, module, optimizer, loader = tiny(batch_size=2, grad_sample_mode=mode)
    batches = iter(loader)
    if trained_before:
        step(module, optimizer, next(batches)[0])
    module.eval()
    (x,) = next(batches)
    with pytest.raises(ShufflePrivacyError, match=r"call model\.train\(\)"):
        step(module, optimizer, x)
    module.disable_hooks()
    module(x).mean().backward()
    module.enable_hooks()
    module.train()
    step(module, optimizer, x)
    assert len(engine.accountant) == 1 + trained_before


def test_tensors_that_are_in_every_batch_are_no_sign_of_an_earlier_one() -> None:
    shared = torch.zeros(4, 1)

    def collate(rows: list[tuple[torch.Tensor]]) -> dict[str, Any]:
        return {"x": torch.stack([x for (x,) in rows]), "more": [shared]}

    engine, module, optimizer, loader = tiny(collate_fn=collate)
    for batch in loader:
        step(module, optimizer, batch["x"] + batch["more"][0])
        optimizer.zero_grad()
    for batch in loader:
        step(module, optimizer, batch["more"][0])
    assert len(engine.accountant) == 4


def test_earlier_batches_are_known_only_while_they_live() -> None:
    watch, kept = ForwardWatch(), torch.randn(3)
    watch.deliver([kept])
    for _ in range(1000):
        watch.deliver({"x": (torch.randn(3),)})
    assert len(watch._earlier) <= 130
    assert watch.any_stale(((), {"y": kept[1:]}))
    assert not watch.any_stale((kept.clone(), torch.eye(3).to_sparse()))


def test_a_copied_model_watches_nothing() -> None:
    _, _, optimizer, _ = tiny()
    module = nn.Linear(1, 1)
    optimizer.watch(module)
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        hook = next(h for h in _hooks(clone) if isinstance(h, ForwardWatch))
        assert hook is not optimizer._forward_watch
        hook.deliver(SIGNS)
        hook.deliver(SIGNS.clone())
        clone(SIGNS)
        assert not hook.stale


def _hooks(module: nn.Module) -> list[Any]:
    return list(itertools.chain.from_iterable(m._forward_pre_hooks.values() for m in module.modules()))


# ---- loaders that do not announce --------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_batch_memory_manager_splits_what_no_optimizer_of_ours_is_attached_to(ours: bool) -> None:
    """Opacus's own training goes on as before after our import."""
    data, model = TensorDataset(torch.arange(100)), nn.Linear(1, 1)
    drawn = {"batch_sampler": FixedSizeSampler(population=100, cohort=20)} if ours else {"batch_size": 20}
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters()), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=20
    )
    loader: DataLoader[Any] = DataLoader(data, **drawn)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=7, optimizer=optimizer) as split:
        sizes = [len(x) for (x,) in split]
    assert sizes == [7, 7, 6] * 5
    assert optimizer._step_skip_queue == [True, True, False] * 5


def test_opacus_own_wrapper_is_refused_for_our_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Opacus called something else one day than the function that we replace."""
    from opacus.utils import batch_memory_manager
    from opacus_shuffle.loaders import _opacus_wrap_data_loader

    _, _, optimizer, loader = tiny()
    monkeypatch.setattr(batch_memory_manager, "wrap_data_loader", _opacus_wrap_data_loader)
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as split,
        pytest.raises(ShufflePrivacyError, match="CohortLoader"),
    ):
        next(iter(split))


def test_batch_memory_manager_needs_the_optimizer_of_the_loader() -> None:
    _, _, _, loader = tiny()
    _, _, other, _ = tiny()
    with (
        pytest.raises(ShufflePrivacyError, match="belong together"),
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=other),
    ):
        pass


def test_batch_memory_manager_within_another_takes_the_smaller_size() -> None:
    engine, module, optimizer, loader = tiny()
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=1, optimizer=optimizer) as inner,
        BatchMemoryManager(data_loader=inner, max_physical_batch_size=3, optimizer=optimizer) as split,
    ):
        assert len(split) == 8
        for (x,) in split:
            step(module, optimizer, x)
    assert len(engine.accountant) == 2


@pytest.mark.parametrize("do_skip", [True, False])
def test_steps_are_not_skipped_by_hand(do_skip: bool) -> None:
    _, _, optimizer, _ = tiny()
    with pytest.raises(ShufflePrivacyError, match="BatchMemoryManager"):
        optimizer.signal_skip_step(do_skip)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_sampler": FixedSizeSampler(population=7, cohort=4)}, "8 records"),
        ({"batch_sampler": [[0, 1]]}, "FixedSizeSampler"),
        (
            {
                "batch_sampler": FixedSizeSampler(population=8, cohort=4),
                "in_order": False,
                "num_workers": 2,
            },
            "in_order",
        ),
    ],
)
def test_loaders_that_cannot_announce_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ShufflePrivacyError, match=match):
        CohortLoader(TensorDataset(SIGNS), **options)


class Failing(Dataset[Any]):
    """One record cannot be read."""

    def __len__(self) -> int:
        return len(SIGNS)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            raise OSError("unreadable")
        return SIGNS[index]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_record_that_cannot_be_read_ends_the_iteration(num_workers: int) -> None:
    """Batches behind the error would be taken for the ones before it."""
    engine, module, optimizer, loader = tiny(Failing(), batch_size=2, num_workers=num_workers)
    iterations = errors = 0
    while not errors:
        iterations += 1
        batches = iter(loader)
        try:
            for x in batches:
                step(module, optimizer, x)
        except OSError as error:
            errors += 1
            traceback.clear_frames(error.__traceback__)  # else garbage, and torch waits 5 s for each worker
            assert next(batches, None) is None
    assert len(engine.accountant) < 4 * iterations


@pytest.mark.parametrize("num_workers", [0, 2])
@first_fast("persistent_workers", [False, True])
def test_a_second_iterator_ends_the_first(num_workers: int, persistent_workers: bool) -> None:
    options = {"num_workers": num_workers, "persistent_workers": persistent_workers and num_workers > 0}
    engine, module, optimizer, loader = tiny(batch_size=2, **options)
    first = iter(loader)
    (x,) = next(first)
    second = iter(loader)
    refused(engine, module, lambda: next(first), match="one iterator")
    refused(engine, module, lambda: step(module, optimizer, x), match="not drawn by the sampler")
    for (x,) in second:
        step(module, optimizer, x)
    assert len(engine.accountant) == 4


def test_how_far_workers_drew_ahead_does_not_change_later_draws() -> None:
    """Under a seed; processes that share a stream stay together after an iteration was broken off."""

    def drawn(num_workers: int) -> list[list[int]]:
        data = TensorDataset(torch.arange(8.0)[:, None])
        _, _, _, loader = tiny(data, batch_size=2, num_workers=num_workers)
        next(iter(loader))
        return [x.flatten().tolist() for (x,) in loader]

    assert drawn(0) == drawn(2)


# ---- copies and changes behind the accounting's back -------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_of_an_optimizer_are_refused_and_harm_no_other(make_private: Any, copied: Any) -> None:
    engine, module, optimizer, loader = make_private()
    for held in (optimizer, loader, engine) if copied is not copy.copy else (optimizer,):
        with pytest.raises(ShufflePrivacyError, match="cannot be copied or pickled"):
            copied(held)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    assert len(engine.accountant) == len(loader)


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson", "epoch"])
def test_a_last_batch_that_no_step_followed_is_in_every_number(
    make_private: Any, step: Any, sampling: str, tmp_path: Any
) -> None:
    """``if not isfinite(loss): break`` may be the last line of a script."""
    engine, module, optimizer, loader = make_private(sampling=sampling)
    for number, (x, y) in enumerate(loader):
        if number == 2:
            module(x)
            break
        step(module, optimizer, (x, y))
    recorded = len(engine.accountant)
    told = engine.get_epsilon(1e-5), engine.get_epsilon_interval(1e-5).upper
    stated = engine.statement(delta=1e-5).rounds
    engine.save_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=optimizer)
    next(iter(loader))
    assert len(engine.accountant) == recorded + (sampling != "epoch")  # which the first step had paid for
    assert {*told} == {engine.get_epsilon(1e-5)}
    assert stated == engine.statement(delta=1e-5).rounds
    later, again, resumed, _ = make_private(sampling=sampling)
    later.load_checkpoint(path=tmp_path / "run.pt", module=again, optimizer=resumed)
    assert later.accountant.history == engine.accountant.history


def test_a_number_asked_for_within_a_step_costs_nothing(make_private: Any) -> None:
    engine, module, optimizer, loader = make_private()
    for number, (x, y) in enumerate(loader, start=1):
        before = engine.get_epsilon(1e-5)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        assert engine.get_epsilon(1e-5) > before
        optimizer.step()
        assert len(engine.accountant) == number
        assert engine.get_epsilon(1e-5) == engine.accountant.core.epsilon(1e-5).upper
