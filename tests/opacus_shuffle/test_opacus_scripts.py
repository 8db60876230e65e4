"""Opacus's own example scripts, as its package has them, train after at most five changed lines."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import opacus_shuffle
import pytest
from changed_scripts import MOST, STAND_INS, Change, changed, changed_lines, lines_of_pages
from thinning import first_fast

import shuffle_plugins as sp
from shuffle_plugins.accounting import Round
from shuffle_plugins.protocols import VectorSum

IMPORT = ("from opacus import PrivacyEngine", "from opacus_shuffle import PrivacyEngine")
NOISE = "noise_multiplier=args.sigma,"
PRIVUNIT = (IMPORT, (NOISE, 'randomizer="privunit",\nlocal_epsilon=4.0,'))
ONE_SIGN = (IMPORT, (NOISE, 'randomizer="linf-coordinate",\nlocal_epsilon=4.0,'))
SUM = (IMPORT, (NOISE, f'{NOISE}\nrandomizer="vector-sum",'))

CHARACTERS = "char-lstm-classification.py"
TRAINED = {
    "mnist.py": "run_results.append(test(model, device, test_loader))",
    CHARACTERS: "mean_acc = test(model, test_loader, privacy_engine, args.delta, device=device)",
    "cifar10.py": "top1_acc = test(args, model, test_loader, device)",
    "imdb.py": "mean_accuracy = evaluate(args, model, test_loader)",
}
"""By script, the line in whose place it says what the run has cost."""

TOLD = "print(privacy_engine.training_plan)\nprint(privacy_engine.get_epsilon_interval(1e-5))"

MNIST, CIFAR, IMDB = 26_010, 131_466, 16_386
CHARACTERS_DIM = {"lstm": 10_643, "gru": 9_043, "rnn": 5_843}
"""Parameters of the scripts' networks, by mode those of the last one."""

SYLLABLES = {
    "Japanese": ("ka", "mi", "to", "shi", "no"),
    "Russian": ("ov", "sky", "iev", "dim", "gri"),
    "Spanish": ("ez", "al", "ro", "gar", "cia"),
}

Run = Callable[..., str]


def written(script: str, changes: tuple[Change, ...], folder: Path) -> Path:
    """A script of the installed Opacus, with changed lines, in a folder."""
    source = Path(str(distribution("opacus").locate_file(f"examples/{script}")))
    if not source.exists():
        pytest.skip(f"this version of Opacus has no {source.name} in its package")
    before = source.read_text()
    if changes:
        changes = (*changes, (TRAINED[script], f"{TRAINED[script]}\n{TOLD}"))
    after = changed(before, changes)
    assert changed_lines(before, after) <= MOST
    (folder / script).write_text(after)
    return folder / script


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a script in this process, and returns what it printed."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.chdir(tmp_path)

    def runs(script: str, changes: tuple[Change, ...], *arguments: str) -> str:
        path = written(script, changes, tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path), "--device", "cpu", "--epochs", "1", *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capfd.readouterr().out

    yield runs
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {each.stem for each in STAND_INS.iterdir()}:
            del sys.modules[name]


def run_process(script: str, changes: tuple[Change, ...], folder: Path, *arguments: str) -> str:
    """Run a script as a process of its own, and return what it printed."""
    packages = Path(opacus_shuffle.__file__).parents[1], Path(sp.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(written(script, changes, folder)), "--device", "cpu", *arguments],
        cwd=folder,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (STAND_INS, *packages)))},
        capture_output=True,
        text=True,
        timeout=3000,  # long, for a machine that does much else
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def check(printed: str, each: Round, *, rounds: int, dim: int) -> None:
    """The certified ε that was printed is that of these rounds, computed again here."""
    accountant = sp.ShuffleAccountant()
    accountant.step(each, num_steps=rounds)
    (interval,) = re.findall(r"^ε ∈ \[.*\] at δ = 1e-05 .*", printed, re.MULTILINE)
    assert interval == str(accountant.epsilon(1e-5))
    assert f"{dim:,} parameters" in printed
    by_script = re.findall(r"\(ε = ([\d.]+), δ = 1e-05\)", printed)
    assert float(by_script[-1]) == pytest.approx(accountant.epsilon(1e-5).upper, abs=0.006)


def local(dim: int, *, population: int, cohort: int, name: str = "privunit") -> Round:
    return sp.get(name, local_epsilon=4.0, dim=dim).round(population=population, cohort=cohort)


def added(dim: int, *, population: int, cohort: int, noise_multiplier: float) -> Round:
    total = VectorSum.with_noise(dim=dim, cohort=cohort, noise_multiplier=noise_multiplier)
    return total.round(population=population, cohort=cohort)


def test_the_lines_are_those_of_the_pages() -> None:
    """But for what a script calls its engine, and the name of another mechanism."""
    said = lines_of_pages("README.md", "docs/guides/opacus.md")
    for _, new in (*PRIVUNIT, *SUM, ("", TOLD)):
        for line in set(new.splitlines()) - {NOISE}:
            assert line.replace("privacy_engine", "engine") in said


@first_fast(
    ("changes", "mechanism"),
    [(PRIVUNIT, "privunit"), (ONE_SIGN, "linf-coordinate")],
    ids=["privunit", "one sign"],
)
def test_mnist(changes: tuple[Change, ...], mechanism: str, run: Run) -> None:
    printed = run("mnist.py", changes, "--batch-size", "300")
    check(printed, local(MNIST, population=1500, cohort=300, name=mechanism), rounds=5, dim=MNIST)


@pytest.mark.process
def test_mnist_learns_by_a_sum(tmp_path: Path) -> None:
    arguments = ["--epochs", "8", "--batch-size", "300", "--sigma", "2.0", "--lr", "1.0"]
    printed = run_process("mnist.py", SUM, tmp_path, *arguments)
    each = added(MNIST, population=1500, cohort=300, noise_multiplier=2.0)
    check(printed, each, rounds=40, dim=MNIST)
    (accuracy,) = re.findall(r"Accuracy: \d+/297 \(([\d.]+)%\)", printed)
    assert float(accuracy) > 38


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (PRIVUNIT, ("--grad_sample_mode", "no_op")),
        (SUM, ("--clip_per_layer",)),
    ],
    ids=["privunit", "one threshold per layer"],
)
def test_cifar10(changes: tuple[Change, ...], options: tuple[str, ...], run: Run) -> None:
    """With its two processes that load pictures."""
    printed = run(
        "cifar10.py", changes, "--batch-size", "200", "--print-freq", "3", "--sigma", "3.0", *options
    )
    numbers = {"population": 800, "cohort": 200}
    each = local(CIFAR, **numbers) if changes == PRIVUNIT else added(CIFAR, **numbers, noise_multiplier=3.0)
    check(printed, each, rounds=4, dim=CIFAR)


@pytest.mark.process
def test_imdb(tmp_path: Path) -> None:
    """Its network does not learn in one epoch, with or without noise; two processes load the reviews."""
    spec = importlib.util.spec_from_file_location("reviews", STAND_INS / "datasets.py")
    assert spec is not None
    assert spec.loader is not None
    reviews = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reviews)
    reviews.write_vocabulary(tmp_path / "bert-base-cased")
    printed = run_process("imdb.py", PRIVUNIT, tmp_path, "--epochs", "1")
    check(printed, local(IMDB, population=1000, cohort=64), rounds=15, dim=IMDB)


def write_names(folder: Path) -> None:
    """Made-up names of three languages, a file for each, as the script wants them."""
    draw = random.Random(0)
    folder.mkdir()
    for language, syllables in SYLLABLES.items():
        names = ("".join(draw.choices(syllables, k=3)) for _ in range(334))
        (folder / f"{language}.txt").write_text("\n".join(names))


@first_fast(
    ("mode", "changes"),
    [("lstm", PRIVUNIT), ("gru", SUM), ("rnn", PRIVUNIT)],
    ids=["lstm-privunit", "gru-vector-sum", "rnn-privunit"],
)
def test_char_lstm(mode: str, changes: tuple[Change, ...], tmp_path: Path, run: Run) -> None:
    """The names' language is the class."""
    write_names(tmp_path / "names")
    options = ["--data-root", str(tmp_path / "names"), "--mode", mode, "--delta", "1e-5"]
    options += ["--batch-size", "100", "--embedding-size", "16", "--hidden-size", "32"]
    printed = run(CHARACTERS, changes, *options)
    dim = CHARACTERS_DIM[mode]
    numbers = {"population": 801, "cohort": 100}
    each = local(dim, **numbers) if changes == PRIVUNIT else added(dim, **numbers, noise_multiplier=1.0)
    check(printed, each, rounds=8, dim=dim)
