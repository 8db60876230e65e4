r"""Upper bounds on :math:`E[(x + G_1 + … + G_N)_+]` for independent G of a few types, over all mixes.

With M_i the moment generating function of type i and n_i draws of it, for every c > 0

    E[(x + S)₊] = 1/(2πi) · ∫ Π M_i(s)^{n_i} e^{s·x} / s² ds        along Re s = c.

The sum that stands for the integral (:mod:`~shuffle_plugins.accounting.numerics.hinge`) is made of
exponentials of linear functions of the n_i, so it is defined for all real n_i. It is computed where these are
multiples of N/strides; between, it is at most the largest value at the corners of a cell and a bound of
second order. Proof: ``docs/proofs/accounting.md``, section 3c, "All mixes at once".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Cells, Floats
from shuffle_plugins.accounting.numerics.hinge import complex_expm1

Law = tuple[Floats, Floats]
"""Values, shape (rows, atoms), and masses, shape (atoms,)."""

_ROUNDOFF = 2.0**-52
_PERIOD = 18.0  # of the trapezoidal sum, in deviations of the tilted sum
_FADED = 32.0  # −log of a relative size of terms that are bounded and not computed
_LEFT_OFF = 24.0  # −log of the Gaussian factor at the ends
_FAR = 12.0  # deviations from which the scale that matters grows
_LARGEST_EXPONENT = 300.0
_LEAST_LOG = -34.0  # of a modulus of M; rounding cannot tell less
_BISECTIONS = 15  # towards the saddle point; any contour gives a valid bound
_BLOCK = 64  # terms computed at once
_MOST_BLOCKS = 64
_AT_ONCE = 100_000  # terms of all nodes, so that arrays stay in the processor's cache
_SMALL_ERROR = 1e-6  # relative


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSums:
    """Sums x + own + Σ n_i draws of type i, Σ n_i = trials; every law has mean zero.

    Attributes:
        shift: x, shape (rows,).
        types: two or three laws.
        own: one further law, drawn once.
        trials: N.
        participation: probability that a draw of a type is made; otherwise it is zero.
        own_participation: the same of the one further draw.
        strides: cells along each edge of the lattice of mixes.
    """

    shift: Floats
    types: list[Law]
    own: Law
    trials: int
    participation: float
    own_participation: float
    strides: int

    def largest(self, share: float) -> Floats:
        """Upper bounds, shape (rows,), on the expected positive part of every mix.

        Args:
            share: variance of the Gaussian that smooths the sum, relative to its own.
        """
        tilt, log_height, spread = self._saddle_points()
        deviation = np.sqrt(self.trials * max_of([_variance(law) for law in self.types]) * self.participation)
        scale = np.maximum(deviation, np.abs(self.shift) / _FAR)
        smoothing = math.sqrt(share) * np.minimum(scale, np.maximum(spread, 0.5 / tilt))
        step = 2 * math.pi / (_PERIOD * np.hypot(spread, smoothing))
        size = _Trapezoid(self, tilt, log_height, smoothing, step).largest()
        return np.where(log_height < -700, 1e-290, size * np.exp(np.maximum(log_height, -700.0)))

    def log_bound(self) -> Floats:
        """Chernoff's bound on the logarithm of the same, shape (rows,): (y)₊ ≤ e^{c·y − 1}/c."""
        tilt, log_height, _ = self._saddle_points()
        return log_height + np.log(tilt) - 1.0

    def _saddle_points(self) -> tuple[Floats, Floats, Floats]:
        """Where the largest N·log M_i(c) + c·x − 2·log c is least, that value, and the largest deviation."""
        most = max_of([np.abs(values).max(axis=1) for values, _ in [*self.types, self.own]])
        deviation = np.sqrt(self.trials * max_of([_variance(law) for law in self.types]) * self.participation)
        low = np.log(0.1 / (deviation + most))
        high = np.maximum(np.log(_LARGEST_EXPONENT / most), low + 1.0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            rises = self._slope(np.exp(middle)) > 0
            low, high = np.where(rises, low, middle), np.where(rises, middle, high)
        tilt = np.exp(low)
        log_height, _, spread = self._at(tilt)
        return tilt, log_height, spread

    def _slope(self, tilt: Floats) -> Floats:
        return self._at(tilt)[1]

    def _at(self, tilt: Floats) -> tuple[Floats, Floats, Floats]:
        """Log of the height of the integrand at Im s = 0, its slope there, and the deviation of the sum."""
        heights, slopes, variances = [], [], []
        for values, masses in self.types:
            log_moment, mean, variance = _tilted(values, masses, tilt, self.participation)
            heights.append(self.trials * log_moment)
            slopes.append(self.trials * mean)
            variances.append(self.trials * variance)
        log_moment, mean, variance = _tilted(*self.own, tilt, self.own_participation)
        each = np.array(heights)
        best = np.argmax(each, axis=0)[None]
        height = np.take_along_axis(each, best, 0)[0] + log_moment + tilt * self.shift - 2 * np.log(tilt)
        slope = np.take_along_axis(np.array(slopes), best, 0)[0] + mean + self.shift - 2 / tilt
        return height, slope, np.sqrt(max_of(variances) + variance)


def max_of(each: list[Floats]) -> Floats:
    """The largest of several arrays, entry by entry."""
    return np.asarray(np.max(np.array(each), axis=0), dtype=np.float64)


def _variance(law: Law) -> Floats:
    return np.asarray((law[1] * law[0] ** 2).sum(axis=1), dtype=np.float64)


def _tilted(
    values: Floats, masses: Floats, tilt: Floats, participation: float
) -> tuple[Floats, Floats, Floats]:
    """log M, mean and variance of one draw under the tilt."""
    growth = np.expm1(np.minimum(tilt[:, None] * values, 2 * _LARGEST_EXPONENT))
    moment = participation * (masses * growth).sum(axis=1)
    weight = participation * masses * (1 + growth)
    mean = (weight * values).sum(axis=1) / (1 + moment)
    variance = (weight * values**2).sum(axis=1) / (1 + moment) - mean**2
    return np.log1p(moment), mean, np.maximum(variance, 0.0)


@lru_cache(maxsize=16)
def _lattice(types: int, strides: int) -> tuple[Floats, Cells]:
    """Mixes at the nodes, as shares, shape (nodes, types), and the nodes of each cell, (cells, types)."""
    nodes = [mix for mix in product(range(strides + 1), repeat=types) if sum(mix) == strides]
    place = {mix: i for i, mix in enumerate(nodes)}
    cells = []
    for mix in nodes:
        if types == 2:
            corners = [mix, (mix[0] - 1, mix[1] + 1)]
            cells.append(corners)
        else:
            a, b, c = mix
            cells.append([mix, (a - 1, b + 1, c), (a - 1, b, c + 1)])
            cells.append([mix, (a - 1, b + 1, c), (a, b + 1, c - 1)])
    kept = [[place[corner] for corner in corners] for corners in cells if all(c in place for c in corners)]
    return np.array(nodes, dtype=np.float64) / strides, np.array(kept, dtype=np.int64)


class _Trapezoid:
    """The sums over Im s, in units of the largest integrand at Im s = 0."""

    def __init__(
        self, sums: MixedSums, tilt: Floats, log_height: Floats, smoothing: Floats, step: Floats
    ) -> None:
        self._sums, self._tilt, self._smoothing, self._step = sums, tilt, smoothing, step
        self._log_height = log_height
        self._mixes, self._cells = _lattice(len(sums.types), sums.strides)
        rows, nodes = len(tilt), len(self._mixes)
        self._total, self._bend, self._lost = np.zeros((rows, nodes)), np.zeros((rows, nodes)), np.zeros(rows)

    def largest(self) -> Floats:
        """For each row the largest bound over all mixes, shape (rows,)."""
        sums = self._sums
        last = math.sqrt(2 * _LEFT_OFF) / self._smoothing
        reach = max_of([np.ptp(values, axis=1) for values, _ in [*sums.types, sums.own]])
        # Up to t·reach = π |M(c + it)| falls: |M|² is a sum of positive multiples of cos(t·(g − g')).
        falling = bool(np.all(last * reach < math.pi))
        blocks = min(math.ceil(float((last / self._step).max()) / _BLOCK) + 1, _MOST_BLOCKS)
        for block in range(blocks):
            faded, ceiling = self._add(block)
            end = self._step * (_BLOCK * (block + 1) - 1)
            if falling and faded:
                # So the last bound on a term, times (c² + t²)/t², bounds all up to where the Gaussian ends.
                self._lost += ceiling * (self._tilt**2 + end**2) / (self._step * end)
                end = np.maximum(end, last)
                break
        cells = self._total[:, self._cells].max(axis=2) + self._bend[:, self._cells].sum(axis=2)
        found = (cells.max(axis=1) + self._lost) * self._step / (2 * math.pi)
        # The terms beyond, as in the proof of Claim 3 of docs/proofs/noise.md.
        exponent = ((self._smoothing * self._tilt) ** 2 - (self._smoothing * end) ** 2) / 2
        exponent = np.clip(exponent, -700.0, 700.0)
        found += np.exp(exponent) * self._tilt**2 / (math.pi * self._smoothing**2 * end**3)
        rounding = 16 * _ROUNDOFF * (1 + np.abs(self._log_height) + self._tilt * np.abs(sums.shift))
        return np.asarray(np.maximum(found, 0.0) * (1 + rounding), dtype=np.float64)

    def _add(self, block: int) -> tuple[bool, Floats]:
        """Add a block of terms. Returns whether its last ones are negligible, and a bound on the last."""
        sums = self._sums
        t = self._step[:, None] * (_BLOCK * block + np.arange(_BLOCK))
        laws = [
            _log_moment(values, masses, self._tilt, t, sums.participation) for values, masses in sums.types
        ]
        log_modulus = np.stack([law[0] for law in laws])  # (types, rows, terms)
        angle = np.stack([law[1] for law in laws])
        wrong = np.stack([law[2] for law in laws])
        own_modulus, own_angle, own_wrong = _log_moment(*sums.own, self._tilt, t, sums.own_participation)
        ratio = t / self._tilt[:, None]
        shape = own_modulus - (self._smoothing[:, None] * t) ** 2 / 2 - np.log1p(ratio**2)
        shape += (self._tilt[:, None] * sums.shift[:, None]) - 2 * np.log(self._tilt)[:, None]
        shape -= self._log_height[:, None]
        shape += (self._smoothing * self._tilt)[:, None] ** 2 / 2
        turn = t * (sums.shift + self._smoothing**2 * self._tilt)[:, None] - 2 * np.arctan(ratio) + own_angle
        doubled = np.full(t.shape, 2.0)
        if block == 0:
            doubled[:, 0] = 1.0
        ceiling = doubled * np.exp(np.minimum(shape + sums.trials * (log_modulus + wrong).max(axis=0), 600.0))
        kept = np.any(ceiling > math.exp(-_FADED), axis=0)
        self._lost += ceiling[:, ~kept].sum(axis=1)
        if np.any(kept):
            self._add_kept(
                log_modulus[:, :, kept],
                angle[:, :, kept],
                wrong[:, :, kept],
                (shape + np.log(doubled))[:, kept],
                turn[:, kept],
                own_wrong[:, kept] + 8 * _ROUNDOFF * (np.abs(turn) + np.abs(shape) + 8)[:, kept],
            )
        return bool(np.all(ceiling[:, -1] < math.exp(-_FADED))), ceiling[:, -1]

    def _add_kept(
        self,
        log_modulus: Floats,
        angle: Floats,
        wrong: Floats,
        shape: Floats,
        turn: Floats,
        rounding: Floats,
    ) -> None:
        """Add terms, shape (types, rows, terms) or (rows, terms), to the sums of every node."""
        counts = self._sums.trials * self._mixes  # (nodes, types)
        types = len(log_modulus)
        wrong = wrong + 4 * _ROUNDOFF * (np.abs(angle) + np.abs(log_modulus))
        # Where all types can be told from zero one error serves all nodes.
        error = self._sums.trials * wrong.max(axis=0) + rounding
        apart = np.zeros(shape.shape)
        for i in range(types):
            for j in range(i):
                gap = np.hypot(log_modulus[i] - log_modulus[j], angle[i] - angle[j])
                apart = np.maximum(apart, gap)
        apart *= self._sums.trials / self._sums.strides
        bend = np.minimum((types - 1) / (4 * types) * apart**2, 2.0)
        rows_at_once = max(1, _AT_ONCE // (len(counts) * shape.shape[1]))
        for start in range(0, len(shape), rows_at_once):
            part = slice(start, start + rows_at_once)
            size = np.exp(
                np.minimum(
                    np.tensordot(counts, log_modulus[:, part], axes=1) + shape[part], _LARGEST_EXPONENT
                )
            )
            phase = np.tensordot(counts, angle[:, part], axes=1) + turn[part]
            if np.all(error[part] < _SMALL_ERROR):
                off = np.expm1(error[part]) + bend[part] * np.exp(error[part])
                self._bend[part] += np.einsum("vrt,rt->rv", size, off)
            else:
                each = np.minimum(np.tensordot(counts, wrong[:, part], axes=1) + rounding[part], 50.0)
                self._bend[part] += (size * (np.expm1(each) + bend[part] * np.exp(each))).sum(axis=2).T
            np.cos(phase, out=phase)
            self._total[part] += np.einsum("vrt,vrt->rv", size, phase)


def _log_moment(
    values: Floats, masses: Floats, tilt: Floats, t: Floats, participation: float
) -> tuple[Floats, Floats, Floats]:
    """log|M|, arg M and a relative error of M at tilt + i·t; shape (rows, terms) each."""
    real, imaginary, scale = np.zeros(t.shape), np.zeros(t.shape), np.zeros(t.shape)
    for column, mass in zip(values.T, participation * masses, strict=True):
        z_real, z_imaginary = (tilt * column)[:, None], t * column[:, None]
        part = complex_expm1(z_real, z_imaginary)
        real += mass * part.real
        imaginary += mass * part.imag
        scale += mass * (np.abs(part) + np.exp(z_real) * (np.abs(z_imaginary) + np.abs(z_real)))
    excess = real * (2 + real) + imaginary**2
    near_zero = excess < -0.75
    squared = np.where(near_zero, np.maximum((1 + real) ** 2 + imaginary**2, 1e-300), 1.0)
    log_modulus = 0.5 * np.where(near_zero, np.log(squared), np.log1p(np.where(near_zero, 0.0, excess)))
    log_modulus = np.maximum(log_modulus, _LEAST_LOG)
    return log_modulus, np.arctan2(imaginary, 1 + real), 32 * _ROUNDOFF * scale * np.exp(-log_modulus)
