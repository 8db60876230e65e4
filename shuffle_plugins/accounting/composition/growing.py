"""Composition of a history that grows: what was composed for one question is kept for the next.

A composition depends on the history as a whole through few numbers only: the cell of the grid, the tilts, the
number of points. Every value of those gives a valid bound, so here they are rungs of fixed ladders, which
rarely change while a history grows: sums and products over its rounds go on from where the last question left
them. Rounds are taken in the order of the history, so that an answer does not depend on earlier questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from shuffle_plugins.accounting.composition.pld import (
    MAX_GRID,
    GridLaw,
    LossComposition,
    Spectrum,
    Window,
    to_grid,
)
from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution
from shuffle_plugins.accounting.numerics.grid import Floats, transform_size

Entry = TypeVar("Entry")
"""What a history is made of, such as rounds; equal entries have the same losses."""

_RUNGS = 4  # of a ladder, to each doubling
_MOST_SPECTRA = 8  # kept; a question takes two or three

Moments = tuple[float, float, float]
_NO_MOMENTS: Moments = (0.0, 0.0, 0.0)


class GrowingHistory(Generic[Entry]):
    """The laws of a history's rounds, and what was composed of them so far.

    Args:
        law_of: the law of a round; those of all rounds bound from the same side.
    """

    def __init__(self, law_of: Callable[[Entry], PrivacyLossDistribution]) -> None:
        self._law_of = law_of
        self._rounds: list[Entry] = []
        self._steps: list[int] = []
        self._laws: list[PrivacyLossDistribution] = []
        self._number = 0
        self._cell = 0.0
        self._grids: dict[PrivacyLossDistribution, _OnGrid] = {}
        self._moments: dict[float, tuple[int, Moments]] = {}
        self._spectra: dict[tuple[float, int], tuple[int, Spectrum]] = {}

    def composition(self, rounds: Sequence[Entry], steps: Sequence[int]) -> GrowingComposition:
        """All of a history composed. Faster the more of its beginning was composed before.

        Args:
            rounds: the rounds of a history, in their order.
            steps: how often each is run.
        """
        common, most = 0, min(len(rounds), len(self._rounds))
        while common < most and _same(rounds[common], self._rounds[common]):
            common += 1
        if common < len(self._rounds):
            del self._rounds[common:], self._laws[common:]
        # All but the last round are folded into what is kept: of that one more steps may follow. What was
        # folded with other numbers of steps, for a history that was replaced or only tried, is of no use.
        folded = 0
        while folded < min(common, len(rounds) - 1) and steps[folded] == self._steps[folded]:
            folded += 1
        self._moments = {key: kept for key, kept in self._moments.items() if kept[0] <= folded}
        self._spectra = {key: kept for key, kept in self._spectra.items() if kept[0] <= folded}
        self._laws += [self._law_of(each) for each in rounds[common:]]
        self._rounds += rounds[common:]
        self._steps = list(steps)
        self._number += 1
        return GrowingComposition(self, self._laws, steps, number=self._number)

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing about the history that was composed last."""
        return all(law.symmetric for law in self._laws)

    def check_latest(self, number: int) -> None:
        """Raise RuntimeError unless this composition is the last one made: what is kept is for that one."""
        if number != self._number:
            raise RuntimeError("the history went on; compose it anew")

    def on_grid(self, cell: float) -> list[_OnGrid]:
        """Every round's law on the grid of this cell."""
        if cell != self._cell:
            self._cell = cell
            self._grids, self._moments, self._spectra = {}, {}, {}
        for law in self._laws:
            if law not in self._grids:
                self._grids[law] = _OnGrid.of(law, cell)
        return [self._grids[law] for law in self._laws]

    def moments(self, laws: Sequence[_OnGrid], steps: Sequence[int], tilt: float) -> Moments:
        """The sum of all rounds' moments under a tilt."""
        count, found = self._moments.get(tilt, (0, _NO_MOMENTS))
        last = len(laws) - 1
        found = _added(found, zip(laws[count:last], steps[count:last], strict=True), tilt)
        self._moments[tilt] = last, found
        return _added(found, [(laws[last], steps[last])], tilt)

    def spectrum(self, laws: Sequence[_OnGrid], steps: Sequence[int], tilt: float, size: int) -> Spectrum:
        """The product of all rounds' tilted transforms."""
        count, found = self._spectra.pop((tilt, size), (0, None))
        found = found or Spectrum.of_nothing(size)
        last = len(laws) - 1
        for law, step in zip(laws[count:last], steps[count:last], strict=True):
            found.include(law.tilted(tilt), first=law.grid.first, step=step)
        self._spectra[tilt, size] = last, found
        if len(self._spectra) > _MOST_SPECTRA:
            del self._spectra[next(iter(self._spectra))]
        whole = found.copy()
        whole.include(laws[last].tilted(tilt), first=laws[last].grid.first, step=steps[last])
        return whole


class GrowingComposition(LossComposition):
    """A history composed at one moment, out of what a :class:`GrowingHistory` keeps.

    Args:
        history: of these laws.
        laws: of all rounds in their order, at least one.
        steps: how often each is run.
        number: of this composition of the history.
    """

    def __init__(
        self,
        history: GrowingHistory[Any],
        laws: Sequence[PrivacyLossDistribution],
        steps: Sequence[int],
        *,
        number: int,
    ) -> None:
        self._history, self._number = history, number
        self._whole_steps = list(steps)
        self._windows: dict[float, Window] = {}
        super().__init__(laws, steps)

    def _discretise(self) -> None:
        span = max(float(law.loss[-1] - law.loss[0]) for law in self._laws)
        wanted = float(max(law.cells for law in self._laws))
        self._use_cell(_rung_below(self._finest_cell(wanted, span)), span)
        self._on_grid = self._history.on_grid(self._cell)
        first = [law.grid.first for law in self._on_grid]
        last = [law.grid.first + len(law.grid.p) - 1 for law in self._on_grid]
        self._smallest = self._cell * sum(map(int.__mul__, self._whole_steps, first))
        self._largest = self._cell * sum(map(int.__mul__, self._whole_steps, last))
        self._largest_step = self._cell * max(map(abs, (*first, *last)))

    def _cumulant(self, tilt: float) -> Moments:
        self._history.check_latest(self._number)
        return self._history.moments(self._on_grid, self._whole_steps, tilt)

    def _spectrum(self, tilt: float, size: int) -> Spectrum:
        self._history.check_latest(self._number)
        return self._history.spectrum(self._on_grid, self._whole_steps, tilt, size)

    def _window(self, tilt: float) -> Window:
        if tilt not in self._windows:
            self._windows[tilt] = super()._window(tilt)
        return self._windows[tilt]

    def _points(self, least: int) -> int:
        power = 1 << (least - 1).bit_length()
        points = power * 3 // 4 if power * 3 // 4 >= least else power
        return points if points <= MAX_GRID else transform_size(least)

    def _largest_tilt(self) -> float:
        return _rung_below(super()._largest_tilt())

    def _near(self, tilt: float) -> float:
        return math.copysign(_rung_below(abs(tilt)), tilt) if tilt else 0.0

    def _solve_tilt(self, excess: Callable[[float], float]) -> float:
        """The lowest rung that is high enough; at most 19 % too high, about a deviation at the centre."""
        high = self._largest_tilt()
        if excess(0.0) >= 0:
            return 0.0
        if excess(high) <= 0:
            return high
        # Most answers are a few doublings above the inverse of the deviation.
        octave = math.floor(math.log2(min(1.0 / self._deviation, high / 2)))
        while excess(math.pow(2.0, octave)) > 0:
            octave -= 1
        while excess(min(math.pow(2.0, octave + 1), high)) <= 0:
            octave += 1
        rungs = (min(_rung(_RUNGS * octave + i), high) for i in range(1, _RUNGS))
        return next((rung for rung in rungs if excess(rung) > 0), min(math.pow(2.0, octave + 1), high))


@dataclass(frozen=True, slots=True)
class _OnGrid:
    """One law on a grid, and its moments under every tilt that was asked for."""

    grid: GridLaw
    loss: Floats
    moments: dict[float, Moments] = field(default_factory=dict)

    @classmethod
    def of(cls, law: PrivacyLossDistribution, cell: float) -> _OnGrid:
        grid = to_grid(law, cell)
        return cls(grid, np.asarray((grid.first + np.arange(len(grid.p))) * cell, dtype=np.float64))

    def under(self, tilt: float) -> Moments:
        """log E[e^(tilt·L)] and its first two derivatives."""
        found = self.moments.get(tilt)
        if found is None:
            exponent = tilt * self.loss
            peak = float(exponent.max())
            weight = self.grid.p * np.exp(exponent - peak)
            total = float(weight.sum())
            mean = float((weight * self.loss).sum()) / total
            variance = float((weight * (self.loss - mean) ** 2).sum()) / total
            found = self.moments[tilt] = math.log(total) + peak, mean, variance
        return found

    def tilted(self, tilt: float) -> Floats:
        """The tilted law's masses; they add up to 1."""
        exponent = tilt * self.loss
        weight = self.grid.p * np.exp(exponent - exponent.max())
        return np.asarray(weight / weight.sum(), dtype=np.float64)


def _added(moments: Moments, laws: Iterable[tuple[_OnGrid, int]], tilt: float) -> Moments:
    value, mean, variance = moments
    for law, step in laws:
        own = law.under(tilt)
        value, mean, variance = value + step * own[0], mean + step * own[1], variance + step * own[2]
    return value, mean, variance


def _same(first: object, second: object) -> bool:
    return first is second or first == second


def _rung(number: int) -> float:
    return math.pow(2.0, number / _RUNGS)


def _rung_below(value: float) -> float:
    return _rung(math.floor(_RUNGS * math.log2(value)))
