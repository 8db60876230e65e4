"""Composition of privacy loss distributions by FFT, with every numerical error charged to the result.

The composed law is computed under an exponential tilt that puts the wanted ε near the middle of the
transform, so that δ = 1e-15 is as accurate as δ = 1e-2. What is charged, and why rounding to the grid is on
the safe side: ``docs/proofs/accounting.md``, section 5. Every cell, tilt and number of points gives a valid
bound. All are rungs of fixed ladders, so that what was composed for one question serves a history that went
on.

Sources: privacy loss distributions and their composition, Koskela, Jälkö, Honkela 2020 and Gopi, Lee,
Wutschitz 2021; pessimistic rounding, Doroshenko et al. 2022.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy import fft

from shuffle_plugins.accounting.losses import (
    BoundKind,
    PrivacyLossDistribution,
    growth_of,
    merge_to_grid,
    spread_to_grid,
)
from shuffle_plugins.accounting.numerics.sums import Floats, tally

Entry = TypeVar("Entry")
"""What a history is made of, such as rounds; equal entries have the same losses."""

Kept = TypeVar("Kept")

_SIGMAS = 9.0  # tilted deviations on either side of a window; what lies outside is bounded, not ignored
_MOST_GRID = 1 << 23  # points of the largest transform: its arrays take some hundred megabytes
_RUNGS = 4  # of a ladder, to each doubling
_UNIT_ROUNDOFF = 2.0**-53
_RELATIVE_SLACK = 1e-10  # of a δ summed over outcomes: more than sums of so many positive numbers can be off
_NO_FLOAT = -746.0  # log of what is zero as a float
_LARGEST_EXPONENT = 600.0  # e to this power, times a mass or over it, is a float
_NEGLIGIBLE_OUTSIDE = 1e-12  # tilted mass outside a window
_NEXT_TO_NOTHING = 1e-9  # of ε: closer than that to the largest losses together it is not looked for
_SMALL_SLACK = 2e-5  # share of δ that a window may lack: an ε that moves by as much is not looked for


class _Sums(NamedTuple):
    """What the first laws of a history add up to, each as often as it is run, rounded up; and the most."""

    steps: int = 0
    variance: float = 0.0
    missing: float = 0.0
    pure: float = 0.0  # the largest losses together
    depth: float = 0.0  # the smallest ones together, negated
    log_largest: float = 0.0  # log P mass of the largest losses together, and those next to nothing below
    loss_error: float = 0.0
    mass_error: float = 0.0
    span: float = 0.0  # largest range of losses of one law
    farthest: float = 0.0  # from 0 that a loss is
    cells: int = 0  # most to a deviation that a law asks for
    directed: bool = False  # whether the pair exchanged is another

    @classmethod
    def of(cls, law: PrivacyLossDistribution) -> _Sums:
        largest = law.p[law.loss >= (1 - _NEXT_TO_NOTHING) * law.loss[-1]].sum()
        return cls(
            1,
            law.deviation**2,
            law.missing,
            float(law.loss[-1]),
            -float(law.loss[0]),
            math.log(largest),
            law.loss_error,
            law.mass_error,
            span=float(law.loss[-1] - law.loss[0]),
            farthest=float(np.abs(law.loss[[0, -1]]).max()),
            cells=law.cells,
            directed=not law.symmetric,
        )

    def joined(self, laws: list[tuple[_Law, int]]) -> _Sums:
        found, largest = self, self._fields.index("span")  # the fields before it add up
        for law, steps in laws:
            its = law.sums
            pairs = zip(found[1:largest], its[1:largest], strict=True)
            added = (_raised(mine, steps, more) for mine, more in pairs)
            found = _Sums._make([found.steps + steps, *added, *map(max, found[largest:], its[largest:])])
        return found


class _GridLaw:
    """P masses of a law on a grid, on the side that it bounds from."""

    def __init__(self, law: PrivacyLossDistribution, cell: float, *, whole: bool) -> None:
        if law.kind == "upper":
            self.first, q = spread_to_grid(law.loss, law.q, cell=cell)
            self._p = q * np.exp((self.first + np.arange(len(q))) * cell)
        else:
            self.first, self._p = merge_to_grid(law.loss, law.p, law.q, cell=cell, whole=whole)
        self._occupied = np.flatnonzero(self._p)
        self._loss = cell * (self.first + self._occupied).astype(np.float64)
        self._moments: dict[float, Floats] = {}

    def _tilted(self, tilt: float) -> tuple[Floats, float]:
        """Occupied points' masses under a tilt, which add up to 1, and log E[e^(tilt·L)]."""
        peak = tilt * float(self._loss[-1] if tilt > 0 else self._loss[0])
        weight = self._p[self._occupied] * np.exp(tilt * self._loss - peak)
        total = float(weight.sum())
        return weight / total, math.log(total) + peak

    def tilted(self, tilt: float) -> Floats:
        """Masses under a tilt at all points from ``first`` on."""
        weight = np.zeros(len(self._p))
        weight[self._occupied] = self._tilted(tilt)[0]
        return weight

    def moments(self, tilt: float) -> Floats:
        """log E[e^(tilt·L)], and its first two derivatives."""
        if tilt not in self._moments:
            weight, value = self._tilted(tilt)
            mean = (weight * self._loss).sum()
            self._moments[tilt] = np.array([value, mean, (weight * (self._loss - mean) ** 2).sum()])
        return self._moments[tilt]


class _Law:
    """A law of a history, what it adds to the sums, and the grids that it was put on last."""

    def __init__(self, law: PrivacyLossDistribution, *, whole: bool) -> None:
        self._law, self._whole, self.sums = law, whole, _Sums.of(law)
        self._grids: dict[float, _GridLaw] = {}

    def on(self, cell: float) -> _GridLaw:
        if cell not in self._grids:
            while len(self._grids) > 1:  # a question takes one; that of a round that is tried may be another
                del self._grids[next(iter(self._grids))]
            self._grids[cell] = _GridLaw(self._law, cell, whole=self._whole)
        return self._grids[cell]


class LossHistory(Generic[Entry]):
    """The laws of a history's rounds, and what was composed of them so far.

    A question costs as much after ten thousand rounds as after a hundred, but for transforms that grow with
    the square root of the rounds. Where a number moves to another rung, all rounds are gone through again:
    ten thousand in about a second.
    """

    def __init__(self, law_of: Callable[[Entry], PrivacyLossDistribution], *, whole: bool = False) -> None:
        self._law_of, self._whole = law_of, whole
        self._laws: dict[Entry, _Law] = {}
        self.kind: BoundKind = "upper"
        self.number = 0  # of times that the history was followed
        self._restart()

    def _restart(self) -> None:
        # All but the last round are folded into what is kept: of that one more steps may follow, or it was
        # only tried.
        self._rounds: list[Entry] = []
        self._steps: list[int] = []
        self._folded: list[tuple[_Law, int]] = []
        self._latest: list[tuple[_Law, int]] = []
        self._sums = self.total = _Sums()
        # By cell and tilt, and how many laws were folded into each.
        self._moments: dict[Any, tuple[int, Floats]] = {}
        self._spectra: dict[Any, tuple[int, Spectrum]] = {}

    def follow(self, rounds: list[Entry], steps: list[int]) -> _Sums:
        """Take over a history; faster if it begins with what is known."""
        known, last = len(self._rounds), len(rounds) - 1
        if self._rounds != rounds[:known] or self._steps != steps[:known]:
            self._restart()
            known = 0
        for each in rounds[known:]:
            if each not in self._laws:
                law = self._law_of(each)
                if self._laws and law.kind != self.kind:
                    raise ValueError("laws that bound from above and from below cannot be composed together")
                self._laws[each], self.kind = _Law(law, whole=self._whole), law.kind
        if len(self._laws) > 2 * len(rounds) + 64:  # many were only tried
            self._laws = {each: self._laws[each] for each in rounds}
        entries = [
            (self._laws[each], count) for each, count in zip(rounds[known:], steps[known:], strict=True)
        ]
        more, self._latest = entries[: max(last - known, 0)], entries[max(last - known, 0) :]
        self._sums = self._sums.joined(more)
        self.total = self._sums.joined(self._latest)
        self._rounds += rounds[known:last]
        self._steps += steps[known:last]
        self._folded += more
        self.number += 1
        return self.total

    def moments(self, cell: float, tilt: float) -> Floats:
        """The sum of all rounds' moments on a grid under a tilt."""

        def add(found: Floats, law: _Law, steps: int) -> Floats:
            return found + steps * law.on(cell).moments(tilt)

        return self._carried(self._moments, (cell, tilt), np.zeros(3), add, most=512)

    def spectrum(self, cell: float, tilt: float, size: int) -> Spectrum:
        """The product of all rounds' tilted transforms."""

        def include(found: Spectrum, law: _Law, steps: int) -> Spectrum:
            grid = law.on(cell)
            return found.including(grid.tilted(tilt), first=grid.first, step=steps)

        return self._carried(self._spectra, (cell, tilt, size), Spectrum.of_nothing(size), include, most=8)

    def _carried(
        self,
        kept: dict[Any, tuple[int, Kept]],
        key: Any,
        start: Kept,
        add: Callable[[Kept, _Law, int], Kept],
        *,
        most: int,
    ) -> Kept:
        """What is kept, gone on to all that is folded and kept again, and the latest round added."""
        count, found = kept.pop(key, (0, start))
        counts: Counter[_Law] = Counter()
        for law, steps in self._folded[count:]:
            counts[law] += steps
        for law, steps in counts.items():
            found = add(found, law, steps)
        kept[key] = len(self._folded), found  # the latest is the last
        if len(kept) > most:
            del kept[next(iter(kept))]
        for law, steps in self._latest:
            found = add(found, law, steps)
        return found


class LossComposition:
    """Rounds composed: answers ε(δ) and δ(ε) from one side.

    Args:
        laws: privacy loss laws of rounds, all of one kind; with ``history``, the rounds that it knows by.
        history: what is kept of earlier questions. A composition answers until the history goes on.

    ArithmeticError if losses of very different scales share no grid.
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
        self.sums = sums = self._history.follow(list(laws), list(steps))
        self._number, self._kind = self._history.number, self._history.kind
        self._sign = 1.0 if self._kind == "upper" else -1.0
        self._deviation = math.sqrt(sums.variance)
        if self._deviation == 0 and sums.farthest > 0:
            raise ArithmeticError("one loss is all that is left of a law within floating-point range")
        self._growth, self._missing = growth_of(sums.mass_error), sums.missing
        self._exact: Window | None = None  # of outcomes that were listed
        if sums.farthest == 0:
            self._exact = Window.listed(np.zeros(1), np.ones(1), sign=self._sign)
        elif history is None and (found := _product(laws, steps)) is not None:
            *outcomes, lost = found
            self._missing += lost
            self._exact = Window.listed(*outcomes, sign=self._sign)
        self._windows: dict[float, Window] = {}
        self._moments: dict[float, Floats] = {}
        if self._exact is None:
            self._cell = cell = self._chosen_cell(laws if history is None else None)
            # On the grid each loss is moved by less than two cells.
            moved = 2 * cell * sums.steps
            self._smallest, self._largest = -sums.depth - moved, sums.pure + moved
            self._largest_step = sums.farthest + 2 * cell
            most = math.log2(min(_LARGEST_EXPONENT / self._largest_step, 2.0 / cell))
            self._ladder = range(math.floor(_RUNGS * most) - 127, math.floor(_RUNGS * most) + 1)

    def _chosen_cell(self, laws: Sequence[PrivacyLossDistribution] | None) -> float:
        """The cell of the grid; of laws that are composed once, their likeliest loss is on it, unrounded."""
        root, sums = math.sqrt(self.sums.steps), self.sums
        # A transform of the first takes milliseconds, of the second a fifth of a second.
        cheap, affordable = (points / (2 * _SIGMAS * root) for points in (1 << 17, 1 << 21))
        wanted: float = sums.cells
        if laws is not None and len(laws) == 1:  # condensed losses are known no finer
            wanted = max(wanted, min((2 if laws[0].condensed else 32) * wanted, cheap))
        cell = max(self._deviation / min(wanted, affordable), 1e-4 * sums.span) / root
        if laws is None:
            cell = _rung(_place(cell))
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
        upper, sums = self._kind == "upper", self.sums
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
        upper, pure = self._kind == "upper", self.sums.pure
        if self._exact is not None:
            return self._exact.epsilon(target)
        if upper and self._below_largest(target) <= _NEXT_TO_NOTHING * pure:
            return pure
        # Every tilt gives a bound, close or not: the next is looked for near the answer of the last.
        tighter = min if upper else max
        found, tilt = math.inf if upper else 0.0, self._tilt(*self._chernoff(target), room=6.0)
        for _ in range(4):
            window, before = self._window(tilt), found
            found = tighter(found, window.epsilon(target))
            if window.is_close(found, target) or abs(found - before) <= 1e-5 * found:
                break
            tilt = self._tilt_for_epsilon(min(found, pure))
        if found <= 0 and not upper:
            found = self._window(0.0).epsilon(target)
        return found

    def _below_largest(self, target: float) -> float:
        """How far ε can at most be below losses next to the largest ones, by their own mass; or infinity."""
        share = math.exp(min(math.log(target) - self.sums.log_largest, 0.0))
        return -math.log1p(-share) if share < 1 else math.inf

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0, rounded to the safe side."""
        return float(self.deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: Floats) -> Floats:
        """δ at each of several increasing ε ≥ 0, rounded to the safe side; shape of ``epsilons``.

        Those within a standard deviation of each other are read off one transform.
        """
        if np.any(np.diff(epsilons) < 0):
            raise ValueError("the values of ε must increase")
        found, sums = np.zeros(len(epsilons)), self.sums
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
        start, stop = 0, int(np.searchsorted(epsilons, self.sums.pure, side="left"))
        while start < stop:
            tilt = self._tilt_for_epsilon(float(epsilons[start]))
            reach = float(epsilons[start]) + math.sqrt(self._cumulant(tilt)[2])
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

    def _cumulant(self, tilt: float) -> Floats:
        if self._history.number != self._number:
            raise RuntimeError("the history went on; compose it anew")
        if tilt not in self._moments:
            self._moments[tilt] = self._history.moments(self._cell, tilt)
        return self._moments[tilt]

    def _exponent(self, tilt: float, epsilon: float) -> float:
        """log of Chernoff's bound on P[L > ε] at a tilt."""
        return float(self._cumulant(tilt)[0]) - tilt * epsilon

    def _chernoff(self, delta: float) -> tuple[float, float]:
        """The least ε with such a bound of at most δ, a little above the one wanted; and its tilt."""

        def enough(tilt: float) -> bool:
            value, mean, _ = self._cumulant(tilt)
            return bool(tilt * mean - value >= -math.log(delta))

        best = self._lowest(enough)
        if not best:  # laws from below may have lost so much mass that none is left to look for
            return float(self._cumulant(0.0)[1]), 0.0
        return min(((self._cumulant(t)[0] - math.log(delta)) / t, t) for t in (_rung_below(best), best))

    def _tilt_for_epsilon(self, epsilon: float) -> float:
        best = self._lowest(lambda tilt: bool(self._cumulant(tilt)[1] >= epsilon))
        return self._tilt(epsilon, best, room=2.0)

    def _tilt(self, epsilon: float, best: float, *, room: float) -> float:
        """The lowest rung whose bound on P[L > ε] is at most e^room of the best one's: of least variance."""
        most = self._exponent(best, epsilon) + room
        if not best or self._cumulant(0.0)[0] <= most:  # below 0 for laws from below that have lost mass
            return 0.0
        while best > _rung(self._ladder[0]) and self._exponent(_rung_below(best), epsilon) <= most:
            best = _rung_below(best)
        return best

    def _lowest(self, reached: Callable[[float], bool]) -> float:
        """The lowest rung that has reached what all higher ones have; the largest if none has."""
        if reached(0.0):
            return 0.0
        at = bisect_left(self._ladder, True, key=lambda rung: reached(_rung(rung)))
        return _rung(self._ladder[min(at, len(self._ladder) - 1)])

    def _window(self, tilt: float) -> Window:
        """The window at this tilt or, if it had too many points, at the next rung whose window has not.

        Losses that are rarely far larger than all others widen the law at once where a tilt reaches them.
        """
        for _ in range(_RUNGS if tilt else 0):
            with suppress(ArithmeticError):
                return self._window_at(tilt)
            tilt = _rung_below(tilt)
        return self._window_at(0.0)

    def _window_at(self, tilt: float) -> Window:
        if tilt in self._windows:
            return self._windows[tilt]
        cumulant, centre, variance = map(float, self._cumulant(tilt))
        cell = self._cell
        reach, wrapped = self._reach(tilt, cumulant, centre, math.sqrt(variance) + cell)
        least = int(2 * reach / cell) + 8
        power = 1 << (least - 1).bit_length()
        size = power * 3 // 4 if power * 3 // 4 >= least else power
        if size > _MOST_GRID:
            raise ArithmeticError(
                f"the composition of {self.sums.steps:.3g} steps needs {size} grid points, more than "
                f"{_MOST_GRID}; ask for fewer steps or less different rounds at once"
            )
        origin = math.floor(centre / cell) - size // 2
        spectrum = self._history.spectrum(cell, tilt, size)
        self._windows[tilt] = Window(
            loss=np.asarray((origin + np.arange(size)) * cell, dtype=np.float64),
            mass=spectrum.masses(origin=origin),
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
            moved = math.copysign(_rung(_place(abs(moved))), moved) if moved else 0.0
            best = min(best, float(self._cumulant(moved)[0]) - cumulant - (moved - tilt) * edge)
            if best < 1.5 * math.log(_NEGLIGIBLE_OUTSIDE):
                break
        return math.exp(best)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The transform of a composition at half of the frequencies (the rest is conjugate), with its error.

    Attributes:
        shift: grid point of the composition's first mass.
        left: the frequencies that have not died out. None comes back, as factors are at most one.
        product: of the transforms of all laws composed, at these.
        relative_error: of each entry; without meaning where a transform has died out.
        log_bound: log of how large each entry can be at most.
    """

    size: int
    shift: int
    left: npt.NDArray[np.int64]
    product: npt.NDArray[np.complex128]
    relative_error: Floats
    log_bound: Floats

    @classmethod
    def of_nothing(cls, size: int) -> Spectrum:
        """The transform of no rounds at all: what :meth:`including` begins with."""
        left = np.arange(size // 2 + 1)
        return cls(size, 0, left, np.ones(len(left), dtype=np.complex128), *np.zeros((2, len(left))))

    @property
    def rounding(self) -> float:
        """How far an entry of the transform of masses that add up to 1 can be off."""
        return 4 * (math.log2(self.size) + 4) * _UNIT_ROUNDOFF

    def including(self, weight: Floats, *, first: int, step: int) -> Spectrum:
        """Composed with ``step`` times a law: its masses from grid point ``first`` on, which add up to 1."""
        if len(weight) > self.size:
            weight = tally(np.arange(len(weight)) % self.size, weight, self.size)
        transform = fft.rfft(weight, n=self.size)[self.left]
        magnitude = np.abs(transform)
        bound = self.log_bound + step * np.log(magnitude + self.rounding)
        relative = self.rounding / np.maximum(magnitude, 1e-300) + 8 * _UNIT_ROUNDOFF
        kept = bound > _NO_FLOAT
        with np.errstate(under="ignore"):
            return Spectrum(
                self.size,
                self.shift + step * first,
                self.left[kept],
                self.product[kept] * _power(transform[kept], step),
                (self.relative_error + step * relative)[kept],
                bound[kept],
            )

    def masses(self, *, origin: int) -> Floats:
        """The composition's masses from a grid point on, to which all others are folded; none below zero."""
        spread = np.zeros(self.size // 2 + 1, dtype=np.complex128)
        spread[self.left] = self.product
        composed = np.roll(fft.irfft(spread, n=self.size), (self.shift - origin) % self.size)
        return np.asarray(np.maximum(composed, 0.0), dtype=np.float64)

    def noise(self) -> float:
        """How far all masses together can be from those of the composition."""
        absolute = np.abs(self.product)
        # Where a transform has died out nothing is known of its power but how large it can be.
        known = self.relative_error < 0.5
        error = absolute * np.expm1(np.where(known, self.relative_error, 0.0))
        with np.errstate(under="ignore"):
            error[~known] = absolute[~known] + np.exp(self.log_bound[~known])
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
        # What rounding can take off an ε that was read off losses around it.
        lost = 1e-12 * abs(x) + min(1e-13, 1e-12 * float(self.loss[-1] - self.loss[0]))
        return x + self.sign * lost

    def is_close(self, epsilon: float, delta: float) -> bool:
        """Whether ``epsilon`` lies within, and errors moved it by next to nothing."""
        offset = epsilon - self.centre
        if not self.loss[0] < epsilon < self.loss[-1] or self.tilt * offset < -_LARGEST_EXPONENT:
            return False
        slack = float(self._slack(np.array([offset]))[0]) * math.exp(min(self.log_scale, _LARGEST_EXPONENT))
        return slack <= _SMALL_SLACK * delta

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
    """Losses and P masses of the composition, outcome by outcome, and what was lost; None if too many."""
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
    return loss, p, lost


def _power(spectrum: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """By squaring, ten times as fast as by logarithms, for exponents from 1 on.

    A product is off by √5 units of roundoff, so the power by at most that for each factor.
    """
    if exponent == 1:
        return spectrum
    rest = _power(spectrum * spectrum, exponent // 2)
    return rest * spectrum if exponent & 1 else rest


def _raised(total: float, steps: int, each: float) -> float:
    """``total + steps·each``, rounded up; what adds nothing leaves it."""
    if not each:
        return total
    return math.nextafter(total + math.nextafter(steps * each, math.inf), math.inf)


def _rung(place: int) -> float:
    return math.pow(2.0, place / _RUNGS)


def _place(value: float) -> int:
    """Of the highest rung that is at most ``value``."""
    return math.floor(_RUNGS * math.log2(value))


def _rung_below(rung: float) -> float:
    return _rung(round(_RUNGS * math.log2(rung)) - 1)
