"""Composition of a history that grows: what was composed for one question is kept for the next.

A composition depends on the history as a whole through few numbers only: the cell of the grid, the tilts, the
number of points. Every value of those gives a valid bound, so here they are rungs of fixed ladders, which
rarely change while a history grows: sums and products over its rounds go on from where the last question left
them. Rounds are taken in the order of the history, so that an answer does not depend on earlier questions.

A question costs as much after ten thousand rounds as after a hundred, but for transforms that grow with the
square root of the rounds. Where a number moves to another rung, all rounds are gone through again, many at
once: ten thousand in less than a second. Kept are, of each distinct round, its law and its masses on the grid
(some ten kilobytes), of each round a few numbers, and a few transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from shuffle_plugins.accounting.composition.pld import (
    MAX_GRID,
    GridLaw,
    LossComposition,
    Moments,
    Spectrum,
    Window,
    to_grid,
)
from shuffle_plugins.accounting.losses.distribution import BoundKind, PrivacyLossDistribution, growth_of
from shuffle_plugins.accounting.numerics.grid import Floats, transform_size

Entry = TypeVar("Entry")
"""What a history is made of, such as rounds; equal entries have the same losses."""

_RUNGS = 4  # of a ladder, to each doubling
_MOST_SPECTRA = 8  # kept for one cell; a question takes two or three
_MOST_TRIED = 64  # laws of rounds that no history has
_MANY = 64  # rounds, from which going through them at once is faster
_AT_ONCE = 1 << 18  # numbers of several rounds side by side: they fit into a cache
_MOST_CELLS_KEPT = 2  # a question about one more round may want another cell than the history itself

_NO_MOMENTS: Moments = (0.0, 0.0, 0.0)


class Sums(NamedTuple):
    """What a composition is told of the laws of its rounds, or of its first few, by sums and maxima.

    Attributes:
        steps: how many rounds are run.
        variance: of their losses together.
        missing: P mass left out of their laws.
        pure: their largest losses together, rounded up.
        span: largest range of losses of one law.
        cells: largest number of grid cells to a deviation that a law asks for.
        loss_error, mass_error: by how much rounding may move losses and masses, together, rounded up.
        flat: whether every loss is 0.
        symmetric: whether exchanging P and Q changes nothing.
    """

    steps: int = 0
    variance: float = 0.0
    missing: float = 0.0
    pure: float = 0.0
    span: float = 0.0
    cells: int = 0
    loss_error: float = 0.0
    mass_error: float = 0.0
    flat: bool = True
    symmetric: bool = True

    @classmethod
    def of(cls, law: PrivacyLossDistribution) -> Sums:
        """Of one round of this law."""
        return cls(
            steps=1,
            variance=law.deviation**2,
            missing=law.missing,
            pure=float(law.loss[-1]),
            span=float(law.loss[-1] - law.loss[0]),
            cells=law.cells,
            loss_error=law.loss_error,
            mass_error=law.mass_error,
            flat=not np.any(law.loss != 0),
            symmetric=law.symmetric,
        )

    def joined(self, other: Sums, steps: int) -> Sums:
        """Of these rounds and ``steps`` of another."""
        return Sums(
            steps=self.steps + steps,
            variance=self.variance + steps * other.variance,
            missing=self.missing + steps * other.missing,
            pure=_raised(self.pure, steps, other.pure),
            span=max(self.span, other.span),
            cells=max(self.cells, other.cells),
            loss_error=_raised(self.loss_error, steps, other.loss_error),
            mass_error=_raised(self.mass_error, steps, other.mass_error),
            flat=self.flat and other.flat,
            symmetric=self.symmetric and other.symmetric,
        )


class Ends(NamedTuple):
    """On a grid: the first and the last point of a composition, and the largest size of one law's loss."""

    first: int = 0
    last: int = 0
    largest: int = 0

    def joined(self, grid: GridLaw, steps: int) -> Ends:
        """Of these rounds and ``steps`` of another."""
        first, last = grid.first, grid.first + len(grid.p) - 1
        largest = max(self.largest, abs(first), abs(last))
        return Ends(self.first + steps * first, self.last + steps * last, largest)


class GrowingHistory(Generic[Entry]):
    """The laws of a history's rounds, and what was composed of them so far.

    Args:
        law_of: the law of a round; those of all rounds bound from the same side.
    """

    def __init__(self, law_of: Callable[[Entry], PrivacyLossDistribution]) -> None:
        self._law_of = law_of
        self._rounds: list[Entry] = []
        self._steps: list[int] = []
        self._laws: dict[Entry, PrivacyLossDistribution] = {}  # of each distinct round
        self._own: dict[Entry, Sums] = {}  # of one step of it
        self._sums = [Sums()]  # of the first rounds, as many as the place says
        self._kept: dict[float, _AtCell[Entry]] = {}
        self._kind: BoundKind = "upper"
        self._number = 0

    def composition(self, rounds: Sequence[Entry], steps: Sequence[int]) -> GrowingComposition:
        """All of a history composed. Faster the more of its beginning was composed before.

        Args:
            rounds: the rounds of a history, in their order, at least one.
            steps: how often each is run.
        """
        # All but the last round are folded into what is kept: of that one more steps may follow. What was
        # folded with other numbers of steps, for a history that was replaced or only tried, is of no use.
        last = len(rounds) - 1
        folded = _common(rounds, self._rounds, at_most=last)
        folded = _common(steps, self._steps, at_most=folded)
        self._sums = self._sums[: folded + 1]
        for kept in self._kept.values():
            kept.forget(folded)
        for each in rounds[folded:]:
            if each not in self._own:
                law = self._laws[each] = self._law_of(each)
                self._own[each], self._kind = Sums.of(law), law.kind
        _prune(self._own, rounds)
        _prune(self._laws, rounds)
        for place in range(len(self._sums) - 1, last):
            self._sums.append(self._sums[-1].joined(self._own[rounds[place]], steps[place]))
        self._rounds[folded:], self._steps[folded:] = rounds[folded:], steps[folded:]
        self._number += 1
        whole = self._sums[last].joined(self._own[rounds[last]], steps[last])
        return GrowingComposition(self, whole, kind=self._kind, number=self._number)

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing about the history that was composed last."""
        return self._sums[-1].symmetric and self._own[self._rounds[-1]].symmetric

    def check_latest(self, number: int) -> None:
        """Raise RuntimeError unless this composition is the last one made: what is kept is for that one."""
        if number != self._number:
            raise RuntimeError("the history went on; compose it anew")

    def at_cell(self, cell: float) -> _AtCell[Entry]:
        """What is kept on the grid of this cell."""
        kept = self._kept.pop(cell, None) or _AtCell(cell, self._laws)
        self._kept[cell] = kept  # the latest is the last
        while len(self._kept) > _MOST_CELLS_KEPT:
            del self._kept[next(iter(self._kept))]
        kept.extend(self._rounds, self._steps)
        return kept


class _AtCell(Generic[Entry]):
    """What is kept of a history on the grid of one cell.

    Args:
        cell: of the grid.
        laws: of the history's rounds.
    """

    def __init__(self, cell: float, laws: Mapping[Entry, PrivacyLossDistribution]) -> None:
        self._cell, self._laws = cell, laws
        self._distinct: dict[Entry, GridLaw] = {}
        self._grids: list[GridLaw] = []
        self._steps: list[int] = []
        self._ends = [Ends()]
        self._moments: dict[float, tuple[int, Moments]] = {}
        self._spectra: dict[tuple[float, int], tuple[int, Spectrum]] = {}

    def forget(self, folded: int) -> None:
        """Keep what the first ``folded`` rounds add up to, at most."""
        del self._grids[folded:], self._steps[folded:], self._ends[folded + 1 :]
        self._moments = {key: kept for key, kept in self._moments.items() if kept[0] <= folded}
        self._spectra = {key: kept for key, kept in self._spectra.items() if kept[0] <= folded}

    def extend(self, rounds: Sequence[Entry], steps: Sequence[int]) -> None:
        """Put further rounds of the history on the grid."""
        known = len(self._grids)
        for each, step in zip(rounds[known:], steps[known:], strict=True):
            if each not in self._distinct:
                self._distinct[each] = to_grid(self._laws[each], self._cell)
            self._grids.append(self._distinct[each])
            self._steps.append(step)
            self._ends.append(self._ends[-1].joined(self._grids[-1], step))
        _prune(self._distinct, rounds)

    @property
    def ends(self) -> Ends:
        """Of the whole history."""
        return self._ends[-1]

    def moments(self, tilt: float) -> Moments:
        """The sum of all rounds' moments under a tilt."""
        count, found = self._moments.get(tilt, (0, _NO_MOMENTS))
        last = len(self._grids) - 1
        found = self._added(found, tilt, count, last)
        self._moments[tilt] = last, found
        return self._added(found, tilt, last, last + 1)

    def _added(self, moments: Moments, tilt: float, start: int, stop: int) -> Moments:
        value, mean, variance = moments
        for origin, mass, steps in self._side_by_side(start, stop):
            loss = (origin + np.arange(mass.shape[1])) * self._cell
            weight = np.exp(tilt * loss)  # a tilt is so small that all are floats
            weighted = mass * weight
            total = weighted.sum(axis=1)
            means = weighted @ loss / total
            value += float(steps @ np.log(total))
            mean += float(steps @ means)
            variance += float(steps @ np.maximum(weighted @ loss**2 / total - means**2, 0.0))
        return value, mean, variance

    def _side_by_side(self, start: int, stop: int) -> Iterator[tuple[int, Floats, Floats]]:
        """Some rounds' masses, many at once: the first grid point, shape (rounds, points), and the steps."""
        while start < stop:
            first, last, end = 0, 0, start
            while end < stop:
                grid = self._grids[end]
                low, high = min(first, grid.first), max(last, grid.first + len(grid.p))
                if end > start and (end - start + 1) * (high - low) > _AT_ONCE:
                    break
                first, last, end = low, high, end + 1
            mass = np.zeros((end - start, last - first))
            for row, grid in zip(mass, self._grids[start:end], strict=True):
                row[grid.first - first : grid.first - first + len(grid.p)] = grid.p
            yield first, mass, np.array(self._steps[start:end], dtype=np.float64)
            start = end

    def spectrum(self, tilt: float, size: int) -> Spectrum:
        """The product of all rounds' tilted transforms."""
        count, found = self._spectra.pop((tilt, size), (0, None))
        found = found or Spectrum.of_nothing(size)
        last = len(self._grids) - 1
        while count < last:
            many = min(last - count, _AT_ONCE // max(len(found.left), 1))
            if many < _MANY:
                self._include(found, tilt, count)
                count += 1
                continue
            for origin, mass, steps in self._side_by_side(count, count + many):
                weight = mass * np.exp(tilt * self._cell * (origin + np.arange(mass.shape[1])))
                found.include_all(weight / weight.sum(axis=1, keepdims=True), first=origin, steps=steps)
            count += many
        self._spectra[tilt, size] = last, found
        if len(self._spectra) > _MOST_SPECTRA:
            del self._spectra[next(iter(self._spectra))]
        whole = found.copy()
        self._include(whole, tilt, last)
        return whole

    def _include(self, found: Spectrum, tilt: float, place: int) -> None:
        grid = self._grids[place]
        found.include(tilted(grid, self._cell, tilt), first=grid.first, step=self._steps[place])


class KeptAtCell(Protocol):
    """What is kept of rounds on the grid of one cell."""

    @property
    def ends(self) -> Ends:
        """Of all of them."""
        ...

    def moments(self, tilt: float) -> Moments:
        """The sum of their moments under a tilt."""
        ...

    def spectrum(self, tilt: float, size: int) -> Spectrum:
        """The product of their tilted transforms."""
        ...


class Kept(Protocol):
    """What is kept of rounds."""

    def check_latest(self, number: int) -> None:
        """Raise RuntimeError if what is kept is no longer for the composition of this number."""
        ...

    def at_cell(self, cell: float) -> KeptAtCell:
        """The rounds on the grid of this cell."""
        ...


class GrowingComposition(LossComposition):
    """A history composed at one moment, out of what is kept of it.

    Args:
        history: what is kept.
        sums: over all its rounds.
        kind: the side from which its laws bound.
        number: of this composition of the history.
    """

    def __init__(self, history: Kept, sums: Sums, *, kind: BoundKind, number: int) -> None:
        # What the base class adds up over all laws is known already.
        self._history, self._number = history, number
        self._windows: dict[float, Window] = {}
        self._sums = sums
        self._kind = kind
        self._single = self._fewer = None
        self._total_steps = float(sums.steps)
        self._deviation = math.sqrt(sums.variance)
        if self._deviation == 0 and not sums.flat:
            raise ArithmeticError("one loss is all that is left of a law within floating-point range")
        self._missing, self._pure = sums.missing, sums.pure
        self._loss_error, self._growth = sums.loss_error, growth_of(sums.mass_error)
        self._largest = self._smallest = self._largest_step = self._cell = 0.0
        if self._deviation > 0:
            self._discretise()

    def _discretise(self) -> None:
        span = self._sums.span
        self._use_cell(_rung_below(self._finest_cell(float(self._sums.cells), span)), span)
        self._kept = self._history.at_cell(self._cell)
        ends = self._kept.ends
        self._smallest, self._largest = self._cell * ends.first, self._cell * ends.last
        self._largest_step = self._cell * ends.largest

    def _cumulant(self, tilt: float) -> Moments:
        self._history.check_latest(self._number)
        return self._kept.moments(tilt)

    def _spectrum(self, tilt: float, size: int) -> Spectrum:
        self._history.check_latest(self._number)
        return self._kept.spectrum(tilt, size)

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


def _raised(total: float, steps: int, each: float) -> float:
    """``total + steps·each``, rounded up."""
    return math.nextafter(total + math.nextafter(steps * each, math.inf), math.inf)


def _prune(known: dict[Entry, Any], rounds: Sequence[Entry]) -> None:
    """Forget rounds that were only tried once they are many."""
    if len(known) > 2 * len(rounds) + _MOST_TRIED:
        for each in known.keys() - set(rounds):
            del known[each]


def tilted_moments(grid: GridLaw, cell: float, tilt: float) -> Moments:
    """log E[e^(tilt·L)] of one law, and its first two derivatives."""
    loss = _losses(grid, cell)
    exponent = tilt * loss
    peak = float(exponent.max())
    weight = grid.p * np.exp(exponent - peak)
    total = float(weight.sum())
    mean = float((weight * loss).sum()) / total
    variance = float((weight * (loss - mean) ** 2).sum()) / total
    return math.log(total) + peak, mean, variance


def tilted(grid: GridLaw, cell: float, tilt: float) -> Floats:
    """The tilted law's masses; they add up to 1."""
    exponent = tilt * _losses(grid, cell)
    weight = grid.p * np.exp(exponent - exponent.max())
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def _losses(grid: GridLaw, cell: float) -> Floats:
    return np.asarray((grid.first + np.arange(len(grid.p))) * cell, dtype=np.float64)


def _common(first: Sequence[object], other: Sequence[object], *, at_most: int) -> int:
    """How many entries two sequences have in common at their beginning."""
    most = min(len(first), len(other), at_most)
    for count in (most, most - 1):  # nearly always one of these, and then nothing is compared one by one
        if count >= 0 and first[:count] == other[:count]:
            return count
    count = 0
    while first[count] == other[count]:
        count += 1
    return count


def _rung(number: int) -> float:
    return math.pow(2.0, number / _RUNGS)


def _rung_below(value: float) -> float:
    return _rung(math.floor(_RUNGS * math.log2(value)))
