"""Composition of privacy loss distributions by FFT, with every numerical error charged to the result.

The composed law is computed under an exponential tilt that puts the wanted ε in the middle of the transform,
so that δ = 1e-15 is as accurate as δ = 1e-2. What is charged, and why rounding to the grid is on the safe
side: ``docs/proofs/accounting.md``, section 5.

Sources: privacy loss distributions and their composition, Koskela, Jälkö, Honkela 2020 and Gopi, Lee,
Wutschitz 2021; pessimistic rounding, Doroshenko et al. 2022.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy import fft

from shuffle_plugins.accounting.losses.distribution import BoundKind, PrivacyLossDistribution, mass_growth
from shuffle_plugins.accounting.numerics.grid import (
    Floats,
    merge_to_grid,
    spread_over_few,
    spread_to_grid,
    tally,
    transform_size,
)
from shuffle_plugins.accounting.numerics.search import zero_between

_WANTED_GRID = 1 << 16  # points that the cell of a history aims at: a transform takes milliseconds
_SIGMAS = 9.0  # tilted deviations on either side of a window; what lies outside is bounded, not ignored
_AFFORDABLE_GRID = 1 << 21  # that a finer cell may lead to: a transform takes a fifth of a second
_LARGE_GRID = 1 << 19  # points of a window from which it is widened or refined only for what matters
MAX_GRID = 1 << 23
"""Points of the largest transform: its arrays take some hundred megabytes."""
_UNIT_ROUNDOFF = 2.0**-53
_RELATIVE_SLACK = 1e-10  # of a δ summed over outcomes: more than sums of so many positive numbers can be off
_EPSILON_SLACK, _RELATIVE_EPSILON_SLACK = 1e-13, 1e-12  # what rounding of grid points can take off an ε
_NO_FLOAT, _MOST_LEFT = -746.0, 0.5  # log of what is zero as a float; share of frequencies worth picking out
_LARGEST_EXPONENT = 700.0  # e to this power is a float
_CHERNOFF_STRENGTHS = (81.0, 60.0, 40.0, 120.0, 25.0, 240.0, 12.0, 6.0)
_ENOUGH = -30.0  # log of a negligible tilted mass
_REFINEMENTS, _SETTLED = 4, 1e-5  # of ε by a window centred on it: how often, and the change that ends it
_LARGE_SETTLED = 1e-3  # the same of large windows: the change after it would be some hundred times smaller
_NEXT_TO_NOTHING = 1e-9  # of ε: closer than that to the largest losses together it is not looked for
_AT_MOST_LARGEST = 1 - 1e-6  # share of all largest losses together: an ε beyond it cannot be told much better
_MOST_REFINED_STEPS = 1e6  # beyond which the tilt of Chernoff's bound is close enough
_MOST_CELLS = 1 << 22  # that one step's losses may span
_MOST_PRODUCTS, _MOST_MULTIPLIED = 1_000_000, 20  # outcomes and steps up to which all products are listed
_MOST_SUMMED = 1 << 24  # products of outcomes and ε up to which each ε is summed by itself
_NEGLIGIBLE_OUTSIDE, _SMALL_OUTSIDE = 1e-12, 1e-9  # tilted masses outside a window; the second, of large ones
_MANY_LOSSES = 1 << 15  # of one law on the grid, beyond which moment-generating functions are those of fewer
_FINEST_CELL = 1e-4  # of the span of one step's loss: finer grids of one step are not worth their size


Moments = tuple[float, float, float]
"""log E[e^(tilt·L)] at a tilt, and its first two derivatives."""


@dataclass(frozen=True, slots=True)
class GridLaw:
    """P masses at losses (first + i)·cell."""

    first: int
    p: Floats


class LossComposition:
    """Rounds composed: answers ε(δ) and δ(ε) from one side.

    Args:
        laws: privacy loss laws of distinct rounds, all of one kind.
        steps: how often each is run.
        whole: keep all of the mass of laws from below on the grid, for thousands of steps of each: see
            :func:`merge_to_grid`.

    Raises:
        ValueError: if there is nothing to compose, lengths differ, or kinds are mixed.
    """

    _log_largest = -math.inf  # log P mass of the largest losses together, and those next to nothing below

    def __init__(
        self, laws: Sequence[PrivacyLossDistribution], steps: Sequence[int], *, whole: bool = False
    ) -> None:
        if not laws or len(laws) != len(steps):
            raise ValueError("compose at least one law, and give every law its number of steps")
        kinds = {law.kind for law in laws}
        if len(kinds) != 1:
            raise ValueError("laws that bound from above and from below cannot be composed together")
        self._kind: BoundKind = kinds.pop()
        self._steps = np.asarray(steps, dtype=np.float64)
        if np.any(self._steps < 1):
            raise ValueError("every law needs at least one step")
        self._single = _product(laws, steps)
        self._laws = tuple(laws)
        variance = sum(step * law.deviation**2 for step, law in zip(self._steps, laws, strict=True))
        largest = [law.p[law.loss >= (1 - _NEXT_TO_NOTHING) * law.loss[-1]].sum() for law in laws]
        self._log_largest = float(self._steps @ np.log(largest))
        self._total_steps = float(self._steps.sum())
        self._deviation = math.sqrt(variance)
        if self._deviation == 0 and any(np.any(law.loss != 0) for law in laws):
            raise ArithmeticError("one loss is all that is left of a law within floating-point range")
        # A product loses outcomes whose Q mass is too small for a float, and counts them as missing.
        self._missing = (
            math.fsum(s * law.missing for s, law in zip(self._steps, laws, strict=True))
            if self._single is None
            else self._single.missing
        )
        self._pure = math.fsum(s * float(law.loss[-1]) for s, law in zip(self._steps, laws, strict=True))
        # True losses and masses are within these of the laws', however rounding adds up.
        self._loss_error = math.fsum(s * law.loss_error for s, law in zip(self._steps, laws, strict=True))
        self._growth = mass_growth(laws, steps)
        self._largest = self._smallest = 0.0
        self._largest_step = 0.0  # of any step, as an absolute value
        self._cell = 0.0
        self._whole = whole
        self._fewer: tuple[Floats, Floats] | None = None
        if self._single is None and self._deviation > 0:
            self._discretise()

    def _discretise(self) -> None:
        affordable = _WANTED_GRID / (2 * _SIGMAS * math.sqrt(self._total_steps))
        wanted: float = max(law.cells for law in self._laws)
        if len(self._laws) == 1:
            few = self._total_steps <= _MOST_REFINED_STEPS or len(self._laws[0].loss) > wanted
            stored = 2 * wanted if self._laws[0].condensed else max(affordable, wanted if few else 0.0)
            wanted = min(max(affordable, wanted), stored)
        span = max(float(law.loss[-1] - law.loss[0]) for law in self._laws)
        cell = self._finest_cell(wanted, span)
        # The likeliest loss goes on the grid, where rounding it costs nothing.
        leading = max(self._laws, key=lambda law: law.deviation)
        likeliest = abs(float(leading.loss[np.argmax(leading.p)]))
        if likeliest > cell:
            cell = likeliest / math.ceil(likeliest / cell)
        self._use_cell(cell, span)
        self._grid = [to_grid(law, cell, whole=self._whole) for law in self._laws]
        occupied = [np.nonzero(grid.p)[0] for grid in self._grid]
        listed = list(zip(self._grid, occupied, strict=True))
        self._mass = _stacked([grid.p[at] for grid, at in listed], fill=0.0)
        self._loss = _stacked([cell * (grid.first + at).astype(np.float64) for grid, at in listed])
        if self._mass.shape[1] > _MANY_LOSSES:
            rows = [spread_over_few(loss, mass) for loss, mass in zip(self._loss, self._mass, strict=True)]
            self._fewer = _stacked([row[0] for row in rows]), _stacked([row[1] for row in rows], fill=0.0)
        firsts = np.array([g.first for g in self._grid], dtype=np.float64)
        self._largest_step = float(np.abs(self._loss).max())
        lengths = np.array([len(g.p) for g in self._grid], dtype=np.float64)
        self._smallest = float(self._steps @ firsts) * cell
        self._largest = float(self._steps @ (firsts + lengths - 1)) * cell

    def _finest_cell(self, wanted: float, span: float) -> float:
        """The cell with ``wanted`` of them to a deviation, or the finest that is affordable."""
        wanted = min(wanted, _AFFORDABLE_GRID / (2 * _SIGMAS * math.sqrt(self._total_steps)))
        cell = self._deviation / math.sqrt(self._total_steps) / wanted
        return max(cell, _FINEST_CELL * span / math.sqrt(self._total_steps))

    def _use_cell(self, cell: float, span: float) -> None:
        if span > _MOST_CELLS * cell:
            raise ArithmeticError(
                f"losses between {cell:.3g} and {span:.3g} share no grid; account for rounds of such "
                "different scales apart, or by Rényi divergences"
            )
        self._cell = cell

    # -- public -----------------------------------------------------------------------------------------

    def epsilon(self, delta: float) -> float:
        """ε at δ: rounded up and charged with every error if the laws are upper, down if they are lower."""
        if self._deviation == 0:
            return self._without_loss(delta)
        target = (delta - self._missing) / self._growth if self._kind == "upper" else delta * self._growth
        if target <= 0:
            return math.inf
        if self._kind == "lower" and target >= 1:
            return 0.0
        return self._charged(self._epsilon(target))

    def _charged(self, epsilon: float) -> float:
        """An ε with what losses may be off."""
        # No outcome of the laws has more than their largest losses together, whatever rounding says.
        epsilon = min(epsilon, self._pure * (1 + _RELATIVE_EPSILON_SLACK))
        return max(0.0, epsilon + _sign(self._kind) * self._loss_error)

    def _epsilon(self, target: float) -> float:
        """ε of the laws as they are, of which nothing is missing."""
        if self._single is not None:
            return _invert_single(self._single, target, kind=self._kind)
        if self._kind == "upper" and self._below_largest(target) <= _NEXT_TO_NOTHING * self._pure:
            return self._pure
        # Every tilt gives a bound; which one is close is certain only if its mean is near the answer.
        tighter = min if self._kind == "upper" else max
        found = 0.0 if self._kind == "lower" else math.inf
        for tilt in self._tilts(target):
            window = self._window(tilt)
            if self._kind == "lower" and window.noise >= 1:  # as much as all of its mass: it tells nothing
                break
            found = tighter(found, window.epsilon(target, kind=self._kind))
            if self._kind == "lower" and found >= _AT_MOST_LARGEST * self._pure:
                return found
        if found <= 0 and self._kind == "lower":
            window = self._window(0.0)
            found = window.epsilon(target, kind=self._kind)
        for _ in range(_REFINEMENTS if self._total_steps <= _MOST_REFINED_STEPS else 0):
            if not 0 < found < min(self._largest, _AT_MOST_LARGEST * self._pure):
                break
            if len(window.loss) > _LARGE_GRID and window.error(found) <= _SETTLED * found:
                break
            before = found
            window = self._window(self._tilt_for_epsilon(found))
            found = tighter(found, window.epsilon(target, kind=self._kind))
            settled = _LARGE_SETTLED if len(window.loss) > _LARGE_GRID else _SETTLED
            if abs(found - before) <= settled * before:
                break
        return found

    def _below_largest(self, target: float) -> float:
        """How far ε can at most be below losses next to the largest ones, by their own mass; or infinity."""
        share = math.exp(min(math.log(target) - self._log_largest, 0.0))
        return -math.log1p(-share) if share < 1 else math.inf

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0, rounded to the safe side."""
        return float(self.deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: Floats) -> Floats:
        """δ at each of several increasing ε ≥ 0, rounded to the safe side; shape of ``epsilons``.

        Those within a standard deviation of each other are read off one transform.
        """
        found = np.zeros(len(epsilons))
        if self._deviation == 0 and self._kind == "upper":
            found = np.maximum(-np.expm1(epsilons - self._loss_error), 0.0)
        elif self._deviation > 0:
            moved = np.maximum(epsilons - _sign(self._kind) * self._loss_error, 0.0)
            if self._single is not None and len(epsilons) * len(self._single.loss) > _MOST_SUMMED:
                found = self._single_deltas(self._single, moved)
            elif self._single is not None:
                found = np.array([self._single_delta(self._single, epsilon) for epsilon in moved])
            else:
                self._read_windows(moved, found)
        if self._kind == "upper":
            below = np.maximum(self._loss_error - epsilons, 0.0)  # δ rises by no more from 0 to the left
            return np.clip((found + below) * self._growth + self._missing, 0.0, 1.0)
        return np.clip(found / self._growth, 0.0, 1.0)

    def outcomes(self) -> tuple[Floats, Floats]:
        """Outcomes of laws from below: losses, increasing, and P masses, none above the composition's own.

        Raises:
            ValueError: if the laws bound from above.
        """
        if self._kind == "upper":
            raise ValueError("outcomes are listed of laws that bound from below")
        if self._single is not None:
            return self._single.loss, self._single.p
        if self._deviation == 0:
            return np.zeros(1), np.ones(1)
        window = self._window(0.0)
        # What the transform is off is spread over all points, what wraps around may meet in one. The window's
        # masses add up to 1; those of laws on a grid to a little less, as their losses are rounded down.
        mass = window.mass - window.noise / len(window.mass) - window.wrapped
        mass *= math.exp(window.log_scale) * (1 - _RELATIVE_SLACK)
        keep = mass > 0
        return window.loss[keep], mass[keep]

    def _single_delta(self, law: PrivacyLossDistribution, epsilon: float) -> float:
        above = law.loss > epsilon
        value = float((-law.p[above] * np.expm1(epsilon - law.loss[above])).sum())
        return value * (1 + _sign(self._kind) * _RELATIVE_SLACK)

    def _single_deltas(self, law: PrivacyLossDistribution, epsilons: Floats) -> Floats:
        """As :meth:`_single_delta` at many increasing ε, in one pass over the outcomes."""
        edges = np.searchsorted(law.loss, epsilons, side="right")
        ends = np.append(epsilons[1:], math.inf)
        places = np.repeat(np.arange(len(epsilons)), np.diff(np.append(edges, len(law.loss))))
        p, q, loss = law.p[edges[0] :], law.q[edges[0] :], law.loss[edges[0] :]
        inside = np.bincount(places, -p * np.expm1(epsilons[places] - loss), minlength=len(epsilons))
        above_q = np.cumsum(np.bincount(places, q, minlength=len(epsilons))[::-1])[::-1]
        # From one ε to the one before, outcomes above both gain the difference of e^ε times their Q mass.
        gaps = np.exp(epsilons[:-1]) * np.expm1(ends[:-1] - epsilons[:-1]) * above_q[1:]
        value = np.cumsum((inside + np.append(gaps, 0.0))[::-1])[::-1]
        return np.asarray(value * (1 + _sign(self._kind) * _RELATIVE_SLACK), dtype=np.float64)

    def _read_windows(self, epsilons: Floats, found: Floats) -> None:
        """Write δ at each ε, but for missing mass; 0 is right beyond the largest loss."""
        start, stop = 0, int(np.searchsorted(epsilons, min(self._largest, self._pure), side="left"))
        while start < stop:
            tilt = self._tilt_for_epsilon(float(epsilons[start]))
            reach = float(epsilons[start]) + math.sqrt(self._cumulant(tilt)[2])
            end = min(int(np.searchsorted(epsilons, reach, side="right")), stop)
            end = max(end, start + 1)
            window = self._window(tilt)
            found[start:end] = window.deltas(epsilons[start:end], kind=self._kind)
            start = end

    def _without_loss(self, delta: float) -> float:
        """ε of laws whose every outcome has the same loss, which then is none but for rounding."""
        if self._kind == "lower":
            return 0.0
        return math.inf if self._missing >= delta else self._loss_error

    # -- tilts ------------------------------------------------------------------------------------------

    def _cumulant(self, tilt: float) -> Moments:
        """log E_P[e^(tilt·L)] of the composition, and its first two derivatives."""
        return self._moments(self._loss, self._mass, tilt)

    def _cumulant_bound(self, tilt: float) -> Moments:
        """The same or, where a law has very many losses, a little above it."""
        return self._cumulant(tilt) if self._fewer is None else self._moments(*self._fewer, tilt)

    def _moments(self, losses: Floats, masses: Floats, tilt: float) -> Moments:
        exponent = tilt * losses
        peak = exponent.max(axis=1, keepdims=True)
        weight = masses * np.exp(exponent - peak)
        total = weight.sum(axis=1)
        mean = (weight * losses).sum(axis=1) / total
        variance = (weight * (losses - mean[:, None]) ** 2).sum(axis=1) / total
        return (
            float(self._steps @ (np.log(total) + peak[:, 0])),
            float(self._steps @ mean),
            float(self._steps @ variance),
        )

    def _largest_tilt(self) -> float:
        return min(600.0 / self._largest_step, 2.0 / self._cell)

    def _tilt_for_epsilon(self, epsilon: float) -> float:
        """The tilt whose mean loss is ``epsilon``."""
        return self._solve_tilt(lambda tilt: self._cumulant_bound(tilt)[1] - epsilon)

    def _tilts(self, delta: float) -> tuple[float, ...]:
        """The tilt of the Chernoff bound on P[L > ε] = δ; its mean is a little above the ε wanted.

        If the largest loss alone has more mass than δ there is none; then several that move more or less of
        the mass up to it.
        """
        log_delta = math.log(delta)

        def divergence(tilt: float) -> float:
            value, mean, _ = self._cumulant_bound(tilt)
            return tilt * mean - value

        most = 0.9 * divergence(self._largest_tilt())
        tilt = self._solve_tilt(lambda tilt: divergence(tilt) - min(-log_delta, most))
        return (tilt,) if -log_delta < most else (tilt, tilt / 4, tilt / 16, tilt / 64)

    def _near(self, tilt: float) -> float:
        """A tilt close to this one, no larger in size, at which moments are known."""
        return tilt

    def _solve_tilt(self, excess: Callable[[float], float]) -> float:
        high = self._largest_tilt()
        if excess(0.0) >= 0:
            return 0.0
        if excess(high) <= 0:
            return high
        low = min(1.0 / self._deviation, high / 2)
        while excess(low) > 0:
            low /= 4
        return zero_between(excess, low, high, xtol=1e-3 * low, rtol=1e-2, most_steps=60)

    # -- transform --------------------------------------------------------------------------------------

    def _window(self, tilt: float) -> Window:
        cumulant, centre, variance = self._cumulant(tilt)
        cell = self._cell
        deviation = math.sqrt(variance) + cell
        reach, wrapped = self._reach(tilt, cumulant, centre, deviation)
        size = self._points(int(2 * reach / cell) + 8)
        if size > MAX_GRID:
            raise ArithmeticError(
                f"the composition of {self._total_steps:.3g} steps needs {size} grid points, more than "
                f"{MAX_GRID}; ask for fewer steps or less different rounds at once"
            )
        origin = math.floor(centre / cell) - size // 2
        spectrum = self._spectrum(tilt, size)
        composed = np.roll(fft.irfft(spectrum.product, n=size), (spectrum.shift - origin) % size)
        return Window(
            loss=np.asarray((origin + np.arange(size)) * cell, dtype=np.float64),
            mass=np.maximum(composed, 0.0),
            tilt=tilt,
            centre=centre,
            log_scale=cumulant - tilt * centre,
            noise=spectrum.noise(),
            wrapped=wrapped,
            # E[(L − x)₊; L outside] of Chernoff's bound: docs/proofs/accounting.md, section 5.
            farthest=min(1.0, 2 * size * cell + self._largest_step),
            cell=cell,
        )

    def _spectrum(self, tilt: float, size: int) -> Spectrum:
        spectrum = Spectrum.of_nothing(size)
        for grid, step in zip(self._grid, self._steps, strict=True):
            exponent = tilt * self._cell * (grid.first + np.arange(len(grid.p)))
            weight = grid.p * np.exp(exponent - exponent.max())
            spectrum.include(weight / weight.sum(), first=grid.first, step=int(step))
        return spectrum

    def _points(self, least: int) -> int:
        """How many points a transform of at least so many takes."""
        return transform_size(least)

    def _reach(self, tilt: float, cumulant: float, centre: float, deviation: float) -> tuple[float, float]:
        """Half width of the window, and a bound on the tilted mass outside it (support or Chernoff)."""
        reach = max(_SIGMAS * deviation, 64 * self._cell)
        while True:
            outside = sum(self._outside(tilt, cumulant, centre, sign * reach) for sign in (1.0, -1.0))
            large, largest = (2 * reach > points * self._cell for points in (_LARGE_GRID, MAX_GRID))
            if outside < (_SMALL_OUTSIDE if large else _NEGLIGIBLE_OUTSIDE) or largest:
                return reach, outside
            reach *= 1.4

    def _outside(self, tilt: float, cumulant: float, centre: float, reach: float) -> float:
        """Bound on the tilted mass beyond centre + reach, above for a positive reach and below otherwise."""
        edge = centre + reach
        if (edge > self._largest) if reach > 0 else (edge < self._smallest):
            return 0.0
        limit = 650.0 / self._largest_step
        best = 0.0
        for strength in _CHERNOFF_STRENGTHS:
            moved = self._near(min(max(tilt + strength / reach, -limit), limit))
            best = min(best, self._cumulant_bound(moved)[0] - cumulant - (moved - tilt) * edge)
            if best < _ENOUGH:
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

    def include(self, weight: Floats, *, first: int, step: int) -> None:
        """Compose with ``step`` times a law: its masses from grid point ``first`` on, which add up to 1."""
        rounding = self.rounding
        if len(weight) > self.size:
            weight = tally(np.arange(len(weight)) % self.size, weight, self.size)
        transform = fft.rfft(weight, n=self.size)
        magnitude = np.abs(transform)
        self.log_bound += step * np.log(magnitude + rounding)
        self.relative_error += step * (rounding / np.maximum(magnitude, 1e-300) + 8 * _UNIT_ROUNDOFF)
        # Of many steps few frequencies are left: the powers of all others are no floats.
        left = self.log_bound > _NO_FLOAT
        if np.count_nonzero(left) > _MOST_LEFT * len(left):
            with np.errstate(under="ignore"):
                self.product *= _power(transform, step)
        else:
            power = np.zeros_like(self.product)
            with np.errstate(under="ignore"):
                power[left] = self.product[left] * _power(transform[left], step)
            self.product = power
        self.shift += step * first

    @property
    def left(self) -> npt.NDArray[np.int64]:
        """The frequencies that have not died out. None comes back, as factors are at most one."""
        return np.flatnonzero(self.log_bound > _NO_FLOAT)

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
        transform = sums.view(np.complex128)
        magnitude = np.abs(transform)
        self.log_bound[left] += steps @ np.log(magnitude + rounding)
        self.relative_error[left] += steps @ (rounding / np.maximum(magnitude, 1e-300) + 8 * _UNIT_ROUNDOFF)
        product = np.zeros_like(self.product)
        with np.errstate(under="ignore"):
            for row in np.flatnonzero(steps != 1):
                transform[row] = _power(transform[row], int(steps[row]))
            product[left] = self.product[left] * np.multiply.reduce(transform, axis=0)
        self.product = product
        self.shift += first * int(steps.sum())

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
    """The tilted composed law around one ε.

    The true P mass at loss x is e^(log_scale − tilt·(x − centre))·mass. A mass outside of the window counts
    ``farthest`` at most, on average.
    """

    loss: Floats
    mass: Floats
    tilt: float
    centre: float
    log_scale: float
    noise: float
    wrapped: float
    farthest: float
    cell: float

    def _tails(self) -> tuple[Floats, Floats, Floats]:
        """At each grid point x, in units of e^log_scale: its offset from the centre, δ(x), and the sum of
        e^(x − L)·p over the losses L from x on. Points so far below that their weights overflow are left out.
        """
        offset = self.loss - self.centre
        start = int(np.searchsorted(self.tilt * offset, -600.0))
        offset = offset[start:]
        discounted = _discounted(self.mass[start:] * np.exp(-self.tilt * offset), self.cell)
        # From one grid point to the one before, every outcome above gains as much: a sum of positive numbers.
        rises = -math.expm1(-self.cell) * discounted[1:]
        return offset, np.append(np.cumsum(rises[::-1])[::-1], 0.0), discounted

    def deltas(self, epsilons: Floats, *, kind: BoundKind) -> Floats:
        """δ at each ε, on the safe side."""
        offset, at_points, discounted = self._tails()
        x = epsilons - self.centre
        index = np.searchsorted(offset, x, side="right")
        inside = index < len(offset)
        at = np.where(inside, index, 0)
        value = at_points[at] - np.expm1(np.where(inside, x - offset[at], 0.0)) * discounted[at]
        value = np.where(inside, value, 0.0) * self._factor(kind) + _sign(kind) * self._slack(x)
        return np.asarray(math.exp(self.log_scale) * np.maximum(value, 0.0), dtype=np.float64)

    def epsilon(self, delta: float, *, kind: BoundKind) -> float:
        """Smallest ε whose δ, moved to the safe side, is at most ``delta``."""
        offset, at_points, discounted = self._tails()
        wanted = math.exp(min(math.log(delta) - self.log_scale, 700.0))
        factor, slack = self._factor(kind), _sign(kind) * self._slack(offset)
        exceeding = np.nonzero(at_points * factor + slack > wanted)[0]
        if len(exceeding) == len(offset):
            return math.inf if kind == "upper" else float(offset[-1] + self.centre)
        if len(exceeding) == 0:
            return float(self.centre + offset[0]) if kind == "upper" else 0.0
        j = int(exceeding[-1])
        # Between points j and j + 1 the same outcomes count: δ(x) = δ(L) + (1 − e^(x − L))·C, L the upper.
        low, high, most = float(offset[j]), float(offset[j + 1]), float(discounted[j + 1])
        missing = (wanted - float(slack[j])) / factor - float(at_points[j + 1])
        if missing <= 0:
            x = high if kind == "upper" else low
        else:
            x = low if missing >= most else min(max(high + math.log1p(-missing / most), low), high)
        x += self.centre
        return x + _sign(kind) * _lost_digits(x, float(self.loss[-1] - self.loss[0]))

    def error(self, epsilon: float) -> float:
        """About how far what is charged for errors moved ε: no other window can bring it closer by more."""
        above = int(np.searchsorted(self.loss, epsilon))
        loss = self.loss[above:]
        rising = float((self.mass[above:] * np.exp(epsilon - loss - self.tilt * (loss - self.centre))).sum())
        return float(self._slack(epsilon - self.centre)) / rising if rising > 0 else math.inf

    def _factor(self, kind: BoundKind) -> float:
        return 1 + _sign(kind) * max(_RELATIVE_SLACK, 4 * len(self.mass) * _UNIT_ROUNDOFF)

    def _slack(self, offset: npt.ArrayLike) -> Floats:
        """What errors of tilted mass can add up to from an offset x on: a mass at L counts 1 − e^(x − L)."""
        offset = np.asarray(offset, dtype=np.float64)
        exponent = np.exp(np.minimum(-self.tilt * offset, 600.0))
        above = -np.expm1(np.minimum(offset - (self.loss[-1] - self.centre), 0.0))
        return np.asarray((self.noise * above + self.wrapped * self.farthest) * exponent, dtype=np.float64)


def _discounted(weight: Floats, cell: float) -> Floats:
    """C_j = Σ_{i ≥ j} e^(−(i − j)·cell)·weight_i, by blocks in which nothing overflows."""
    block = max(1, int(200.0 / cell))
    result = np.empty_like(weight)
    carry = 0.0
    for stop in range(len(weight), 0, -block):
        start = max(0, stop - block)
        distance = cell * np.arange(stop - start)
        part = np.cumsum((weight[start:stop] * np.exp(-distance))[::-1])[::-1]
        result[start:stop] = np.exp(distance) * (part + carry * math.exp(-cell * (stop - start)))
        carry = float(result[start])
    return result


def _product(laws: Sequence[PrivacyLossDistribution], steps: Sequence[int]) -> PrivacyLossDistribution | None:
    """The composition outcome by outcome, if it has few enough of them."""
    total = sum(int(step) for step in steps)
    if total == 1:
        return laws[0]
    outcomes = math.fsum(step * math.log(len(law.loss)) for law, step in zip(laws, steps, strict=True))
    if total > _MOST_MULTIPLIED or outcomes > math.log(_MOST_PRODUCTS):
        return None
    loss, p, q, lost = np.zeros(1), np.ones(1), np.ones(1), 0.0
    for law, step in zip(laws, steps, strict=True):
        for _ in range(int(step)):
            loss = np.add.outer(loss, law.loss).ravel()
            p = np.multiply.outer(p, law.p).ravel()
            q = np.multiply.outer(q, law.q).ravel()
            kept = (p > 0) & (q > 0)
            lost += float(p[~kept].sum())
            loss, p, q = loss[kept], p[kept], q[kept]
    order = np.argsort(loss, kind="stable")
    variance = math.fsum(step * law.deviation**2 for law, step in zip(laws, steps, strict=True))
    return PrivacyLossDistribution(
        loss=loss[order],
        p=p[order],
        q=q[order],
        missing=lost + math.fsum(step * law.missing for law, step in zip(laws, steps, strict=True)),
        deviation=math.sqrt(variance),
        kind=laws[0].kind,
    )


def _power(spectrum: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """By squaring, ten times as fast as by logarithms.

    A product is off by √5 units of roundoff, so the power by at most that for each factor.
    """
    square, result = spectrum.copy(), None
    while True:
        if exponent & 1:
            if result is None:
                result = square.copy()
            else:
                result *= square
        exponent >>= 1
        if not exponent:
            return spectrum if result is None else result
        square *= square


def _stacked(rows: Sequence[Floats], *, fill: float | None = None) -> Floats:
    """Rows of different lengths in one array: the rest of a row is ``fill``, or its first entry."""
    stacked = np.empty((len(rows), max(map(len, rows))))
    for row, to in zip(rows, stacked, strict=True):
        to[: len(row)], to[len(row) :] = row, row[0] if fill is None else fill
    return stacked


def _sign(kind: BoundKind) -> float:
    return 1.0 if kind == "upper" else -1.0


def to_grid(law: PrivacyLossDistribution, cell: float, *, whole: bool = False) -> GridLaw:
    """The law with losses on a grid, on the side that it bounds from."""
    if law.kind == "upper":
        first, q = spread_to_grid(law.loss, law.q, cell=cell)
        return GridLaw(first=first, p=q * np.exp((first + np.arange(len(q))) * cell))
    first, p = merge_to_grid(law.loss, law.p, law.q, cell=cell, whole=whole)
    return GridLaw(first=first, p=p)


def _invert_single(law: PrivacyLossDistribution, delta: float, *, kind: BoundKind) -> float:
    """ε at δ of one round, straight from its outcomes."""
    if not len(law.loss):  # of a product: all were too rare for floats
        return -math.inf
    above_q = np.append(np.cumsum(law.q[::-1])[::-1], 0.0)
    scaled = (
        np.exp(np.minimum(law.loss, _LARGEST_EXPONENT)) * above_q[:-1]
    )  # Σ e^(x − L)·p from each loss x on
    if kind == "upper" and law.loss[-1] > _LARGEST_EXPONENT:
        scaled = np.where(law.loss > _LARGEST_EXPONENT, np.cumsum(law.p[::-1])[::-1], scaled)
    # From one loss to the one before, every outcome above gains: sums of positive numbers lose no digits.
    rises = -np.expm1(-np.diff(law.loss)) * scaled[1:]
    sticks = np.append(np.cumsum(rises[::-1])[::-1], 0.0)
    factor = 1 + _sign(kind) * max(_RELATIVE_SLACK, 4 * len(law.loss) * _UNIT_ROUNDOFF)
    exceeding = np.nonzero(sticks * factor > delta)[0]
    j = int(exceeding[-1]) + 1 if len(exceeding) else 0
    gain, most = delta / factor - float(sticks[j]), float(scaled[j])
    lost_digits = kind == "lower" and float(above_q[j]) < sys.float_info.min  # one over it is no bound
    high, low = float(law.loss[j]), float(law.loss[j - 1]) if j else -math.inf
    unknown = lost_digits or gain >= most
    x = low if unknown else max(low, high + math.log1p(-max(gain, 0.0) / most))
    return x + _sign(kind) * _lost_digits(x, float(np.abs(law.loss).max()))


def _lost_digits(x: float, reach: float) -> float:
    """What rounding can take off an ε of ``x`` that was read off losses up to ``reach`` away from it."""
    return _RELATIVE_EPSILON_SLACK * abs(x) + min(_EPSILON_SLACK, _RELATIVE_EPSILON_SLACK * reach)
