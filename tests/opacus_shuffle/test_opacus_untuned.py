"""``engine.training_recipe``, and what the guide says that its programs reached."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyEngine, ShufflePrivacyError
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "opacus.md").read_text()
TARGET = {"target_epsilon": 3.0, "target_delta": 1e-5}


def records(count: int) -> TensorDataset:
    """Three kinds of rows of length one that a linear model can tell apart."""
    coins = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    rows = torch.eye(12)[labels] + 0.2 * torch.randn(count, 12, generator=coins)
    return TensorDataset(nn.functional.normalize(rows, dim=1), labels)


def test_the_kind_of_model_and_the_numbers_come_from_the_objects() -> None:
    frozen = nn.Sequential(nn.Linear(8, 12).requires_grad_(False), nn.ReLU(), nn.Linear(12, 3))
    one = PrivacyEngine().training_recipe(module=frozen, dataset=records(500), num_steps=50, **TARGET)
    assert (one.model, one.dim, one.population, one.cohort) == ("linear", 39, 500, 50)
    assert (one.mechanism, one.target_epsilon, one.delta) == ("privunit", 3.0, 1e-5)
    network = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3))
    two = PrivacyEngine().training_recipe(
        module=network, dataset=records(500), num_steps=50, batch_size=100, **TARGET
    )
    assert (two.model, two.dim, two.cohort) == ("network", 67, 100)


def test_a_data_set_of_unknown_length_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield torch.zeros(12), 0

    with pytest.raises(ShufflePrivacyError, match="with a length"):
        PrivacyEngine().training_recipe(module=nn.Linear(12, 3), dataset=Stream(), **TARGET)
    with pytest.raises(ValueError, match=r"^target_delta must be"):
        PrivacyEngine().training_recipe(
            module=nn.Linear(12, 3), dataset=records(500), **{**TARGET, "target_delta": 1.0}
        )


@pytest.mark.slow
@pytest.mark.parametrize("randomizer", ["privunit", "vector-sum"])
def test_the_engine_solves_for_the_same_noise_as_the_recipe(randomizer: str) -> None:
    engine, model = PrivacyEngine(), nn.Linear(12, 3, bias=False)
    train = records(2_000)
    recipe = engine.training_recipe(module=model, dataset=train, randomizer=randomizer, **TARGET)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=recipe.learning_rate),
        data_loader=DataLoader(train, batch_size=recipe.cohort),
        randomizer=recipe.mechanism,
        num_steps=recipe.num_steps,
        max_grad_norm=recipe.max_grad_norm,
        **TARGET,
    )
    for name in ("local_epsilon", "noise_multiplier"):
        if getattr(recipe, name) is not None:
            assert getattr(optimizer, name) == pytest.approx(getattr(recipe, name), rel=1e-3)


def frontier() -> dict[str, float]:
    """Accuracy of the tuned linear models, by the beginning of their row."""
    runs = json.loads((ROOT / "examples" / "frontier" / "results.json").read_text())["runs"]
    arms, titles = (
        {"sum": "vector-sum", "one report": "privunit"},
        {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"},
    )
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run["data"] in titles and run["arm"] in arms and run["target_epsilon"] in ("1", "3"):
            row = f"| {titles[run['data']]}, linear | `{arms[run['arm']]}` | {run['target_epsilon']} | "
            found[row].append(100 * run["accuracy"])
    return {row: fmean(accuracies) for row, accuracies in found.items()}


def test_the_table_is_what_was_measured() -> None:
    told = json.loads((ROOT / "examples" / "results" / "untuned.json").read_text())
    part = PAGE.split("## Without tuning")[1].split("\n## ")[0]
    titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "scikit-learn's digits"}
    found: dict[str, list[float]] = defaultdict(list)
    for each in told:
        assert each["epsilon_certified"] <= each["target_epsilon"]
        setting = f"`{each['randomizer']}` | {each['target_epsilon']:g}"
        found[f"| {titles[each['data']]}, {each['model']} | {setting} | "].append(100 * each["accuracy"])
    assert len(found) >= 4
    tuned = frontier()
    for start, accuracies in found.items():
        runs = "" if len(accuracies) == 1 else f" ({len(accuracies)} runs)"
        row = f"{start}**{fmean(accuracies):.1f} %**{runs} |"
        assert row in part
        if start in tuned:
            assert f"{row} {tuned[start]:.1f} % |" in part
            assert fmean(accuracies) > tuned[start] - 2, "what the page promises"
    assert tuned.keys() <= found.keys()
