r"""Upper bounds on :math:`E[(x + X_1 + … + X_N)_+]` for independent bounded X of unknown distribution.

Every X has mean zero, a variance of at most v, and lies in [−a, b]. Under an exponential tilt by c > 0 the X,
with normal variables added that make their moments what Bennett's inequality allows, are compared with normal
ones by their characteristic functions, up to a frequency Ω and beyond, and one more normal variable smooths
the sum. Any c, smoothing and Ω that the proof allows give a valid bound. Proof, whose symbols are used here:
``docs/proofs/accounting.md``, section 3d, Claim 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from shuffle_plugins.accounting.numerics.sums import Floats

Reals = Floats | float
_LARGEST_EXPONENT = 300.0  # of c·b; where it is larger, only Chernoff's bound is used
_SECOND = tuple(1 / math.factorial(k) for k in range(16, 1, -1))
_THIRD = tuple((k - 2) / math.factorial(k) for k in range(16, 1, -1))
# Values of c to try, in units of the saddle point's. Third moments matter less where c is small.
_CONTOURS = (0.03, 0.1, 0.2, 0.35, 0.6, 0.8, 1.0)
# Values of PΩ²/2 to try. Beyond Ω nothing is known of the X: the factor e^(−Pω²/2) makes the integrand small.
_SMOOTHED = (0.7, 1.5, 3.0, 7.0)
# The integral over ω: 96 equal cells up to 10/√(least variance), then 16 cells of growing width up to Ω.
_NEAR, _NEAR_CELLS, _FAR_CELLS = 10.0, 96, 16
_ROUNDING = 1e-7  # relative margin on means and on the result, far larger than the rounding errors


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedTerms:
    """N independent variables of mean zero, for which only these bounds are known; arrays (rows,).

    Attributes:
        variance: v > 0, an upper bound on the variance of each variable.
        above: b > 0, an upper bound on its values.
        below: a ≥ 0; −a is a lower bound on its values.
    """

    count: float
    variance: Floats
    above: Floats
    below: Floats


@dataclass(frozen=True, slots=True)
class Tilted:
    """Bounds under the tilt on one variable X plus the normal variable added to it; shape (rows,)."""

    log_moment: Floats  # K = log(1 + f), equal to log E[e^(cY)] for the sum Y of the two
    least_mean: Floats  # m⁻
    largest_mean: Floats  # m⁺
    least_variance: Floats  # V⁻
    largest_variance: Floats  # V⁺
    own_variance: Floats  # w, an upper bound on the variance of X alone
    third: Floats  # ρ, an upper bound on E'|X − E'X|³ of X alone


def positive_part_bound(shift: Floats, *, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """Upper bounds on E[(x + S)₊], S the sum of all variables of ``each`` and ``own``; shape (rows,).

    Args:
        each: the many variables whose sum is close to normal. If there is one or none, the result is
            Chernoff's bound.
        own: other variables in the same sum; in accounting a single one.
    """
    saddle = _saddle_points(shift, each, own)
    found = np.min([_along(saddle * part, shift, each, own) for part in _CONTOURS], axis=0)
    return np.asarray(found * (1 + _ROUNDING), dtype=np.float64)


def log_chernoff(shift: Floats, *, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """Logarithms of Chernoff's bound on the same E[(x + S)₊], from (y)₊ ≤ e^(c·y − 1)/c; much faster."""
    c = _saddle_points(shift, each, own)
    height = each.count * _tilted(c, each).log_moment + own.count * _tilted(c, own).log_moment
    return np.asarray(c * shift + height - 1 - np.log(c), dtype=np.float64)


def _saddle_points(shift: Floats, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """Values of c near the saddle point, where e^(cx)/c² times all factors 1 + f is least; shape (rows,)."""
    deviation = np.sqrt(each.count * each.variance + own.count * own.variance)
    low, high = 1e-3 / deviation, 60 / deviation
    # 18: steps of the bisection for the saddle point; any c gives a valid bound
    for _ in range(18):
        c = np.sqrt(low * high)
        slope = shift - 2 / c
        for terms in (each, own):
            u = np.minimum(c * terms.above, _LARGEST_EXPONENT)
            moment = 1 + terms.variance * c * c * _second(u)
            slope = slope + terms.count * terms.variance / terms.above * np.expm1(u) / moment
        low, high = np.where(slope < 0, c, low), np.where(slope < 0, high, c)
    return np.asarray(low, dtype=np.float64)


def _tilted(c: Floats, terms: BoundedTerms) -> Tilted:
    """Bounds on one term under the tilt e^(cX), from its variance and range (Claim 13)."""
    v, u = terms.variance, np.minimum(c * terms.above, _LARGEST_EXPONENT)
    grown, second = np.exp(u), _second(u)
    excess = v * c * c * second
    # where e^(c·b) is beyond floats: ψ(u) ≤ e^u
    log_moment = np.where(_in_range(c, terms), np.log1p(excess), np.log1p(v * c * c) + c * terms.above)
    # κ = 2f/(1 + f) − 2·log(1 + f), f = excess. For small f its lower bound −f², which has no cancellation.
    lowered = np.where(excess < 1e-3, -(excess**2), 2 * excess / (1 + excess) - 2 * log_moment)
    down = c * terms.below
    highest = c * c * v * _third(u)
    mean = (highest + 2 * excess) / c
    double = 2 * log_moment
    own_variance = v * grown
    return Tilted(
        log_moment=log_moment,
        least_mean=(double - c * c * v * down / 6 + lowered) / c,
        largest_mean=(double + highest) / c,
        least_variance=np.maximum((double - c * c * v * down * (2 / 3) + lowered) / c**2 - mean**2, 0.0),
        largest_variance=double / c**2 + v * (grown - 2 * second),
        own_variance=own_variance,
        third=(np.maximum(terms.above, terms.below) + mean) * own_variance,
    )


def _in_range(c: Floats, terms: BoundedTerms) -> npt.NDArray[np.bool_]:
    """Where all moments under the tilt are finite floats."""
    return np.asarray(c * terms.above <= _LARGEST_EXPONENT)


def _second(u: Floats) -> Floats:
    """ψ(u) = (e^u − 1 − u)/u², which increases with u."""
    return _by_series(u, _SECOND, lambda t: (np.expm1(t) - t) / t**2)


def _third(u: Floats) -> Floats:
    """q(u) = (u·e^u + u − 2·e^u + 2)/u², which increases for u ≥ 0."""
    return _by_series(u, _THIRD, lambda t: (t * np.exp(t) + t - 2 * np.expm1(t)) / t**2)


def _by_series(u: Floats, coefficients: Sequence[float], formula: Callable[[Floats], Floats]) -> Floats:
    """The polynomial with these coefficients, the highest first, where u < 0.5, and ``formula`` elsewhere."""
    found = np.empty(len(u))
    # 0.5: below this argument, which is at least zero, the power series of ψ and q avoid cancellation
    small = u < 0.5
    argument = u[small]
    part = np.zeros(len(argument))
    for coefficient in coefficients:
        part *= argument
        part += coefficient
    found[small], found[~small] = part, formula(u[~small])
    return found


def _along(c: Floats, shift: Floats, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """The best bound at this c of all amounts of smoothing, or Chernoff's if less; shape (rows,)."""
    most, alone = _tilted(c, each), _tilted(c, own)
    found = smoothed_bound(c, shift, each=(each.count, most), own=(own.count, alone))
    rough = each.count * most.log_moment + own.count * alone.log_moment + c * shift - 1 - np.log(c)
    compared = _in_range(c, each) & _in_range(c, own)
    return np.minimum(np.where(compared, found, np.inf), np.exp(np.minimum(rough, 700.0)))


def smoothed_bound(
    c: Floats, shift: Floats, *, each: tuple[float, Tilted], own: tuple[float, Tilted]
) -> Floats:
    """A bound on E[(x + S)₊], or infinity, with the best amount PΩ²/2 of smoothing; shape (rows,).

    ``each`` are the number of the many variables and what the tilt by c makes of any of them, ``own`` those
    of others that no decay is expected of.
    """
    (count, most), (few, alone) = each, own
    names = ("log_moment", "least_mean", "largest_mean", "least_variance", "largest_variance", "third")
    log_moment, low, high, least, largest, third = (
        count * getattr(most, name) + few * getattr(alone, name) for name in names
    )
    fourth = count * most.own_variance**2 + few * alone.own_variance**2
    found = np.full(len(c), np.inf)
    steady = (count - 1) * most.least_variance  # V°, or less: V⁻ of all but one of the many, without own
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        end = np.minimum(np.sqrt(2 / most.own_variance), 2.8 * steady / third)
        near = np.minimum(end, _NEAR / np.sqrt(least))
        far = (end / near)[:, None] ** (np.arange(1, _FAR_CELLS + 1) / _FAR_CELLS)
        w = near[:, None] * np.concatenate(
            [np.broadcast_to(np.linspace(0, 1, _NEAR_CELLS + 1), (len(c), _NEAR_CELLS + 1)), far], axis=1
        )
        # In a cell the integrand is at most its rising factor at the right end, its falling one at the left
        # end, and the one that first falls and then rises at one of both.
        gap = third[:, None] * w[:, 1:] ** 3 / 6 + fourth[:, None] * w[:, 1:] ** 4 / 8
        decay = np.exp(-steady[:, None] * w**2 / 2 + third[:, None] * w**3 / 6)
        left = w[:, :-1]
        base = gap * np.diff(w, axis=1) / (c[:, None] ** 2 + left**2)
        base *= np.maximum(decay[:, :-1], decay[:, 1:])
        slack = _ROUNDING * (np.abs(shift) + np.abs(low) + np.abs(high))
        for amount in _SMOOTHED:
            extra = 2 * amount / end**2
            inner = (base * np.exp(-extra[:, None] * left**2 / 2)).sum(axis=1)
            outer = math.exp(-amount) * np.minimum(1 / end, end / (2 * amount * (c**2 + end**2)))
            outer = outer + np.exp(-(least + extra) * end**2 / 2) / end
            log_part = log_largest_part(
                shift + low + c * extra - slack, shift + high + c * extra + slack, largest + extra, c
            )
            log_part += 0.5 * np.log((largest + extra) / (least + extra))
            exponent = c * shift + log_moment + c * c * extra / 2
            value = np.exp(np.minimum(exponent + log_part, 700.0))
            value += np.exp(np.minimum(exponent, 700.0)) * (inner + outer) / math.pi
            found = np.fmin(found, np.where(steady > 0, value, np.inf))  # nan tells nothing
    return found


def _log_part(mean: Reals, variance: Reals, c: Reals) -> tuple[Floats, Floats, Floats]:
    """log J = log E[Y₊·e^(−cY)] of a normal Y with this mean and variance, and its derivative by the mean."""
    root = np.sqrt(variance)
    a = (mean - c * variance) / root
    log_density = -0.5 * a * a - 0.5 * math.log(2 * math.pi)
    negative = np.minimum(a, 0.0)
    mills = math.sqrt(math.pi / 2) * special.erfcx(-negative / math.sqrt(2))
    square = np.maximum(a * a, 4.0)
    # 1 + a·mills is 1/a² − 3/a⁴ + 15/a⁶ − …, and between any two sums of first terms that follow each other.
    part = np.where(a < -50, 1 / square, 1 + negative * mills)
    least = np.where(a < -50, (1 - 3 / square) / square, part)
    positive = np.maximum(a, 0.0)
    value = np.exp(-0.5 * positive * positive) / math.sqrt(2 * math.pi) + positive * special.ndtr(positive)
    log_part = np.where(a < 0, log_density + np.log(part), np.log(value))
    low, high = (np.where(a < 0, mills / each, special.ndtr(positive) / value) for each in (part, least))
    return -c * mean + c * c * variance / 2 + np.log(root) + log_part, low / root - c, high / root - c


def log_largest_part(low: Reals, high: Reals, variance: Reals, c: Reals) -> Floats:
    """An upper bound on log J = log E[Y₊·e^(−cY)] of a normal Y, for all means in [low, high].

    It is concave in the mean: the largest value that both ends' tangents allow.
    """
    left, _, rise = _log_part(low, variance, c)
    right, fall, _ = _log_part(high, variance, c)
    apart = np.where(rise > fall, rise - fall, 1.0)
    crossing = np.clip((right - left + rise * low - fall * high) / apart, low, high)
    between = left + rise * (crossing - low)
    return np.asarray(np.where(rise <= 0, left, np.where(fall >= 0, right, between)), dtype=np.float64)
