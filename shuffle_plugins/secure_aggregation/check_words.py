"""Check words: random linear combinations of counts. Those of a sum are the sum of those of the clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation.residues import CHECK_WORDS, Words

_CHUNK = 1 << 15  # coefficients at a time


def check_words(counts: NDArray[np.int64], *, seed: bytes) -> Words:
    r"""Two random linear combinations of counts, mod 2^64.

    The server compares the check words of a sum with the sum of the clients' check words. Somebody who does
    not know the seed may change the counts of a sum and its words. With counts of w bits this stays unnoticed
    with a probability of at most :math:`2^{-2(65 - w)}`. The reason: a difference :math:`e \ne 0` of counts,
    with entries of absolute value below 2^w, has an entry that 2^w does not divide. So for a uniform r in
    :math:`\mathbb Z_{2^{64}}^d` the product :math:`\langle r, e\rangle` is uniform on at least
    :math:`2^{65 - w}` numbers (Cramer, Damgård, Escudero, Scholl, Xing 2018, "SPDZ2k", Lemma 1).

    Args:
        counts: (size,), each at least 0.
        seed: the check seed, 32 bytes that the server and the clients of a round know, and the aggregators
            do not.

    Returns:
        uint64 (2,). The check words of a sum of counts are the sum of their check words, mod 2^64.
    """
    found = np.zeros(CHECK_WORDS, np.dtype("<u8"))
    unsigned = counts.astype(np.dtype("<u8"))
    streams = [Keystream(seed, nonce=1 + word) for word in range(CHECK_WORDS)]
    for start in range(0, len(unsigned), _CHUNK):
        part = unsigned[start : start + _CHUNK]
        coefficients = [stream.words(start, len(part)).numpy().view(found.dtype) for stream in streams]
        found += np.array([np.dot(row, part) for row in coefficients])
    return found
