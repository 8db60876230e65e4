"""Faults that an attack on the library found, each kept from coming back."""

import math
import struct
import threading
import zlib

import pytest
import torch
from scipy import stats
from scripted_randomness import Far

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import blanket, get
from shuffle_plugins.mechanisms.sphere import cap_measure
from shuffle_plugins.randomness import SeededRandomness


def test_a_short_message_cannot_ask_for_unlimited_memory():
    for bits in (4, 0, 33):
        body = struct.pack("<4sHB", b"SHRP", 1, 4) + b"k-rr" + struct.pack("<QQB", 6, 2**62, 2)
        body += struct.pack("<BBI", 1, bits, 1) + struct.pack("<BBI", 0, 0, 1)
        with pytest.raises(ValueError, match="not the bytes"):
            Reports.from_bytes(body + struct.pack("<I", zlib.crc32(body)))


def test_a_pattern_that_no_record_sends_for_certain_has_no_third_record():
    """Enumerating all corners, third records included, gives 1.234; 1.475 was once claimed."""
    accountant = ShuffleAccountant()
    mechanism = get("linf-block", local_epsilon=2.0, dim=3, block=2)
    accountant.step(mechanism.round(population=2, cohort=2, sampling="full"))
    assert accountant.epsilon(0.2).lower <= 1.234
    for name in ("sqkr", "l2-block"):
        assert blanket(name, local_epsilon=2.0, dim=3).outside == 0


@pytest.mark.parametrize("name", ["privunit", "projunit", "linf-block", "binary-rr"])
@pytest.mark.parametrize("local_epsilon", [50.0, 100.0])
def test_nothing_is_attained_that_62_bits_cannot(name, local_epsilon):
    mechanism = get(name, local_epsilon=local_epsilon, dim=1)
    accountant = ShuffleAccountant()
    accountant.step(mechanism.round(population=1, cohort=1, sampling="full"))
    assert accountant.epsilon(0.0 + 1e-12).lower <= 62 * math.log(2) + 0.1


def test_threads_share_a_seeded_stream_without_repeating_it():
    source, parts = SeededRandomness(5), [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def draw(part):
        barrier.wait()
        for _ in range(100):
            part.append(source.words(37))

    threads = [threading.Thread(target=draw, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = torch.cat([word for part in parts for word in part])
    assert len(words.unique()) == len(words)
    assert torch.equal(words.sort().values, SeededRandomness(5).words(len(words)).sort().values)


@pytest.mark.parametrize("radius", [1e30, 1e-30])
@pytest.mark.parametrize("name", ["privunit", "privunit-g", "projunit", "l2-block", "linf-block", "laplace"])
def test_the_largest_and_the_smallest_radius_work(name, radius):
    mechanism = get(name, local_epsilon=4.0, dim=6, radius=radius)
    row = torch.full((501, 6), 0.1 * radius)  # so many and odd: all signs of few cancel once in 3,000 times
    total = mechanism.sum(mechanism.randomize(row, clip=True))
    assert bool(total.isfinite().all())
    assert bool((total != 0).any())
    assert math.isfinite(mechanism.worst_variance)
    assert float(mechanism.variance(row.double()).max()) <= mechanism.worst_variance * (1 + 1e-6)


@pytest.mark.parametrize("local_epsilon", [20.0, 45.0, 100.0, 300.0])
@pytest.mark.parametrize("dim", [100, 10_000])
def test_uniform_reports_reach_every_cap(local_epsilon, dim):
    """They once ended at 0.704 in 100 dimensions, where the cap of ε0 = 50 begins at 0.757."""
    mechanism = get("privunit", local_epsilon=local_epsilon, dim=dim)
    (threshold,), (measure,) = mechanism.parameters.thresholds, mechanism.parameters.tails
    calls = math.ceil(-math.log2(measure) / 10) + 1
    report = (
        mechanism.randomize(torch.zeros(1, dim), randomness=Far(2 + calls, SeededRandomness(1).words))
        .fields[0]
        .values
    )
    along = abs(float(report.double().sum())) / dim**0.5  # plain reports lean on this public direction
    assert threshold < along < 1


@pytest.mark.parametrize("epsilon", [20.0, 50.0, 500.0])
@pytest.mark.parametrize("length", [0.0, -1.0])
def test_plain_reports_reach_the_half_space_of_every_other_record(epsilon, length):
    """Where they could not, a leaning report would be certain evidence, whatever ε0 promises."""
    mechanism = get("privunit-g", local_epsilon=epsilon, dim=1)
    (threshold,), (measure,) = mechanism.parameters.thresholds, mechanism.parameters.tails
    source = Far(3 + math.ceil(-math.log2(measure) / 10), SeededRandomness(1).words)
    report = mechanism.randomize(torch.full((1, 1), length), randomness=source).fields[0].values
    assert threshold < float(report[0, 0]) < threshold + 8


@pytest.mark.parametrize("local_epsilon", [1.5, 50.0, 300.0])
def test_leaning_reports_have_the_law_of_their_cap(local_epsilon):
    mechanism = get("privunit", local_epsilon=local_epsilon, dim=1000)
    p = mechanism.parameters
    row = torch.zeros(4000, 1000)
    row[:, 0] = 1
    along = mechanism.randomize(row, randomness=SeededRandomness(4)).fields[0].values[:, 0].double()
    beyond = along[along > p.thresholds[0] + 1e-6].numpy()
    depth = [math.log(p.tails[0]) - math.log(cap_measure(float(a), dim=1000)) for a in beyond]
    assert stats.kstest(depth, "expon").pvalue > 1e-4
