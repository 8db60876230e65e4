"""What summing takes beyond its input and the reports: a constant, however many clients there are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shuffle_plugins.mechanisms import get
from shuffle_plugins.randomness import SeededRandomness

GRIDS = ["laplace", "discrete-laplace", "gaussian", "discrete-gaussian"]

CASES = [
    (name, call)
    for name, calls in {
        "laplace": ("sum", "randomize_sum"),
        "discrete-gaussian": ("randomize_sum",),  # its sum is that of the same grid
        "privunit-g": ("sum", "randomize_sum"),
    }.items()
    for call in calls
]

SCRIPT = """
import json, os, re, sys, torch
from pathlib import Path
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import get
from shuffle_plugins.core.reports import Field

def peak():
    return int(re.search("VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

def measured(name, call):
    clients, dim = 500, 25_000
    mechanism = get(name, local_epsilon=2.0, dim=dim)
    few = mechanism.randomize(torch.zeros(30, dim))
    mechanism.sum(few), mechanism.randomize_sum(torch.zeros(30, dim))
    before = peak()
    if call == "sum":
        values = few.fields[0].values
        field = Field(values.new_empty(clients, dim).fill_(1), few.fields[0].bits)
        data = Reports(mechanism=name, dim=dim, fields=(field,))
    else:
        data = torch.empty(clients, dim).fill_(1e-9)
    held = peak()
    getattr(mechanism, call)(data)
    return held - before, peak() - held

for case in json.loads(sys.argv[1]):
    if os.fork() == 0:  # a process of its own has a peak of its own; the imports are shared
        print(json.dumps(measured(*case)), flush=True)
        os._exit(0)
    if os.wait()[1] != 0:
        print("null", flush=True)
"""


@pytest.fixture(scope="module")
def memory():
    """By mechanism and call: MiB of the input, and of what summing took beyond it."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(CASES)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # forks keep no threads
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(CASES, map(json.loads, run.stdout.splitlines()), strict=True)), run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no account of peak memory here")
@pytest.mark.parametrize(("name", "call"), CASES)
def test_sums_take_little_memory_beyond_what_they_are_given(name, call, memory):
    """48 MiB of input; a copy in float32 would be as much, in int64 or float64 twice that."""
    found, errors = memory
    assert found[name, call] is not None, errors
    given, beyond = found[name, call]
    assert given > 30
    assert beyond < 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize(("clients", "dim"), [(300, 1000), (270_000, 1), (0, 3)])
def test_a_sum_without_reports_is_the_sum_of_the_reports(name, clients, dim, dtype):
    """To the last digit, over more than one chunk."""
    mechanism = get(name, local_epsilon=2.0, dim=dim)
    rows = mechanism.clip(torch.linspace(-1, 1, clients * dim, dtype=dtype).reshape(clients, dim))
    reports = mechanism.randomize(rows, randomness=SeededRandomness(1))
    assert len(reports) == clients
    total = mechanism.randomize_sum(rows, randomness=SeededRandomness(1))
    assert total.dtype == dtype
    assert torch.equal(total.float(), mechanism.sum(reports))
    by_hand = mechanism._multiples(reports).sum(dim=0).double() * mechanism.step
    assert torch.equal(mechanism.sum(reports), by_hand.float())
