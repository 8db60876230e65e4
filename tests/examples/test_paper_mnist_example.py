"""``examples/paper_mnist.py`` trains several seeds, goes on from checkpoints, and reports what a run cost."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
import torch
from accounted import accounted
from example_scripts import example_script
from opacus import GradSampleModule
from opacus_shuffle import PrivacyEngine
from torch import nn

from shuffle_plugins.accounting.published import published_bound
from shuffle_plugins.mechanisms import LInfCoordinate

IMAGES, TESTS, PARAMETERS = 60, 20, 13_706
SMALL = ["--population", "60", "--cohort", "20", "--rates", "0.1,0.05@2", "--physical-batch", "15"]
SMALL += ["--threads", "1"]


@pytest.fixture(scope="module")
def example():
    with example_script("paper_mnist") as module:
        yield module


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise in the files of MNIST."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    for prefix, count in (("train", IMAGES), ("t10k", TESTS)):
        pictures = numbers.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = numbers.integers(10, size=count, dtype=np.uint8)
        for kind, values in (("images-idx3", pictures), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, values.ndim)) + b"".join(n.to_bytes(4, "big") for n in values.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + values.tobytes())
    return folder


@pytest.fixture
def run(example, images, tmp_path):
    """Runs the script with small settings, and returns its results."""

    def run(preset, *options, small=SMALL):
        file = tmp_path / f"{preset}.json"
        folders = ["--results", str(file), "--checkpoints", str(tmp_path / preset)]
        example.main([preset, "--data-dir", str(images), *folders, *small, *options])
        return json.loads(file.read_text())

    return run


def test_gradients_of_single_images_are_those_of_torch(example):
    """With channels last, Opacus's own would differ in the second convolution."""
    network = example.initial_network(0, "cpu")
    images, labels = torch.rand(3, 1, 28, 28), torch.tensor([1, 0, 2])
    by_torch = []
    for image, label in zip(images, labels, strict=True):
        network.zero_grad()
        nn.functional.cross_entropy(network(image[None]), label[None]).backward()
        by_torch.append([p.grad.clone() for p in network.parameters()])
    model = GradSampleModule(network, loss_reduction="sum")
    nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    for parameter, *single in zip(network.parameters(), *by_torch, strict=True):
        torch.testing.assert_close(parameter.grad_sample, torch.stack(single), atol=1e-5, rtol=1e-4)


def test_seeds_are_averaged_and_every_epoch_has_its_epsilon(run):
    results = run("fig5a", "--epochs", "2", "--seeds", "3,5")
    assert [(one["seed"], len(one["accuracy"])) for one in results["runs"]] == [(3, 2), (5, 2)]
    round_ = LInfCoordinate(local_epsilon=1.5, dim=PARAMETERS, radius=0.01).round(population=60, cohort=20)
    for epoch, entry in enumerate(results["curve"]):
        reached = [one["accuracy"][epoch] for one in results["runs"]]
        assert entry["accuracy"] == pytest.approx(statistics.fmean(reached), abs=1e-6)
        assert entry["deviation"] == pytest.approx(statistics.stdev(reached), abs=1e-5)
        interval = accounted(round_, num_steps=entry["steps"]).epsilon(1e-5)
        assert (entry["epsilon_lower"], entry["epsilon_upper"]) == (interval.lower, interval.upper)
    assert [entry["steps"] for entry in results["curve"]] == [3, 6]


def test_the_same_command_goes_on_from_the_last_epoch(run, monkeypatch, example):
    first = run("fig5b", "--epochs", "1", "--seeds", "0")["runs"][0]["accuracy"]
    loaded = []
    load = PrivacyEngine.load_checkpoint

    def watched(engine, **arguments):
        saved = load(engine, **arguments)
        loaded.append(len(engine.accountant))
        return saved

    monkeypatch.setattr(PrivacyEngine, "load_checkpoint", watched)
    results = run("fig5b", "--epochs", "2", "--seeds", "0")
    assert loaded == [3]
    assert results["runs"][0]["accuracy"][:1] == first
    assert len(results["curve"]) == 2
    with pytest.raises(ValueError, match="is of another setting"):
        run("fig5b", "--epochs", "3", "--seeds", "0", "--local-epsilon", "1")


def test_settings_are_the_published_ones(example):
    paper, _, _ = example.PRESETS["fig5a"]
    assert [paper.rate(epoch) for epoch in (1, 70, 71, 200)] == [0.3, 0.3, 0.18, 0.18]
    assert paper.epochs * paper.steps_per_epoch == 1_200
    privunit, published, seeds = example.PRESETS["fig5b"]
    assert [privunit.rate(epoch) for epoch in (30, 31, 60, 61)] == [12.0, 4.0, 4.0, 3.5]
    assert (privunit.epochs * privunit.steps_per_epoch, seeds) == (6_000, 4)
    bound = published_bound(example.READINGS["published"])
    whole = bound.epsilon(local_epsilon=2, population=60_000, cohort=2_000, num_steps=6_000, delta=1e-5)
    assert whole == pytest.approx(max(point.epsilon for point in published.points[:2]), abs=0.01)
    thesis, _, _ = example.PRESETS["fig4.2"]
    assert thesis.epochs * thesis.steps_per_epoch == 480
    assert thesis.rate(71) == 0.18
