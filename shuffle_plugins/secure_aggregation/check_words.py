"""The check of a sum: random linear combinations of the counts, which add up as the counts do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation.residues import CHECK_WORDS, Words

_CHUNK = 1 << 13  # coefficients at a time


def check_words(counts: NDArray[np.int64], *, seed: bytes) -> Words:
    r"""Two random linear combinations of counts, mod 2^64.

    Who does not know the seed, and changes the counts of a sum and its words, is found but with probability
    :math:`2^{-2(65 - w)}`: a difference :math:`e \ne 0` with entries below 2^w has an entry that 2^w does not
    divide, so for a uniform r in :math:`\mathbb Z_{2^{64}}^d` the product :math:`\langle r, e\rangle` is
    uniform on at least :math:`2^{65 - w}` numbers (Cramer, Damgård, Escudero, Scholl, Xing 2018, "SPDZ2k",
    Lemma 1).

    Args:
        counts: (size,), each at least 0.
        seed: 32 bytes that the server and the clients of a round know, and the aggregators do not.

    Returns:
        uint64 (2,). The words of a sum are the sums of the words.
    """
    found = np.zeros(CHECK_WORDS, np.dtype("<u8"))
    unsigned = counts.astype(np.dtype("<u8"))
    streams = [Keystream(seed, nonce=1 + word) for word in range(CHECK_WORDS)]
    for start in range(0, len(unsigned), _CHUNK):
        part = unsigned[start : start + _CHUNK]
        coefficients = [stream.words(start, len(part)).numpy().view(found.dtype) for stream in streams]
        found += np.array([np.dot(row, part) for row in coefficients])
    return found
