"""Opacus's own example scripts, rebuilt in ``opacus_scripts``, train after at most three changed lines."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
from thinning import first_fast

from shuffle_plugins.accounting import Round, ShuffleAccountant

SCRIPTS = Path(__file__).parent / "opacus_scripts"

IMPORT = ("from opacus import PrivacyEngine", "from opacus_shuffle import PrivacyEngine")
NOISE = "noise_multiplier=args.sigma,"
LOCAL = (IMPORT, (NOISE, 'randomizer="privunit", local_epsilon=4.0,'))
ONE_SIGN = (IMPORT, (NOISE, 'randomizer="linf-coordinate", local_epsilon=2.0,'))
SUM = (IMPORT, (NOISE, f'randomizer="vector-sum", {NOISE}'))


def run(script: str, changes: tuple[tuple[str, str], ...], tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Change lines of a script, run its ``main``, and give back what it returns."""
    source = (SCRIPTS / script).read_text()
    lines = source.splitlines()
    for old, new in changes:
        assert sum(old in line for line in lines) == 1, f"{old!r} is not one line of {script}"
        lines = [line.replace(old, new) for line in lines]
    changed = sum(a != b for a, b in zip(source.splitlines(), lines, strict=True))
    assert changed <= 3
    path = tmp_path / script
    path.write_text("\n".join(lines))
    found: dict[str, Any] = runpy.run_path(str(path))["main"](list(arguments))
    return found


def check(result: dict[str, Any], *, rounds: int, population: int, cohort: int, delta: float) -> None:
    """The printed ε is that of exactly these rounds, computed again from their description."""
    ((state, steps),) = result["engine"].accountant.history
    assert steps == rounds
    again = ShuffleAccountant()
    described = Round.from_state(state)
    assert (described.population, described.cohort) == (population, cohort)
    again.step(described, num_steps=rounds)
    assert result["epsilon"] == again.epsilon(delta).upper
    assert 0 < result["epsilon"] < math.inf


@pytest.mark.slow
def test_the_scripts_are_plain_opacus_before_they_are_changed(tmp_path: Path) -> None:
    result = run("mnist.py", (), tmp_path, "--epochs", "1", "--batch-size", "500")
    assert type(result["engine"]).__module__.startswith("opacus.")


@first_fast("changes", [LOCAL, ONE_SIGN], ids=["privunit", "one sign"])
def test_mnist(changes: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    result = run("mnist.py", changes, tmp_path, "--epochs", "1", "--batch-size", "300")
    check(result, rounds=5, population=1500, cohort=300, delta=1e-5)


@pytest.mark.slow
def test_mnist_learns_by_a_sum(tmp_path: Path) -> None:
    arguments = ["--epochs", "8", "--batch-size", "300", "--sigma", "2.0", "--lr", "1.0"]
    result = run("mnist.py", SUM, tmp_path, *arguments)
    check(result, rounds=40, population=1500, cohort=300, delta=1e-5)
    assert result["accuracy"] > 0.38  # 0.1 is chance; measured: 0.74 with a standard deviation of 0.06


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "mode"),
    [(LOCAL, "hooks"), (SUM, "functorch"), (LOCAL, "ew"), (SUM, "no_op")],
    ids=["privunit-hooks", "vector-sum-functorch", "privunit-ew", "vector-sum-no_op"],
)
def test_cifar10_in_every_mode(changes: tuple[tuple[str, str], ...], mode: str, tmp_path: Path) -> None:
    if mode == "ew":  # torch itself refuses the script's evaluation through the wrapped model
        changes = (*changes, ('"accuracy": test(model, test_loader)', '"accuracy": None'))
    result = run("cifar10.py", changes, tmp_path, "--epochs", "1", "--grad_sample_mode", mode)
    check(result, rounds=4, population=800, cohort=200, delta=1e-5)


@pytest.mark.slow
def test_cifar10_with_one_threshold_per_layer(tmp_path: Path) -> None:
    result = run("cifar10.py", SUM, tmp_path, "--epochs", "1", "--clip_per_layer")
    check(result, rounds=4, population=800, cohort=200, delta=1e-5)


@pytest.mark.slow
def test_imdb_with_workers(tmp_path: Path) -> None:
    result = run("imdb.py", LOCAL, tmp_path, "--epochs", "1", "--workers", "2")
    check(result, rounds=15, population=1000, cohort=64, delta=1e-5)


@first_fast(
    ("mode", "changes"),
    [("lstm", LOCAL), ("gru", SUM), ("rnn", LOCAL)],
    ids=["lstm-privunit", "gru-vector-sum", "rnn-privunit"],
)
def test_char_lstm(mode: str, changes: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    result = run("char_lstm.py", changes, tmp_path, "--epochs", "1", "--mode", mode)
    check(result, rounds=8, population=800, cohort=100, delta=8e-5)
