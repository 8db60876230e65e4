"""Additive secret sharing: split a client's counts into a share and seeds, and reconstruct the clients' sum.

The *share* is the counts minus the expansions of random *seeds*, one seed for each aggregator. An expansion
is the pseudorandom vector that a seed stands for.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.secure_aggregation.check_words import check_words
from shuffle_plugins.secure_aggregation.expansion import SEED_BYTES as SEED_BYTES
from shuffle_plugins.secure_aggregation.expansion import Expansion
from shuffle_plugins.secure_aggregation.residues import ResidueLayout, Residues


class CheckFailed(ValueError):
    """A sum does not fit its check words: different clients were added up, or somebody sent wrong numbers."""

    def __init__(self) -> None:
        super().__init__(
            "the sum does not fit its check: an aggregator or a client did not follow the protocol, or "
            "different clients were added up; nothing of it can be used"
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """One client's counts, split into a share for the server and a seed for each aggregator.

    Attributes:
        share: sent to the server: the counts minus the expansions of all seeds.
        seeds: one for each aggregator, 32 bytes each.
    """

    share: Residues
    seeds: tuple[bytes, ...]


def share(counts: NDArray[np.int64], *, layout: ResidueLayout, aggregators: int, check_seed: bytes) -> Shared:
    """Split a client's counts between a server and aggregators, with seeds from the system's entropy.

    Whoever has the share and all seeds can compute the counts. All seeds without the share say nothing about
    the counts, and neither does the share with all seeds but one.

    Args:
        counts: (layout.size,), whole numbers of at least 0.
        layout: how many counts there are, and how many bits each has in a share.
        aggregators: how many there are, at least 1.
        check_seed: 32 bytes, the round's seed for
            :func:`~shuffle_plugins.secure_aggregation.check_words`.

    Raises:
        ValueError: if the counts have another shape, or one does not fit in the layout's bits.
    """
    seeds = [secrets.token_bytes(SEED_BYTES) for _ in range(aggregators)]
    return split(counts, layout=layout, seeds=seeds, check_seed=check_seed)


def split(
    counts: NDArray[np.int64], *, layout: ResidueLayout, seeds: Sequence[bytes], check_seed: bytes
) -> Shared:
    """Split counts as :func:`share` does, with given seeds, which must be new and uniformly random.

    Raises:
        ValueError: as :func:`share`, or if there is no seed.
    """
    if counts.shape != (layout.size,):
        raise ValueError(f"counts are ({layout.size},), got {counts.shape}")
    if int(counts.min()) < 0 or int(counts.max()) >> layout.bits:
        raise ValueError(f"a count does not fit in {layout.bits} bits")
    if not seeds:
        raise ValueError("without an aggregator nothing is shared")
    expansion = Expansion(layout)
    expansion.add(*seeds)
    rest = Residues(layout, counts.astype(layout.dtype), check_words(counts, seed=check_seed))
    rest.subtract(expansion.total)
    return Shared(rest, tuple(seeds))


def reconstruct(
    shares: Iterable[Residues], expansions: Iterable[Residues], *, layout: ResidueLayout, check_seed: bytes
) -> NDArray[np.int64]:
    """Add up shares and expansions, and return the sum of the clients' counts, int64 (size,).

    The sum is compared with its check words before it is returned.

    Args:
        shares: what each client in the sum sent to the server.
        expansions: from each aggregator, the sum of the expansions of the same clients' seeds.
        layout: the layout of all shares and expansions.
        check_seed: the check seed with which the clients made their shares.

    Raises:
        CheckFailed: if the sum does not fit its check words.
        ValueError: if a share or expansion has another layout.
    """
    total = layout.zero()
    for part in chain(shares, expansions):
        total.add(part)
    counts = total.reduced
    expected = check_words(counts, seed=check_seed)
    if not hmac.compare_digest(expected.tobytes(), total.checks.tobytes()):
        raise CheckFailed
    return counts
