"""Public normal vectors, each named by a seed of sixteen bytes: expanded, and added up without being stored.

A coordinate is the mean of the standard normal law over one of some 200,000 cells, chosen by 32 bits of the
ChaCha20 keystream under the seed: cells of probability 2^-16, and of 2^-24 in the outer 2^-8 on either side.
All values are multiples of 2^-28, so sums of six million of them are exact, in every order. Machines may
round a cell's mean to different neighbours: nothing but the last digit of a sum depends on it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import Keystream, runs_kernels
from shuffle_plugins.randomness.sources import Randomness

_Floats = NDArray[np.float64]

SEED_WORDS = 4
"""A seed is so many numbers of 32 bits."""

UNIT = 2.0**-28
"""Of which every coordinate is a whole multiple; it is rounded to the nearest."""

DOMAIN = b"shuffle_plugins\0"
"""The other half of a key of ChaCha20: no other protocol has the same keystreams."""

LOST_VARIANCE = 5.5e-9
"""Bound on 1 − E[G²] of a coordinate G: how much the normal law varies within the cells.

A fixed number, so that what is charged for it is the same on every machine.
"""

_CELLS = 1 << 16  # of the upper 16 bits; as many fine ones on either side
_OUTER = 256  # of these, on either side, are divided into the fine ones


@cache
def cell_means() -> _Floats:
    """The values by cell: 2^16 of equal probability, then the first and the last 2^8 in finer ones."""
    inner = np.arange(_CELLS // 2, _CELLS + 1) / _CELLS
    upper = _means(special.ndtri(inner), _CELLS)  # of the positive half; the other is its mirror image
    fine = _means(-special.ndtri(np.arange(_CELLS, -1, -1) / (_CELLS * _OUTER)), _CELLS * _OUTER)
    return np.concatenate([-upper[::-1], upper, -fine[::-1], fine])


def _means(ends: _Floats, cells_of_all: int) -> _Floats:
    """Of the normal law between each two neighbouring ends."""
    density = np.exp(-(ends**2) / 2) / np.sqrt(2 * np.pi)
    units: _Floats = np.rint((density[:-1] - density[1:]) * cells_of_all / UNIT)
    return units * UNIT


def draw_seeds(count: int, *, randomness: Randomness) -> Tensor:
    """Fresh seeds, (count, 4) int64 below 2**32, on the CPU."""
    halves = randomness.words(count * SEED_WORDS // 2).view(torch.int32).to(torch.int64)
    return (halves & 0xFFFFFFFF).reshape(count, SEED_WORDS)


def keys(seeds: Tensor) -> list[bytes]:
    """Each seed's key of ChaCha20."""
    data = np.ascontiguousarray(seeds.cpu().numpy().astype("<u4")).tobytes()
    return [data[start : start + 16] + DOMAIN for start in range(0, len(data), 16)]


def expand(key: bytes, dim: int) -> _Floats:
    """The vector of one key, (dim,) float64."""
    words = np.frombuffer(Keystream(key).encryptor(0).update(bytes(4 * dim)), dtype="<u4")
    cells = words.view("<u2")[1::2]
    table = cell_means()
    values: _Floats = table.take(cells)
    # The first and the last cells are neighbours mod 2^16.
    outer = np.flatnonzero(cells + np.uint16(_OUTER) < np.uint16(2 * _OUTER))
    last = words[outer]
    values[outer] = table.take((last >> 8 & 0xFFFF) + np.where(last >> 31, 2 * _CELLS, _CELLS))
    return values


def expand_all(seeds: Tensor, *, dim: int) -> Tensor:
    """The vectors of seeds, (seeds, dim) float64, where the seeds are."""
    if runs_kernels(seeds.device):
        from shuffle_plugins.compressors.kernels.triton_kernels import expand_triton

        return expand_triton(seeds, cells=cells_on(seeds.device), dim=dim)
    rows = [expand(key, dim) for key in keys(seeds)]
    values = np.stack(rows) if rows else np.zeros((0, dim))
    return torch.from_numpy(values).to(seeds.device)


def sum_expanded(seeds: Tensor, *, dim: int) -> Tensor:
    """The sum of the vectors of seeds, (dim,) float64; none of them is stored."""
    if runs_kernels(seeds.device):
        from shuffle_plugins.compressors.kernels.triton_kernels import sum_triton

        return sum_triton(seeds, cells=cells_on(seeds.device), dim=dim)
    total = np.zeros(dim)
    for key in keys(seeds):
        total += expand(key, dim)
    return torch.from_numpy(total).to(seeds.device)


@cache
def cells_on(device: torch.device) -> Tensor:
    """:func:`cell_means` in units, int32, where the kernels look them up."""
    return torch.from_numpy(np.rint(cell_means() / UNIT).astype(np.int32)).to(device)
