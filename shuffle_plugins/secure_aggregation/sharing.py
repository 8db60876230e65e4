"""Additive sharing: counts minus the expansions of random seeds, and the sum put together again."""

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
    """A sum does not fit its check: parties added up different clients, or somebody sent something else."""

    def __init__(self) -> None:
        super().__init__(
            "the sum does not fit its check: an aggregator or a client did not follow the protocol, or "
            "different clients were added up; nothing of it can be used"
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """One client's counts, split.

    Attributes:
        share: what the server gets: counts minus the expansions of all seeds.
        seeds: one for each aggregator, 32 bytes each.
    """

    share: Residues
    seeds: tuple[bytes, ...]


def share(counts: NDArray[np.int64], *, layout: ResidueLayout, aggregators: int, check_seed: bytes) -> Shared:
    """Split a client's counts between a server and aggregators, with seeds from the system's entropy.

    The share and all seeds but one are independent of the counts; so are all seeds.

    Args:
        counts: (layout.size,), whole numbers of at least 0.
        layout: the form of the shares.
        aggregators: how many there are, at least 1.
        check_seed: the round's seed of :func:`~shuffle_plugins.secure_aggregation.check_words`.

    Raises:
        ValueError: if the counts have another shape, or one does not fit in the layout's bits.
    """
    seeds = [secrets.token_bytes(SEED_BYTES) for _ in range(aggregators)]
    return split(counts, layout=layout, seeds=seeds, check_seed=check_seed)


def split(
    counts: NDArray[np.int64], *, layout: ResidueLayout, seeds: Sequence[bytes], check_seed: bytes
) -> Shared:
    """As :func:`share`, with given seeds; they must be fresh and uniform.

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
    """The sum of the clients' counts, checked; int64 (size,).

    Args:
        shares: what the server got from each client of the sum.
        expansions: from each aggregator, the sum of the expansions of the same clients' seeds.
        layout: the form of them all.
        check_seed: the round's seed of the check.

    Raises:
        CheckFailed: if the sum does not fit its check words.
        ValueError: if a layout is another.
    """
    total = layout.zero()
    for part in chain(shares, expansions):
        total.add(part)
    counts = total.reduced
    expected = check_words(counts, seed=check_seed)
    if not hmac.compare_digest(expected.tobytes(), total.checks.tobytes()):
        raise CheckFailed
    return counts
