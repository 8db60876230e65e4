"""Additive secret sharing: a client's counts are split into a share and seeds, and the clients' summed."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from shuffle_plugins.core import checks, pack_bits
from shuffle_plugins.core.checks import Count, Dim, Ranged, whole_number
from shuffle_plugins.core.packing import unpack_rows
from shuffle_plugins.randomness.chacha import Keystream
from shuffle_plugins.shuffler.keys import check_key
from shuffle_plugins.shuffler.shuffler import DIGEST_BYTES, TOKEN_BYTES, RoundContext, ShuffleError, bytes_of

MOST_SUM_BITS = 44
"""Largest w. A wrong sum passes its check with probability 2^-2(65 - w) at most: 2^-42 for the largest w."""

CHECK_WORDS = 2
"""Number of check words, numbers mod 2^64 that are sent with a vector and show whether a sum is right."""

_WORD = np.dtype("<u8")

Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class ResidueLayout(Ranged):
    """The form of a vector of ``size`` entries mod 2^w, w its ``bits``, with its check words; or of several
    such ``vectors``, one after another, each with check words of its own.
    """

    size: Dim
    bits: Annotated[int, whole_number(at_most=MOST_SUM_BITS)]
    vectors: Count = 1

    @classmethod
    def of_sum(cls, *, size: int, largest: int, clients: int, vectors: int = 1) -> Self:
        """The layout with the fewest bits that hold a sum of clients' counts, each in [0, ``largest``]."""
        most = checks.whole("largest", largest) * checks.whole("clients", clients)
        if most.bit_length() > MOST_SUM_BITS:
            raise ValueError(
                f"sums of {clients:,} clients' counts of up to {largest:,} need {most.bit_length()} bits, "
                f"more than {MOST_SUM_BITS}: invite fewer clients, or build the sum with fewer coins"
            )
        return cls(size, most.bit_length(), vectors)

    @property
    def entries(self) -> int:
        """Numbers in all vectors together."""
        return self.vectors * self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned type that holds w bits. Its own modulus is a multiple of 2^w."""
        return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= self.bits)}")

    @property
    def num_bytes(self) -> int:
        """Length of :meth:`Residues.to_bytes`."""
        return self._words * _WORD.itemsize + (self.entries * self.bits + 7) // 8

    @property
    def _words(self) -> int:
        return self.vectors * CHECK_WORDS

    def zero(self) -> Residues:
        """Zeros, with check words of zero."""
        return Residues(self, np.zeros(self.entries, self.dtype), np.zeros(self._words, _WORD))


@dataclass(frozen=True, slots=True, eq=False)
class Residues:
    """Vectors with their check words mod 2^64; ``counts``, those of all vectors one after another, are equal
    mod 2^w to what they stand for.
    """

    layout: ResidueLayout
    counts: Words
    checks: Words

    @property
    def reduced(self) -> NDArray[np.int64]:
        """The entries in [0, 2^w), int64 (entries,)."""
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

    def split(self) -> list[Residues]:
        """Each vector by itself; its numbers are shared with this one."""
        alone = replace(self.layout, vectors=1)
        counts, words = (np.split(each, self.layout.vectors) for each in (self.counts, self.checks))
        return [Residues(alone, *each) for each in zip(counts, words, strict=True)]

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
        first = layout._words * _WORD.itemsize
        rows = torch.frombuffer(bytearray(b"".join(data)), dtype=torch.uint8).view(len(data), -1)
        counts = unpack_rows(rows[:, first:], layout.bits, layout.entries).sum(dim=0, dtype=torch.int64)
        words = np.frombuffer(rows[:, :first].contiguous().numpy(), _WORD).reshape(len(data), layout._words)
        return cls(layout, counts.numpy().astype(layout.dtype), words.sum(axis=0, dtype=_WORD))

    def to_words(self) -> bytes:
        """The same as :meth:`to_bytes`, in whole words: for a file of one's own, since packing takes long."""
        return self.checks.tobytes() + self.counts.tobytes()

    @classmethod
    def from_words(cls, data: bytes, *, layout: ResidueLayout) -> Self:
        """What :meth:`to_words` wrote, which is not copied."""
        words = np.frombuffer(data, _WORD, layout._words)
        return cls(layout, np.frombuffer(data, layout.dtype, offset=words.nbytes), words)

    def _check(self, other: Residues) -> None:
        if other.layout != self.layout:
            raise ValueError(f"shares of {other.layout} and of {self.layout} do not add up")


SEED_BYTES = 32
"""Bytes of a seed: a key of the keystream."""


_PIECE_BYTES = 1 << 17  # expanded at once, so that they are added while a core's cache holds them


class Expansion:
    """The sum so far, ``total``, of the expansions of seeds.

    A seed's expansion is the keystream of ChaCha20 under it (:class:`~shuffle_plugins.randomness.Keystream`,
    nonce 0): first all check words, then an unsigned little-endian number of the layout's type for each
    entry. Uniform numbers mod 2^8, 2^16, 2^32 or 2^64 are uniform mod 2^w.
    """

    def __init__(self, layout: ResidueLayout) -> None:
        self.total = layout.zero()
        self._zeros = memoryview(bytes(_PIECE_BYTES))
        self._stream = np.zeros(len(self._zeros) + 64, np.uint8)  # a cipher asks for room for one block more

    def add(self, *seeds: bytes) -> None:
        """Add the expansions of some seeds."""
        piece = _PIECE_BYTES // self.total.counts.itemsize
        parts = [self.total.counts[at : at + piece] for at in range(0, len(self.total.counts), piece)]
        for seed in seeds:
            cipher = Keystream(seed).encryptor(0)
            for part in (self.total.checks, *parts):
                cipher.update_into(self._zeros[: part.nbytes], self._stream)  # type: ignore[arg-type]
                part += self._stream[: part.nbytes].view(part.dtype)


def check_words(counts: NDArray[np.int64], *, seed: bytes) -> Words:
    r"""Two random linear combinations of counts, mod 2^64: uint64 (2,), which add up as counts do; for each
    of several vectors, (vectors, size), the same two combinations: uint64 (2·vectors,).

    Who does not know the seed and changes the counts of a sum, of w bits, and its words stays unnoticed with
    a probability of at most :math:`2^{-2(65 - w)}`: a difference :math:`e \ne 0` has an entry that 2^w does
    not divide, so for a uniform r the product :math:`\langle r, e\rangle` is uniform on at least
    :math:`2^{65 - w}` numbers (Cramer, Damgård, Escudero, Scholl, Xing 2018, "SPDZ2k", Lemma 1).

    ``seed`` are 32 bytes that the server and the clients of a round know, and the aggregators do not.
    """
    unsigned = np.atleast_2d(counts).astype(_WORD)
    found = np.zeros((len(unsigned), CHECK_WORDS), _WORD)
    streams = [Keystream(seed, nonce=1 + word) for word in range(CHECK_WORDS)]
    for start in range(0, unsigned.shape[1], 1 << 15):
        part = unsigned[:, start : start + (1 << 15)]
        coefficients = [stream.words(start, part.shape[1]).numpy().view(_WORD) for stream in streams]
        found += np.array([[np.dot(row, vector) for row in coefficients] for vector in part])
    return found.reshape(-1)


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
    """Split a client's counts, (layout.entries,), between a server and aggregators.

    All seeds without the share say nothing about the counts, and neither does the share with all seeds but
    one. ``check_seed`` is that of :func:`check_words`; seeds are by default from the system's
    entropy.
    """
    if counts.shape != (layout.entries,):
        raise ValueError(f"counts are ({layout.entries},), got {counts.shape}")
    if int(counts.min()) < 0 or int(counts.max()) >> layout.bits:
        raise ValueError(f"a count does not fit in {layout.bits} bits")
    seeds = tuple(seeds) or tuple(secrets.token_bytes(SEED_BYTES) for _ in range(aggregators))
    if not seeds or len(seeds) != aggregators:
        raise ValueError("each aggregator has a seed, and without an aggregator nothing is shared")
    expansion = Expansion(layout)
    expansion.add(*seeds)
    words = check_words(counts.reshape(layout.vectors, -1), seed=check_seed)
    rest = Residues(layout, counts.astype(layout.dtype), words)
    rest.subtract(expansion.total)
    return Shared(rest, seeds)


def reconstruct(
    shares: Iterable[Residues], expansions: Iterable[Residues], *, layout: ResidueLayout, check_seed: bytes
) -> NDArray[np.int64]:
    """The sum of the clients' counts, int64 (entries,), or :class:`CheckFailed`.

    ``expansions`` are each aggregator's sum of the expansions of the same clients' seeds.
    """
    total = layout.zero()
    for part in chain(shares, expansions):
        total.add(part)
    counts = total.reduced
    expected = check_words(counts.reshape(layout.vectors, -1), seed=check_seed)
    if not hmac.compare_digest(expected.tobytes(), total.checks.tobytes()):
        raise CheckFailed
    return counts


def windowed(sums: Iterable[Residues], coins: Residues, *, coefficients: Sequence[int]) -> Residues:
    """A window: c_0, c_1, … times the sums of the last rounds' data, the newest first, plus coins.

    The first windows of a series are of fewer sums than there are coefficients. What holds for the counts
    holds for their check words, since both are linear; so shares of the sums give a share of the window.
    """
    layout = coins.layout
    window = Residues(layout, coins.counts.copy(), coins.checks.copy())
    for coefficient, each in zip(coefficients, sums, strict=False):
        each._check(coins)
        factor = coefficient % (1 << layout.bits)
        np.add(window.counts, each.counts * layout.dtype.type(factor), out=window.counts)
        np.add(window.checks, each.checks * _WORD.type(coefficient), out=window.checks)
    return window


def _coefficients(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not value or any(type(each) is not int for each in value):
        raise ShuffleError(f"{name} are a tuple of whole numbers, got {value!r:.99}")
    if value[0] < 1 or min(value) < 0 or max(value) >> MOST_SUM_BITS:
        raise ShuffleError(f"{name} are at least 0, the first at least 1, below 2^{MOST_SUM_BITS}")
    return value


@dataclass(frozen=True, kw_only=True)
class WindowTerms(Ranged):
    """Which window of a series a round opens, in place of the sum of its own data.

    Of each client two vectors are shared: data and coins. Window t is c_0·D_t + c_1·D_{t−1} + … + Z_t, with
    D_t the sum of the data of the t-th opened window's clients, and Z_t of their coins.

    Attributes:
        series: random; says whose sums of data add up.
        index: t, from 0. A round in which no window was opened has none.
        coefficients: whole numbers c_0 ≥ 1, …, c_{b−1} ≥ 0.
        fixed: digest of all else that must be alike in a series: of what makes the coins, since those of
            later rounds protect the data of earlier ones, too; and of the check seed, or else check words of
            windows would show linear functions of data without their coins.
    """

    series: Annotated[bytes, bytes_of(32)]
    index: Annotated[int, whole_number(at_least=0, at_most=(1 << 63) - 1)]
    coefficients: Annotated[tuple[int, ...], _coefficients]
    fixed: Annotated[bytes, bytes_of(DIGEST_BYTES)]

    def digest(self) -> bytes:
        """32 bytes that differ wherever terms differ."""
        numbers = b"".join(each.to_bytes(8, "little") for each in (self.index, *self.coefficients))
        return hashlib.sha256(b"shuffle-plugins/1 window" + self.series + self.fixed + numbers).digest()


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """The terms of one round of a secure sum; an aggregator opens envelopes of those that were told the same.

    Attributes:
        context: the round; its fingerprint covers the mechanism and the check seed.
        layout: of the shares. An aggregator has to know w: a sum with fewer bits of each number would say
            something else than a sum mod 2^w.
        aggregators: their public keys for sealing, 32 bytes each, in the server's order, none twice.
        window: the window that is opened in place of the round's sum; the layout then has two vectors.
    """

    context: RoundContext
    layout: ResidueLayout
    aggregators: tuple[bytes, ...]
    window: WindowTerms | None = None

    def __post_init__(self) -> None:
        if self.layout.vectors != (1 if self.window is None else 2):
            raise ShuffleError("clients share one vector, or for a window two: data and coins")
        if not self.aggregators:
            raise ShuffleError("a shared sum needs at least one aggregator")
        for key in self.aggregators:
            check_key(key)
        if len(set(self.aggregators)) < len(self.aggregators):
            raise ShuffleError("an aggregator is named twice: each must be another organisation's")

    @property
    def opened(self) -> ResidueLayout:
        """The form of what is opened: of the sum, or of the window."""
        return replace(self.layout, vectors=1)

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
        asked = self.context.digest() + numbers + b"".join(self.aggregators)
        return hashlib.sha256(label + asked + (self.window.digest() if self.window else b"")).digest()

    def pinned(self) -> bytes:
        """32 bytes that differ wherever something differs that must be alike in all rounds of a series."""
        context = replace(self.context, token=bytes(TOKEN_BYTES), fingerprint=bytes(DIGEST_BYTES))
        window = None if self.window is None else replace(self.window, index=0)
        return replace(self, context=context, window=window).digest()
