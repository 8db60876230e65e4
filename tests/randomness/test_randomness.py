import copy
import math
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import torch
from scipy import stats
from scripted_randomness import GivenWords

from shuffle_plugins.randomness import Randomness, SecureRandomness, SeededRandomness, sources

BLOCK = 2 * sources._NORMAL_BLOCK
SOURCES = [lambda: SeededRandomness(1), SecureRandomness]


def test_seed_fixes_the_stream_and_nothing_else_does():
    assert torch.equal(SeededRandomness(3).words(100), SeededRandomness(3).words(100))
    assert not torch.equal(SeededRandomness(3).words(100), SeededRandomness(4).words(100))
    assert not torch.equal(SecureRandomness().words(100), SecureRandomness().words(100))


def test_stream_is_the_same_on_every_machine():
    assert SeededRandomness(0).words(2).tolist() == [-8361536446788430507, 43039632100833764]


def test_a_stream_does_not_depend_on_how_it_is_cut():
    whole = SeededRandomness(5).words(20_000)
    source = SeededRandomness(5)
    assert torch.equal(torch.cat([source.words(n) for n in (0, 1, 9_999, 10_000)]), whole)


def test_copies_of_a_secure_source_do_not_share_its_stream():
    source = SecureRandomness()
    twins = [copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))]
    drawn = [tuple(twin.words(4).tolist()) for twin in [source, *twins]]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_seeded_source_is_not_copied(duplicate):
    with pytest.raises(TypeError, match="repeat its stream"):
        duplicate(SeededRandomness(1))


@pytest.mark.parametrize("process_number", ["own", "reused"])
def test_a_forked_process_does_not_share_the_stream(monkeypatch, process_number):
    if process_number == "reused":
        monkeypatch.setattr(os, "getpid", lambda: 1)
    source = SecureRandomness()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.words(4).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = np.frombuffer(os.read(reader, 32), dtype=np.int64)
    assert len(drawn) == 4
    assert drawn.tolist() != source.words(4).tolist()


def ends_within(seconds, child):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_while_a_thread_draws_can_draw():
    source = SecureRandomness()
    started, stop = threading.Event(), threading.Event()

    def draw():
        while not stop.is_set():
            source.words(1_000_000)
            started.set()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert started.wait(300)
        for _ in range(4):
            child = os.fork()
            if child == 0:
                source.words(1)
                os._exit(0)
            assert ends_within(300, child)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("make", SOURCES)
def test_every_bit_of_a_word_is_fair(make):
    words = make().words(40_000).numpy().view(np.uint64)
    ones = ((words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).sum(axis=0).astype(np.int64)
    assert np.abs(ones - 20_000).max() < 6 * 100


@pytest.mark.parametrize("high", [2, 7, 10, 203_530])
def test_integers_are_uniform(high):
    drawn = SeededRandomness(2).integers(high, (200, 300))
    assert drawn.shape == (200, 300)
    assert drawn.dtype == torch.int64
    bins = min(high, 10)
    counts = np.bincount((drawn.flatten() * bins // high).numpy(), minlength=bins)
    shares = np.bincount(np.arange(high) * bins // high, minlength=bins) / high
    assert stats.chisquare(counts, 60_000 * shares).pvalue > 1e-4


def test_integers_near_the_word_size_have_no_modulo_bias():
    high = 3 << 60
    drawn = SeededRandomness(2).integers(high, 30_000)
    assert int(drawn.max()) < high
    counts = np.bincount((drawn >> 60).numpy(), minlength=3)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_bernoulli_follows_its_integer_thresholds():
    whole = 1 << 62
    thresholds = torch.tensor([0, whole // 8, whole // 2, whole])
    drawn = SeededRandomness(2).bernoulli(thresholds.repeat(40_000, 1))
    shares = drawn.double().mean(dim=0)
    assert shares[0] == 0
    assert shares[3] == 1
    assert abs(float(shares[1]) - 0.125) < 5 * (0.125 * 0.875 / 40_000) ** 0.5
    assert abs(float(shares[2]) - 0.5) < 5 * 0.5 / 200


def test_uniform_is_uniform_and_open():
    drawn = SeededRandomness(2).uniform(50_000).numpy()
    assert 0 < drawn.min() < drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", SOURCES)
def test_normal_is_normal(make, dtype):
    drawn = make().normal((301, 333), dtype=dtype)
    assert drawn.shape == (301, 333)
    assert drawn.dtype == dtype
    flat = drawn.flatten().double()
    assert stats.kstest(flat.numpy(), "norm").pvalue > 1e-8
    half = (flat.numel() + 1) // 2
    pairs = torch.stack([flat[: half - 1], flat[half:]])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 6 / half**0.5
    assert abs(float(torch.corrcoef(pairs.square())[0, 1])) < 6 / half**0.5


MIDDLE = 1 << 62
"""The word of the radius √(2 log 2)."""


@pytest.mark.parametrize("angle", [2, -4, 1 << 20, -(1 << 62), (1 << 63) - 2])
@pytest.mark.parametrize("radius", [1 << 53, -(1 << 53) - 2, MIDDLE, -MIDDLE, -(1 << 62) - (1 << 61)])
@pytest.mark.parametrize("axis", [0, 1])
def test_normal_is_the_box_muller_transform_measured_from_an_axis(radius, angle, axis):
    pair = GivenWords(radius, angle | axis).normal(2, dtype=torch.float64).tolist()
    length = math.copysign(math.sqrt(-2 * math.log(abs(radius | 1) / 2**63)), radius | 1)
    turn = math.pi / 4 * (angle | 1) / 2**63
    expected = [length * math.cos(turn), length * math.sin(turn)]
    assert pair == pytest.approx(expected[::-1] if axis else expected, rel=1e-14, abs=0)


@pytest.mark.parametrize("small", [0, 2, -(1 << 40), (1 << 53) - 2, -(1 << 53) + 2])
@pytest.mark.parametrize("depth", [1, 2, 80])
def test_far_values_come_from_further_words(small, depth):
    """Each word below 2**53 is one condition U < 2**-10 more; sign and angle are those of the last."""
    nats = math.log(2) * (1 + 10 * depth)
    found = GivenWords(*[small] * depth, MIDDLE).exponential(1)
    assert found.tolist() == pytest.approx([nats], rel=1e-14)
    pair = GivenWords(*[small, 6] * depth, -MIDDLE, 2).normal(2, dtype=torch.float64).tolist()
    turn = math.pi / 4 * 3 / 2**63
    length = -math.sqrt(2 * nats)
    assert pair == pytest.approx([length * math.cos(turn), length * math.sin(turn)], rel=1e-14, abs=0)


class FarAtFirst(Randomness):
    """A seeded source whose first words, of even places, are all below 2**53."""

    def __init__(self, seed):
        self._source, self._first = SeededRandomness(seed), True

    def words(self, count, *, device="cpu"):
        drawn = self._source.words(count, device=device)
        if self._first:
            drawn[::2] &= (1 << 53) - 1
        self._first = False
        return drawn


def test_only_far_values_are_drawn_anew_and_where_they_belong():
    count = 50_000
    near, mixed = SeededRandomness(3).exponential(count), FarAtFirst(3).exponential(count)
    kept = near < 10 * math.log(2)
    assert torch.equal(mixed[1::2][kept[1::2]], near[1::2][kept[1::2]])
    beyond = mixed[::2] - 10 * math.log(2)
    assert float(beyond.min()) >= 0
    assert stats.kstest(beyond.numpy(), "expon").pvalue > 1e-4


def test_far_normal_values_have_the_law_of_normal_values():
    """Given a radius beyond 3.7, half its square is 10·log 2 and an exponential value; angles are uniform."""
    count = 32_768
    drawn = FarAtFirst(4).normal(2 * count, dtype=torch.float64)
    first, second = drawn[:count][::2], drawn[count:][::2]
    beyond = (first.square() + second.square()) / 2 - 10 * math.log(2)
    assert float(beyond.min()) >= -1e-12
    assert stats.kstest(beyond.numpy(), "expon").pvalue > 1e-4
    angles = torch.atan2(second, first) / (2 * math.pi) + 0.5
    assert stats.kstest(angles.numpy(), "uniform").pvalue > 1e-4


def test_exponential_values_are_exponential():
    drawn = SeededRandomness(5).exponential((201, 333))
    assert drawn.shape == (201, 333)
    assert stats.kstest(drawn.flatten().numpy(), "expon").pvalue > 1e-4
    assert SeededRandomness(5).exponential(0).shape == (0,)
    assert SeededRandomness(5).exponential(3, device="meta").shape == (3,)


def test_float32_normals_are_float64_normals_rounded():
    wide = SeededRandomness(6).normal(70_001, dtype=torch.float64)
    assert torch.equal(SeededRandomness(6).normal(70_001), wide.float())


def test_permutations_are_uniform():
    source = SeededRandomness(2)
    seen = [tuple(source.permutation(4).tolist()) for _ in range(6_000)]
    orders, counts = np.unique(np.array(seen), axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > 1e-4
    assert source.permutation(0).numel() == 0


@pytest.mark.parametrize("count", [5, BLOCK, 3 * BLOCK + 7])
def test_normal_values_do_not_depend_on_how_many_blocks_are_made_at_once(count, monkeypatch):
    one_by_one = SeededRandomness(3).normal(count, dtype=torch.float64)

    def on_a_gpu(pairs, *, device):
        return runs_of_blocks(pairs, device=torch.device("cuda"))

    runs_of_blocks = sources._runs_of_blocks
    monkeypatch.setattr(sources, "_runs_of_blocks", on_a_gpu)
    assert torch.equal(SeededRandomness(3).normal(count, dtype=torch.float64), one_by_one)
