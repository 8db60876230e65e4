"""Which randomness several training processes must share, and which they must not."""

from __future__ import annotations

import torch

from opacus_shuffle.errors import ShufflePrivacyError
from shuffle_plugins.randomness import Randomness, SeededRandomness

_KEY_WORDS = 5
_WORD_BITS = 62


def seed_from(randomness: Randomness) -> int:
    """310 random bits: the seed of a ``SeededRandomness`` that is as good as the source they came from."""
    words = randomness.integers(1 << _WORD_BITS, (_KEY_WORDS,), device="cpu").tolist()
    return sum(int(word) << (_WORD_BITS * i) for i, word in enumerate(words))


def common_randomness(randomness: Randomness) -> Randomness:
    """One stream that all processes read alike, for drawing the common cohort.

    Process 0 draws its key and sends it to the others. A key of 310 bits from a cryptographic generator is as
    good as a cryptographic generator's own; whoever reads the processes' traffic reads raw data anyway.

    Args:
        randomness: this process's own randomness; process 0's is used.
    """
    key = [seed_from(randomness)]
    torch.distributed.broadcast_object_list(key, src=0)
    return SeededRandomness(key[0])


def require_distinct_streams(randomness: Randomness) -> None:
    """Check that no two processes would toss the same coins for their samples.

    Raises:
        ShufflePrivacyError: if two processes draw the same number; on all processes.
    """
    drawn = randomness.integers(1 << _WORD_BITS, (1,), device="cpu").item()
    everyone: list[int | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, drawn)
    if len(set(everyone)) != len(everyone):
        raise ShufflePrivacyError(
            "processes share a stream of coins, so their reports would not be independent: give each process "
            "a SeededRandomness of its own seed (or leave randomness out)"
        )
