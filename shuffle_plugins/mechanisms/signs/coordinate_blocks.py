"""Coordinates cut into consecutive blocks, one of each block drawn per client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateBlocks:
    """``dim`` coordinates in ``count`` consecutive blocks as equal as can be, the longer ones first.

    Lengths differ by one at most, so nothing is padded: a coordinate of a block of length b is drawn with
    probability exactly 1/b, and b times what was drawn is unbiased. Blocks of ceil(dim/count) with padding,
    as in Girgis's thesis, have the same index bits and never less variance.

    Attributes:
        dim: number of coordinates.
        count: number of blocks, in [1, dim].
    """

    dim: int
    count: int

    def __post_init__(self) -> None:
        checks.whole("samples", self.count, at_most=checks.dim(self.dim))

    @property
    def longest(self) -> int:
        """Length of the first block, ceil(dim/count)."""
        return -(-self.dim // self.count)

    @property
    def index_bits(self) -> int:
        """Bits of a place within a block."""
        return (self.longest - 1).bit_length()

    @property
    def square_lengths(self) -> int:
        """Sum of the squared lengths: dim²/count where count divides dim."""
        short, longer = divmod(self.dim, self.count)
        return longer * (short + 1) ** 2 + (self.count - longer) * short**2

    def lengths(self) -> Tensor:
        """Length of each block, (count,) int64; not to be written to."""
        return _lengths(self.dim, self.count)

    def starts(self) -> Tensor:
        """First coordinate of each block, (count,) int64; not to be written to."""
        return _starts(self.dim, self.count)

    def lengths_by_coordinate(self) -> Tensor:
        """Length of the block that each coordinate is in, (dim,) int64."""
        short, longer = divmod(self.dim, self.count)
        return short + (torch.arange(self.dim) < longer * (short + 1)).to(torch.int64)

    def draw(self, clients: int, *, repeats: int, randomness: Randomness, device: torch.device) -> Tensor:
        """Uniform places within each block, ``repeats`` times over, (clients, repeats, count) int64."""
        short, longer = divmod(self.dim, self.count)
        parts = [
            randomness.integers(length, (clients, repeats, blocks), device=device)
            if length > 1
            else torch.zeros((clients, repeats, blocks), dtype=torch.int64, device=device)
            for length, blocks in ((short + 1, longer), (short, self.count - longer))
            if blocks
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


@lru_cache(maxsize=64)
def _lengths(dim: int, count: int) -> Tensor:
    short, longer = divmod(dim, count)
    return short + (torch.arange(count) < longer).to(torch.int64)


@lru_cache(maxsize=64)
def _starts(dim: int, count: int) -> Tensor:
    lengths = _lengths(dim, count)
    return lengths.cumsum(0) - lengths
