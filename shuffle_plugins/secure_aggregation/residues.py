"""Vectors of whole numbers mod 2^w with check words: the form of shares, of expansions and of their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from shuffle_plugins.core import checks, pack_bits, unpack_bits

MOST_SUM_BITS = 44
"""Largest w. A wrong sum passes its check with probability 2^-2(65 - w) at most: 2^-42 for the largest w."""

CHECK_WORDS = 2
"""Number of check words, numbers mod 2^64 that are sent with a vector and show whether a sum is right."""

_WORD = np.dtype("<u8")

Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class ResidueLayout:
    """The form of a vector mod 2^w with its check words.

    Attributes:
        size: entries of the vector, at least 1.
        bits: w, in [1, :data:`MOST_SUM_BITS`].

    Raises:
        ValueError: if a field is out of range.
    """

    size: int
    bits: int

    def __post_init__(self) -> None:
        checks.dim(self.size)
        checks.whole("bits of a shared sum", self.bits, at_most=MOST_SUM_BITS)

    @classmethod
    def of_sum(cls, *, size: int, largest: int, clients: int) -> Self:
        """The layout with the fewest bits that hold the sum of so many clients' counts.

        Args:
            size: counts of one client.
            largest: the largest count that one client may have; the smallest is 0.
            clients: the most clients whose counts are added up.

        Raises:
            ValueError: if the sum needs more than :data:`MOST_SUM_BITS` bits.
        """
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
    """A vector mod 2^w with its check words mod 2^64.

    Attributes:
        layout: its form.
        counts: entries, unsigned (size,); equal mod 2^w to what they stand for.
        checks: (:data:`CHECK_WORDS`,), uint64.
    """

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
        """Add another vector of the same layout to this one, in place.

        Raises:
            ValueError: if it has another layout.
        """
        self._check(other)
        np.add(self.counts, other.counts, out=self.counts)
        np.add(self.checks, other.checks, out=self.checks)

    def subtract(self, other: Residues) -> None:
        """Subtract another vector of the same layout from this one, in place.

        Raises:
            ValueError: if it has another layout.
        """
        self._check(other)
        np.subtract(self.counts, other.counts, out=self.counts)
        np.subtract(self.checks, other.checks, out=self.checks)

    def to_bytes(self) -> bytes:
        """The check words, then the entries at w bits each, most significant bit first."""
        entries = pack_bits(torch.from_numpy(self.reduced), self.layout.bits)
        return self.checks.tobytes() + entries.numpy().tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, layout: ResidueLayout) -> Self:
        """Read what :meth:`to_bytes` wrote. All bytes of the right length are valid.

        Raises:
            ValueError: if the length is another.
        """
        if len(data) != layout.num_bytes:
            raise ValueError(f"a share of this sum has {layout.num_bytes} bytes, got {len(data)}")
        first = CHECK_WORDS * _WORD.itemsize
        packed = torch.frombuffer(bytearray(data[first:]), dtype=torch.uint8)
        counts = unpack_bits(packed, layout.bits, layout.size).numpy().astype(layout.dtype)
        return cls(layout, counts, np.frombuffer(data[:first], _WORD).copy())

    def _check(self, other: Residues) -> None:
        if other.layout != self.layout:
            raise ValueError(f"shares of {other.layout} and of {self.layout} do not add up")
