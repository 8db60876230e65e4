from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyEngine, ShufflePrivacyError
from opacus_transparent import Transparent
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.randomness import SeededRandomness


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def transparent() -> type[Transparent]:
    Transparent.batches.clear()
    return Transparent


@pytest.fixture
def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long())


@pytest.fixture
def make_model() -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    return make


@pytest.fixture
def make_private(
    dataset: TensorDataset, make_model: Callable[[], nn.Module]
) -> Callable[..., tuple[PrivacyEngine, nn.Module, Any, DataLoader[Any]]]:
    """An engine and its three private objects: n = 40, k = 8, coins from a fixed seed.

    With ``epochs`` or ``num_steps`` for a target.
    """

    def make(
        *,
        engine: PrivacyEngine | None = None,
        module: nn.Module | None = None,
        data: Any = dataset,
        batch_size: int = 8,
        loader: Any = None,
        learning_rate: float = 0.1,
        **options: Any,
    ) -> tuple[PrivacyEngine, nn.Module, Any, DataLoader[Any]]:
        engine = PrivacyEngine(accountant="subsampled_shuffle_rdp") if engine is None else engine
        module = make_model() if module is None else module
        solved = {"epochs", "num_steps"} & options.keys()
        arguments = {
            "randomizer": "linf-coordinate",
            **({} if solved else {"local_epsilon": 2.0}),
            "max_grad_norm": 1.0,
            "randomness": SeededRandomness(1),
            **options,
        }
        private = (engine.make_private_with_epsilon if solved else engine.make_private)(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=learning_rate),
            data_loader=DataLoader(data, batch_size=batch_size) if loader is None else loader,
            **arguments,
        )
        return engine, *private

    return make


@pytest.fixture
def calibrated(make_private: Callable[..., Any]) -> Callable[..., Any]:
    """The same, calibrated to a target."""
    return functools.partial(make_private, target_epsilon=1.0, target_delta=1e-5)


def one_step(module: nn.Module, optimizer: Any, batch: Any) -> None:
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()


@pytest.fixture
def step() -> Callable[[nn.Module, Any, Any], None]:
    return one_step


@pytest.fixture
def train() -> Callable[..., int]:
    def run(module: nn.Module, optimizer: Any, loader: DataLoader[Any], *, epochs: int = 1) -> int:
        batches = 0
        for _ in range(epochs):
            for batch in loader:
                one_step(module, optimizer, batch)
                batches += 1
        return batches

    return run


def parameters_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


@pytest.fixture
def flat() -> Callable[[nn.Module], Tensor]:
    return parameters_of


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    """A context of what is refused before anything is recorded or released."""

    @contextmanager
    def check(
        accountant: Any, module: nn.Module, match: str = "", *, error: type[Exception] = ShufflePrivacyError
    ) -> Iterator[None]:
        recorded, before = len(accountant), parameters_of(module)
        with pytest.raises(error, match=match):
            yield
        assert torch.equal(parameters_of(module), before)
        assert len(accountant) == recorded

    return check
