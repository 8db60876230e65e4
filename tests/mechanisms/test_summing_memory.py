"""What summing takes beyond its input and the reports: a constant, however many clients there are."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shuffle_plugins.mechanisms import get
from shuffle_plugins.randomness import SeededRandomness

GRIDS = ["laplace", "discrete-laplace", "gaussian", "discrete-gaussian"]

SCRIPT = """
import re, sys, torch
from pathlib import Path
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import get
from shuffle_plugins.core.reports import Field

def peak():
    return int(re.search("VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

name, call = sys.argv[1:]
clients, dim = 800, 25_000
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
print(held - before, peak() - held)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no account of peak memory here")
@pytest.mark.parametrize("call", ["sum", "randomize_sum"])
@pytest.mark.parametrize("name", ["laplace", "discrete-gaussian", "privunit-g"])
def test_sums_take_little_memory_beyond_what_they_are_given(name, call):
    """76 MiB of input; a copy in int64 or float64 would be twice that."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, name, call], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    given, beyond = map(float, run.stdout.split())
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
