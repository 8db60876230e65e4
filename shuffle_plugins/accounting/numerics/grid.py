"""Outcomes put on a grid of losses: spread to bound from above, merged to bound from below."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]

_CHAIN_SHARE = 0.6
_ON_GRID = 1e-15  # P mass that roundoff may take off an outcome, …
_OF_A_CELL = 1e-9  # … and as a share of a cell at most


def tally(index: Cells, weights: Floats, size: int) -> Floats:
    """Sum of the weights at each index in [0, size)."""
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64, copy=False)


def spread_to_grid(loss: Floats, q: Floats, *, cell: float) -> tuple[int, Floats]:
    """Spread outcomes over the two multiples of ``cell`` around their loss, keeping their P and Q mass.

    Pessimistic: a mean-preserving spread of the likelihood ratio ("connect the dots", Doroshenko, Ghazi,
    Kamath, Kumar, Manurangsi 2022).

    Returns:
        The index of the first grid point, and the Q masses at consecutive grid points. The P mass at grid
        point i is its Q mass times e^(i·cell).
    """
    index = np.floor(loss / cell)
    share = np.clip(np.expm1(loss - index * cell) / math.expm1(cell), 0.0, 1.0)
    cells = index.astype(np.int64)
    first = int(cells.min())
    cells -= first
    size = int(cells.max()) + 2
    upper = tally(cells + 1, share * q, size)
    return first, upper + tally(cells, (1.0 - share) * q, size)


def merge_to_grid(
    loss: Floats, p: Floats, q: Floats, *, cell: float, whole: bool = False
) -> tuple[int, Floats]:
    """Merge outcomes between grid points so that each merged outcome's loss is a grid point.

    A lower bound, with an error of second order in ``cell``: ``docs/proofs/accounting.md``, section 5,
    "Losses to a grid". One merged outcome is left between two grid points. It is rounded down, which costs
    the P mass of the law a little: or, if ``whole``, merged with as much from below as takes it there.
    """
    # An outcome a rounding error below a grid point is on it.
    index = np.floor(loss / cell + 1e-9).astype(np.int64)
    first = int(index.min())
    # How far outcomes are above their cell's lower edge and below its upper one, as P mass. Differences of
    # P and Q masses would not know it of losses below 1e-16.
    lower_edge = index * cell
    up = p * np.maximum(-np.expm1(lower_edge - loss), 0.0)
    down = p * np.maximum(np.expm1(lower_edge + cell - loss), 0.0)
    index -= first
    size = int(index.max()) + 2
    p, q, up, down = (tally(index, each, size) for each in (p, q, up, down))
    edge = np.exp((first + np.arange(size + 1)) * cell)
    occupied = np.nonzero(q)[0]
    rising = _chain(occupied, q, below=down, above=up, edge=edge, cell=cell)
    falling = _chain(
        size - 1 - occupied[::-1],
        p[::-1],
        below=(up / edge[:-1])[::-1],
        above=(down / edge[1:])[::-1],
        edge=1.0 / edge[::-1],
        cell=cell,
    )
    # What neither chain has used of a cell when both stop there; meet where rounding that down is cheapest.
    spare = rising.left + falling.left[::-1] - 1.0
    central = p[occupied] >= 0.25 * p[occupied].max()
    with np.errstate(invalid="ignore"):
        cost = np.where(central & (spare >= 0), up[occupied] * spare, np.inf)
    # Where nothing but roundoff is rounded down anywhere, outcomes are on the grid: merge as few as can be.
    least = float(cost.min())
    meet = int(np.argmax(np.where(cost <= least + min(_ON_GRID, _OF_A_CELL * cell), spare, -np.inf)))
    if np.isfinite(least):
        grid_q = rising.masses_until(meet)
        above = falling.masses_until(len(occupied) - 1 - meet)[::-1]
        grid_q += above / edge  # a mirrored grid point's Q mass is P mass
        left = int(occupied[meet])
        grid_q[left] += spare[meet] * q[left]
        if whole:
            needed = spare[meet] * up[left] / (edge[left] - edge[:left])
            enough = np.nonzero(grid_q[:left] >= needed)[0]
            if len(enough):
                grid_q[enough[-1]] -= needed[enough[-1]]
                grid_q[left] += needed[enough[-1]]
    else:
        last = int(rising.front[-1]) if len(rising.front) else 0
        grid_q = rising.masses_until(last)
        grid_q[occupied[last]] += rising.left[last] * q[occupied[last]]
        grid_q[occupied[last + 1 :]] += q[occupied[last + 1 :]]
    return first, grid_q * edge


@dataclass(frozen=True, slots=True)
class _Chain:
    """Groups made from one tail inward.

    ``left[i]`` is the fraction of occupied cell i that no group has used when the chain stops there, and nan
    if it cannot stop there.
    """

    left: Floats
    target: Cells
    mass: Floats
    front: Cells
    points: int

    def masses_until(self, stop: int) -> Floats:
        """Q masses on the grid of all groups closed with their front at or before occupied cell ``stop``."""
        closed = self.front <= stop
        return tally(self.target[closed], self.mass[closed], self.points)


def _chain(
    occupied: Cells, mass: Floats, *, below: Floats, above: Floats, edge: Floats, cell: float
) -> _Chain:
    """Group inward from the lower tail, as far as the first cells past the median."""
    stop = min(int(np.searchsorted(np.cumsum(mass[occupied]), _CHAIN_SHARE * mass.sum())) + 2, len(occupied))
    cells = occupied[:stop]
    masses_q, deficits, surpluses = (each[cells].tolist() for each in (mass, below, above))
    numbers, edges = cells.tolist(), edge.tolist()
    left = [math.nan] * len(occupied)
    targets: list[int] = []
    masses: list[float] = []
    fronts: list[int] = []
    rest, position, count = 1.0, 0, len(numbers)
    while True:
        left[position] = rest
        point = numbers[position] + 1
        ratio = edges[point]
        deficit = rest * deficits[position]
        grouped = rest * masses_q[position]
        position += 1
        while position < count:
            # 700.0: e to this power is a float
            apart = math.expm1(min((numbers[position] - point) * cell, 700.0))
            surplus = surpluses[position] + ratio * apart * masses_q[position]
            if surplus >= deficit and surplus > 0:
                break
            deficit -= surplus if surplus > 0 else 0.0
            grouped += masses_q[position]
            position += 1
        if position == count:
            break
        share = deficit / surplus
        targets.append(point)
        masses.append(grouped + share * masses_q[position])
        fronts.append(position)
        rest = 1.0 - share
    return _Chain(
        left=np.array(left),
        target=np.array(targets, dtype=np.int64),
        mass=np.array(masses),
        front=np.array(fronts, dtype=np.int64),
        points=len(edge),
    )
