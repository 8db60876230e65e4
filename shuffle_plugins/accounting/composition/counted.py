"""Composition of rounds of a few hundred kinds, by how often each is run.

For histories of which rounds may be taken away as well as added, such as the dearest rounds that a client can
have been in. A composition is a sum over the kinds, each times its steps: of moments, and of the logarithms
of transforms, which are kept for each kind. A new question then costs a few passes over short tables, however
many rounds there are.

A transform of many rounds has died out beyond its first few dozen frequencies. So of each kind only the first
512 are kept, and of the others the largest in each of 64 bands. Products of those bound what is left out,
which is charged; where it is too much, as for some dozen rounds, all frequencies are computed anew. Errors
are charged as in :mod:`shuffle_plugins.accounting.composition.pld`.

Memory is bounded: at most 1024 kinds, some 20 kB each for one tilt, and eight tilts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
from numpy import fft

from shuffle_plugins.accounting.composition.growing import (
    Ends,
    Entry,
    GrowingComposition,
    Sums,
    tilted,
    tilted_moments,
)
from shuffle_plugins.accounting.composition.pld import GridLaw, Moments, Spectrum, to_grid
from shuffle_plugins.accounting.losses.distribution import BoundKind, PrivacyLossDistribution
from shuffle_plugins.accounting.numerics.grid import Floats, tally

_UNIT_ROUNDOFF = 2.0**-53
_FREQUENCIES = 512  # kept of each transform
_BANDS = 64  # in which all further frequencies are bounded
_MOST_LEFT_OUT = 1e-8  # of a tilted mass of 1: it moves an answer far less than the grid does
_MOST_KINDS = 1024
_MOST_CELLS, _MOST_TILTS, _MOST_SPECTRA = 2, 96, 8  # tables kept


class CountedHistory(Generic[Entry]):
    """The laws of many kinds of rounds, ready to be composed by how often each is run.

    Args:
        law_of: the law of a round; those of all rounds bound from the same side. Rounds are told apart by
            identity, so pass the same object for the same round.
    """

    def __init__(self, law_of: Callable[[Entry], PrivacyLossDistribution]) -> None:
        self._law_of = law_of
        self._forget()

    def _forget(self) -> None:
        self._places: dict[int, int] = {}  # by identity: hashing a round takes long
        self._rounds: list[Entry] = []
        self._own: list[Sums] = []
        self._tables: dict[float, _Tables] = {}
        self._kind: BoundKind = "upper"

    def composition(self, rounds: Sequence[Entry], steps: Sequence[int]) -> GrowingComposition:
        """Rounds composed.

        Args:
            rounds: distinct rounds, at least one.
            steps: how often each is run.
        """
        if len(self._rounds) + len(rounds) > _MOST_KINDS and any(map(self._is_new, rounds)):
            self._forget()
        places = [self._place(each) for each in rounds]
        whole = Sums()
        for place, step in zip(places, steps, strict=True):
            whole = whole.joined(self._own[place], step)
        return GrowingComposition(_Counts(self, places, steps), whole, kind=self._kind, number=0)

    def _is_new(self, each: Entry) -> bool:
        place = self._places.get(id(each))
        return place is None or self._rounds[place] is not each  # a copy of this object has other rounds

    def _place(self, each: Entry) -> int:
        if self._is_new(each):
            law = self._law_of(each)
            self._places[id(each)], self._kind = len(self._rounds), law.kind
            self._rounds.append(each)
            self._own.append(Sums.of(law))
        return self._places[id(each)]

    def tables(self, cell: float, places: Sequence[int]) -> _Tables:
        """What is kept on the grid of this cell, at least of these places."""
        tables = self._tables.pop(cell, None) or _Tables(cell)
        self._tables[cell] = tables  # the latest is the last
        while len(self._tables) > _MOST_CELLS:
            del self._tables[next(iter(self._tables))]
        for place in places:
            if place not in tables.grids:
                tables.grids[place] = to_grid(self._law_of(self._rounds[place]), cell)
        return tables


class _Counts(Generic[Entry]):
    """How often which rounds are run: what a composition asks."""

    def __init__(self, history: CountedHistory[Entry], places: Sequence[int], steps: Sequence[int]) -> None:
        self._history, self._places, self._steps = history, places, steps

    def check_latest(self, number: int) -> None:
        """Nothing that is kept belongs to one composition alone."""

    def at_cell(self, cell: float) -> _CountsAtCell:
        """The same rounds on the grid of this cell."""
        return _CountsAtCell(self._history.tables(cell, self._places), self._places, self._steps)


@dataclass(slots=True)
class _Tables:
    """What is kept of each place on the grid of one cell.

    Attributes:
        cell: of the grid.
        grids: masses.
        moments: under each tilt, three numbers a place; not a number where nobody asked.
        transforms: at each tilt and size.
    """

    cell: float
    grids: dict[int, GridLaw] = field(default_factory=dict)
    moments: dict[float, Floats] = field(default_factory=dict)
    transforms: dict[tuple[float, int], dict[int, _Transform]] = field(default_factory=dict)

    def moments_of(self, places: Sequence[int], tilt: float) -> Floats:
        """log E[e^(tilt·L)] and its first two derivatives, shape (places, 3)."""
        table = self.moments.pop(tilt, np.full((0, 3), math.nan))
        if len(table) <= max(places):
            more = np.full((max(places) + 1 - len(table), 3), math.nan)
            table = np.concatenate([table, more])
        for place in places:
            if math.isnan(table[place, 0]):
                table[place] = tilted_moments(self.grids[place], self.cell, tilt)
        self.moments[tilt] = table
        if len(self.moments) > _MOST_TILTS:
            del self.moments[next(iter(self.moments))]
        return np.asarray(table[np.asarray(places)], dtype=np.float64)

    def transforms_of(self, places: Sequence[int], tilt: float, size: int) -> list[_Transform]:
        """Transforms of the tilted masses."""
        found = self.transforms.pop((tilt, size), {})
        self.transforms[tilt, size] = found
        if len(self.transforms) > _MOST_SPECTRA:
            del self.transforms[next(iter(self.transforms))]
        for place in places:
            if place not in found:
                found[place] = _Transform.of(self.grids[place], self.cell, tilt, size)
        return [found[place] for place in places]


@dataclass(frozen=True, slots=True)
class _Transform:
    """Of one law's tilted masses, about their mean: there angles are small and keep their digits.

    Attributes:
        table: at the first frequencies, shape (5, frequencies): log size, angle, size of the angle, relative
            error, and log of how large it can be.
        beyond: log of how large it can be in each band of further frequencies.
        mean: grid point of the mean.
    """

    table: Floats
    beyond: Floats
    mean: int

    @classmethod
    def of(cls, grid: GridLaw, cell: float, tilt: float, size: int) -> _Transform:
        weight = tilted(grid, cell, tilt)
        middle = round(float((weight * np.arange(len(weight))).sum()))
        centred = tally((np.arange(len(weight)) - middle) % size, weight, size)
        transform = fft.rfft(centred)
        magnitude = np.abs(transform)
        rounding = Spectrum.of_nothing(size).rounding
        bound = np.log(magnitude + rounding)
        first = transform[:_FREQUENCIES]
        angle = np.angle(first)
        size_of = np.maximum(magnitude[:_FREQUENCIES], 1e-300)
        error = rounding / size_of + 8 * _UNIT_ROUNDOFF
        table = np.stack([np.log(size_of), angle, np.abs(angle), error, bound[:_FREQUENCIES]])
        rest = bound[_FREQUENCIES:]
        rest = np.append(rest, np.full(-len(rest) % _BANDS, -math.inf))
        return cls(table, rest.reshape(_BANDS, -1).max(axis=1, initial=-math.inf), grid.first + middle)


class _CountsAtCell:
    """Rounds, by how often each is run, on one grid.

    Args:
        tables: of all rounds.
        places: of the rounds that are composed.
        steps: how often each is run.
    """

    def __init__(self, tables: _Tables, places: Sequence[int], steps: Sequence[int]) -> None:
        self._tables, self._places, self._steps = tables, places, steps

    @property
    def ends(self) -> Ends:
        """Where the losses of all these rounds together may end."""
        found = Ends()
        for place, step in zip(self._places, self._steps, strict=True):
            found = found.joined(self._tables.grids[place], step)
        return found

    def moments(self, tilt: float) -> Moments:
        """The sum of all rounds' moments under a tilt."""
        own = self._tables.moments_of(self._places, tilt)
        value, mean, variance = (np.asarray(self._steps, dtype=np.float64)[:, None] * own).sum(axis=0)
        return float(value), float(mean), float(variance)

    def spectrum(self, tilt: float, size: int) -> Spectrum:
        """The product of all rounds' tilted transforms."""
        transforms = self._tables.transforms_of(self._places, tilt, size)
        steps = self._steps
        whole = Spectrum.of_nothing(size)
        total, beyond = np.zeros_like(transforms[0].table), np.zeros(_BANDS)
        for step, each in zip(steps, transforms, strict=True):
            total += step * each.table
            beyond += step * each.beyond
        kept = total.shape[1]
        left_out = len(whole.product) - kept
        beyond = np.repeat(np.maximum(beyond, -700.0), -(-left_out // _BANDS))[:left_out]
        if 2 * float(np.exp(beyond).sum()) > _MOST_LEFT_OUT:
            return self._at_all_frequencies(tilt, size)
        log_size, angle, turned, error, bound = total
        # Each term of a sum of logarithms is rounded, and each partial sum.
        error += (len(steps) + 4) * _UNIT_ROUNDOFF * (np.abs(log_size) + turned)
        with np.errstate(under="ignore"):
            whole.product[:kept] = np.exp(log_size + 1j * angle)
        whole.product[kept:] = 0.0
        whole.relative_error[:kept], whole.log_bound[:kept] = error, bound
        whole.relative_error[kept:], whole.log_bound[kept:] = 1.0, beyond
        whole.shift = sum(step * each.mean for step, each in zip(steps, transforms, strict=True))
        return whole

    def _at_all_frequencies(self, tilt: float, size: int) -> Spectrum:
        whole = Spectrum.of_nothing(size)
        for place, step in zip(self._places, self._steps, strict=True):
            grid = self._tables.grids[place]
            whole.include(tilted(grid, self._tables.cell, tilt), first=grid.first, step=step)
        return whole
