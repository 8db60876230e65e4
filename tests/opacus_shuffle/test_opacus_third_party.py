"""Private sums of a third party, which are neither local randomizers nor this package's sums, train."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import ShufflePrivacyError
from torch import Tensor

from shuffle_plugins.accounting import (
    Adversary,
    Sampling,
    ShuffleAccountant,
)
from shuffle_plugins.core import ReportLayout, Reports, Rows
from shuffle_plugins.mechanisms import LocalRandomizer, Norm, PrivateSum, get, registry
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import Randomness, SeededRandomness


class Wrapped(PrivateSum):
    """Another private sum of vectors that are ``1 / scale`` as long: its estimates must be scaled back."""

    norm: ClassVar[Norm] = Norm.L2
    calls: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, inner: PrivateSum, *, dim: int, radius: float, scale: float = 2.0) -> None:
        self.inner, self.dim, self.radius, self.scale = inner, dim, radius, scale

    @property
    def cohort(self) -> int | None:
        return self.inner.cohort

    @property
    def local_epsilon(self) -> float:
        return self.inner.local_epsilon

    @property
    def worst_variance(self) -> float:
        return self.scale**2 * self.inner.worst_variance

    @property
    def layout(self) -> ReportLayout:
        return self.inner.layout

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        return self.inner.randomize(Rows.of(x).dense() / self.scale, randomness=randomness, clip=clip)

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        rows = Rows.of(x)
        self.calls.append(("share", rows.num_rows))
        return self.inner.share(rows.dense() / self.scale, randomness=randomness)

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor | None:
        self.calls.append(("common noise", 0))
        return self.inner.common_noise(randomness=randomness)

    def total(self, reports: Reports) -> Tensor:
        return self.inner.total(reports)

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        self.calls.append(("estimate", reports))
        return self.inner.estimate(total, reports=reports) * self.scale

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> Any:
        return self.inner.round(population=population, cohort=cohort, sampling=sampling, adversary=adversary)


class BankOfCoins(Wrapped):
    """Reports may be seen added up only; set by a noise multiplier."""

    name = "bank-of-coins"
    privacy_parameter = "noise_multiplier"

    @classmethod
    def with_noise(
        cls, *, dim: int, cohort: int, noise_multiplier: float, radius: float = 1.0, scale: float = 2.0
    ) -> BankOfCoins:
        inner = VectorSum.with_noise(
            dim=dim, cohort=cohort, noise_multiplier=noise_multiplier, radius=radius / scale
        )
        return cls(inner, dim=dim, radius=radius, scale=scale)


class Shrunk(Wrapped):
    """Reports are shuffled one by one; set by ε0."""

    name = "shrunk"
    privacy_parameter = "local_epsilon"

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0, scale: float = 2.0) -> None:
        inner = get("privunit", local_epsilon=local_epsilon, dim=dim, radius=radius / scale)
        super().__init__(inner, dim=dim, radius=radius, scale=scale)


def summed(*, noise_multiplier: float, dim: int, cohort: int, radius: float) -> BankOfCoins:
    return BankOfCoins.with_noise(dim=dim, cohort=cohort, noise_multiplier=noise_multiplier, radius=radius)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("bank-of-coins", BankOfCoins)
    registry.register("shrunk", Shrunk)
    Wrapped.calls.clear()


SUM = {"noise_multiplier": 3.0, "local_epsilon": None}
LOCAL = {"local_epsilon": 3.0}
FORMS = [
    ("bank-of-coins", SUM),
    (BankOfCoins, SUM),
    (functools.partial(BankOfCoins.with_noise, scale=4.0), SUM),
    (summed, SUM),
    ("shrunk", LOCAL),
    (Shrunk, LOCAL),
]


@pytest.mark.parametrize(("randomizer", "privacy"), FORMS)
def test_it_trains_in_every_form_and_costs_what_its_round_says(
    make_private: Any, train: Any, flat: Any, randomizer: Any, privacy: dict[str, Any]
) -> None:
    engine, module, optimizer, loader = make_private(randomizer=randomizer, **privacy)
    assert isinstance(optimizer.mechanism, Wrapped)
    assert not isinstance(optimizer.mechanism, (LocalRandomizer, VectorSum))
    assert optimizer.mechanism.privacy_parameter in str(engine.training_plan)
    before = flat(module)
    assert train(module, optimizer, loader) == 5
    assert not torch.equal(flat(module), before)
    assert Wrapped.calls == [("share", 8), ("common noise", 0), ("estimate", 8)] * 5
    alone = ShuffleAccountant(method="rdp")
    alone.step(optimizer.mechanism.round(population=40, cohort=8), num_steps=5)
    assert engine.get_epsilon(1e-3) == alone.epsilon(1e-3).upper


@pytest.mark.parametrize(("randomizer", "privacy"), [(BankOfCoins, SUM), (Shrunk, LOCAL)])
def test_what_is_released_is_its_estimate_of_what_it_took_in(
    make_private: Any, step: Any, flat: Any, randomizer: Any, privacy: dict[str, Any]
) -> None:
    released, given = [], []

    class Watched(randomizer):  # type: ignore[misc,valid-type]
        def share(self, x: Any, *, randomness: Any = None) -> Tensor:
            given.append(Rows.of(x).dense().clone())
            return super().share(x, randomness=randomness)

        def estimate(self, total: Tensor, *, reports: int) -> Tensor:
            released.append(super().estimate(total, reports=reports))
            return released[-1]

    _, module, optimizer, loader = make_private(randomizer=Watched, **privacy)
    before = flat(module)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as split:
        for batch in itertools.islice(split, 3):
            step(module, optimizer, batch)
    assert [len(rows) for rows in given] == [3, 3, 2]
    moved = flat(module) - before
    assert len(released) == 1
    assert torch.allclose(moved, -0.1 * released[0].to(moved) / 8, atol=1e-6)
    spread = float(optimizer.mechanism.worst_variance) ** 0.5
    clipped = torch.cat(given)
    clipped = clipped / clipped.norm(dim=1, keepdim=True).clamp(min=1.0)
    reports = 1 if optimizer.mechanism.must_be_summed else 8
    assert float((released[0] - clipped.sum(0)).norm()) < 4 * spread * reports**0.5


@pytest.mark.parametrize(
    ("randomizer", "parameter"), [(BankOfCoins, "noise_multiplier"), (Shrunk, "local_epsilon")]
)
@pytest.mark.parametrize("clipping", ["flat", "adaptive"])
def test_it_is_calibrated_to_a_target_and_clips_adaptively(
    calibrated: Any, train: Any, randomizer: Any, parameter: str, clipping: str
) -> None:
    engine, module, optimizer, loader = calibrated(
        batch_size=20,
        randomizer=randomizer,
        clipping=clipping,
        target_epsilon=3.0,
        target_delta=1e-4,
        num_steps=4,
        randomness=SeededRandomness(2),
    )
    assert getattr(optimizer, parameter) > 0
    train(module, optimizer, loader, epochs=2)
    assert 0.95 * 3.0 < engine.get_epsilon(1e-4) <= 3.0
    assert (optimizer.max_grad_norm == 1.0) is (clipping == "flat")


def test_batches_that_it_is_not_made_for_are_refused(make_private: Any) -> None:
    for sampling in ("poisson", "epoch"):
        with pytest.raises(ShufflePrivacyError, match="without-replacement"):
            make_private(randomizer=BankOfCoins, sampling=sampling, **SUM)
    with pytest.raises(ShufflePrivacyError, match="pass 'bank-of-coins', or BankOfCoins"):
        make_private(randomizer=BankOfCoins.with_noise(dim=53, cohort=8, noise_multiplier=3.0), **SUM)
    with pytest.raises(TypeError, match="local_epsilon"):
        make_private(randomizer="bank-of-coins", local_epsilon=1.0)
    with pytest.raises(ShufflePrivacyError, match="asked for"):
        make_private(randomizer=lambda *, local_epsilon, dim, radius: Shrunk(local_epsilon=1.0, dim=dim))
