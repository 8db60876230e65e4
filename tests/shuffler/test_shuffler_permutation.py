"""The permutation that spills to disk: every order equally likely, and nothing left that can be read."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shuffle_plugins.shuffler.mixer import ShuffledFile


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


@pytest.mark.parametrize("records", [1, 2, 3, 4])
def test_every_order_is_exactly_as_likely(tmp_path: Path, records: int) -> None:
    items = [bytes([i]) * 8 for i in range(records)]

    def order(entropy: Random) -> tuple[bytes, ...]:
        with ShuffledFile(8, directory=tmp_path, entropy=entropy) as shuffled:
            for item in items:
                shuffled.add(item)
            return tuple(shuffled.drain())

    law = every_run(order)
    assert law == dict.fromkeys(itertools.permutations(items), Fraction(1, math.factorial(records)))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 20_000])
def test_every_record_comes_back_once(tmp_path: Path, size: int) -> None:
    """Also records that are larger than a block of the cipher, smaller than one, and across two."""
    records = [i.to_bytes(4, "big")[-min(size, 4) :] + bytes(max(0, size - 4)) for i in range(200)]
    with ShuffledFile(size, directory=tmp_path) as shuffled:
        for record in records:
            shuffled.add(record)
        assert len(shuffled) == 200
        given = list(shuffled.drain())
    assert sorted(given) == sorted(records)
    assert given != records
    assert list(tmp_path.iterdir()) == []


def test_nothing_in_the_file_can_be_read(tmp_path: Path) -> None:
    """Neither a record nor, from equal blocks, that records are equal."""
    record = b"patient!" * 512
    with ShuffledFile(len(record), directory=tmp_path) as shuffled:
        for _ in range(64):
            shuffled.add(record)
        shuffled._file.flush()
        there = os.pread(shuffled._file.fileno(), 1 << 20, 0)
        assert len(there) == 64 << 12
        assert b"patient" not in there
        assert len({there[i : i + 16] for i in range(0, len(there), 16)}) == len(there) // 16
        assert list(shuffled.drain()) == [record] * 64


def test_a_file_that_lost_its_end_is_noticed(tmp_path: Path) -> None:
    with ShuffledFile(1 << 12, directory=tmp_path) as shuffled:
        shuffled.add(bytes(1 << 12))
        shuffled._file.flush()
        os.truncate(shuffled._file.fileno(), 1 << 11)
        with pytest.raises(OSError, match="shorter than what was written"):
            list(shuffled.drain())
