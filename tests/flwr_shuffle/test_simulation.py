"""Runs through Flower's own simulation engine, in a process of their own: ray leaves threads and actors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from flwr_shuffle import MechanismSpec
from processes import marked_pids, wait_for
from simulated_app import CLIENTS, CLIP, COHORT, DELTA, DIM, LOCAL_EPSILON, RANDOMIZER, ROUNDS

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound
from shuffle_plugins.ledger import BudgetLedger, RoundState

pytestmark = pytest.mark.process

MODULE = Path(__file__).with_name("simulated_app.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("simulation")
    mark = secrets.token_hex(7)
    environment = os.environ | {
        "FLOWER_TEST_MARK": mark,
        "FLWR_HOME": str(directory / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(EXAMPLE)]),
    }
    try:
        done = subprocess.run(
            [sys.executable, str(MODULE), str(directory / "ledger.db")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=3000,  # long, for a machine that does much else
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        yield directory, json.loads(done.stdout.strip().splitlines()[-1]), done.stdout + done.stderr, mark
    finally:
        for process in marked_pids(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def test_every_round_is_shuffled_and_accounted_for(run):
    directory, result, *_ = run
    spec = MechanismSpec(name=RANDOMIZER, local_epsilon=LOCAL_EPSILON, radius=CLIP)
    expected = FederatedAccountant()
    drawn = FederatedRound.drawn(spec.build(dim=DIM), candidates=CLIENTS, invited=COHORT, reports=COHORT)
    for number in range(1, ROUNDS + 1):
        expected.step(drawn, participants=None)
        told = result["rounds"][str(number)]
        assert told["reports"] == COHORT
        assert (
            told["epsilon-observer"]
            == expected.epsilon(DELTA, adversary=Adversary.MODEL_OBSERVER, lower=False).upper
        )
        assert (
            0
            < told["epsilon-server"]
            <= expected.epsilon(DELTA, adversary=Adversary.SERVER, lower=False).upper
        )
    with BudgetLedger(directory / "ledger.db", model="model") as ledger:
        assert [entry.state for entry in ledger.rounds()] == [RoundState.COMPLETE] * ROUNDS


def test_the_model_moves_towards_the_updates(run):
    """Each update is √40 · 100 long in the direction of ones, and is clipped to length 1."""
    result = run[1]
    model = np.array(result["model"])
    spec = MechanismSpec(name=RANDOMIZER, local_epsilon=LOCAL_EPSILON, radius=CLIP)
    deviation = np.sqrt(spec.build(dim=DIM).worst_variance / (COHORT * ROUNDS * DIM))
    along = model.sum() / np.sqrt(DIM) / ROUNDS
    assert abs(along - CLIP) < 6 * deviation
    assert np.linalg.norm(model) < ROUNDS * (CLIP + 6 * deviation * np.sqrt(DIM))


def test_training_metrics_stay_and_evaluation_is_untouched(run):
    _, result, output, _ = run
    assert all("secret" not in told for told in result["rounds"].values())
    assert "1234.5" not in output
    assert len(result["evaluated"]) == ROUNDS
    for told in result["evaluated"].values():
        assert told["partition"] == pytest.approx((CLIENTS - 1) / 2)


def test_the_example_has_aggregators_and_mix_nodes_in_a_simulation(run):
    """One round of the example app each: sums, one of them verified and one of windows, and two mix nodes."""
    output = run[2]
    told = dict(re.findall(r"^example with (.*?): round 1: accuracy (.*)", output, re.MULTILINE))
    assert list(told) == ["sum", "verified sum", "window", "two mix nodes"], output[-4000:]
    assert all("against an observer of the model" in line for line in told.values())
    assert output.count("the seeds of 4 clients are added up") == 4
    assert output.count("4 clients whose proofs hold are added up") == 2
    assert output.count("4 good envelopes, 4 reports given out") == 2
    assert "answered with an error" not in output


def test_nothing_is_left_running(run):
    """Ray's processes end by themselves some time after the run, which may be long on a busy machine."""
    wait_for(lambda: not marked_pids(run[3]), seconds=600, what="end of Ray's processes")
