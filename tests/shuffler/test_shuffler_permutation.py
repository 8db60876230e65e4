"""The permutation that spills to disk: every order equally likely, and nothing left that can be read."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from scipy.stats import chi2

from shuffle_plugins.shuffler import ExternalPermutation
from shuffle_plugins.shuffler.permutation import _Buckets


class Scripted(Random):
    """Draws what a script says; ``sizes`` keeps how many outcomes each draw had."""

    def __init__(self, script: tuple[int, ...]) -> None:
        super().__init__(0)
        self.script, self.sizes = list(script), []

    def __new__(cls, *args: Any) -> Scripted:
        return super().__new__(cls)

    def _randbelow(self, n: int) -> int:
        self.sizes.append(n)
        place = len(self.sizes) - 1
        return self.script[place] if place < len(self.script) else 0


def every_run(run: Any) -> Counter[tuple[bytes, ...]]:
    """The exact law of what ``run`` makes of its random draws, by going through all of them."""
    law: Counter[Any] = Counter()
    open_scripts: list[tuple[int, ...]] = [()]
    while open_scripts:
        script = open_scripts.pop()
        entropy = Scripted(script)
        result = run(entropy)
        if len(entropy.sizes) > len(script):
            open_scripts += [(*script, draw) for draw in range(entropy.sizes[len(script)])]
        else:
            law[result] += Fraction(1, math.prod(entropy.sizes))
    return law


@pytest.mark.parametrize(("records", "buckets"), [(3, 1), (3, 2), (4, 2), (3, 3)])
def test_every_order_is_exactly_as_likely(tmp_path: Path, records: int, buckets: int) -> None:
    items = [bytes([i]) * 8 for i in range(records)]

    def order(entropy: Random) -> tuple[bytes, ...]:
        permutation = ExternalPermutation(record_bytes=8, expected=0, directory=tmp_path, entropy=entropy)
        if buckets > 1:
            permutation._file = _Buckets(buckets, block=16, directory=tmp_path)
        for item in items:
            permutation.add(item)
        return tuple(permutation.drain())

    law = every_run(order)
    assert law == dict.fromkeys(itertools.permutations(items), Fraction(1, math.factorial(records)))


def test_orders_from_the_systems_entropy_are_uniform(tmp_path: Path) -> None:
    counts: Counter[tuple[bytes, ...]] = Counter()
    runs = 6000
    for _ in range(runs):
        permutation = ExternalPermutation(record_bytes=16, expected=4, memory=64, directory=tmp_path)
        assert permutation.spilled == (4 * 16 > 2 * 16)
        for i in range(4):
            permutation.add(bytes([i]) * 16)
        counts[tuple(permutation.drain())] += 1
    expected = runs / 24
    statistic = sum((counts[order] - expected) ** 2 / expected for order in counts)
    statistic += expected * (24 - len(counts))
    assert statistic < chi2.isf(1e-8, 23)


@pytest.mark.parametrize("size", [1, 100, 20_000])
def test_every_record_comes_back_once(tmp_path: Path, size: int) -> None:
    """Also records that are larger than a block, smaller than one, and across two."""
    records = [i.to_bytes(4, "big")[-min(size, 4) :] + bytes(max(0, size - 4)) for i in range(200)]
    with ExternalPermutation(
        record_bytes=size, expected=200, memory=4 * max(16, 200 * size // 7), directory=tmp_path
    ) as permutation:
        for record in records:
            permutation.add(record)
        assert len(permutation) == 200
        assert permutation.spilled
        given = list(permutation.drain())
    assert sorted(given) == sorted(records)
    assert given != records
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_size_is_refused() -> None:
    permutation = ExternalPermutation(record_bytes=4, expected=2)
    with pytest.raises(ValueError, match="4 bytes, got 5"):
        permutation.add(bytes(5))


def test_nothing_in_the_file_can_be_read(tmp_path: Path) -> None:
    """Neither a record nor, from equal blocks, which records went to one bucket."""
    buckets = _Buckets(2, block=1 << 12, directory=tmp_path)
    for i in range(64):
        buckets.append(i % 2, b"patient" * 585 + b"!")
    there = os.pread(buckets._file.fileno(), buckets._end, 0)
    assert len(there) == 64 << 12
    assert b"patient" not in there
    assert len({there[i : i + 16] for i in range(0, len(there), 16)}) == len(there) // 16
    assert buckets.read(0) == (b"patient" * 585 + b"!") * 32
    buckets.close()


def test_a_file_that_lost_its_end_is_noticed(tmp_path: Path) -> None:
    buckets = _Buckets(2, block=1 << 12, directory=tmp_path)
    buckets.append(0, bytes(1 << 12))
    os.truncate(buckets._file.fileno(), 1 << 11)
    with pytest.raises(OSError, match="shorter than what was written"):
        buckets.read(0)
    buckets.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from shuffle_plugins.shuffler import ExternalPermutation
permutation = ExternalPermutation(record_bytes=1000, expected=1000, memory=400_000, directory=sys.argv[1])
for _ in range(500):
    permutation.add(bytes(1000))
assert permutation.spilled and permutation._file._end > 0
print([path.name for path in Path(sys.argv[1]).iterdir()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert done.returncode < 0
    assert list(tmp_path.iterdir()) == []
