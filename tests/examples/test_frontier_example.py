"""``examples/frontier``: gradients that are never written out, the product's noise, a grid that goes on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from example_scripts import example_folder

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import BlanketMixedGaussian, PrivUnit
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import SeededRandomness


@pytest.fixture(scope="module")
def frontier():
    with example_folder("frontier", "arms", "data", "page", "run", "training") as found:
        yield found


@pytest.fixture
def gradients(frontier):
    coins = torch.Generator().manual_seed(0)
    return frontier.training.OuterProducts(
        torch.randn(70, 3, generator=coins), torch.randn(70, 40, generator=coins)
    )


def test_outer_products_answer_as_rows_that_are_written_out(frontier, gradients):
    written = Rows(gradients.dense())
    assert (gradients.num_rows, gradients.dim) == (written.num_rows, written.dim) == (70, 120)
    vector, weights = torch.arange(120.0), torch.arange(70.0)
    torch.testing.assert_close(gradients.l2_norm(), written.l2_norm())
    tiny = frontier.training.OuterProducts(torch.full((1, 10), 2.6e-23), torch.ones(1, 1))
    torch.testing.assert_close(tiny.l2_norm(), torch.tensor([2.6e-23 * math.sqrt(10)]), rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients.gram(), written.gram(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gradients.dot(vector), written.dot(vector), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(
        gradients.weighted_sum(weights), written.weighted_sum(weights), rtol=1e-4, atol=1e-2
    )
    torch.testing.assert_close(gradients.narrow(5, 9).dense(), written.narrow(5, 9).dense())


def test_reports_of_outer_products_are_those_of_the_written_out_gradients(gradients):
    mechanism = PrivUnit(local_epsilon=4.0, dim=120, radius=0.5)
    drawn = [
        mechanism.randomize_sum(rows, randomness=SeededRandomness(3))
        for rows in (gradients, Rows(gradients.dense()))
    ]
    torch.testing.assert_close(*drawn, rtol=1e-3, atol=1e-3)


def test_half_space_reports_need_no_gradient_written_out(frontier, gradients, monkeypatch):
    mechanism = BlanketMixedGaussian(local_epsilon=4.0, dim=120, radius=0.5)
    monkeypatch.delattr(frontier.training.OuterProducts, "blocks")
    monkeypatch.delattr(frontier.training.OuterProducts, "dense")
    monkeypatch.delattr(Rows, "dense")
    assert bool(mechanism.randomize_sum(gradients).isfinite().all())


def test_a_sum_clips_each_gradient_and_adds_noise_of_the_stated_size(frontier, gradients):
    clip = 0.5
    protocol = VectorSum.with_noise(dim=120, cohort=70, noise_multiplier=4.0, radius=clip)
    exact = frontier.training.with_gaussian(0.0, clip=clip, coins=torch.Generator())(gradients)
    written = gradients.dense()
    assert torch.allclose(exact, (written * (clip / written.norm(dim=1, keepdim=True))).sum(dim=0), atol=1e-4)
    noise = torch.cat([frontier.training.through(protocol)(gradients) - exact for _ in range(40)])
    assert float(noise.std()) == pytest.approx(math.sqrt(protocol.noise_variance), rel=0.1)


def test_the_learning_rate_gives_every_weight_the_wanted_noise(frontier):
    schedule = frontier.training.Schedule(cohort=10, rounds=400, clip=0.5).suited(0.02)
    coins = torch.Generator().manual_seed(3)
    weights, velocity = torch.zeros(2000), torch.zeros(2000)
    for step in range(schedule.rounds):
        velocity = schedule.momentum * velocity + 0.02 * schedule.clip * torch.randn(2000, generator=coins)
        weights -= schedule.pace / schedule.clip * (1 - step / schedule.rounds) * velocity
    assert float(weights.std()) == pytest.approx(frontier.training.WEIGHT_NOISE, rel=0.08)


@pytest.mark.slow
def test_the_grid_goes_on_where_it_stopped_and_the_page_counts_its_runs(frontier, tmp_path, monkeypatch):
    coins = np.random.default_rng(0)
    labels = coins.integers(2, size=300)
    rows = coins.normal(size=(300, 8)) / 3 + labels[:, None]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    kept = {"train_0": rows[:200], "train_1": labels[:200], "test_0": rows[200:], "test_1": labels[200:]}
    np.savez(tmp_path / "census.npz", **kept)
    schedule = frontier.training.Schedule(cohort=50, rounds=4, clip=0.5, pace=2.0)
    for name, arm in frontier.arms.ARMS.items():
        small = frontier.arms.Arm(title=arm.title, trusts=arm.trusts, schedule=schedule, noise=arm.noise)
        monkeypatch.setitem(frontier.arms.ARMS, name, small)
    results = tmp_path / "results.json"
    asked = ["--data-dir", str(tmp_path), "--cache", str(tmp_path), "--results", str(results)]
    asked += ["--only", "census", "--seeds", "1", "--epsilon", "8"]
    frontier.run.main([*asked, "--arms", "sum", "none"])
    first = json.loads(results.read_text())["runs"]
    assert [run["arm"] for run in first] == ["sum", "none"]
    assert first[1]["accuracy"] > 0.6
    frontier.run.main(asked)
    runs = json.loads(results.read_text())["runs"]
    assert runs[:2] == first
    assert sorted(run["arm"] for run in runs) == sorted(frontier.arms.ARMS)
    for run in runs:
        if run["arm"] != "none":
            assert 0 < run["epsilon"][0] <= run["epsilon"][1] <= 8.0
    assert "712 of 720 are missing" in frontier.page.text(runs)


def test_the_page_is_what_the_results_say(frontier):
    assert frontier.page.PAGE.read_text() == frontier.page.text(frontier.run.done(frontier.run.RESULTS))
