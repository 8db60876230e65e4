"""P_vec's noise at scale: its variance as drawn, and the memory it takes."""

import math
import subprocess
import sys

import pytest
import torch

from shuffle_plugins.protocols import VectorSum, published
from shuffle_plugins.randomness import SeededRandomness

ANALYTIC_GAUSSIAN = 4.2247
"""σ at sensitivity 1 for (1, 1e-6): Balle, Wang 2018."""

MEMORY = """
import resource
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import SecureRandomness

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

SecureRandomness().words(10)
before = peak()
protocol = VectorSum.calibrated(dim=100_000, cohort=1_000_000, epsilon=1.0, delta=1e-6)
assert len(protocol.common_noise(randomness=SecureRandomness())) == 100_000
print(peak() - before)
"""


@pytest.mark.parametrize(("dim", "clients"), [(1_000, 10_000), (100_000, 1_000_000)])
def test_noise_as_drawn_is_nearly_the_gaussian_mechanisms(dim, clients):
    protocol = VectorSum.calibrated(dim=dim, cohort=clients, epsilon=1.0, delta=1e-6)
    source = SeededRandomness(11)
    drawn = torch.cat(
        [protocol.common_noise(randomness=source) for _ in range(max(1, 100_000 // dim))]
    ).double()
    centred = (drawn - clients * protocol.coins / 2) * protocol.lattice.step
    measured = float((centred**2).mean())
    assert abs(measured / protocol.noise_variance - 1) < 4 * math.sqrt(2 / len(drawn))
    assert abs(float(centred.mean())) < 4 * math.sqrt(measured / len(drawn))
    assert measured <= 1.1 * (2 * ANALYTIC_GAUSSIAN) ** 2
    paper = published.vector_sum(dim=dim, cohort=clients, epsilon=1.0, delta=1e-6)
    assert paper.noise_variance >= 40 * measured


@pytest.mark.slow
def test_the_noise_of_a_million_clients_fits_in_little_memory():
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    kilobytes = int(found.stdout)
    assert kilobytes < 250_000
