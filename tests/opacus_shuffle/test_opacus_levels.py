"""A level for each record: who is randomised how, and what the records of each level are charged."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from opacus_shuffle import Delivery, PrivacyEngine, ShufflePrivacyError
from opacus_shuffle.loaders import wrap_data_loader
from opacus_transparent import Transparent
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import LabelledRound, ShuffleAccountant
from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.randomness import Randomness, SeededRandomness

DELTA = 1e-3
LEVELS = [1.0, 4.0, 1.0, 1.0] * 10  # of the 40 records of the fixture


class Noted(Transparent):
    """Notes which rows it was given, by its ε0, and adds them up as they are."""

    rows: ClassVar[list[tuple[float, Tensor]]] = []

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        rows = torch.cat(list(Rows.of(x).blocks), dim=1)
        Noted.rows.append((self.local_epsilon, rows))
        return rows.sum(dim=0)


@pytest.fixture
def noted() -> Any:
    """A model whose gradients are the records, 1 to 40 hundredths, and what makes it private."""
    Noted.rows.clear()
    x = torch.arange(1.0, 41.0)[:, None].expand(40, 6) / 100
    model = nn.Linear(6, 1, bias=False)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(x), batch_size=8),
        randomizer=Noted,
        max_grad_norm=10.0,
        sampling="poisson",
        loss_reduction="sum",
        local_epsilon=LEVELS,
        randomness=SeededRandomness(3),
    )


def backward(module: nn.Module, optimizer: Any, rows: Tensor) -> None:
    optimizer.zero_grad()
    module(rows).sum().backward()


@pytest.mark.parametrize("most", [None, 3])
def test_every_record_is_randomised_at_its_own_level_in_any_order(noted: Any, most: int | None) -> None:
    """Whatever a script does with the order of a batch's rows; batches whole, and cut into smaller ones."""
    module, optimizer, loader = noted
    batches = (
        loader
        if most is None
        else wrap_data_loader(data_loader=loader, max_batch_size=most, optimizer=optimizer)
    )
    (weight,) = module.parameters()
    before, delivered = weight.detach().clone(), []
    for (batch,) in batches:
        delivered.append(batch[torch.randperm(len(batch))])
        backward(module, optimizer, delivered[-1].clone())
        optimizer.step()
    every = torch.cat(delivered)
    assert len(every) == sum(len(rows) for _, rows in Noted.rows) > 20
    assert torch.allclose(before - weight.detach(), every.sum(dim=0)[None], atol=1e-4)
    for level, rows in Noted.rows:
        for number in (100 * rows[:, 0]).round().int().tolist():
            assert LEVELS[number - 1] == level


@pytest.mark.parametrize(
    "chosen",
    [
        lambda now, before: now[:-1],
        lambda now, before: torch.cat([before, now]),
        lambda now, before: torch.cat([now, now]),
    ],
    ids=["filtered", "put together with the level before", "doubled"],
)
def test_rows_that_are_not_those_of_one_level_are_refused(noted: Any, chosen: Any) -> None:
    module, optimizer, loader = noted
    (weight,) = module.parameters()
    start, before = weight.detach().clone(), None
    for (batch,) in loader:
        if before is not None:
            backward(module, optimizer, chosen(batch.clone(), before.clone()))
            with pytest.raises(ShufflePrivacyError):
                optimizer.step()
            break
        backward(module, optimizer, batch)
        optimizer.step()
        before = batch
    assert torch.equal(weight, start)


def test_a_batch_announced_by_hand_says_its_level(noted: Any) -> None:
    module, optimizer, loader = noted
    next(iter(loader))
    for delivery in (Delivery(rows=2), Delivery(rows=2, level=2.0)):
        optimizer.expect_batch(delivery)
        backward(module, optimizer, torch.ones(2, 6))
        with pytest.raises(ShufflePrivacyError, match="several cannot be told apart"):
            optimizer.step()


def test_each_level_is_charged_for_its_own_records_alone(make_private: Any, train: Any) -> None:
    engine, module, optimizer, loader = make_private(local_epsilon=torch.tensor(LEVELS), sampling="poisson")
    assert len(loader) == 2 * 5
    train(module, optimizer, loader)
    assert isinstance(optimizer.round, LabelledRound)
    found = {}
    for level, count in ((1.0, 30), (4.0, 10)):
        mechanism = registry.get("linf-coordinate", local_epsilon=level, dim=optimizer.num_parameters)
        alone = ShuffleAccountant(method="rdp")
        alone.step(mechanism.round(population=count, cohort=count / 5, sampling="poisson"), num_steps=5)
        found[level] = alone.epsilon(DELTA).upper
        assert engine.get_epsilon_interval(DELTA, level=level).upper == found[level]
    assert engine.get_epsilon(DELTA) >= 0.99 * max(found.values())
    assert optimizer.local_epsilon == 4.0
    assert "30 clients of linf-coordinate" in str(engine.statement(delta=DELTA))
    with pytest.raises(ValueError, match="no group"):
        engine.get_epsilon_interval(DELTA, level=2.0)


def test_the_plan_of_a_run_is_of_all_levels(make_private: Any) -> None:
    levels = [0.7, 4.0, 0.7, 0.7] * 10  # 0.7 has no exact float32
    engine, _, optimizer, _ = make_private(local_epsilon=levels, sampling="poisson")
    assert optimizer.levels == (0.7, 4.0)
    low, high = (
        registry.get("linf-coordinate", local_epsilon=level, dim=optimizer.num_parameters).worst_variance
        for level in optimizer.levels
    )
    assert engine.training_plan.expected_noise.noise == pytest.approx(np.sqrt(6 * low + 2 * high) / 8)
    assert "local_epsilon=0.7 to 4, in 2 levels" in str(engine.training_plan)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_column_that_its_owner_changes_later_changes_nothing(make_private: Any, kind: Any) -> None:
    column = kind(LEVELS, dtype=np.float64 if kind is np.array else torch.float64)
    loader = make_private(local_epsilon=column, sampling="poisson")[3]
    column[:] = min(LEVELS)
    assert loader.batch_sampler.levels.tolist() == LEVELS


def test_a_level_cannot_be_changed_in_between(make_private: Any) -> None:
    _, _, optimizer, _ = make_private(local_epsilon=LEVELS, sampling="poisson")
    with pytest.raises(ShufflePrivacyError, match="each record's own"):
        optimizer.local_epsilon = 2.0
    optimizer.max_grad_norm = 0.5  # of all levels
    assert {each.mechanism.radius for each in optimizer._sums.values()} == {0.5}
