"""Seeds expanded to vectors mod 2^w and added up as they are made, in the memory of one vector."""

from __future__ import annotations

import numpy as np

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation.residues import CHECK_WORDS, ResidueLayout, Residues

SEED_BYTES = 32
"""Bytes of a seed: a key of the keystream."""

_CHUNK = 1 << 16  # bytes; with the sum's own they stay in a cache
_BLOCK = 64
_ZEROS = bytes(_CHUNK)  # encrypted, they are the keystream
_CHECK_BYTES = 8 * CHECK_WORDS


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
        self._first = bytearray(_CHECK_BYTES + _BLOCK)
        self._buffer = bytearray(_CHUNK + _BLOCK)  # the cipher asks for room for one block more
        self._words = np.frombuffer(self._buffer, layout.dtype, count=_CHUNK // layout.dtype.itemsize)
        self._checks = np.frombuffer(self._first, np.dtype("<u8"), count=CHECK_WORDS)

    def add(self, seed: bytes) -> None:
        """Add a seed's expansion.

        Raises:
            ValueError: if the seed has another length than :data:`SEED_BYTES`.
        """
        stream = Keystream(seed).encryptor(0)
        stream.update_into(_ZEROS[:_CHECK_BYTES], self._first)
        np.add(self._sum.checks, self._checks, out=self._sum.checks)
        counts, step = self._sum.counts, len(self._words)
        for start in range(0, len(counts), step):
            part = counts[start : start + step]
            stream.update_into(_ZEROS if len(part) == step else _ZEROS[: part.nbytes], self._buffer)
            np.add(part, self._words[: len(part)], out=part)

    @property
    def total(self) -> Residues:
        """The sum so far; the expansion goes on adding to it."""
        return self._sum
