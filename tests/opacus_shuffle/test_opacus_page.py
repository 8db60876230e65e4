"""What docs/guides/opacus.md prints runs, and has the numbers that it says."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant
from opacus_shuffle import PrivacyEngine, SubsampledShufflePLDAccountant
from scipy.stats import binom
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.mechanisms import BinaryRandomizedResponse
from shuffle_plugins.protocols import VectorSum

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
PAGE = (GUIDES / "opacus.md").read_text()


def test_the_two_relations_and_the_mixed_rows_have_the_numbers_that_the_page_says() -> None:
    theirs, ours = PRVAccountant(), SubsampledShufflePLDAccountant()
    for _ in range(200):
        theirs.step(noise_multiplier=4.0, sample_rate=0.1)
    vectors = VectorSum.with_noise(dim=6_120, cohort=6_000, noise_multiplier=4.0)
    ours.record(vectors.round(population=60_000, cohort=6_000), num_steps=200)
    add_remove, replace_one = (math.ceil(each.get_epsilon(1e-5) * 100) / 100 for each in (theirs, ours))
    assert f"ε ≤ {add_remove:.2f} in Opacus's books (PRV, add/remove) and ε ≤ {replace_one:.2f} here" in PAGE

    one = BinaryRandomizedResponse(local_epsilon=4.0).round(population=10_000, cohort=10_000)
    ours = SubsampledShufflePLDAccountant()
    ours.record(one)
    certified = ours.get_epsilon(1e-5)
    low = 1 / (math.exp(4) + 1)
    others = binom.pmf(np.arange(10_001), 9_998, low)
    with_, without = (np.convolve(others, binom.pmf(np.arange(3), 2, p)) for p in (1 - low, low))
    true = np.maximum(without - math.exp(certified) * with_, 0).sum()
    assert f"({certified:.4f}, 1e-5) is certified" in PAGE
    assert f"have δ ≥ {true:.1e}".replace("e-0", "e-") in PAGE


@pytest.mark.slow
def test_the_page_on_resuming_does_what_it_says(dataset: Any, make_model: Any, tmp_path: Any) -> None:
    section = PAGE.split("## Resume")[1]
    code = section.split("```python\n")[1].split("```")[0]

    def start() -> dict[str, Any]:
        model = make_model()
        return {
            "PrivacyEngine": PrivacyEngine,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loader": DataLoader(dataset, batch_size=8),
            "criterion": nn.CrossEntropyLoss(),
            "path": tmp_path / "run.pt",
            "resume": False,
        }

    def run(names: dict[str, Any], code: str) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="this run does not go on")
            exec(code, names)
        return names

    whole = run(start(), code)
    assert len(whole["engine"].accountant) == 10 * 5
    stopped = run(start(), code.replace("range(done, 10)", "range(done, 4)"))
    assert len(stopped["engine"].accountant) == 4 * 5
    resumed = run({**start(), "resume": True}, code)
    assert len(resumed["engine"].accountant) == 10 * 5
    assert resumed["engine"].accountant.history == whole["engine"].accountant.history
    assert 0.99 * 2.93 < resumed["engine"].get_epsilon(1e-5) <= 2.93


def recipe(heading: str, page: str) -> str:
    """The Python block under a heading of a guide."""
    text = (GUIDES / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}$.*?^```python\n(.*?)^```$", text, re.M | re.S)
    assert found is not None, f"{page} has no recipe under {heading!r}"
    return found.group(1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a recipe in a folder of its own, without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")

    def execute(heading: str, page: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(recipe(heading, page), heading, "exec"), names)
        return names

    return execute


@pytest.mark.slow
def test_lightning(run: Any) -> None:
    pytest.importorskip("lightning")
    names = run("Lightning", "lightning.md")
    model = names["model"]
    engine = model.privacy_engine
    assert len(engine.accountant) == names["EPOCHS"] * len(engine.data_loader)
    assert engine.get_epsilon(1e-5) <= names["TARGET_EPSILON"]
    rows, labels = engine.dataset.tensors
    with torch.no_grad():
        assert (model(rows).argmax(1) == labels).double().mean() > 0.6  # 0.1 is chance


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


def test_the_table_is_what_was_measured() -> None:
    told = json.loads((ROOT / "examples" / "results" / "untuned.json").read_text())
    measured = (ROOT / "docs" / "reference" / "benchmarks.md").read_text()
    part = measured.split("## Without tuning")[1].split("\n## ")[0]
    titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "scikit-learn's digits"}
    found: dict[str, list[float]] = defaultdict(list)
    for each in told:
        assert each["epsilon_certified"] <= each["target_epsilon"]
        setting = f"`{each['randomizer']}` | {each['target_epsilon']:g}"
        found[f"| {titles[each['data']]}, {each['model']} | {setting} | "].append(100 * each["accuracy"])
    assert len(found) >= 4
    for start, accuracies in found.items():
        runs = "" if len(accuracies) == 1 else f" ({len(accuracies)} runs)"
        row = f"{start}**{fmean(accuracies):.1f} %**{runs} |"
        assert row in part
