"""Seeds expanded to vectors mod 2^w and added up as they are made, in the memory of one vector."""

from __future__ import annotations

import numpy as np

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation.residues import CHECK_WORDS, ResidueLayout, Residues

SEED_BYTES = 32
"""Bytes of a seed: a key of the keystream."""

_CHUNK = 1 << 17  # bytes; with the sum's own they stay in a cache
_BLOCK = 64
_CHECK_BYTES = 8 * CHECK_WORDS
_ZEROS = bytes(_CHECK_BYTES + _CHUNK)  # encrypted, they are the keystream


class Expansion:
    """The sum of the expansions of seeds.

    A seed's expansion is the keystream of ChaCha20 under it (:class:`~shuffle_plugins.randomness.Keystream`,
    nonce 0): first the check words, then an unsigned little-endian number of the layout's type for each
    entry. Uniform numbers mod 2^8, 2^16, 2^32 or 2^64 are uniform mod 2^w.

    Args:
        layout: the form of the vectors.
    """

    def __init__(self, layout: ResidueLayout) -> None:
        self._sum = layout.zero()
        counts = self._sum.counts
        step = _CHUNK // layout.dtype.itemsize
        self._parts = [counts[start : start + step] for start in range(0, len(counts), step)]
        self._buffer = memoryview(
            bytearray(len(_ZEROS) + _BLOCK)
        )  # the cipher asks for room for a block more
        self._checks = np.frombuffer(self._buffer[:_CHECK_BYTES], self._sum.checks.dtype)
        self._words = np.frombuffer(self._buffer[_CHECK_BYTES:], layout.dtype, count=step)

    def add(self, *seeds: bytes) -> None:
        """Add the expansions of some seeds; a few at once save trips of a long sum to memory.

        Raises:
            ValueError: if a seed has another length than :data:`SEED_BYTES`.
        """
        streams = [Keystream(seed).encryptor(0) for seed in seeds]
        first, *others = self._parts
        for stream in streams:
            stream.update_into(_ZEROS[: _CHECK_BYTES + first.nbytes], self._buffer)
            np.add(self._sum.checks, self._checks, out=self._sum.checks)
            np.add(first, self._words[: len(first)], out=first)
        for part in others:
            zeros, words, buffer = (
                _ZEROS[: part.nbytes],
                self._words[: len(part)],
                self._buffer[_CHECK_BYTES:],
            )
            for stream in streams:
                stream.update_into(zeros, buffer)
                np.add(part, words, out=part)

    @property
    def total(self) -> Residues:
        """The sum so far; the expansion goes on adding to it."""
        return self._sum
