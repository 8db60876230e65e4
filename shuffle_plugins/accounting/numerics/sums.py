r"""Sums of independent draws: binomial laws, and how far a sum of few types of draws exceeds a number.

Upper bounds on :math:`E[(x + G_1 + … + G_N)_+]` for independent G of a few types, over all mixes. A *mix*
says how many of the N draws are of which type. With M_i the moment generating function of type i and n_i
draws of it, for every c > 0

    E[(x + S)₊] = 1/(2πi) · ∫ Π M_i(s)^{n_i} e^{s·x} / s² ds        along Re s = c.

A Gaussian added to S ends the integral; the trapezoidal sum in its place is above it; what is left off and
what is rounded is bounded and added (``docs/proofs/noise.md``, Claim 3). Its terms are exponentials of linear
functions of the n_i: cells of mixes are divided until the largest value at their corners, and a bound of
second order, is near enough (``docs/proofs/accounting.md``, section 3c, "All mixes at once").

From below, tests of a sum of one type are evaluated in the same way (``AcceptingTests``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]

Law = tuple[Floats, Floats]
"""Values, shape (rows, atoms), and masses, shape (atoms,)."""

_ROUNDOFF = 2.0**-52
_PERIOD = 14.0  # of the trapezoidal sum, in standard deviations of the tilted sum, …
_LEAST_PERIOD = 18.0  # … and at least this over c
_LARGEST_EXPONENT = 300.0
_NEAR_SADDLE = 0.02  # relative
_MOST_TERMS = 1 << 12
_ENOUGH = 5e-5  # relative error to which the largest value of all mixes is found, …
_ENOUGH_OF_SHARE = 0.05  # … or this times the smoothing, if that is more, …
_ROUGHLY = 1e-2  # … and far out in the tail at most this
_FIRST_STRIDES = {1: 1, 2: 1, 3: 3}  # cells along an edge to begin with, by the number of types
_HALVINGS = {1: 0, 2: 8, 3: 4}  # of a cell, at most


def expected_positive_part(
    *, values: Floats, masses: Floats, trials: int, shift: Floats, share: float
) -> Floats:
    """Upper bounds on E[(shift + S)₊], S a sum of ``trials`` draws of one law, shape (rows,).

    Args:
        masses: their probabilities, shape (atoms,), the same in every row. What they lack of one is a draw
            of zero.
        share: as of :meth:`MixedSums.largest`.
    """
    result = np.maximum(shift, 0.0)
    rows, sums, unit = _of_one_law(values, masses, trials, shift)
    if len(rows):
        result[rows] = sums.largest(share) * unit
    return result


def log_positive_part_bound(*, values: Floats, masses: Floats, trials: int, shift: Floats) -> Floats:
    """Chernoff bounds on the logarithm of the same."""
    with np.errstate(divide="ignore"):
        result = np.log(np.maximum(shift, 0.0))
    rows, sums, unit = _of_one_law(values, masses, trials, shift)
    if len(rows):
        result[rows] = sums.log_bound() + math.log(unit)
    return result


def _of_one_law(values: Floats, masses: Floats, trials: int, shift: Floats) -> tuple[Cells, MixedSums, float]:
    """Rows that leave something to compute, and their sums in a unit that floats bear."""
    largest = np.maximum(values.max(axis=1, initial=0.0), 0.0)
    rows = np.flatnonzero(np.any(values != 0, axis=1) & (shift + trials * largest > 0))
    unit = float(np.abs(values[rows]).max(initial=0.0)) or 1.0
    return (
        rows,
        MixedSums(shift=shift[rows] / unit, types=[(values[rows] / unit, masses)], trials=trials),
        unit,
    )


@dataclass(frozen=True, kw_only=True)
class MixedSums:
    """Sums x + Σ n_i draws of type i, Σ n_i = trials, + draws of further laws, whose numbers are given.

    What a law's masses lack of one is a draw of zero.

    Attributes:
        shift: x, shape (rows,).
        types: up to three laws.
        further: laws besides the types, each with the number of its draws.
        groups: further draws of which each has one of two types of their own: both, and the number of draws.
            Then there are two types. What is found holds for all mixes of all groups.
    """

    shift: Floats
    types: list[Law]
    trials: int
    further: Sequence[tuple[Law, int]] = ()
    groups: Sequence[tuple[tuple[Law, Law], int]] = ()

    @cached_property
    def _draws(self) -> list[int]:
        """Of each group, those of ``types`` first."""
        return [self.trials, *(draws for _, draws in self.groups)]

    def largest(self, share: float) -> Floats:
        """For each row one upper bound on the expected positive parts of all mixes, shape (rows,).

        Args:
            share: variance of the Gaussian that smooths the sum, relative to the sum's variance, or to that
                under the tilt of the contour where that is less; in (0, 1).
        """
        saddle = self.saddle_points()
        tilt, distance = saddle.tilt, self.shift / np.maximum(self.deviation, 1e-300)
        smoothing = self.smoothing(share, saddle)
        period = np.maximum(_PERIOD * np.hypot(saddle.spread, smoothing), _LEAST_PERIOD / tilt)
        step, smoothing, terms = _contour(period, smoothing, decay=14.0)
        # Far out by z deviations a relative change of the value matters by as much over z².
        enough = np.minimum(max(_ENOUGH, _ENOUGH_OF_SHARE * share) * (1 + distance**2), _ROUGHLY)
        found, end = np.empty(len(terms)), np.empty(len(terms))
        for rows, most in _batches(terms):
            kept, dropped = self._terms(rows, most, saddle=saddle, smoothing=smoothing[rows], step=step[rows])
            largest = _largest_of_all_mixes(
                kept, trials=sum(self._draws), enough=enough[rows], whole=not self.groups
            )
            found[rows] = largest + dropped
            end[rows] = step[rows] * (most - 1)
        found *= step / (2 * math.pi)
        # The terms beyond, as in the proof of Claim 3 of docs/proofs/noise.md.
        exponent = np.clip(((smoothing * tilt) ** 2 - (smoothing * end) ** 2) / 2, -700.0, 700.0)
        with np.errstate(over="ignore"):
            found += np.exp(exponent) * (tilt / (smoothing * end)) ** 2 / (math.pi * end)
        rounding = 16 * _ROUNDOFF * (1 + np.abs(saddle.log_height) + tilt * np.abs(self.shift))
        found = np.maximum(found, 1e-300) * (1 + rounding)
        with np.errstate(over="ignore"):
            height = np.exp(np.maximum(saddle.log_height, -700.0))
        return np.asarray(np.where(saddle.log_height < -700, 1e-290, found * height), dtype=np.float64)

    def smoothing(self, share: float, saddle: _Saddle) -> Floats:
        """Deviation η of the Gaussian that smooths each row's sum; ``share`` as of :meth:`largest`."""
        # 12.0: standard deviations; further out the Gaussian may be wider in proportion
        scale = np.maximum(self.deviation, np.abs(self.shift) / 12.0)
        return np.asarray(math.sqrt(share) * np.minimum(scale, np.maximum(saddle.spread, 0.5 / saddle.tilt)))

    def _terms(
        self, rows: Cells, count: int, *, saddle: _Saddle, smoothing: Floats, step: Floats
    ) -> tuple[_Terms, Floats]:
        """Terms at c + i·step·j, over the largest integrand; a bound on the sum of the negligible ones."""
        values, masses = self.packed
        tilt, shift = saddle.tilt[rows], self.shift[rows]
        height = tilt * shift - 2 * np.log(tilt) - saddle.log_height[rows] + (smoothing * tilt) ** 2 / 2
        of_laws = _log_moments(values[:, rows], masses, tilt, step, count)
        log_modulus, angle, wrong = of_laws
        # Of the further laws together.
        more_modulus, more_angle, more_wrong = (self._together(each) for each in of_laws)
        t = step[:, None] * np.arange(count)
        ratio = t / tilt[:, None]
        shape = more_modulus - (smoothing[:, None] * t) ** 2 / 2 - np.log1p(ratio**2)
        shape += height[:, None]
        turn = t * (shift + smoothing**2 * tilt)[:, None] - 2 * np.arctan(ratio) + more_angle
        rounding = more_wrong + 8 * _ROUNDOFF * (np.abs(turn) + np.abs(shape) + 8)
        shape[:, 1:] += math.log(2.0)
        highest = self._of_types(log_modulus + wrong).max(axis=0).sum(axis=0)
        ceiling = np.exp(np.minimum(shape + highest, 600.0))
        # 20.0: −log of the size, over the largest term's, of terms that are bounded and not computed
        kept = np.any(ceiling > math.exp(-20.0), axis=0)
        off = ceiling[:, ~kept].sum(axis=1)
        if self.groups:
            wrong = wrong + (4 + len(self._draws)) * _ROUNDOFF * (np.abs(angle) + np.abs(log_modulus))
            first, second = self._of_types(log_modulus + 1j * angle)
            error = self._of_types(wrong).max(axis=0).sum(axis=0)
            off += (ceiling * np.minimum(_off_the_line(first - second) + error, 2.0))[:, kept].sum(axis=1)
        draws = max(sum(self._draws), 1)
        every = (
            *(self._of_types(each, draws).sum(axis=1) for each in (log_modulus, angle, wrong)),
            shape,
            turn,
            rounding,
        )
        return _Terms(*(each[..., kept] for each in every)), off

    def log_bound(self) -> Floats:
        """Chernoff's bound on the logarithm of the same, shape (rows,): (y)₊ ≤ e^{c·y − 1}/c."""
        saddle = self.saddle_points()
        return np.asarray(saddle.log_height + np.log(saddle.tilt) - 1.0, dtype=np.float64)

    @cached_property
    def packed(self) -> Law:
        """All laws, of each type that of every group first: values, (laws, rows, atoms), and masses."""
        of_types = [
            law for i, law in enumerate(self.types) for law in (law, *(laws[i] for laws, _ in self.groups))
        ]
        laws = [*of_types, *(law for law, _ in self.further)]
        atoms = max(len(masses) for _, masses in laws)
        values = np.zeros((len(laws), len(self.shift), atoms))
        weights = np.zeros((len(laws), atoms))
        for i, (value, masses) in enumerate(laws):
            values[i, :, : len(masses)] = value
            weights[i, : len(masses)] = masses
        return values, weights

    @cached_property
    def deviation(self) -> Floats:
        """The largest standard deviation of a sum, shape (rows,)."""
        values, masses = self.packed
        return self._largest_deviation(np.einsum("la,lra->lr", masses, values**2))

    def _largest_deviation(self, variances: Floats) -> Floats:
        largest = self._of_types(variances).max(axis=0).sum(axis=0)
        return np.asarray(np.sqrt(largest + self._together(variances)), dtype=np.float64)

    def _of_types(self, of_laws: Any, over: int = 1) -> Any:
        """What each group's draws make together if all are of one type, of values that add up, divided.

        From shape (laws, …) to (types, groups, …).
        """
        kinds, draws = len(self.types), np.array(self._draws) / over
        of_types = of_laws[: kinds * len(draws)].reshape(kinds, len(draws), *of_laws.shape[1:])
        return of_types * draws.reshape(-1, *(1 for _ in of_laws.shape[1:]))

    def _together(self, of_laws: Floats) -> Floats:
        """What the further laws' draws make together of values that add up, shape (laws, …)."""
        draws = [float(number) for _, number in self.further]
        return np.asarray(np.tensordot(draws, of_laws[len(self.types) * len(self._draws) :], axes=1))

    def saddle_points(self) -> _Saddle:
        """About the c > 0 at which the largest N·log M_i(c) + log M_further(c) + c·x − 2·log c is least."""
        x, deviation = self.shift, np.maximum(self.deviation, 1e-300)
        most = np.maximum(np.abs(self.packed[0]).max(axis=(0, 2)), 1e-300)
        low = np.log(0.1 / (deviation + most))
        # Only values above zero grow with the tilt; far larger ones below it, which are rare, die out.
        # 1e-9: of the largest value's size, in a tilt's limit
        rising = np.maximum(self.packed[0].max(axis=(0, 2)), 1e-9 * most)
        high = np.maximum(np.log(_LARGEST_EXPONENT / rising), low + 1.0)
        # Of a Gaussian sum it is the root of c·σ² + x = 2/c.
        tilt = (np.sqrt(x**2 + 8 * deviation**2) - x) / (2 * deviation**2)
        log_tilt = np.clip(np.log(tilt), low, high)
        # 30 at most: any contour gives a valid bound
        for _ in range(30):
            found = self._at(np.exp(log_tilt))
            rises = found.slope > 0
            low, high = np.where(rises, low, log_tilt), np.where(rises, log_tilt, high)
            tilt = found.tilt
            moved = tilt - found.slope / (found.spread**2 + 2 / tilt**2)
            log_moved = np.log(np.clip(moved, tilt / 4, tilt * 4))
            # A row that is near stays: its step is rounding, which may point out of the bracket.
            near = np.abs(log_moved - log_tilt) < _NEAR_SADDLE
            inside = near | ((log_moved > low) & (log_moved < high))
            log_moved = np.where(inside, log_moved, (low + high) / 2)
            if np.all(np.abs(log_moved - log_tilt) < _NEAR_SADDLE):
                break
            log_tilt = log_moved
        return found

    def _at(self, tilt: Floats) -> _Saddle:
        values, masses = self.packed
        growth = np.expm1(np.minimum(tilt[:, None] * values, 2 * _LARGEST_EXPONENT))
        moment = np.einsum("la,lra->lr", masses, growth)
        growth += 1
        growth *= masses[:, None, :]
        growth *= values
        mean = growth.sum(axis=2) / (1 + moment)
        variance = np.maximum((growth * values).sum(axis=2) / (1 + moment) - mean**2, 0.0)
        logs = np.log1p(moment)
        of_types = self._of_types(logs)
        best = np.argmax(of_types, axis=0)[None]
        steepest = np.take_along_axis(self._of_types(mean), best, 0)[0].sum(axis=0)
        highest = of_types.max(axis=0).sum(axis=0)
        slope = steepest + self._together(mean) + self.shift - 2 / tilt
        return _Saddle(
            tilt=tilt,
            log_height=highest + self._together(logs) + tilt * self.shift - 2 * np.log(tilt),
            slope=slope,
            spread=self._largest_deviation(variance),
        )


@dataclass(frozen=True, slots=True)
class _Saddle:
    """The integrand at Im s = 0.

    Attributes:
        tilt: c, in one over the unit of the values, shape (rows,).
        log_height: logarithm of the largest integrand of all mixes, shape (rows,).
        slope: its derivative in c, shape (rows,).
        spread: the largest standard deviation of a sum under the tilt, shape (rows,).
    """

    tilt: Floats
    log_height: Floats
    slope: Floats
    spread: Floats


def _contour(period: Floats, smoothing: Floats, *, decay: float) -> tuple[Floats, Floats, Cells]:
    """The step between the terms of each row, its Gaussian's deviation, and how many terms it takes.

    Terms are added up to where the Gaussian factor is e^−``decay``; it is widened where they would be too
    many.
    """
    step, ends = 2 * math.pi / period, math.sqrt(2 * decay)
    smoothing = np.maximum(smoothing, ends / (step * (_MOST_TERMS - 1)))
    return step, smoothing, np.ceil(ends / (smoothing * step)).astype(np.int64) + 2


def _batches(terms: Cells) -> Iterator[tuple[Cells, int]]:
    """Batches of rows that need about as many terms, each with the largest number."""
    order = np.argsort(terms, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        # 1 << 15: terms of all rows, so that arrays stay in the processor's cache
        while stop < len(order) and (stop - start + 1) * int(terms[order[stop]]) <= 1 << 15:
            stop += 1
        yield order[start:stop], int(terms[order[stop - 1]])
        start = stop


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of the sums, Π M_i(s)^{n_i} times what all mixes share.

    Attributes:
        log_modulus: log|M_i|, shape (types, rows, terms).
        wrong: relative error of M_i.
        shape: logarithm of the shared factor, shape (rows, terms).
    """

    log_modulus: Floats
    angle: Floats
    wrong: Floats
    shape: Floats
    turn: Floats
    rounding: Floats

    def of_rows(self, rows: Cells) -> _Terms:
        """The terms of some of the rows."""
        return _Terms(
            self.log_modulus[:, rows],
            self.angle[:, rows],
            self.wrong[:, rows],
            self.shape[rows],
            self.turn[rows],
            self.rounding[rows],
        )


Mix = tuple[float, ...]
"""Numbers of draws of each type."""


@lru_cache(maxsize=16)
def _lattice(types: int, trials: int, strides: int) -> list[tuple[Mix, ...]]:
    """The corners of equal cells."""
    corners: list[tuple[tuple[int, ...], ...]] = []
    for mix in product(range(strides + 1), repeat=types):
        if sum(mix) != strides:
            continue
        if types == 1:
            corners.append((mix,))
        elif types == 2:
            corners.append((mix, (mix[0] - 1, mix[1] + 1)))
        else:
            a, b, c = mix
            corners.append((mix, (a - 1, b + 1, c), (a - 1, b, c + 1)))
            corners.append((mix, (a - 1, b + 1, c), (a, b + 1, c - 1)))
    inside = [cell for cell in corners if all(count >= 0 for corner in cell for count in corner)]
    return [tuple(tuple(trials * count / strides for count in corner) for corner in cell) for cell in inside]


def _divided(cell: tuple[Mix, ...]) -> list[tuple[Mix, ...]]:
    """Parts of a cell with edges half as long; of two types in whole numbers of draws."""
    middles = {
        (i, j): tuple((a + b) / 2 for a, b in zip(cell[i], cell[j], strict=True))
        for i, j in combinations(range(len(cell)), 2)
    }
    if len(cell) == 2:
        low, high = middles[0, 1]
        middle = (float(math.floor(low)), float(math.ceil(high)))
        return [(cell[0], middle), (middle, cell[1])]
    return [
        (cell[0], middles[0, 1], middles[0, 2]),
        (cell[1], middles[0, 1], middles[1, 2]),
        (cell[2], middles[0, 2], middles[1, 2]),
        tuple(middles.values()),
    ]


class _Nodes:
    """The sums at single mixes."""

    def __init__(self, terms: _Terms, *, trials: int) -> None:
        self._terms, self._trials = terms, trials
        self.known: dict[Mix, tuple[Floats, Floats]] = {}
        self._wrong = terms.wrong + 4 * _ROUNDOFF * (np.abs(terms.angle) + np.abs(terms.log_modulus))
        # Where all types can be told from zero one error serves all nodes.
        error = trials * self._wrong.max(axis=0) + terms.rounding
        # 1e-6: relative
        self._shared = np.exp(error) if bool(np.all(error < 1e-6)) else None
        # C·D² of the proof, for an edge of one draw.
        types = len(terms.log_modulus)
        self._gap = np.zeros(terms.shape.shape)
        for i, j in combinations(range(types), 2):
            each = terms.log_modulus[i] - terms.log_modulus[j], terms.angle[i] - terms.angle[j]
            np.maximum(self._gap, each[0] ** 2 + each[1] ** 2, out=self._gap)
        self._gap *= (types - 1) / (4 * types)

    def of(self, rows: Cells) -> _Nodes:
        """The same for some of the rows."""
        some = _Nodes(self._terms.of_rows(rows), trials=self._trials)
        some.known = {mix: (total[rows], size[rows]) for mix, (total, size) in self.known.items()}
        return some

    def add(self, counts: Mix) -> Floats:
        """Compute the sum at a mix, with rounding, shape (rows,)."""
        terms = self._terms
        size = terms.shape + _weighted(counts, terms.log_modulus)
        np.exp(np.minimum(size, _LARGEST_EXPONENT, out=size), out=size)
        phase = terms.turn + _weighted(counts, terms.angle)
        grown = self._shared
        if grown is None:
            grown = np.exp(np.minimum(_weighted(counts, self._wrong) + terms.rounding, 50.0))
        np.cos(phase, out=phase)
        phase += grown
        phase -= 1.0
        total: Floats = np.einsum("rt,rt->r", size, phase)
        size *= grown
        self.known[counts] = total, size
        return total

    def excess(self, cell: tuple[Mix, ...], *, edge: float) -> tuple[Floats, Floats]:
        """How far the sums in a cell are above the chord between its corners, at most; shape (rows,) each."""
        if not edge:
            return np.zeros(len(self._gap)), np.zeros(len(self._gap))
        sizes = np.maximum.reduce([self.known[corner][1] for corner in cell])
        bend = self._gap * edge**2
        turns = bend > 2
        if not np.any(turns):
            return np.einsum("rt,rt->r", sizes, bend), np.zeros(len(bend))
        far = 2 * np.einsum("rt,rt->r", sizes, turns)
        bend[turns] = 0.0
        return np.einsum("rt,rt->r", sizes, bend), far

    def bound(self, cell: tuple[Mix, ...], *, edge: float) -> Floats:
        """A bound on the sums at all mixes in a cell, shape (rows,)."""
        totals = np.sort([self.known[corner][0] for corner in cell], axis=0)
        if not edge or len(cell) == 1:
            return np.asarray(totals[-1])
        near, far = self.excess(cell, edge=edge)
        # The chord falls from the highest corner; what is above it rises there by so much at most.
        steepest = (4.0 if len(cell) == 2 else 3.0) * near
        fall = np.minimum(totals[-1] - totals[-2], steepest)
        left = 1 - fall / np.maximum(steepest, 1e-300)
        return np.asarray(totals[-1] + near * left**2 + far)


def _weighted(counts: Mix, each: Floats) -> Floats:
    total = counts[0] * each[0]
    for i in range(1, len(counts)):
        if counts[i]:
            total += counts[i] * each[i]
    return np.asarray(total)


def _off_the_line(apart: npt.NDArray[np.complex128]) -> Floats:
    """How far log Π M^n may be from the line between its values if all draws are of one type; (rows, terms).

    Args:
        apart: by how much it differs between the types, for each group; (groups, rows, terms).
    """
    lead = np.abs(apart[:, :, :1]) + 1e-300
    line = lead / lead.sum(axis=0) * apart.sum(axis=0)
    return np.asarray(np.abs(apart - line).sum(axis=0) / 2 * (1 + 1e-9))


def _largest_of_all_mixes(terms: _Terms, *, trials: int, enough: Floats, whole: bool) -> Floats:
    """A bound on the sums at every mix, shape (rows,), to about the relative size ``enough`` of each row.

    ``whole`` says that mixes are of whole numbers of draws.
    """
    types = len(terms.log_modulus)
    whole = whole and types < 3  # corners are, so a cell of one draw holds no other mix
    cells = _lattice(types, trials, _FIRST_STRIDES[types])
    nodes = _Nodes(terms, trials=trials)
    result, rows = np.empty(len(terms.shape)), np.arange(len(terms.shape))
    settled = best = np.full(len(rows), -math.inf)
    for level in range(_HALVINGS[types] + 1):
        for corner in {corner for cell in cells for corner in cell} - nodes.known.keys():
            best = np.maximum(best, nodes.add(corner))
        wanted = best * (1 + enough)
        unsettled, waiting = [], np.zeros(len(rows), dtype=np.bool_)
        for cell in cells:
            edge = max(abs(a - b) for a, b in zip(cell[0], cell[-1], strict=True))
            bound = nodes.bound(cell, edge=0.0 if whole and edge <= 1 else edge)
            open_rows = bound > wanted
            if level < _HALVINGS[types] and np.any(open_rows):
                # Only if dividing it to the end could take off more than half of what is too much.
                least = edge / 2 ** (_HALVINGS[types] - level)
                left = nodes.bound(cell, edge=least) - nodes.bound(cell, edge=0.0)
                open_rows &= bound - wanted > 2 * left
            if level < _HALVINGS[types] and np.any(open_rows):
                unsettled.append(cell)
                waiting |= open_rows
                settled = np.maximum(settled, np.where(open_rows, -math.inf, bound))
            else:
                settled = np.maximum(settled, bound)
        result[rows] = settled
        if not unsettled:
            break
        cells = [part for cell in unsettled for part in _divided(cell)]
        # 0.7: if fewer than this share of the rows is unsettled, the settled ones are dropped
        if waiting.mean() < 0.7:
            rows, settled, best, enough = rows[waiting], settled[waiting], best[waiting], enough[waiting]
            nodes = nodes.of(np.flatnonzero(waiting))
    return result


def _log_moments(
    values: Floats, masses: Floats, tilt: Floats, step: Floats, count: int
) -> tuple[Floats, Floats, Floats]:
    """log|M|, arg M and a relative error of M at tilt + i·step·(0, 1, …); shape (laws, rows, count) each."""
    found = []
    for law, weights in zip(values, masses, strict=True):
        atoms = np.flatnonzero(weights)
        excess, wrong = _moments_less_one(law[:, atoms], weights[None, atoms], tilt, step, count)
        log_modulus, angle = _logarithm(excess[0])
        found.append((log_modulus, angle, wrong[0] * np.exp(-log_modulus)))
    modulus, angles, errors = (np.stack(each) for each in zip(*found, strict=True))
    return modulus, angles, errors


def _logarithm(excess: npt.NDArray[np.complex128]) -> tuple[Floats, Floats]:
    """log|M| and arg M of M = 1 + ``excess``."""
    real, imaginary = excess.real, excess.imag
    squared = real * (2 + real) + imaginary**2
    near_zero = squared < -0.75
    log_modulus = 0.5 * np.log1p(np.where(near_zero, 0.0, squared))
    if np.any(near_zero):
        squared = np.maximum((1 + real[near_zero]) ** 2 + imaginary[near_zero] ** 2, 1e-300)
        # -34.0: of a modulus of M; rounding cannot tell less
        log_modulus[near_zero] = np.maximum(0.5 * np.log(squared), -34.0)
    return log_modulus, np.arctan2(imaginary, 1 + real)


def _moments_less_one(
    values: Floats, weights: Floats, tilt: Floats, step: Floats, count: int
) -> tuple[npt.NDArray[np.complex128], Floats]:
    """Σ w·(e^(sG) − 1) at s = tilt + i·step·(0, 1, …), and bounds on its errors; (kinds, rows, count).

    Exponentials are made as an outer product of few coarse and few fine ones.
    """
    # 32: fine ones
    fine, coarse = np.arange(min(32, count)), np.arange(0, count, 32)
    value = values[:, :, None]
    far, near = step[:, None, None] * coarse, step[:, None, None] * fine
    tilted = tilt[:, None, None] * value
    x = _complex_expm1(tilted, value * far)
    y = _complex_expm1(0.0, value * near)
    size = np.abs(value)
    scale = 3 * np.abs(x) + np.exp(tilted) * (size * far + np.abs(tilted))
    scale += np.minimum(size * near[:, :, -1:], 2.0)
    excess = np.empty((len(weights), len(values), len(coarse), len(fine)), dtype=np.complex128)
    for found, each in zip(excess, weights, strict=True):
        weighted = x * each[:, None]
        np.matmul(weighted.transpose(0, 2, 1), y, out=found)
        found += weighted.sum(axis=1)[:, :, None]
        found += (each[:, None] * y).sum(axis=1)[:, None, :]
    wrong = 32 * _ROUNDOFF * np.einsum("ka,ras->krs", np.abs(weights), scale)
    shape = (len(weights), len(values), -1)
    return excess.reshape(shape)[:, :, :count], np.repeat(wrong, len(fine), axis=2)[:, :, :count]


def _complex_expm1(real: npt.ArrayLike, imaginary: Floats) -> npt.NDArray[np.complex128]:
    """e^(real + i·imaginary) − 1, accurate where it is small."""
    half = imaginary / 2
    sine, cosine = np.sin(half), np.cos(half)
    growth = np.expm1(real)
    result = np.empty(imaginary.shape, dtype=np.complex128)
    result.real = growth - 2 * (1 + growth) * sine**2
    result.imag = 2 * (1 + growth) * sine * cosine
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptingTests:
    """Randomised tests, one a row, of P against Q: they accept if shift + S + η·Z > 0, Z standard normal.

    S is the sum of what all reports add. Of these ``changed`` are client 1's with the probability
    ``participation``, and else they are like all others (``docs/proofs/noise.md``, section 7).

    Attributes:
        shift: shape (rows,).
        values: what a report adds, shape (rows, atoms).
        masses: of everybody else's reports, shape (atoms,).
        u, v: client 1's are 1 + u times as likely under P, 1 + v times under Q, shape (atoms,), of mean 0.
        reports, changed, participation: all reports, client 1's, and its probability of taking part.
    """

    shift: Floats
    values: Floats
    masses: Floats
    u: Floats
    v: Floats
    reports: int
    changed: int
    participation: float

    def accepted(self, share: float) -> tuple[Floats, Floats]:
        """By how much P is accepted more than Q, rounded down, and how often Q is, rounded up.

        η² is that share of the variance of S, as in :meth:`MixedSums.largest`.
        """
        sums = MixedSums(shift=self.shift, types=[(self.values, self.masses)], trials=self.reports)
        saddle = sums.saddle_points()
        tilt, spread = saddle.tilt, saddle.spread
        smoothing = sums.smoothing(share, saddle)
        log_moment, log_own, log_apart = self._logs(tilt)
        height = self._height(tilt, smoothing, log_moment, log_own)
        # 40.0, 24.0: −log of what is folded over from the right, and of that over the probability itself
        folded = np.maximum(40.0, 24.0 - height)
        period = np.maximum(10.0 * np.hypot(spread, smoothing), folded / tilt)
        step, smoothing, terms = _contour(period, smoothing, decay=24.0)
        height = self._height(tilt, smoothing, log_moment, log_own)
        more, often, slack, margin = (np.empty(len(tilt)) for _ in range(4))
        for rows, count in _batches(terms):
            more[rows], often[rows], slack[rows], margin[rows] = self._sums(
                rows, count, tilt[rows], step[rows], smoothing[rows], log_moment[rows], log_own[rows]
            )
            end = step[rows] * (count - 1)
            beyond = 2 * tilt[rows] / (step[rows] * (smoothing[rows] * end) ** 2)
            margin[rows] += beyond * np.exp(-((smoothing[rows] * end) ** 2) / 2)
        slack += self.changed * np.exp(log_apart - log_own) * margin
        with np.errstate(over="ignore"):
            unit = np.exp(np.minimum(height, 600.0)) / (tilt * period)
            folded = 1.01 * np.exp(-tilt * period) + self._from_the_left(tilt, smoothing, period)
        often = (often + margin) * unit + folded
        return self.participation * ((more - slack) * unit - folded), often * (1 + 1e-12)

    def _logs(self, tilt: Floats) -> tuple[Floats, Floats, Floats]:
        """Logs of the moments of a report of others, of one of client 1 at most, and of |u − v|."""
        growth = tilt[:, None] * self.values
        beyond = growth.max(axis=1) > 700.0  # e to that is no float
        growth = np.minimum(growth, 700.0)
        weights = np.stack([self.masses * (1 + self.u), self.masses * (1 + self.v)])
        moment = np.log1p(np.expm1(growth) @ self.masses)
        own = np.log1p((np.expm1(growth) @ weights.T).max(axis=1))
        with np.errstate(divide="ignore"):
            apart = np.log(np.exp(growth) @ (self.masses * np.abs(self.u - self.v)))
        return moment, np.where(beyond, np.inf, np.maximum(moment, own)), apart

    def _height(self, tilt: Floats, smoothing: Floats, log_moment: Floats, log_own: Floats) -> Floats:
        """Chernoff's bound on the logarithm of how often any of the laws is accepted."""
        found = tilt * self.shift + (smoothing * tilt) ** 2 / 2
        return found + (self.reports - self.changed) * log_moment + self.changed * log_own

    def _from_the_left(self, tilt: Floats, smoothing: Floats, period: Floats) -> Floats:
        """What the trapezoidal sum folds over from so many periods further left, by Chernoff."""
        best = np.full(len(tilt), np.inf)
        # 7.0, …: by how much larger the tilts are that are tried
        for more in (7.0 / period, 14.0 / period, 28.0 / period, 56.0 / period):
            log_moment, log_own, _ = self._logs(tilt + more)
            found = self._height(tilt + more, smoothing, log_moment, log_own) - more * period
            best = np.minimum(best, np.exp(np.minimum(found, 600.0)) / -np.expm1(-more * period))
        return best

    def _sums(
        self,
        rows: Cells,
        count: int,
        tilt: Floats,
        step: Floats,
        smoothing: Floats,
        log_moment: Floats,
        log_own: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Trapezoidal sums of both, over the term at the real axis at most, and their rounding errors."""
        others, changed, rate = self.reports - self.changed, self.changed, self.participation
        weights = np.stack([self.masses, self.masses * self.v, self.masses * (self.u - self.v)])
        excess, wrong = _moments_less_one(self.values[rows], weights, tilt, step, count)
        log_modulus, angle = _logarithm(excess[0])
        t = step[:, None] * np.arange(count)
        ratio = t / tilt[:, None]
        shape = others * (log_modulus - log_moment[:, None]) - (smoothing[:, None] * t) ** 2 / 2
        shape -= np.log1p(ratio**2) / 2
        size = np.exp(shape)
        size[:, 1:] *= 2
        turn = t * (self.shift[rows] + smoothing**2 * tilt)[:, None] - np.arctan(ratio) + others * angle
        rounding = others * wrong[0] * np.exp(-log_modulus)
        rounding += 8 * _ROUNDOFF * (np.abs(turn) + np.abs(shape) + 8)
        # 70.0: −log of the size of a term that is not computed
        kept = np.any(shape > -70.0, axis=0)
        dropped = size[:, ~kept].sum(axis=1)
        scale = np.exp(-log_own)[:, None]  # no moment is larger
        excess, wrong = excess[:, :, kept] * scale, wrong[:, :, kept] * scale
        size, rounding = size[:, kept], np.expm1(np.minimum(rounding[:, kept], 50.0))
        one = scale + excess[0]
        second, apart = one + excess[1], excess[2]
        off = rounding + changed * wrong.sum(axis=0)
        terms = size * np.exp(1j * turn[:, kept])
        return (
            (terms * apart * _powers(second + apart, second, changed)).real.sum(axis=1),
            (terms * ((1 - rate) * one**changed + rate * second**changed)).real.sum(axis=1),
            changed * (size * (np.abs(apart) * off + wrong[2])).sum(axis=1),
            dropped + (size * off).sum(axis=1),
        )


def _powers(
    one: npt.NDArray[np.complex128], two: npt.NDArray[np.complex128], count: int
) -> npt.NDArray[np.complex128]:
    """The sum of one^i·two^(count − 1 − i) over i = 0 … count − 1: (one^count − two^count)/(one − two)."""
    total, ones, twos = np.ones_like(one), one, two
    for digit in bin(count)[3:]:
        total, ones, twos = total * (ones + twos), ones * ones, twos * twos
        if digit == "1":
            total, ones, twos = total * one + twos, ones * one, twos * two
    return total


# -- binomial laws ----------------------------------------------------------------------------------------

TAIL = 1e-30
LOG_TAIL = math.log(2 / TAIL)
MOST_LISTED = 1 << 20
"""Counts of a window up to which each is listed; sums over wider ones are integrals."""
_GAUSS_POINTS = 8
_SERIES_FROM = 32.0


def bernstein_reach(variance: npt.ArrayLike, *, tail: float = TAIL) -> Floats:
    """How far a binomial count strays from its mean but for a probability of ``tail`` (Bernstein).

    So does a hypergeometric one, of the same or a larger variance: Hoeffding 1963, Theorem 4.
    """
    log_tail = math.log(2 / tail)
    third = log_tail / 3
    return np.asarray(third + np.sqrt(third**2 + 2 * log_tail * np.asarray(variance)), dtype=np.float64)


def window_ends(trials: int, probability: float) -> tuple[int, int]:
    """The first and the last count of :func:`binomial_window`."""
    if trials == 0 or probability <= 0.0:
        return 0, 0
    if probability >= 1.0:
        return trials, trials
    mean = trials * probability
    reach = float(bernstein_reach(mean * (1 - probability)))
    return max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))


@lru_cache(maxsize=512)
def binomial_window(trials: int, probability: float) -> tuple[int, Floats]:
    """The binomial masses that matter: all but at most 1e-30 of the law, as (first count, masses).

    Bernstein's inequality gives the window; masses come from ratios of neighbours, starting at the mode, so
    they are accurate to a few thousand units in the last place at any ``trials``.
    """
    if trials == 0 or probability <= 0.0:
        return 0, np.ones(1)
    if probability >= 1.0:
        return trials, np.ones(1)
    low, high = window_ends(trials, probability)
    mass = binomial_masses(trials, probability, low=low, high=high)
    mass.setflags(write=False)
    return low, mass


def binomial_masses(trials: int, probability: float, *, low: int, high: int) -> Floats:
    """Masses of the counts from ``low`` to ``high``, scaled to a sum of one, from ratios of neighbours."""
    mode = min(max(int((trials + 1) * probability), low), high)
    odds = probability / (1 - probability)
    above = np.arange(mode + 1, high + 1, dtype=np.float64)
    below = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((trials - above + 1) / above * odds)
    falling = np.cumprod(below / ((trials - below + 1) * odds))
    mass = np.concatenate([falling[::-1], [1.0], rising])
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def hypergeometric_window(*, draws: int, marked: int, among: int) -> tuple[int, Floats]:
    """As :func:`binomial_window`, of how many of ``draws`` out of ``among`` are ``marked``."""
    least, most = max(0, draws + marked - among), min(draws, marked)
    mean = draws * marked / among
    reach = float(bernstein_reach(mean * (1 - marked / among)))
    low, high = max(least, math.floor(mean - reach)), min(most, math.ceil(mean + reach))
    counts = np.arange(low, high, dtype=np.float64)
    ratio = (marked - counts) * (draws - counts) / ((counts + 1) * (among - marked - draws + counts + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratio))])
    mass = np.exp(logs - logs.max())
    return low, np.asarray(mass / mass.sum(), dtype=np.float64)


def binomial_between(trials: int, probability: float, *, edges: Cells) -> Floats:
    """Masses of the window's counts from each edge up to, but not including, the next one."""
    first, last = window_ends(trials, probability)
    if last - first < MOST_LISTED:
        _, mass = binomial_window(trials, probability)
        return np.asarray(np.add.reduceat(mass, edges[:-1] - first), dtype=np.float64)
    mass = _integrated(trials, probability, edges.astype(np.float64))
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def _integrated(trials: int, probability: float, edges: Floats) -> Floats:
    """Masses between edges, of a window of millions of counts."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    pieces = max(1, math.ceil(float(np.diff(edges).max()) / deviation * 8))
    width = np.diff(edges)[:, None] / pieces
    starts = edges[:-1, None] + width * np.arange(pieces) - 0.5
    places, weights = np.polynomial.legendre.leggauss(_GAUSS_POINTS)
    counts = starts[:, :, None] + width[:, :, None] * (places + 1) / 2
    mass = np.exp(log_probability(successes=counts, trials=trials, success=probability))
    mass *= width[:, :, None] * weights / 2
    far = (counts - trials * probability) / deviation  # f″ is (far² − 1)·f/deviation²
    mass *= 1 - (far**2 - 1) / (24 * deviation**2)
    return np.asarray(mass.sum(axis=(1, 2)), dtype=np.float64)


def log_probability(*, successes: Floats, trials: npt.ArrayLike, success: float) -> Floats:
    """log P[Bin(k, p) = h] for h in [0, k] and p in (0, 1), with absolute error near 1e-12.

    Counts and trials broadcast against each other.

    The plain ``gammaln`` form cancels numbers of size k·log k and is off by more than 1e-6 at k = 1e9;
    Loader's form sums two deviances and Stirling's corrections, all of them small.
    """
    trials = np.asarray(trials, dtype=np.float64)
    failures = trials - successes
    inside = (successes > 0) & (failures > 0)
    h, f = np.where(inside, successes, 1.0), np.where(inside, failures, 1.0)
    excess = successes - trials * success
    deviance = _deviance(excess, trials * success) + _deviance(-excess, trials * (1 - success))
    corrections = _stirling_error(np.maximum(trials, 1.0)) - _stirling_error(h) - _stirling_error(f)
    # at an end (h = 0 or k) the guarded values above are not used
    with np.errstate(divide="ignore", invalid="ignore"):
        log_root = 0.5 * np.log(trials / (2 * math.pi * h * f))
    ends = np.where(successes == 0, trials * math.log1p(-success), trials * math.log(success))
    return np.where(inside, corrections - deviance + log_root, ends)


def log_sum(logs: Floats) -> float:
    """log Σ e^x over all entries x, accurate where it is small; SciPy's takes many times as long."""
    place = int(logs.argmax())
    largest = float(logs[place])
    if not math.isfinite(largest):
        return largest
    others = np.exp(logs - largest)
    others[place] = 0.0
    return largest + math.log1p(float(others.sum()))


def _deviance(excess: Floats, mean: Floats) -> Floats:
    """x·log(x/μ) − x + μ at x = μ + excess, as a series where that would lose digits; not used at x = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = excess / mean
        series = x * x * (1 / 2 - x * (1 / 6 - x * (1 / 12 - x * (1 / 20 - x * (1 / 30 - x / 42)))))
        return np.asarray(mean * np.where(np.abs(x) < 1e-2, series, (1 + x) * np.log1p(x) - x))


def _stirling_error(n: Floats) -> Floats:
    """log n! − log(√(2πn)·(n/e)^n) for n ≥ 1."""
    inverse = 1 / np.asarray(n)
    square = inverse * inverse
    found = np.asarray(inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))))
    few = np.asarray(n < _SERIES_FROM)
    m = n[few]
    found[few] = gammaln(m + 1) - (m + 0.5) * np.log(m) + m - 0.5 * math.log(2 * math.pi)
    return found


def tally(index: Cells, weights: Floats, size: int) -> Floats:
    """Sum of the weights at each index in [0, size)."""
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64, copy=False)
