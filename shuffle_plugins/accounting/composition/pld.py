"""Composition of privacy loss distributions by FFT, with every numerical error charged to the result.

The composed law is computed under an exponential tilt that puts the wanted ε in the middle of the transform,
so that δ = 1e-15 is as accurate as δ = 1e-2. What is charged, and why rounding to the grid is on the safe
side: ``docs/proofs/accounting.md``, section 5. Every cell, tilt and number of points gives a valid bound. All
are rungs of fixed ladders, so that what was composed for one question serves a history that went on.

Sources: privacy loss distributions and their composition, Koskela, Jälkö, Honkela 2020 and Gopi, Lee,
Wutschitz 2021; pessimistic rounding, Doroshenko et al. 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy import fft

from shuffle_plugins.accounting.losses.distribution import BoundKind, PrivacyLossDistribution, growth_of
from shuffle_plugins.accounting.numerics.grid import Floats, merge_to_grid, spread_to_grid, tally

Entry = TypeVar("Entry")
"""What a history is made of, such as rounds; equal entries have the same losses."""

_SIGMAS = 9.0  # tilted deviations on either side of a window; what lies outside is bounded, not ignored
_MOST_GRID = 1 << 23  # points of the largest transform: its arrays take some hundred megabytes
_RUNGS = 4  # of a ladder, to each doubling
_UNIT_ROUNDOFF = 2.0**-53
_RELATIVE_SLACK = 1e-10  # of a δ summed over outcomes: more than sums of so many positive numbers can be off
_NO_FLOAT = -746.0  # log of what is zero as a float
_LARGEST_EXPONENT = 600.0  # e to this power, times a mass or over it, is a float
_NEGLIGIBLE_OUTSIDE = 1e-12  # tilted mass outside a window
_NEXT_TO_NOTHING = 1e-9  # of ε: closer than that to the largest losses together it is not looked for


class _Sums(NamedTuple):
    """What the first laws of a history add up to, each as often as it is run; errors are rounded up."""

    steps: int = 0
    variance: float = 0.0
    missing: float = 0.0
    pure: float = 0.0  # the largest losses together
    log_largest: float = 0.0  # log P mass of the largest losses together, and those next to nothing below
    span: float = 0.0  # largest range of losses of one law
    cells: int = 0  # most to a deviation that a law asks for
    loss_error: float = 0.0
    mass_error: float = 0.0
    flat: bool = True  # every loss is 0
    symmetric: bool = True

    @classmethod
    def of(cls, law: PrivacyLossDistribution) -> _Sums:
        largest = law.p[law.loss >= (1 - _NEXT_TO_NOTHING) * law.loss[-1]].sum()
        return cls(
            steps=1,
            variance=law.deviation**2,
            missing=law.missing,
            pure=float(law.loss[-1]),
            log_largest=math.log(largest),
            span=float(law.loss[-1] - law.loss[0]),
            cells=law.cells,
            loss_error=law.loss_error,
            mass_error=law.mass_error,
            flat=not np.any(law.loss != 0),
            symmetric=law.symmetric,
        )

    def joined(self, other: _Sums, steps: int) -> _Sums:
        return _Sums(
            steps=self.steps + steps,
            variance=self.variance + steps * other.variance,
            missing=self.missing + steps * other.missing,
            pure=_raised(self.pure, steps, other.pure),
            log_largest=self.log_largest + steps * other.log_largest,
            span=max(self.span, other.span),
            cells=max(self.cells, other.cells),
            loss_error=_raised(self.loss_error, steps, other.loss_error),
            mass_error=_raised(self.mass_error, steps, other.mass_error),
            flat=self.flat and other.flat,
            symmetric=self.symmetric and other.symmetric,
        )


class LossHistory(Generic[Entry]):
    """The laws of a history's rounds, and what was composed of them so far.

    A question costs as much after ten thousand rounds as after a hundred, but for transforms that grow with
    the square root of the rounds. Where a number moves to another rung, all rounds are gone through again,
    many at once: ten thousand in less than a second.

    Args:
        law_of: the law of a round; those of all rounds bound from the same side.
        whole: keep all of the mass of laws from below on the grid, for thousands of steps of each: see
            :func:`merge_to_grid`.
    """

    def __init__(self, law_of: Callable[[Entry], PrivacyLossDistribution], *, whole: bool = False) -> None:
        self._law_of, self.whole = law_of, whole
        self.rounds: list[Entry] = []
        self.steps: list[int] = []
        self._laws: dict[Entry, tuple[PrivacyLossDistribution, _Sums]] = {}
        self._sums = [_Sums()]  # of the first rounds, as many as the place says
        self.total = _Sums()
        self._kept: dict[float, _OnGrid] = {}
        self.kind: BoundKind = "upper"
        self.number = 0  # of times that the history was followed

    def follow(self, rounds: list[Entry], steps: list[int]) -> _Sums:
        """Take over a history; faster the more of its beginning is known."""
        # All but the last round are folded into what is kept: of that one more steps may follow. What was
        # folded with other numbers of steps, for a history that was replaced or only tried, is of no use.
        last = len(rounds) - 1
        folded = _common(rounds, self.rounds, at_most=last)
        folded = _common(steps, self.steps, at_most=folded)
        del self._sums[folded + 1 :]
        for kept in self._kept.values():
            kept.forget(folded)
        for each in rounds[folded:]:
            if each not in self._laws:
                law = self._law_of(each)
                if self._laws and law.kind != self.kind:
                    raise ValueError("laws that bound from above and from below cannot be composed together")
                self._laws[each], self.kind = (law, _Sums.of(law)), law.kind
        _prune(self._laws, rounds)
        for place in range(len(self._sums) - 1, last):
            self._sums.append(self._sums[-1].joined(self._laws[rounds[place]][1], steps[place]))
        self.rounds[folded:], self.steps[folded:] = rounds[folded:], steps[folded:]
        self.number += 1
        self.total = self._sums[last].joined(self._laws[rounds[last]][1], steps[last])
        return self.total

    def law(self, place: int) -> PrivacyLossDistribution:
        """The law of the round at this place."""
        return self._laws[self.rounds[place]][0]

    def at_cell(self, cell: float) -> _OnGrid:
        """The history on the grid of this cell."""
        kept = self._kept.pop(cell, None) or _OnGrid(cell)
        self._kept[cell] = kept  # the latest is the last
        while len(self._kept) > 2:  # a question takes one cell
            del self._kept[next(iter(self._kept))]
        for place in range(len(kept.grids), len(self.rounds)):
            each = self.rounds[place]
            if each not in kept.distinct:
                kept.distinct[each] = _GridLaw.of(self.law(place), cell, whole=self.whole)
            kept.append(kept.distinct[each], self.steps[place])
        _prune(kept.distinct, self.rounds)
        return kept


@dataclass(frozen=True, slots=True)
class _GridLaw:
    """Masses at consecutive grid points from ``first`` on, and the occupied ones with their losses."""

    first: int
    p: Floats
    loss: Floats
    mass: Floats

    @classmethod
    def of(cls, law: PrivacyLossDistribution, cell: float, *, whole: bool) -> _GridLaw:
        """The law with losses on a grid, on the side that it bounds from."""
        if law.kind == "upper":
            first, q = spread_to_grid(law.loss, law.q, cell=cell)
            p = q * np.exp((first + np.arange(len(q))) * cell)
        else:
            first, p = merge_to_grid(law.loss, law.p, law.q, cell=cell, whole=whole)
        at = np.flatnonzero(p)
        return cls(first=first, p=p, loss=cell * (first + at).astype(np.float64), mass=p[at])


class _Moments(NamedTuple):
    """log E[e^(tilt·L)] at a tilt, and its first two derivatives."""

    value: float = 0.0
    mean: float = 0.0
    variance: float = 0.0


class _OnGrid:
    """What is kept of a history on the grid of one cell."""

    def __init__(self, cell: float) -> None:
        self.cell = cell
        self.distinct: dict[Any, _GridLaw] = {}
        self.grids: list[_GridLaw] = []
        self.steps: list[int] = []
        # First and last grid point of the first laws together, and largest loss of one of them.
        self.ends: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._moments: dict[float, tuple[int, _Moments]] = {}
        self._spectra: dict[tuple[float, int], tuple[int, Spectrum]] = {}

    def forget(self, folded: int) -> None:
        """Keep what the first ``folded`` rounds add up to, at most."""
        del self.grids[folded:], self.steps[folded:], self.ends[folded + 1 :]
        self._moments = {key: kept for key, kept in self._moments.items() if kept[0] <= folded}
        self._spectra = {key: kept for key, kept in self._spectra.items() if kept[0] <= folded}

    def append(self, grid: _GridLaw, steps: int) -> None:
        (low, high, largest), first, last = self.ends[-1], grid.first, grid.first + len(grid.p) - 1
        self.ends.append((low + steps * first, high + steps * last, max(largest, abs(first), abs(last))))
        self.grids.append(grid)
        self.steps.append(steps)

    def moments(self, tilt: float) -> _Moments:
        """The sum of all rounds' moments under a tilt."""
        count, found = self._moments.get(tilt, (0, _Moments()))
        last = len(self.grids) - 1
        found = self._added(found, tilt, count, last)
        self._moments[tilt] = last, found
        return self._added(found, tilt, last, last + 1)

    def _added(self, moments: _Moments, tilt: float, start: int, stop: int) -> _Moments:
        value, mean, variance = moments
        for grids, steps in self._batches(start, stop, lambda grid: len(grid.loss)):
            loss, mass = np.zeros((2, len(grids), max(len(grid.loss) for grid in grids)))
            for row, grid in enumerate(grids):
                loss[row, : len(grid.loss)], mass[row, : len(grid.loss)] = grid.loss, grid.mass
                loss[row, len(grid.loss) :] = grid.loss[0]
            exponent = tilt * loss
            peak = exponent.max(axis=1, keepdims=True)
            weight = mass * np.exp(exponent - peak)
            total = weight.sum(axis=1)
            means = (weight * loss).sum(axis=1) / total
            value += float(steps @ (np.log(total) + peak[:, 0]))
            mean += float(steps @ means)
            variance += float(steps @ ((weight * (loss - means[:, None]) ** 2).sum(axis=1) / total))
        return _Moments(value, mean, variance)

    def _batches(
        self, start: int, stop: int, length: Callable[[_GridLaw], int]
    ) -> Iterator[tuple[list[_GridLaw], Floats]]:
        """Different laws and their steps, as many at once as fit into a cache."""
        counts: dict[int, int] = {}
        for grid, steps in zip(self.grids[start:stop], self.steps[start:stop], strict=True):
            counts[id(grid)] = counts.get(id(grid), 0) + steps
        known = {id(grid): grid for grid in self.grids[start:stop]}
        part: list[_GridLaw] = []
        longest = 0
        for place in counts:
            wider = max(longest, length(known[place]))
            if part and (len(part) + 1) * wider > 1 << 18:
                yield part, np.array([counts[id(each)] for each in part], dtype=np.float64)
                part, wider = [], length(known[place])
            part.append(known[place])
            longest = wider
        if part:
            yield part, np.array([counts[id(each)] for each in part], dtype=np.float64)

    def spectrum(self, tilt: float, size: int) -> Spectrum:
        """The product of all rounds' tilted transforms."""
        count, found = self._spectra.pop((tilt, size), (0, None))
        found = found or Spectrum.of_nothing(size)
        last = len(self.grids) - 1
        for grids, steps in self._batches(count, last, lambda grid: len(grid.p)):
            first = min(grid.first for grid in grids)
            points = max(grid.first + len(grid.p) for grid in grids) - first
            # By definition a transform takes its points times what is left, and as much again for the waves.
            if len(found.left) * points * (1 + 5 / len(grids)) > 12 * size:
                for grid, step in zip(grids, steps, strict=True):
                    self._include(found, tilt, grid, int(step))
                continue
            weight = np.zeros((len(grids), points))
            for row, grid in zip(weight, grids, strict=True):
                row[grid.first - first : grid.first - first + len(grid.p)] = self._tilted(grid, tilt)
            found.include_all(weight, first=first, steps=steps)
        self._spectra[tilt, size] = last, found
        if len(self._spectra) > 8:  # a question takes two or three
            del self._spectra[next(iter(self._spectra))]
        whole = found.copy()
        self._include(whole, tilt, self.grids[last], self.steps[last])
        return whole

    def _tilted(self, grid: _GridLaw, tilt: float) -> Floats:
        exponent = (tilt * self.cell) * (grid.first + np.arange(len(grid.p)))
        weight = grid.p * np.exp(exponent - (exponent[-1] if tilt > 0 else exponent[0]))
        return np.asarray(weight / weight.sum(), dtype=np.float64)

    def _include(self, found: Spectrum, tilt: float, grid: _GridLaw, steps: int) -> None:
        found.include(self._tilted(grid, tilt), first=grid.first, step=steps)


class LossComposition:
    """Rounds composed: answers ε(δ) and δ(ε) from one side.

    Args:
        laws: privacy loss laws of rounds, all of one kind; with ``history``, the rounds that it knows by.
        steps: how often each is run.
        whole: as of :class:`LossHistory`.
        history: what is kept of earlier questions. A composition answers until the history goes on.

    Raises:
        ValueError: if there is nothing to compose, lengths differ, or kinds are mixed.
        ArithmeticError: if losses of very different scales share no grid.
    """

    def __init__(
        self,
        laws: Sequence[Any],
        steps: Sequence[int],
        *,
        whole: bool = False,
        history: LossHistory[Any] | None = None,
    ) -> None:
        if not laws or len(laws) != len(steps):
            raise ValueError("compose at least one law, and give every law its number of steps")
        if min(steps) < 1:
            raise ValueError("every law needs at least one step")
        self._history = LossHistory(lambda law: law, whole=whole) if history is None else history
        self._sums = sums = self._history.follow(list(laws), list(steps))
        self._number, self._kind = self._history.number, self._history.kind
        self._sign = 1.0 if self._kind == "upper" else -1.0
        self._deviation = math.sqrt(sums.variance)
        if self._deviation == 0 and not sums.flat:
            raise ArithmeticError("one loss is all that is left of a law within floating-point range")
        self._growth = growth_of(sums.mass_error)
        self._missing = sums.missing
        self._exact: Window | None = None  # of outcomes that were listed
        if sums.flat:
            self._exact = Window.listed(np.zeros(1), np.ones(1), sign=self._sign)
        elif history is None and (found := _product(laws, steps)) is not None:
            *outcomes, self._missing = found
            self._exact = Window.listed(*outcomes, sign=self._sign)
        self._windows: dict[float, Window] = {}
        self._moments: dict[float, _Moments] = {}
        if self._exact is None:
            self._cell = self._chosen_cell(laws if history is None else None)
            self._kept = self._history.at_cell(self._cell)
            low, high, largest = self._kept.ends[-1]
            self._smallest, self._largest = self._cell * low, self._cell * high
            self._largest_step = self._cell * largest
            self._most_tilt = _rung_below(min(_LARGEST_EXPONENT / self._largest_step, 2.0 / self._cell))

    def _chosen_cell(self, laws: Sequence[PrivacyLossDistribution] | None) -> float:
        """The cell of the grid; of laws that are composed once, their likeliest loss is on it, unrounded."""
        root, sums = math.sqrt(self._sums.steps), self._sums
        # A transform of the first takes milliseconds, of the second a fifth of a second.
        cheap, affordable = (points / (2 * _SIGMAS * root) for points in (1 << 17, 1 << 21))
        wanted: float = sums.cells
        if laws is not None and len(laws) == 1:  # condensed losses are known no finer
            wanted = max(wanted, min((2 if laws[0].condensed else 32) * wanted, cheap))
        cell = max(self._deviation / min(wanted, affordable), 1e-4 * sums.span) / root
        if laws is None:
            cell = _rung_below(cell)
        else:
            leading = max(laws, key=lambda law: law.deviation)
            likeliest = abs(float(leading.loss[np.argmax(leading.p)]))
            cell = likeliest / math.ceil(likeliest / cell) if likeliest > cell else cell
        if sums.span > cell * (1 << 22):
            raise ArithmeticError(
                f"losses between {cell:.3g} and {sums.span:.3g} share no grid; account for rounds of such "
                "different scales apart, or by Rényi divergences"
            )
        return cell

    # -- public -----------------------------------------------------------------------------------------

    def epsilon(self, delta: float) -> float:
        """ε at δ: rounded up and charged with every error if the laws are upper, down if they are lower."""
        upper, sums = self._kind == "upper", self._sums
        target = (delta - self._missing) / self._growth if upper else delta * self._growth
        if target <= 0:
            return math.inf
        if not upper and target >= 1:
            return 0.0
        # No outcome of the laws has more than their largest losses together, whatever rounding says.
        found = min(self._epsilon(target), sums.pure * (1 + 1e-12))
        return max(0.0, found + self._sign * sums.loss_error)

    def _epsilon(self, target: float) -> float:
        """ε of the laws as they are, of which nothing is missing."""
        upper, pure = self._kind == "upper", self._sums.pure
        if self._exact is not None:
            return self._exact.epsilon(target)
        if upper and self._below_largest(target) <= _NEXT_TO_NOTHING * pure:
            return pure
        # Every tilt gives a bound; which one is close is certain only if its mean is near the answer.
        tighter = min if upper else max
        found = math.inf if upper else 0.0
        for tilt in self._tilts(target):
            window = self._window(tilt)
            if not upper and window.noise >= 1:  # as much as all of its mass: it tells nothing
                break
            found = tighter(found, window.epsilon(target))
        if found <= 0 and not upper:
            found = self._window(0.0).epsilon(target)
        for _ in range(4):  # by windows centred on the answer
            if not 0 < found < min(self._largest, pure):
                break
            before = found
            window = self._window(self._tilt_for_epsilon(found))
            found = tighter(found, window.epsilon(target))
            if abs(found - before) <= 1e-5 * before:
                break
        return found

    def _below_largest(self, target: float) -> float:
        """How far ε can at most be below losses next to the largest ones, by their own mass; or infinity."""
        share = math.exp(min(math.log(target) - self._sums.log_largest, 0.0))
        return -math.log1p(-share) if share < 1 else math.inf

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0, rounded to the safe side."""
        return float(self.deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: Floats) -> Floats:
        """δ at each of several increasing ε ≥ 0, rounded to the safe side; shape of ``epsilons``.

        Those within a standard deviation of each other are read off one transform.
        """
        found, sums = np.zeros(len(epsilons)), self._sums
        moved = np.maximum(epsilons - self._sign * sums.loss_error, 0.0)
        if self._exact is not None:
            found = self._exact.deltas(moved)
        else:
            self._read_windows(moved, found)
        if self._kind == "upper":
            below = np.maximum(sums.loss_error - epsilons, 0.0)  # δ rises by no more from 0 to the left
            return np.clip((found + below) * self._growth + self._missing, 0.0, 1.0)
        return np.clip(found / self._growth, 0.0, 1.0)

    def _read_windows(self, epsilons: Floats, found: Floats) -> None:
        """Write δ at each ε, but for missing mass; 0 is right beyond the largest loss."""
        start, stop = 0, int(np.searchsorted(epsilons, min(self._largest, self._sums.pure), side="left"))
        while start < stop:
            tilt = self._tilt_for_epsilon(float(epsilons[start]))
            reach = float(epsilons[start]) + math.sqrt(self._cumulant(tilt).variance)
            end = min(int(np.searchsorted(epsilons, reach, side="right")), stop)
            end = max(end, start + 1)
            found[start:end] = self._window(tilt).deltas(epsilons[start:end])
            start = end

    def outcomes(self) -> tuple[Floats, Floats]:
        """Outcomes of laws from below: losses, increasing, and P masses, none above the composition's own."""
        if self._kind == "upper":
            raise ValueError("outcomes are listed of laws that bound from below")
        window = self._exact or self._window(0.0)
        # What the transform is off is spread over all points, what wraps around may meet in one. The window's
        # masses add up to 1; those of laws on a grid to a little less, as their losses are rounded down.
        mass = window.mass - window.noise / len(window.mass) - window.wrapped
        mass *= math.exp(window.log_scale) * (1 - _RELATIVE_SLACK)
        keep = mass > 0
        return window.loss[keep], mass[keep]

    # -- tilts and windows --------------------------------------------------------------------------------

    def _cumulant(self, tilt: float) -> _Moments:
        if self._history.number != self._number:
            raise RuntimeError("the history went on; compose it anew")
        if tilt not in self._moments:
            self._moments[tilt] = self._kept.moments(tilt)
        return self._moments[tilt]

    def _tilt_for_epsilon(self, epsilon: float) -> float:
        """The tilt whose mean loss is ``epsilon``."""
        return self._solve_tilt(lambda tilt: self._cumulant(tilt).mean - epsilon)

    def _tilts(self, delta: float) -> tuple[float, ...]:
        """The tilt of the Chernoff bound on P[L > ε] = δ; its mean is a little above the ε wanted.

        If the largest loss alone has more mass than δ there is none; then several that move more or less of
        the mass up to it.
        """
        log_delta = math.log(delta)

        def divergence(tilt: float) -> float:
            value, mean, _ = self._cumulant(tilt)
            return tilt * mean - value

        most = 0.9 * divergence(self._most_tilt)
        tilt = self._solve_tilt(lambda tilt: divergence(tilt) - min(-log_delta, most))
        return (tilt,) if -log_delta < most else (tilt, tilt / 4, tilt / 16, tilt / 64)

    def _solve_tilt(self, excess: Callable[[float], float]) -> float:
        """The lowest rung that is high enough: about a deviation too high at the centre.

        Losses that are rarely far larger than all others move the law at once where a tilt reaches them; then
        the rung below is closer.
        """
        most = self._most_tilt
        if excess(0.0) >= 0:
            return 0.0
        if excess(most) <= 0:
            return most
        # Most answers are a few doublings above the inverse of the deviation.
        low = float(math.floor(math.log2(min(1.0 / self._deviation, most / 2))))
        while excess(math.pow(2.0, low)) > 0:
            low -= 1
        while excess(min(math.pow(2.0, low + 1), most)) <= 0:
            low += 1
        high = low + 1
        while high - low > 1 / _RUNGS:
            middle = (low + high) / 2
            low, high = (low, middle) if excess(min(math.pow(2.0, middle), most)) > 0 else (middle, high)
        below, above = (min(math.pow(2.0, at), most) for at in (low, high))
        apart = self._cumulant(above).mean - self._cumulant(below).mean
        return below if apart > 4 * math.sqrt(self._cumulant(below).variance) else above

    def _window(self, tilt: float) -> Window:
        """The window at this tilt or, if it had too many points, at the next rung whose window has not.

        Losses that are rarely far larger than all others widen the law at once where a tilt reaches them.
        """
        for rungs in range(_RUNGS):
            with suppress(ArithmeticError):
                return self._window_at(tilt * 2.0 ** (-rungs / _RUNGS))
        return self._window_at(0.0)

    def _window_at(self, tilt: float) -> Window:
        if tilt in self._windows:
            return self._windows[tilt]
        cumulant, centre, variance = self._cumulant(tilt)
        cell = self._cell
        reach, wrapped = self._reach(tilt, cumulant, centre, math.sqrt(variance) + cell)
        least = int(2 * reach / cell) + 8
        power = 1 << (least - 1).bit_length()
        size = power * 3 // 4 if power * 3 // 4 >= least else power
        if size > _MOST_GRID:
            raise ArithmeticError(
                f"the composition of {self._sums.steps:.3g} steps needs {size} grid points, more than "
                f"{_MOST_GRID}; ask for fewer steps or less different rounds at once"
            )
        origin = math.floor(centre / cell) - size // 2
        spectrum = self._kept.spectrum(tilt, size)
        composed = np.roll(fft.irfft(spectrum.product, n=size), (spectrum.shift - origin) % size)
        self._windows[tilt] = Window(
            loss=np.asarray((origin + np.arange(size)) * cell, dtype=np.float64),
            mass=np.maximum(composed, 0.0),
            tilt=tilt,
            centre=centre,
            log_scale=cumulant - tilt * centre,
            noise=spectrum.noise(),
            wrapped=wrapped,
            # E[(L − x)₊; L outside] of Chernoff's bound: docs/proofs/accounting.md, section 5.
            farthest=min(1.0, 2 * size * cell + self._largest_step),
            sign=self._sign,
        )
        return self._windows[tilt]

    def _reach(self, tilt: float, cumulant: float, centre: float, deviation: float) -> tuple[float, float]:
        """Half width of the window, and a bound on the tilted mass outside it (support or Chernoff)."""
        reach = max(_SIGMAS * deviation, 64 * self._cell)
        while True:
            outside = sum(self._outside(tilt, cumulant, centre, sign * reach) for sign in (1.0, -1.0))
            points = 2 * reach / self._cell
            if outside < (1e-9 if points > 1 << 19 else _NEGLIGIBLE_OUTSIDE) or points > _MOST_GRID:
                return reach, outside
            reach *= 1.4

    def _outside(self, tilt: float, cumulant: float, centre: float, reach: float) -> float:
        """Bound on the tilted mass beyond centre + reach, above for a positive reach and below otherwise."""
        edge = centre + reach
        if (edge > self._largest) if reach > 0 else (edge < self._smallest):
            return 0.0
        limit = 650.0 / self._largest_step
        best = 0.0
        for strength in (81.0, 60.0, 40.0, 120.0, 25.0, 240.0, 12.0, 6.0):
            moved = min(max(tilt + strength / reach, -limit), limit)
            moved = math.copysign(_rung_below(abs(moved)), moved) if moved else 0.0
            best = min(best, self._cumulant(moved).value - cumulant - (moved - tilt) * edge)
            if best < 1.5 * math.log(_NEGLIGIBLE_OUTSIDE):
                break
        return math.exp(best)


@dataclass(slots=True)
class Spectrum:
    """The transform of a composition, and what is known of its error.

    Attributes:
        product: of the transforms of all laws composed, at half of the frequencies: the rest is conjugate.
        relative_error: of each entry; without meaning where a transform has died out.
        log_bound: log of how large each entry can be at most.
        shift: grid point of the composition's first mass.
        size: number of points.
    """

    product: npt.NDArray[np.complex128]
    relative_error: Floats
    log_bound: Floats
    shift: int
    size: int

    @classmethod
    def of_nothing(cls, size: int) -> Spectrum:
        """The transform of no rounds at all: what :meth:`include` begins with."""
        points = size // 2 + 1
        return cls(np.ones(points, dtype=np.complex128), np.zeros(points), np.zeros(points), 0, size)

    def copy(self) -> Spectrum:
        """One that may be changed."""
        return Spectrum(
            self.product.copy(), self.relative_error.copy(), self.log_bound.copy(), self.shift, self.size
        )

    @property
    def rounding(self) -> float:
        """How far an entry of the transform of masses that add up to 1 can be off."""
        return 4 * (math.log2(self.size) + 4) * _UNIT_ROUNDOFF

    @property
    def left(self) -> npt.NDArray[np.int64]:
        """The frequencies that have not died out. None comes back, as factors are at most one."""
        return np.flatnonzero(self.log_bound > _NO_FLOAT)

    def include(self, weight: Floats, *, first: int, step: int) -> None:
        """Compose with ``step`` times a law: its masses from grid point ``first`` on, which add up to 1."""
        if len(weight) > self.size:
            weight = tally(np.arange(len(weight)) % self.size, weight, self.size)
        self._multiply(
            fft.rfft(weight, n=self.size)[None], np.array([step]), at=slice(None), rounding=self.rounding
        )
        self.shift += step * first

    def include_all(self, weights: Floats, *, first: int, steps: Floats) -> None:
        """As :meth:`include`, of many laws, by the transform's definition: at what is :attr:`left` alone.

        Args:
            weights: shape (laws, points); each row adds up to 1.
            first: grid point of the first column.
            steps: how often each law is composed with, shape (laws,).
        """
        left, points = self.left, weights.shape[1]
        turns = np.outer(np.arange(points), left) % self.size
        known = np.arange(self.size) if self.size < turns.size else turns
        angles = (known - self.size * (known > self.size // 2)) * (-2 * math.pi / self.size)
        waves = np.exp(1j * angles) if known is turns else np.exp(1j * angles)[turns]
        # A sum is off by one rounding for each term, so a sum of sums by fewer; a wave by less than 24.
        block = max(math.isqrt(points), 64)
        parts = [slice(start, start + block) for start in range(0, points, block)]
        rounding = (block + len(parts) + 24) * _UNIT_ROUNDOFF
        both = waves.view(np.float64)  # real and imaginary parts, side by side
        sums = np.zeros((len(weights), both.shape[1]))
        for part in parts:
            sums += weights[:, part] @ both[part]
        self._multiply(sums.view(np.complex128), steps, at=left, rounding=rounding)
        self.shift += first * int(steps.sum())

    def _multiply(
        self, transforms: npt.NDArray[np.complex128], steps: Floats, *, at: Any, rounding: float
    ) -> None:
        """Multiply by powers of transforms, each known but for ``rounding``, at some of the frequencies."""
        magnitude = np.abs(transforms)
        self.log_bound[at] += steps @ np.log(magnitude + rounding)
        self.relative_error[at] += steps @ (rounding / np.maximum(magnitude, 1e-300) + 8 * _UNIT_ROUNDOFF)
        product = self.product[at]
        # Of many steps few frequencies are left: the powers of all others are no floats.
        left = self.log_bound[at] > _NO_FLOAT
        with np.errstate(under="ignore"):
            for transform, step in zip(transforms[:, left], steps, strict=True):
                product[left] *= _power(transform, int(step))
        product[~left] = 0.0
        self.product = np.zeros_like(self.product)
        self.product[at] = product

    def noise(self) -> float:
        """How far all masses together can be from those of the composition."""
        absolute = np.abs(self.product)
        # Where a transform has died out nothing is known of its power but how large it can be.
        left = self.log_bound > _NO_FLOAT
        known = self.relative_error[left] < 0.5
        error = absolute[left] * np.expm1(np.where(known, self.relative_error[left], 0.0))
        with np.errstate(under="ignore"):
            error[~known] = absolute[left][~known] + np.exp(self.log_bound[left][~known])
        # A real transform lists half of its frequencies.
        return 2 * (float(error.sum()) + self.rounding * float(absolute.sum()))


@dataclass(frozen=True, slots=True)
class Window:
    """The tilted composed law around one ε, or outcomes that were listed, with tilt 0.

    The true P mass at loss x is e^(log_scale − tilt·(x − centre))·mass. A mass outside of the window counts
    ``farthest`` at most, on average. ``sign`` is 1 of laws from above and −1 of laws from below.
    """

    loss: Floats
    mass: Floats
    tilt: float
    centre: float
    log_scale: float
    noise: float
    wrapped: float
    farthest: float
    sign: float

    @classmethod
    def listed(cls, loss: Floats, mass: Floats, *, sign: float) -> Window:
        """Of a law's own losses, increasing, and P masses."""
        if not len(loss) or loss[0] > 0:  # so that there is a place at which all outcomes count
            loss, mass = np.append(0.0, loss), np.append(0.0, mass)
        return cls(loss, mass, tilt=0, centre=0, log_scale=0, noise=0, wrapped=0, farthest=0, sign=sign)

    def _tails(self) -> tuple[Floats, Floats, Floats]:
        """At each loss x, in units of e^log_scale: its offset from the centre, δ(x), and the sum of
        e^(x − L)·p over the losses L from x on. Points so far below that their weights overflow are left out.
        """
        offset = self.loss - self.centre
        start = int(np.searchsorted(self.tilt * offset, -_LARGEST_EXPONENT))
        offset = offset[start:]
        discounted = _discounted(self.mass[start:] * np.exp(-self.tilt * offset), offset)
        # From one loss to the one before, every outcome above gains as much: a sum of positive numbers.
        rises = -np.expm1(-np.diff(offset)) * discounted[1:]
        return offset, np.append(np.cumsum(rises[::-1])[::-1], 0.0), discounted

    def deltas(self, epsilons: Floats) -> Floats:
        """δ at each ε, on the safe side."""
        offset, at_points, discounted = self._tails()
        x = epsilons - self.centre
        index = np.searchsorted(offset, x, side="right")
        inside = index < len(offset)
        at = np.where(inside, index, 0)
        value = at_points[at] - np.expm1(np.where(inside, x - offset[at], 0.0)) * discounted[at]
        value = np.where(inside, value, 0.0) * self._factor + self.sign * self._slack(x)
        return np.asarray(math.exp(self.log_scale) * np.maximum(value, 0.0), dtype=np.float64)

    def epsilon(self, delta: float) -> float:
        """Smallest ε whose δ, moved to the safe side, is at most ``delta``."""
        offset, at_points, discounted = self._tails()
        wanted = math.exp(min(math.log(delta) - self.log_scale, _LARGEST_EXPONENT))
        slack = self.sign * self._slack(offset)
        exceeding = np.nonzero(at_points * self._factor + slack > wanted)[0]
        if len(exceeding) == len(offset):
            return math.inf if self.sign > 0 else float(offset[-1] + self.centre)
        if len(exceeding) == 0:
            return float(self.centre + offset[0]) if self.sign > 0 else 0.0
        j = int(exceeding[-1])
        # Between points j and j + 1 the same outcomes count: δ(x) = δ(L) + (1 − e^(x − L))·C, L the upper.
        low, high, most = float(offset[j]), float(offset[j + 1]), float(discounted[j + 1])
        missing = (wanted - float(slack[j])) / self._factor - float(at_points[j + 1])
        if missing <= 0:
            x = high if self.sign > 0 else low
        else:
            x = low if missing >= most else min(max(high + math.log1p(-missing / most), low), high)
        x += self.centre
        return x + self.sign * _lost_digits(x, float(self.loss[-1] - self.loss[0]))

    @property
    def _factor(self) -> float:
        return 1 + self.sign * max(_RELATIVE_SLACK, 4 * len(self.mass) * _UNIT_ROUNDOFF)

    def _slack(self, offset: Floats) -> Floats:
        """What errors of tilted mass can add up to from an offset x on: a mass at L counts 1 − e^(x − L)."""
        exponent = np.exp(np.minimum(-self.tilt * offset, _LARGEST_EXPONENT))
        above = -np.expm1(np.minimum(offset - (self.loss[-1] - self.centre), 0.0))
        return np.asarray((self.noise * above + self.wrapped * self.farthest) * exponent, dtype=np.float64)


def _discounted(weight: Floats, loss: Floats) -> Floats:
    """C_j = Σ_{i ≥ j} e^(loss_j − loss_i)·weight_i, by blocks in which nothing overflows."""
    result = np.empty_like(weight)
    carry, stop = 0.0, len(weight)
    while stop:
        start = int(np.searchsorted(loss[:stop], loss[stop - 1] - 200.0))
        distance = loss[start:stop] - loss[start]
        part = np.cumsum((weight[start:stop] * np.exp(-distance))[::-1])[::-1]
        after = carry * math.exp(loss[start] - loss[stop]) if stop < len(weight) else 0.0
        result[start:stop] = np.exp(distance) * (part + after)
        carry, stop = float(result[start]), start
    return result


def _product(
    laws: Sequence[PrivacyLossDistribution], steps: Sequence[int]
) -> tuple[Floats, Floats, float] | None:
    """Losses and P masses of the composition, outcome by outcome, and what is missing; None if too many."""
    loss, p, q, lost = np.zeros(1), np.ones(1), np.ones(1), 0.0
    if sum(steps) == 1:
        loss, p = laws[0].loss, laws[0].p
    else:
        outcomes = math.fsum(step * math.log(len(law.loss)) for law, step in zip(laws, steps, strict=True))
        if sum(steps) > 20 or outcomes > math.log(1_000_000):
            return None
        for law in chain.from_iterable(map(repeat, laws, steps)):
            loss = np.add.outer(loss, law.loss).ravel()
            p, q = np.multiply.outer(p, law.p).ravel(), np.multiply.outer(q, law.q).ravel()
            kept = (p > 0) & (q > 0)  # a Q mass too small for a float says no loss
            lost += float(p[~kept].sum())
            loss, p, q = loss[kept], p[kept], q[kept]
        order = np.argsort(loss, kind="stable")
        loss, p = loss[order], p[order]
    missing = lost + math.fsum(step * law.missing for law, step in zip(laws, steps, strict=True))
    return loss, p, missing


def _lost_digits(x: float, reach: float) -> float:
    """What rounding can take off an ε of ``x`` that was read off losses up to ``reach`` away from it."""
    return 1e-12 * abs(x) + min(1e-13, 1e-12 * reach)


def _power(spectrum: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """By squaring, ten times as fast as by logarithms, for exponents from 1 on.

    A product is off by √5 units of roundoff, so the power by at most that for each factor.
    """
    if exponent == 1:
        return spectrum
    rest = _power(spectrum * spectrum, exponent // 2)
    return rest * spectrum if exponent & 1 else rest


def _raised(total: float, steps: int, each: float) -> float:
    """``total + steps·each``, rounded up."""
    return math.nextafter(total + math.nextafter(steps * each, math.inf), math.inf)


def _prune(known: dict[Any, Any], rounds: Sequence[Any]) -> None:
    """Forget rounds that were only tried once they are many."""
    if len(known) > 2 * len(rounds) + 64:
        for each in known.keys() - set(rounds):
            del known[each]


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
