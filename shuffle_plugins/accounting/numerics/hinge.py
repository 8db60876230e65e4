r"""Upper bounds on :math:`E[(x + G_1 + … + G_N)_+]` for independent G of a few laws, at a cost flat in N.

With M_j the moment generating function of the j-th law and N_j the number of draws from it, for every c > 0

    E[(x + S)₊] = 1/(2πi) · ∫ Π_j M_j(s)^{N_j} e^{s·x} / s² ds        along Re s = c.

A Gaussian added to S ends the integral, whatever the lattice of G; the trapezoidal sum in its place is above
it; what is left off and what is rounded is bounded and added. The contour passes near the saddle point, so
the relative error does not depend on how small the answer is. Proof: ``docs/proofs/noise.md``, Claim 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.numerics.grid import Floats

_ROUNDOFF = 2.0**-52
_LEFT_OFF = 12.0  # −log of the Gaussian factor at the ends
_PERIODS = (12.0, 16.0, 24.0, 36.0, 54.0, 90.0, 160.0, 300.0, 600.0)  # L, in tilted standard deviations
_ALIASED = 1e-6  # relative excess that chooses the period
_FAR = 12.0  # standard deviations
_NEWTON_STEPS = 60  # at most, towards the saddle point; any contour gives a valid bound
_LARGEST_EXPONENT = 300.0  # e to this power, squared, is a float
_LOG_FADED = -50.0  # of a term, relative to the one on the real line, that need not be computed
_SMALLEST_LOG_MODULUS = -7.0  # relative to M(c)
_BLOCK = 32  # terms whose factors are computed as an outer product
_MOST_TERMS = 1 << 11  # per row; beyond, the Gaussian is widened
_TERMS_AT_ONCE = 1 << 15  # so that arrays stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Draw:
    """The law of one of the independent terms of a sum, in every row.

    Attributes:
        values: what a draw can be, shape (rows, atoms).
        masses: their probabilities, shape (atoms,), the same in every row. What they lack of one is a draw
            of zero.
    """

    values: Floats
    masses: Floats

    def of(self, rows: npt.NDArray[Any]) -> Draw:
        """The law in some of the rows."""
        return Draw(self.values[rows], self.masses)


def expected_positive_part(
    *, values: Floats, masses: Floats, trials: int, shift: Floats, share: float
) -> Floats:
    """Upper bounds on E[(shift + S)₊], S a sum of ``trials`` independent draws, one per row of ``values``.

    Args:
        values, masses: as of :class:`Draw`.
        trials: N ≥ 1.
        shift: x, shape (rows,).
        share: variance of the Gaussian that smooths S, relative to the variance of S, or to that of S under
            the tilt of the contour where that is less. Must be in (0, 1).

    Returns:
        Shape (rows,). Each is at least the exact value, and at most that with the Gaussian, up to about 1e-6
        of it.
    """
    draws, mixes = (Draw(values, masses),), np.array([[float(trials)]])
    return _parts(draws, mixes, shift, share)[:, 0]


def _parts(draws: Sequence[Draw], mixes: Floats, shift: Floats, share: float) -> Floats:
    result = np.repeat(np.maximum(shift, 0.0)[:, None], len(mixes), axis=1)
    rows = np.nonzero(_can_be_positive(draws, mixes, shift))[0]
    if len(rows):
        open_draws = [draw.of(rows) for draw in draws]
        result[rows] = _by_contour(open_draws, mixes, shift[rows], share)
    return result


def log_positive_part_bound(*, values: Floats, masses: Floats, trials: int, shift: Floats) -> Floats:
    """Chernoff bounds on log E[(shift + S)₊], shape (rows,): (y)₊ ≤ e^{c·y − 1}/c at the best c."""
    mix = np.array([[float(trials)]])
    return log_positive_part_bounds(draws=(Draw(values, masses),), mix=mix[0], shift=shift)


def log_positive_part_bounds(*, draws: Sequence[Draw], mix: Floats, shift: Floats) -> Floats:
    """The same for a sum of ``mix`` draws, shape (laws,), of several laws."""
    with np.errstate(divide="ignore"):
        result = np.log(np.maximum(shift, 0.0))
    rows = np.nonzero(_can_be_positive(draws, mix[None, :], shift))[0]
    if len(rows):
        tilt, log_height, _ = _saddle_points([d.of(rows) for d in draws], mix, shift[rows])
        result[rows] = log_height + np.log(tilt) - 1.0
    return result


def _can_be_positive(draws: Sequence[Draw], mixes: Floats, shift: Floats) -> npt.NDArray[np.bool_]:
    """Rows that leave something to compute: elsewhere (x + S)₊ is x₊, as S is zero or cannot exceed −x."""
    moves, most = np.zeros(len(shift), dtype=np.bool_), np.zeros(len(shift))
    for draw, trials in zip(draws, mixes.max(axis=0), strict=True):
        moves |= (trials > 0) & np.any(draw.values != 0, axis=1)
        most += trials * np.maximum(draw.values.max(axis=1, initial=0.0), 0.0)
    return np.asarray(moves & (shift + most > 0), dtype=np.bool_)


def _variance(draws: Sequence[Draw], mix: Floats) -> Floats:
    """Sum of the squares' means, which is the variance of centred draws, shape (rows,)."""
    each = [n * (d.masses * d.values**2).sum(axis=1) for d, n in zip(draws, mix, strict=True)]
    return np.asarray(np.sum(each, axis=0), dtype=np.float64)


def _largest(draws: Sequence[Draw]) -> Floats:
    return np.asarray(np.max([d.values.max(axis=1) for d in draws], axis=0), dtype=np.float64)


def _by_contour(draws: Sequence[Draw], mixes: Floats, shift: Floats, share: float) -> Floats:
    """The trapezoidal sums, shape (rows, sums)."""
    mix = mixes.mean(axis=0)
    tilt, log_height, spread = _saddle_points(draws, mix, shift)
    # The scale on which it matters where S is: its own, more far out, and never more than the tilted S's.
    scale = np.maximum(np.sqrt(_variance(draws, mix)), np.abs(shift) / _FAR)
    smoothing = math.sqrt(share) * np.minimum(scale, np.maximum(spread, 0.5 / tilt))
    period = _periods(draws, mix, shift, tilt, log_height, np.hypot(spread, smoothing))
    ends = math.sqrt(2 * _LEFT_OFF)
    smoothing = np.maximum(smoothing, ends * period / (2 * math.pi * _MOST_TERMS))
    heights = np.stack([_log_moment(tilt, d) for d in draws], axis=1) @ mixes.T
    heights += (tilt * shift - 2 * np.log(tilt) + (smoothing * tilt) ** 2 / 2)[:, None]
    blocks = np.ceil(ends / smoothing * period / (2 * math.pi * _BLOCK)).astype(np.int64)
    result = np.empty((len(shift), len(mixes)))
    order = np.argsort(blocks, kind="stable")
    start = 0
    while start < len(order):
        # Rows that need about as many terms go together.
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * blocks[order[stop]] * _BLOCK <= _TERMS_AT_ONCE:
            stop += 1
        rows = order[start:stop]
        result[rows] = _trapezoid(
            [d.of(rows) for d in draws],
            mixes,
            shift=shift[rows],
            smoothing=smoothing[rows],
            tilt=tilt[rows],
            step=2 * math.pi / period[rows],
            blocks=int(blocks[order[stop - 1]]),
        )
        start = stop
    rounding = 8 * _ROUNDOFF * (1 + np.abs(heights) + np.abs(tilt * shift)[:, None])
    with np.errstate(over="ignore"):
        found = np.maximum(result, 1e-300) * np.exp(heights) * (1 + rounding)
    return np.asarray(found, dtype=np.float64)


def _saddle_points(draws: Sequence[Draw], mix: Floats, shift: Floats) -> tuple[Floats, Floats, Floats]:
    """Where Σ N·log M(c) + c·x − 2·log c is least, that minimum, and the deviation of S tilted so."""
    tilt = math.sqrt(2.0) / np.sqrt(_variance(draws, mix))
    most = _LARGEST_EXPONENT / np.maximum(_largest(draws), 1e-300)
    tilt = np.minimum(tilt, most)
    low, high = np.zeros_like(tilt), most
    for _ in range(_NEWTON_STEPS):
        mean, variance = _tilted_moments(tilt, draws, mix)
        slope = mean + shift - 2 / tilt
        low, high = np.where(slope < 0, tilt, low), np.where(slope < 0, high, tilt)
        moved = np.clip(tilt - slope / (variance + 2 / tilt**2), tilt / 4, 4 * tilt)
        # The exponent is convex; a step beyond what is known of its minimum is replaced by half of the way.
        moved = np.where((moved > low) & (moved < high), moved, (np.maximum(low, tilt / 16) + high) / 2)
        done = np.all(np.abs(moved - tilt) < 1e-4 * tilt)
        tilt = moved
        if done:
            break
    log_height = _log_moments(tilt, draws, mix) + tilt * shift - 2 * np.log(tilt)
    return tilt, log_height, np.sqrt(_tilted_moments(tilt, draws, mix)[1])


def _tilted_moments(tilt: Floats, draws: Sequence[Draw], mix: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the sum of draws under the tilt, shape (rows,) each."""
    means, variances = np.zeros(len(tilt)), np.zeros(len(tilt))
    for draw, trials in zip(draws, mix, strict=True):
        weight = draw.masses * np.exp(tilt[:, None] * draw.values)
        nothing = max(1.0 - float(draw.masses.sum()), 0.0)
        total = weight.sum(axis=1) + nothing
        mean = (weight * draw.values).sum(axis=1) / total
        variance = (weight * (draw.values - mean[:, None]) ** 2).sum(axis=1) + nothing * mean**2
        means += trials * mean
        variances += trials * (variance / total)
    return means, variances


def _log_moment(tilt: Floats, draw: Draw) -> Floats:
    """log M of one law at real tilts, shape (rows,)."""
    moment = np.log1p((draw.masses * np.expm1(tilt[:, None] * draw.values)).sum(axis=1))
    return np.asarray(moment, dtype=np.float64)


def _log_moments(tilt: Floats, draws: Sequence[Draw], mix: Floats) -> Floats:
    """Σ N·log M at real tilts, shape (rows,)."""
    each = [n * _log_moment(tilt, d) for d, n in zip(draws, mix, strict=True)]
    return np.asarray(np.sum(each, axis=0), dtype=np.float64)


def _periods(
    draws: Sequence[Draw], mix: Floats, shift: Floats, tilt: Floats, log_height: Floats, spread: Floats
) -> Floats:
    """The shortest periods L whose other terms should not matter. Any L is safe."""
    # The integral is about its height times the width of its integrand.
    log_wanted = log_height - np.log(spread + 1 / tilt) + math.log(_ALIASED)
    deviation = np.sqrt(_variance(draws, mix))
    largest = np.maximum(_largest(draws), 1e-300)
    period = np.full(len(shift), math.nan)
    for multiple in _PERIODS:
        length = multiple * spread
        above = np.log(np.maximum(shift + length, 0.0) + deviation) - tilt * length
        below = np.full(len(shift), math.inf)
        for strength in (8.0, 4.0, 2.0, 16.0):
            further = np.minimum(tilt + strength / spread, _LARGEST_EXPONENT / largest)
            log_bound = _log_moments(further, draws, mix) + further * (shift - length)
            below = np.minimum(below, log_bound + tilt * length - np.log(further))
        fits = (above < log_wanted) & (below < log_wanted) & np.isnan(period)
        period[fits] = length[fits]
    return np.where(np.isnan(period), _PERIODS[-1] * spread, period)


@dataclass(frozen=True, slots=True)
class _Moments:
    """A moment generating function along the contour, relative to its value on the real line.

    Attributes:
        log_modulus: log|M(s)/M(c)| ≤ 0, shape (rows, terms).
        angle: arg M(s).
        floored: ``log_modulus``, but not so far below that rounding cannot be bounded relative to it.
        wrong: what rounding can have done to log M(s) and to log M(c) together, at most.
    """

    log_modulus: Floats
    angle: Floats
    floored: Floats
    wrong: Floats


def _moments(draw: Draw, *, tilt: Floats, step: Floats, blocks: int) -> _Moments:
    """M at s = c + i·step·j, j = 0, …, 32·blocks − 1."""
    weights, values = draw.masses[:, None], draw.values
    # s = c + i·step·(BLOCK·a + b); e^{sG} − 1 splits into X + Y + X·Y, so that nothing cancels in M − 1.
    coarse = step[:, None] * (_BLOCK * np.arange(blocks))
    fine = step[:, None] * np.arange(_BLOCK)
    tilted = (values * tilt[:, None])[:, :, None]
    x = complex_expm1(tilted, values[:, :, None] * coarse[:, None, :]) * weights
    y = complex_expm1(0.0, values[:, :, None] * fine[:, None, :])
    rest = np.matmul(x.transpose(0, 2, 1), y)
    rest += x.sum(axis=1)[:, :, None]
    rest += (weights * y).sum(axis=1)[:, None, :]
    # What rounding can have done to M, per row and block.
    reach = np.abs(values)[:, :, None] * coarse[:, None, :]
    scale = 3 * np.abs(x) + weights * np.exp(tilted) * (reach + np.abs(tilted))
    most_fine = np.minimum(np.abs(values) * fine[:, -1:], 2.0)
    lost = (scale.sum(axis=1) + (draw.masses * most_fine).sum(axis=1)[:, None]) * _ROUNDOFF
    lost *= len(draw.masses) + 8

    real, imaginary = rest.real, rest.imag
    # log|M|² without losing it near M = 1, nor near M = 0.
    excess = real * (2 + real) + imaginary**2
    near_zero = excess < -0.75
    squared = np.where(near_zero, np.maximum((1 + real) ** 2 + imaginary**2, 1e-300), 1.0)
    log_modulus = 0.5 * np.where(near_zero, np.log(squared), np.log1p(np.where(near_zero, 0.0, excess)))
    log_modulus = log_modulus.reshape(len(tilt), -1)
    at_zero = log_modulus[:, :1]
    # (|M| + lost)^N − |M|^N rises in |M|, so that a |M| below e^-7·M(c) may be put there.
    floored = np.maximum(log_modulus, at_zero + _SMALLEST_LOG_MODULUS)
    return _Moments(
        log_modulus=log_modulus - at_zero,
        angle=np.arctan2(imaginary, 1 + real).reshape(len(tilt), -1),
        floored=floored - at_zero,
        wrong=np.repeat(lost, _BLOCK, axis=1) * np.exp(-floored) + lost[:, :1] * np.exp(-at_zero),
    )


def _trapezoid(
    draws: Sequence[Draw],
    mixes: Floats,
    *,
    shift: Floats,
    smoothing: Floats,
    tilt: Floats,
    step: Floats,
    blocks: int,
) -> Floats:
    """The sums over Im s = j·step with their ends and rounding, in units of the integrand at Im s = 0."""
    laws = [_moments(draw, tilt=tilt, step=step, blocks=blocks) for draw in draws]
    t = step[:, None] * np.arange(_BLOCK * blocks)
    ratio = t / tilt[:, None]
    fading = (smoothing[:, None] * t) ** 2 / 2 + np.log1p(ratio**2)
    turning = t * (shift + smoothing**2 * tilt)[:, None] - 2 * np.arctan(ratio)
    # Rounding, of every sum at once: all of it grows with the numbers of draws.
    most = [(n, law) for n, law in zip(mixes.max(axis=0), laws, strict=True) if n > 0]
    at_most = np.sum([n * law.wrong for n, law in most], axis=0)
    raised = np.sum([n * (law.floored - law.log_modulus) for n, law in most], axis=0)
    # Most terms are next to nothing in every sum. They are bounded, not computed.
    least = zip(mixes.min(axis=0), laws, strict=True)
    ceiling = np.sum([n * law.log_modulus for n, law in least], axis=0) - fading + raised + at_most
    kept = np.nonzero(np.any(ceiling > _LOG_FADED, axis=0))[0]
    faded = np.ones(t.shape[1], dtype=np.bool_)
    faded[kept] = False
    rest = 4 * np.exp(ceiling[:, faded]).sum(axis=1)

    at_most, raised = at_most[:, kept], raised[:, kept]
    fading, turning, first = fading[:, kept], turning[:, kept], t[:, kept]
    turns = np.sum([n * np.abs(law.angle[:, kept]) for n, law in most], axis=0)
    depth = np.sum([-n * law.log_modulus[:, kept] for n, law in most], axis=0) + fading
    products = 4 * _ROUNDOFF * (turns + first * np.abs(shift)[:, None] + depth + 8)
    plain = not np.any(raised) and bool(np.all(at_most < 1.0))
    lost_share = np.expm1(np.minimum(at_most, 1.0)) + products
    log_moduli = np.stack([law.log_modulus[:, kept].ravel() for law in laws])
    angles = np.stack([law.angle[:, kept].ravel() for law in laws])
    doubled = np.where(kept == 0, 1.0, 2.0)
    result = np.empty((len(shift), len(mixes)))
    for i, mix in enumerate(mixes):
        damping = (mix @ log_moduli).reshape(fading.shape) - fading
        size = np.exp(damping)
        terms = np.cos((mix @ angles).reshape(fading.shape) + turning)
        if plain:
            terms = (terms + lost_share) * size
        else:
            log_ceiling = damping + raised
            lost = np.where(
                at_most < 1.0,
                np.exp(np.minimum(log_ceiling, _LARGEST_EXPONENT)) * np.expm1(np.minimum(at_most, 1.0)),
                np.exp(np.minimum(log_ceiling + at_most, _LARGEST_EXPONENT)),
            )
            terms = terms * size + lost + size * np.where(size > 0, products, 0.0)
        result[:, i] = ((terms * doubled).sum(axis=1) + rest) * step / (2 * math.pi)
    last = t[:, -1]
    exponent = (smoothing * last) ** 2 / 2
    ends = np.exp(-exponent) / ((last / tilt) ** 2 * math.pi * smoothing**2 * last)
    return np.asarray(np.maximum(result + ends[:, None], 0.0), dtype=np.float64)


def complex_expm1(real: npt.ArrayLike, imaginary: Floats) -> npt.NDArray[np.complex128]:
    """e^(real + i·imaginary) − 1, accurate where it is small."""
    half = imaginary / 2
    sine, cosine = np.sin(half), np.cos(half)
    growth = np.expm1(real)
    result = np.empty(imaginary.shape, dtype=np.complex128)
    result.real = growth - 2 * (1 + growth) * sine**2
    result.imag = 2 * (1 + growth) * sine * cosine
    return result
