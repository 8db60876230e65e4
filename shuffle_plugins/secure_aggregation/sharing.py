"""Additive secret sharing: a client's counts are split into a share and seeds, and the clients' summed."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from shuffle_plugins.core import checks, pack_bits
from shuffle_plugins.core.checks import Dim, Ranged, whole_number
from shuffle_plugins.core.packing import unpack_rows
from shuffle_plugins.randomness.chacha import Keystream
from shuffle_plugins.shuffler.keys import check_key
from shuffle_plugins.shuffler.shuffler import RoundContext, ShuffleError

MOST_SUM_BITS = 44
"""Largest w. A wrong sum passes its check with probability 2^-2(65 - w) at most: 2^-42 for the largest w."""

CHECK_WORDS = 2
"""Number of check words, numbers mod 2^64 that are sent with a vector and show whether a sum is right."""

_WORD = np.dtype("<u8")

Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class ResidueLayout(Ranged):
    """The form of a vector mod 2^w, w its ``bits``, with its check words."""

    size: Dim
    bits: Annotated[int, whole_number(at_most=MOST_SUM_BITS)]

    @classmethod
    def of_sum(cls, *, size: int, largest: int, clients: int) -> Self:
        """The layout with the fewest bits that hold a sum of clients' counts, each in [0, ``largest``]."""
        most = checks.whole("largest", largest) * checks.whole("clients", clients)
        if most.bit_length() > MOST_SUM_BITS:
            raise ValueError(
                f"sums of {clients:,} clients' counts of up to {largest:,} need {most.bit_length()} bits, "
                f"more than {MOST_SUM_BITS}: invite fewer clients, or build the sum with fewer coins"
            )
        return cls(size, most.bit_length())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned type that holds w bits. Its own modulus is a multiple of 2^w."""
        return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= self.bits)}")

    @property
    def num_bytes(self) -> int:
        """Length of :meth:`Residues.to_bytes`."""
        return CHECK_WORDS * _WORD.itemsize + (self.size * self.bits + 7) // 8

    def zero(self) -> Residues:
        """The zero vector, with check words of zero."""
        return Residues(self, np.zeros(self.size, self.dtype), np.zeros(CHECK_WORDS, _WORD))


@dataclass(frozen=True, slots=True, eq=False)
class Residues:
    """A vector with its check words mod 2^64; ``counts`` are equal mod 2^w to what they stand for."""

    layout: ResidueLayout
    counts: Words
    checks: Words

    @property
    def reduced(self) -> NDArray[np.int64]:
        """The entries in [0, 2^w), int64 (size,)."""
        mask = self.layout.dtype.type((1 << self.layout.bits) - 1)
        reduced: NDArray[np.int64] = (self.counts & mask).astype(np.int64)
        return reduced

    def add(self, other: Residues) -> None:
        """Add another vector of the same layout to this one, in place."""
        self._check(other)
        np.add(self.counts, other.counts, out=self.counts)
        np.add(self.checks, other.checks, out=self.checks)

    def subtract(self, other: Residues) -> None:
        """Subtract another vector of the same layout from this one, in place."""
        self._check(other)
        np.subtract(self.counts, other.counts, out=self.counts)
        np.subtract(self.checks, other.checks, out=self.checks)

    def to_bytes(self) -> bytes:
        """The check words, then the entries at w bits each, most significant bit first."""
        entries = pack_bits(torch.from_numpy(self.reduced), self.layout.bits)
        return self.checks.tobytes() + entries.numpy().tobytes()

    @classmethod
    def from_bytes(cls, *data: bytes, layout: ResidueLayout) -> Self:
        """What :meth:`to_bytes` wrote, or the sum of several; all bytes of the right length are valid."""
        for each in data:
            if len(each) != layout.num_bytes:
                raise ValueError(f"a share of this sum has {layout.num_bytes} bytes, got {len(each)}")
        first = CHECK_WORDS * _WORD.itemsize
        rows = torch.frombuffer(bytearray(b"".join(data)), dtype=torch.uint8).view(len(data), -1)
        counts = unpack_rows(rows[:, first:], layout.bits, layout.size).sum(dim=0, dtype=torch.int64)
        words = np.frombuffer(rows[:, :first].contiguous().numpy(), _WORD).reshape(len(data), CHECK_WORDS)
        return cls(layout, counts.numpy().astype(layout.dtype), words.sum(axis=0, dtype=_WORD))

    def _check(self, other: Residues) -> None:
        if other.layout != self.layout:
            raise ValueError(f"shares of {other.layout} and of {self.layout} do not add up")


SEED_BYTES = 32
"""Bytes of a seed: a key of the keystream."""


class Expansion:
    """The sum so far, ``total``, of the expansions of seeds.

    A seed's expansion is the keystream of ChaCha20 under it (:class:`~shuffle_plugins.randomness.Keystream`,
    nonce 0): first the check words, then an unsigned little-endian number of the layout's type for each
    entry. Uniform numbers mod 2^8, 2^16, 2^32 or 2^64 are uniform mod 2^w.
    """

    def __init__(self, layout: ResidueLayout) -> None:
        self.total = layout.zero()
        self._zeros = bytes(self.total.checks.nbytes + self.total.counts.nbytes)

    def add(self, *seeds: bytes) -> None:
        """Add the expansions of some seeds."""
        counts, words = self.total.counts, self.total.checks
        for seed in seeds:
            stream = Keystream(seed).encryptor(0).update(self._zeros)
            words += np.frombuffer(stream, words.dtype, CHECK_WORDS)
            counts += np.frombuffer(stream, counts.dtype, offset=words.nbytes)


def check_words(counts: NDArray[np.int64], *, seed: bytes) -> Words:
    r"""Two random linear combinations of counts, mod 2^64: uint64 (2,), which add up as counts do.

    Who does not know the seed and changes the counts of a sum, of w bits, and its words stays unnoticed with
    a probability of at most :math:`2^{-2(65 - w)}`: a difference :math:`e \ne 0` has an entry that 2^w does
    not divide, so for a uniform r the product :math:`\langle r, e\rangle` is uniform on at least
    :math:`2^{65 - w}` numbers (Cramer, Damgård, Escudero, Scholl, Xing 2018, "SPDZ2k", Lemma 1).

    ``seed`` are 32 bytes that the server and the clients of a round know, and the aggregators do not.
    """
    found = np.zeros(CHECK_WORDS, np.dtype("<u8"))
    unsigned = counts.astype(np.dtype("<u8"))
    streams = [Keystream(seed, nonce=1 + word) for word in range(CHECK_WORDS)]
    for start in range(0, len(unsigned), 1 << 15):
        part = unsigned[start : start + (1 << 15)]
        coefficients = [stream.words(start, len(part)).numpy().view(found.dtype) for stream in streams]
        found += np.array([np.dot(row, part) for row in coefficients])
    return found


class CheckFailed(ValueError):
    """A sum does not fit its check words: different clients were added up, or somebody sent wrong numbers."""

    def __init__(self) -> None:
        super().__init__(
            "the sum does not fit its check: an aggregator or a client did not follow the protocol, or "
            "different clients were added up; nothing of it can be used"
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """One client's counts: a share for the server, and a seed of 32 bytes for each aggregator."""

    share: Residues
    seeds: tuple[bytes, ...]


def share(
    counts: NDArray[np.int64],
    *,
    layout: ResidueLayout,
    aggregators: int,
    check_seed: bytes,
    seeds: Sequence[bytes] = (),
) -> Shared:
    """Split a client's counts, (layout.size,), between a server and aggregators.

    All seeds without the share say nothing about the counts, and neither does the share with all seeds but
    one. ``check_seed`` is the round's, of :func:`check_words`; seeds are by default from the system's
    entropy.
    """
    if counts.shape != (layout.size,):
        raise ValueError(f"counts are ({layout.size},), got {counts.shape}")
    if int(counts.min()) < 0 or int(counts.max()) >> layout.bits:
        raise ValueError(f"a count does not fit in {layout.bits} bits")
    seeds = tuple(seeds) or tuple(secrets.token_bytes(SEED_BYTES) for _ in range(aggregators))
    if not seeds or len(seeds) != aggregators:
        raise ValueError("each aggregator has a seed, and without an aggregator nothing is shared")
    expansion = Expansion(layout)
    expansion.add(*seeds)
    rest = Residues(layout, counts.astype(layout.dtype), check_words(counts, seed=check_seed))
    rest.subtract(expansion.total)
    return Shared(rest, seeds)


def reconstruct(
    shares: Iterable[Residues], expansions: Iterable[Residues], *, layout: ResidueLayout, check_seed: bytes
) -> NDArray[np.int64]:
    """The sum of the clients' counts, int64 (size,), or :class:`CheckFailed`.

    ``expansions`` are each aggregator's sum of the expansions of the same clients' seeds.
    """
    total = layout.zero()
    for part in chain(shares, expansions):
        total.add(part)
    counts = total.reduced
    expected = check_words(counts, seed=check_seed)
    if not hmac.compare_digest(expected.tobytes(), total.checks.tobytes()):
        raise CheckFailed
    return counts


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """The terms of one round of a secure sum; an aggregator opens envelopes of those that were told the same.

    Attributes:
        context: the round; its fingerprint covers the mechanism and the check seed.
        layout: of the shares. An aggregator has to know w: a sum with fewer bits of each number would say
            something else than a sum mod 2^w.
        aggregators: their public keys for sealing, 32 bytes each, in the server's order, none twice.
    """

    context: RoundContext
    layout: ResidueLayout
    aggregators: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not self.aggregators:
            raise ShuffleError("a shared sum needs at least one aggregator")
        for key in self.aggregators:
            check_key(key)
        if len(set(self.aggregators)) < len(self.aggregators):
            raise ShuffleError("an aggregator is named twice: each must be another organisation's")

    @property
    def share_bytes(self) -> int:
        """Bytes that a client sends to the server."""
        return self.layout.num_bytes

    @property
    def secret_bytes(self) -> int:
        """Bytes that a client seals to each aggregator."""
        return SEED_BYTES

    def digest(self) -> bytes:
        """32 bytes that differ wherever terms differ."""
        numbers = b"".join(
            number.to_bytes(8, "little")
            for number in (self.layout.size, self.layout.bits, len(self.aggregators))
        )
        label = b"shuffle-plugins/1 secure sum"
        return hashlib.sha256(label + self.context.digest() + numbers + b"".join(self.aggregators)).digest()
