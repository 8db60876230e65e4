"""A uniformly random order for more records than fit in memory.

Every record goes to a bucket drawn uniformly at random, independently of all others; then the buckets are
read one after another, each in an order drawn uniformly. Every order of all n records is equally likely. With
B buckets, an order and the buckets' sizes n_1 + … + n_B = n together say which record went to which bucket,
and in which order each bucket was read. That has probability B⁻ⁿ · ∏ 1/n_b!, and by the multinomial theorem
the sum over all sizes is B⁻ⁿ · Bⁿ/n! = 1/n!. (P. Sanders, Random permutations on distributed, external and
hierarchical memory, Information Processing Letters 67, 1998.)

Buckets lie in one file without a name, encrypted under a key that exists in this process alone. The operating
system removes the file when the process ends, also when it is killed; what may be left on the disk's free
blocks cannot be read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import BinaryIO, Self

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from shuffle_plugins.core import checks

DEFAULT_MEMORY = 1 << 28
"""Bytes of records that are held in memory by default: 256 MiB."""

_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 14, 1 << 20  # bytes that are written at once for one bucket
_MOST_BUCKETS = 1 << 12
_CIPHER_BLOCK = 16  # bytes of a block of AES


class ExternalPermutation:
    """Takes records of one size, one by one, and gives them all back in a uniformly random order.

    As long as the expected records fit in memory no file is made. Otherwise memory stays near the limit,
    however many records come: a bucket's expected size is at most a quarter of it, and so are all write
    buffers together.

    Args:
        record_bytes: bytes of every record.
        expected: how many records will come. More are taken, but need more memory.
        memory: bytes of records to hold in memory.
        directory: folder of the temporary file; None for the system's own.
        entropy: where random numbers come from; the operating system by default.

    Raises:
        ValueError: if a number is out of range.
        OSError: if the folder cannot be written to, or the disk is full.
    """

    def __init__(
        self,
        *,
        record_bytes: int,
        expected: int,
        memory: int = DEFAULT_MEMORY,
        directory: Path | str | None = None,
        entropy: Random | None = None,
    ) -> None:
        self._record_bytes = checks.whole("record_bytes", record_bytes)
        self._entropy = entropy or SystemRandom()
        self._count = 0
        self._held: list[bytes] = []
        self._file: _Buckets | None = None
        quarter = checks.whole("memory", memory) // 4
        total = checks.whole("expected", expected, at_least=0) * record_bytes
        if total > 2 * quarter:
            number = min(_MOST_BUCKETS, max(2, -(-total // max(1, quarter))))
            block = min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, quarter // number))
            self._file = _Buckets(number, block=block, directory=directory)

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def spilled(self) -> bool:
        """Whether records lie in a file rather than in memory."""
        return self._file is not None

    def add(self, record: bytes) -> None:
        """Take one more record.

        Raises:
            ValueError: if it has another size.
        """
        if len(record) != self._record_bytes:
            raise ValueError(f"every record has {self._record_bytes} bytes, got {len(record)}")
        self._count += 1
        if self._file is None:
            self._held.append(record)
        else:
            self._file.append(self._entropy.randrange(self._file.number), record)

    def drain(self) -> Iterator[bytes]:
        """All records, each once, in random order. Nothing is left afterwards."""
        held, self._held = self._held, []
        yield from self._entropy.sample(held, k=len(held))
        if self._file is not None:
            for bucket in range(self._file.number):
                data, size = memoryview(self._file.read(bucket)), self._record_bytes
                for place in self._entropy.sample(range(len(data) // size), k=len(data) // size):
                    yield bytes(data[place * size : (place + 1) * size])
        self.close()

    def close(self) -> None:
        """Forget all records and remove the file."""
        self._count = 0
        self._held = []
        if self._file is not None:
            self._file.close()
            self._file = None


class _Buckets:
    """Streams of bytes in one file without a name, encrypted; each is appended to, and read once.

    The file is written once from its beginning to its end, in blocks of one size, so that the place of a
    block is a counter of AES-CTR that was never used before.
    """

    def __init__(self, number: int, *, block: int, directory: Path | str | None) -> None:
        self.number = number
        self._block = block
        self._key = AES(os.urandom(32))
        self._buffers = [bytearray() for _ in range(number)]
        self._places: list[list[int]] = [[] for _ in range(number)]
        self._end = 0
        # On Linux this file never has a name (O_TMPFILE); elsewhere it loses it at once.
        self._file: BinaryIO = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    def append(self, bucket: int, data: bytes) -> None:
        buffer = self._buffers[bucket]
        buffer += data
        while len(buffer) >= self._block:
            written = bytes(buffer[: self._block])
            del buffer[: self._block]
            self._places[bucket].append(self._end)
            self._write(self._encrypted(written, at=self._end))

    def read(self, bucket: int) -> bytes:
        parts = [
            self._encrypted(self._read(place), at=place)  # in counter mode decryption is encryption
            for place in self._places[bucket]
        ]
        rest, self._buffers[bucket], self._places[bucket] = self._buffers[bucket], bytearray(), []
        return b"".join([*parts, rest])

    def close(self) -> None:
        self._buffers, self._places = [], []
        self._file.close()

    def _encrypted(self, data: bytes, *, at: int) -> bytes:
        counter = (at // _CIPHER_BLOCK).to_bytes(_CIPHER_BLOCK, "big")
        return Cipher(self._key, CTR(counter)).encryptor().update(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file.fileno(), view, self._end)
            self._end += written
            view = view[written:]

    def _read(self, place: int) -> bytes:
        parts, missing = [], self._block
        while missing:
            part = os.pread(self._file.fileno(), missing, place + self._block - missing)
            if not part:
                raise OSError("the mixer's temporary file is shorter than what was written to it")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
