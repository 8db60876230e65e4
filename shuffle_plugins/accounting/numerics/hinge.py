r"""Upper bounds on :math:`E[(x + G_1 + … + G_N)_+]` for independent G of one law, at a cost flat in N.

With M the moment generating function of G, for every c > 0

    E[(x + S)₊] = 1/(2πi) · ∫ M(s)^N e^{s·x} / s² ds        along Re s = c.

A Gaussian added to S ends the integral, whatever the lattice of G; the trapezoidal sum in its place is above
it; what is left off and what is rounded is bounded and added. The contour passes near the saddle point, so
the relative error does not depend on how small the answer is. Proof: ``docs/proofs/noise.md``, Claim 3.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.numerics.grid import Cells, Floats

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


def expected_positive_part(
    *, values: Floats, masses: Floats, trials: int, shift: Floats, share: float
) -> Floats:
    """Upper bounds on E[(shift + S)₊], S a sum of ``trials`` independent draws, one per row of ``values``.

    Args:
        values: what a draw can be, shape (rows, atoms).
        masses: their probabilities, shape (atoms,), the same in every row. What they lack of one is a draw
            of zero.
        trials: N ≥ 1.
        shift: x, shape (rows,).
        share: variance of the Gaussian that smooths S, relative to the variance of S, or to that of S under
            the tilt of the contour where that is less. Must be in (0, 1).

    Returns:
        Shape (rows,). Each is at least the exact value, and at most that with the Gaussian, up to about 1e-6
        of it.
    """
    result = np.maximum(shift, 0.0)
    open_rows = np.nonzero(_can_be_positive(values, trials, shift))[0]
    if len(open_rows):
        result[open_rows] = _by_contour(values[open_rows], masses, trials, shift[open_rows], share)
    return result


def log_positive_part_bound(*, values: Floats, masses: Floats, trials: int, shift: Floats) -> Floats:
    """Chernoff bounds on log E[(shift + S)₊], shape (rows,): (y)₊ ≤ e^{c·y − 1}/c at the best c."""
    with np.errstate(divide="ignore"):
        result = np.log(np.maximum(shift, 0.0))
    rows = np.nonzero(_can_be_positive(values, trials, shift))[0]
    if len(rows):
        tilt, log_height, _ = _saddle_points(values[rows], masses, trials, shift[rows])
        result[rows] = log_height + np.log(tilt) - 1.0
    return result


def _can_be_positive(values: Floats, trials: int, shift: Floats) -> npt.NDArray[np.bool_]:
    """Rows that leave something to compute: elsewhere (x + S)₊ is x₊, as S is zero or cannot exceed −x."""
    largest = np.maximum(values.max(axis=1, initial=0.0), 0.0)
    return np.asarray(np.any(values != 0, axis=1) & (shift + trials * largest > 0), dtype=np.bool_)


def _by_contour(values: Floats, masses: Floats, trials: int, shift: Floats, share: float) -> Floats:
    """The trapezoidal sums, shape (rows,)."""
    tilt, log_height, spread = _saddle_points(values, masses, trials, shift)
    # The scale on which it matters where S is: its own, more far out, and never more than the tilted S's.
    scale = np.maximum(np.sqrt(trials * (masses * values**2).sum(axis=1)), np.abs(shift) / _FAR)
    smoothing = math.sqrt(share) * np.minimum(scale, np.maximum(spread, 0.5 / tilt))
    period = _periods(values, masses, trials, shift, tilt, log_height, np.hypot(spread, smoothing))
    ends = math.sqrt(2 * _LEFT_OFF)
    smoothing = np.maximum(smoothing, ends * period / (2 * math.pi * _MOST_TERMS))
    log_height += (smoothing * tilt) ** 2 / 2
    blocks = np.ceil(ends / smoothing * period / (2 * math.pi * _BLOCK)).astype(np.int64)
    result = np.empty(len(shift))
    order = np.argsort(blocks, kind="stable")
    start = 0
    while start < len(order):
        # Rows that need about as many terms go together.
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * blocks[order[stop]] * _BLOCK <= _TERMS_AT_ONCE:
            stop += 1
        rows = order[start:stop]
        result[rows] = _trapezoid(
            values=values[rows],
            masses=masses,
            trials=trials,
            shift=shift[rows],
            smoothing=smoothing[rows],
            tilt=tilt[rows],
            step=2 * math.pi / period[rows],
            blocks=int(blocks[order[stop - 1]]),
        )
        start = stop
    rounding = 8 * _ROUNDOFF * (1 + np.abs(log_height) + np.abs(tilt * shift))
    with np.errstate(over="ignore"):
        found = np.maximum(result, 1e-300) * np.exp(log_height) * (1 + rounding)
    return np.asarray(found, dtype=np.float64)


def _saddle_points(
    values: Floats, masses: Floats, trials: int, shift: Floats
) -> tuple[Floats, Floats, Floats]:
    """Where N·log M(c) + c·x − 2·log c is least, that minimum, and the deviation of S tilted so."""
    tilt = math.sqrt(2.0) / np.sqrt(trials * (masses * values**2).sum(axis=1))
    most = _LARGEST_EXPONENT / np.maximum(values.max(axis=1), 1e-300)
    tilt = np.minimum(tilt, most)
    low, high = np.zeros_like(tilt), most
    for _ in range(_NEWTON_STEPS):
        mean, variance = _tilted_moments(tilt, values, masses)
        slope = trials * mean + shift - 2 / tilt
        low, high = np.where(slope < 0, tilt, low), np.where(slope < 0, high, tilt)
        moved = np.clip(tilt - slope / (trials * variance + 2 / tilt**2), tilt / 4, 4 * tilt)
        # The exponent is convex; a step beyond what is known of its minimum is replaced by half of the way.
        moved = np.where((moved > low) & (moved < high), moved, (np.maximum(low, tilt / 16) + high) / 2)
        done = np.all(np.abs(moved - tilt) < 1e-4 * tilt)
        tilt = moved
        if done:
            break
    log_height = trials * _log_moment(tilt, values, masses) + tilt * shift - 2 * np.log(tilt)
    return tilt, log_height, np.sqrt(trials * _tilted_moments(tilt, values, masses)[1])


def _tilted_moments(tilt: Floats, values: Floats, masses: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of one draw under the tilt, shape (rows,) each."""
    weight = masses * np.exp(tilt[:, None] * values)
    nothing = max(1.0 - float(masses.sum()), 0.0)
    total = weight.sum(axis=1) + nothing
    mean = (weight * values).sum(axis=1) / total
    variance = ((weight * (values - mean[:, None]) ** 2).sum(axis=1) + nothing * mean**2) / total
    return mean, variance


def _log_moment(tilt: Floats, values: Floats, masses: Floats) -> Floats:
    """log M at real tilts, shape (rows,)."""
    return np.asarray(np.log1p((masses * np.expm1(tilt[:, None] * values)).sum(axis=1)), dtype=np.float64)


def _periods(
    values: Floats,
    masses: Floats,
    trials: int,
    shift: Floats,
    tilt: Floats,
    log_height: Floats,
    spread: Floats,
) -> Floats:
    """The shortest periods L whose other terms should not matter. Any L is safe."""
    # The integral is about its height times the width of its integrand.
    log_wanted = log_height - np.log(spread + 1 / tilt) + math.log(_ALIASED)
    deviation = np.sqrt(trials * (masses * values**2).sum(axis=1))
    largest = np.maximum(values.max(axis=1), 1e-300)
    period = np.full(len(shift), math.nan)
    for multiple in _PERIODS:
        length = multiple * spread
        above = np.log(np.maximum(shift + length, 0.0) + deviation) - tilt * length
        below = np.full(len(shift), math.inf)
        for strength in (8.0, 4.0, 2.0, 16.0):
            further = np.minimum(tilt + strength / spread, _LARGEST_EXPONENT / largest)
            log_bound = trials * _log_moment(further, values, masses) + further * (shift - length)
            below = np.minimum(below, log_bound + tilt * length - np.log(further))
        fits = (above < log_wanted) & (below < log_wanted) & np.isnan(period)
        period[fits] = length[fits]
    return np.where(np.isnan(period), _PERIODS[-1] * spread, period)


def _trapezoid(
    *,
    values: Floats,
    masses: Floats,
    trials: int,
    shift: Floats,
    smoothing: Floats,
    tilt: Floats,
    step: Floats,
    blocks: int,
) -> Floats:
    """The sum over Im s = j·step with its ends and its rounding, in units of the integrand at Im s = 0."""
    rest, scale = moments_less_one(
        values, masses, tilt=tilt, step=step, starts=_BLOCK * np.arange(blocks), stride=_BLOCK
    )
    wrong = _ROUNDOFF * (len(masses) + 8) * scale  # what rounding can have done to M, per row and block
    real, imaginary = rest.real, rest.imag
    # log|M|² without losing it near M = 1, nor near M = 0.
    excess = real * (2 + real) + imaginary**2
    near_zero = excess < -0.75
    squared = np.where(near_zero, np.maximum((1 + real) ** 2 + imaginary**2, 1e-300), 1.0)
    log_modulus = 0.5 * np.where(near_zero, np.log(squared), np.log1p(np.where(near_zero, 0.0, excess)))
    log_modulus = log_modulus.reshape(len(shift), -1)
    at_zero = log_modulus[:, :1]
    t = step[:, None] * np.arange(_BLOCK * blocks)
    ratio = t / tilt[:, None]
    damping = trials * (log_modulus - at_zero) - (smoothing[:, None] * t) ** 2 / 2 - np.log1p(ratio**2)
    # Rounding. (|M| + wrong)^N − |M|^N rises in |M|, so that a |M| below e^-7·M(c) may be put there.
    floored = np.maximum(log_modulus, at_zero + _SMALLEST_LOG_MODULUS)
    at_most = trials * (np.repeat(wrong, _BLOCK, axis=1) * np.exp(-floored) + wrong[:, :1] * np.exp(-at_zero))
    log_ceiling = damping + trials * (floored - log_modulus)
    # Most terms are next to nothing. They are bounded, not computed.
    kept = np.any(log_ceiling + at_most > _LOG_FADED, axis=0)
    rest = 4 * np.exp((log_ceiling + at_most)[:, ~kept]).sum(axis=1)
    damping, log_ceiling, at_most = damping[:, kept], log_ceiling[:, kept], at_most[:, kept]
    ratio, first = ratio[:, kept], t[:, kept]
    angle = np.arctan2(imaginary, 1 + real).reshape(t.shape)[:, kept]
    turn = trials * angle + first * (shift + smoothing**2 * tilt)[:, None] - 2 * np.arctan(ratio)
    size = np.exp(damping)
    turns = trials * np.abs(angle) + first * np.abs(shift)[:, None]
    products = 4 * _ROUNDOFF * (turns + np.abs(damping) + 8)
    lost = np.where(
        at_most < 1.0,
        np.exp(np.minimum(log_ceiling, _LARGEST_EXPONENT)) * np.expm1(np.minimum(at_most, 1.0)),
        np.exp(np.minimum(log_ceiling + at_most, _LARGEST_EXPONENT)),
    )
    lost += size * np.where(size > 0, products, 0.0)
    doubled = np.where(np.flatnonzero(kept) == 0, 1.0, 2.0)
    total = (((size * np.cos(turn) + lost) * doubled).sum(axis=1) + rest) * step / (2 * math.pi)
    last = t[:, -1]
    exponent = (smoothing * last) ** 2 / 2
    ends = np.exp(-exponent) / ((last / tilt) ** 2 * math.pi * smoothing**2 * last)
    return np.asarray(np.maximum(total + ends, 0.0), dtype=np.float64)


def moments_less_one(
    values: Floats, masses: Floats, *, tilt: Floats, step: Floats, starts: Cells, stride: int
) -> tuple[npt.NDArray[np.complex128], Floats]:
    """M − 1 of a law along a contour, and what its rounding errors are a small multiple of.

    e^{sG} − 1 at s = tilt + i·step·(a + b) is X + Y + X·Y of the same at tilt + i·step·a and at i·step·b, so
    that few sines are needed and nothing cancels in M − 1.

    Args:
        values: shape (rows, atoms).
        masses: shape (atoms,).
        tilt: real part of s, shape (rows,).
        step: shape (rows,).
        starts: a, the first place of each block, shape (blocks,).
        stride: places of a block, b = 0, …, stride − 1.

    Returns:
        M − 1, shape (rows, blocks, stride), and the scale of its rounding error over the unit roundoff, shape
        (rows, blocks).
    """
    weights, value = masses[:, None], values[:, :, None]
    coarse, fine = step[:, None, None] * starts, step[:, None, None] * np.arange(stride)
    tilted = tilt[:, None, None] * value
    x = complex_expm1(tilted, value * coarse) * weights
    y = complex_expm1(0.0, value * fine)
    excess = np.matmul(x.transpose(0, 2, 1), y)
    excess += x.sum(axis=1)[:, :, None]
    excess += (weights * y).sum(axis=1)[:, None, :]
    size = np.abs(value)
    scale = 3 * np.abs(x) + weights * np.exp(tilted) * (size * coarse + np.abs(tilted))
    scale += weights * np.minimum(size * fine[:, :, -1:], 2.0)
    return excess, np.asarray(scale.sum(axis=1), dtype=np.float64)


def complex_expm1(real: npt.ArrayLike, imaginary: Floats) -> npt.NDArray[np.complex128]:
    """e^(real + i·imaginary) − 1, accurate where it is small."""
    half = imaginary / 2
    sine, cosine = np.sin(half), np.cos(half)
    growth = np.expm1(real)
    result = np.empty(imaginary.shape, dtype=np.complex128)
    result.real = growth - 2 * (1 + growth) * sine**2
    result.imag = 2 * (1 + growth) * sine * cosine
    return result
