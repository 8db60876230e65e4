"""What summing takes beyond its input and the reports: a constant, however many clients there are."""

import subprocess
import sys

import pytest
import torch

from shuffle_plugins.mechanisms import get
from shuffle_plugins.randomness import SeededRandomness

GRIDS = ["laplace", "discrete-laplace", "gaussian", "discrete-gaussian"]

SCRIPT = """
import resource, torch
from shuffle_plugins.mechanisms import get

dim = 25_000
mechanism = get("laplace", local_epsilon=2.0, dim=dim)
mechanism.randomize_sum(torch.zeros(9, dim))
rows = torch.full((500, dim), 1e-9)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mechanism.randomize_sum(rows)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory comes in other units elsewhere")
def test_a_sum_takes_little_memory_beyond_what_it_is_given():
    """48 MiB of input; a copy in float32 would be as much, in int64 or float64 twice that."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 30


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
