r"""What few clones add to the Rényi moments of the clone pair, where almost all of a moment is theirs.

A moment of high order is decided far out in the tails: by a number of clones that is almost never so small,
and by coins that almost never fall so unevenly. Both tails are cut into cells, each bounded by a geometric
sum in logarithms, and the cells that matter are cut again. With X = D/m, L = log((1 + tX)/(1 − tX)) and
t = tanh(ε0/2), the moment given m is

    E_Q[(P/Q)^α] − 1 = E[e^((α−1)L)·(1 − e^(−αL))·(1 − e^(−(α−1)L))/(1 + e^(−L))],

with every factor rising in L ≥ 0 and L convex in X ≥ 0, whence the cells' bounds; and with L ≤ ε0·|X| it is
below cosh((α − 1/2)·ε0/m)^m − 1. All of it falls with m.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.accounting.numerics.log_binomial import log_probability, log_sum
from shuffle_plugins.accounting.numerics.orders import Vector

_NEGLIGIBLE = -8.0  # log of the share of a moment that need not be known better
_CELLS = 48  # of the coins, to begin with
_CELL_SDS = 0.3  # widest cell that matters, in standard deviations of the rarer face
_MOST_PARTS = 16  # a cell is cut into at once
_RUNGS = 32  # of the number of clones, to begin with
_RUNG_PARTS = 6  # a rung is cut into at once
_RUNG_WIDTH = 3e-3  # widest rung that matters, of its number of clones
_SMALLEST_SLOPE = 1e-300  # in place of zero, so that a geometric sum needs no case of its own


def log_odds(*, share: Vector, local_epsilon: float) -> Vector:
    """L = log((1 + t·x)/(1 − t·x)) at x in [0, 1], without cancellation at a large ε0, where t is one."""
    inverse = math.exp(-local_epsilon)
    small = np.minimum(math.tanh(local_epsilon / 2) * share, 0.5)
    large = np.log((1 + share) + (1 - share) * inverse) - np.log((1 - share) + (1 + share) * inverse)
    return np.where(small < 0.5, 2 * np.arctanh(small), large)


def log_excess(*, reports: Vector, order: float, local_epsilon: float) -> Vector:
    """log(E_Q[(P/Q)^α] − 1) given m, rounded up: by a hundredth where it is large, by up to a half below 0.

    Args:
        reports: whole m ≥ 1, shape (rungs,).
        order: α > 1.
        local_epsilon: ε0 > 0.

    Returns:
        Shape (rungs,).
    """
    faces = np.floor(reports / 2) + 1  # the rarer face shows 0, …, m/2 times
    edges = np.floor(faces[:, None] * np.linspace(0, 1, _CELLS + 1) ** 2)
    row = np.repeat(np.arange(reports.size), _CELLS)
    start, width = edges[:, :-1].ravel(), np.diff(edges, axis=1).ravel()
    row, start, width = row[width > 0], start[width > 0], width[width > 0]
    value = _cells(reports[row], start, width, order, local_epsilon)
    while True:
        peak = np.full(reports.size, -np.inf)
        np.maximum.at(peak, row, value)
        finest = np.maximum(_CELL_SDS * np.sqrt(start + 1), 1.0)
        coarse = (value > peak[row] + _NEGLIGIBLE) & (width > finest)
        if not coarse.any():
            share: Vector = np.exp(value - peak[row])
            return np.asarray(peak + np.log(np.bincount(row, weights=share)), dtype=np.float64)
        parts = np.clip(np.ceil(width[coarse] / finest[coarse]), 2, _MOST_PARTS).astype(np.int64)
        cut_start, cut_width = _cut(start[coarse], width[coarse], parts)
        cut_row = np.repeat(row[coarse], parts)
        cut_value = _cells(reports[cut_row], cut_start, cut_width, order, local_epsilon)
        row = np.concatenate([row[~coarse], cut_row])
        start = np.concatenate([start[~coarse], cut_start])
        width = np.concatenate([width[~coarse], cut_width])
        value = np.concatenate([value[~coarse], cut_value])


def log_few(
    *, edge: int, others: int, clone_probability: float, order: float, local_epsilon: float, rest: float
) -> float:
    """log of what C < ``edge`` clones add to E_Q[(P/Q)^α] − 1, rounded up.

    Args:
        edge: below the mean of the number of clones.
        others: trials of that number, n − 1.
        clone_probability: p in (0, 1).
        order: α > 1.
        local_epsilon: ε0 > 0.
        rest: log of what the others add; an answer far below it is not made precise.
    """
    if edge < 1:
        return -math.inf
    start, width = _cut(np.zeros(1), np.full(1, float(edge)), np.array([min(_RUNGS, edge)]))
    mass = _log_mass(start, width, others, clone_probability)
    simple = log_sum(mass + _log_cosh_excess(start + 1, (order - 0.5) * local_epsilon))
    if simple < rest + _NEGLIGIBLE:
        return simple
    value = mass + log_excess(reports=start + 1, order=order, local_epsilon=local_epsilon)
    while True:
        total = float(np.logaddexp(log_sum(value), rest))
        matters = value > total + _NEGLIGIBLE - math.log(value.size)
        coarse = matters & (width > np.maximum(_RUNG_WIDTH * start, 1.0))
        if not coarse.any():
            return log_sum(value)
        parts = np.minimum(width[coarse], _RUNG_PARTS).astype(np.int64)
        cut_start, cut_width = _cut(start[coarse], width[coarse], parts)
        cut_value = _log_mass(cut_start, cut_width, others, clone_probability)
        cut_value += log_excess(reports=cut_start + 1, order=order, local_epsilon=local_epsilon)
        start = np.concatenate([start[~coarse], cut_start])
        width = np.concatenate([width[~coarse], cut_width])
        value = np.concatenate([value[~coarse], cut_value])


def _cells(reports: Vector, start: Vector, width: Vector, order: float, local_epsilon: float) -> Vector:
    """log of a bound on what ``width`` counts of the rarer face from ``start`` on add, either face the rarer.

    The binomial masses are log-concave and L is convex, so they stay below the ratio at the start and below
    the chord.
    """
    more = (reports - 2 * start) / reports
    less = np.maximum(reports - 2 * (start + width), 0.0) / reports
    loss = log_odds(share=more, local_epsilon=local_epsilon)
    fall = (order - 1) * (loss - log_odds(share=less, local_epsilon=local_epsilon)) / width
    rise = np.log((reports - start) / (start + 1))
    with np.errstate(divide="ignore"):  # L = 0 adds nothing
        small = np.log(-np.expm1(-order * loss)) + np.log(-np.expm1(-(order - 1) * loss))
    mass = log_probability(successes=start, trials=reports, success=0.5)
    density = math.log(2) - np.log1p(np.exp(-loss))
    largest = mass + density + (order - 1) * loss + small
    return np.asarray(largest + _log_geometric(rise - fall, width), dtype=np.float64)


def _log_mass(start: Vector, width: Vector, others: int, probability: float) -> Vector:
    """log of a bound on P[start ≤ C < start + width], all below the mean."""
    last = start + width - 1
    fall = (
        np.log(np.maximum(last, 0.5) / (others - last + 1)) + math.log1p(-probability) - math.log(probability)
    )
    mass = log_probability(successes=last, trials=float(others), success=probability)
    return mass + _log_geometric(fall, width)


def _log_cosh_excess(reports: Vector, scaled: float) -> Vector:
    """log(cosh(s/m)^m − 1)."""
    ratio = scaled / reports
    exponent = np.where(
        ratio < 1e-3, scaled * ratio / 2, reports * (ratio + np.log1p(np.exp(-2 * ratio)) - math.log(2))
    )
    return exponent + np.log(-np.expm1(-exponent))


def _log_geometric(step: Vector, terms: Vector) -> Vector:
    """log Σ_{j < terms} e^(j·step)."""
    size = np.maximum(np.abs(step), _SMALLEST_SLOPE)
    falling = np.log(np.expm1(-terms * size) / np.expm1(-size))
    return falling + (terms - 1) * np.maximum(step, 0.0)


def _cut(start: Vector, width: Vector, parts: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Starts and widths of ``parts`` ranges of whole numbers in place of each range, none of them empty."""
    first = np.repeat(np.cumsum(parts) - parts, parts)
    index = np.arange(int(parts.sum())) - first
    span, pieces = np.repeat(width, parts), np.repeat(parts, parts)
    low, high = np.floor(span * index / pieces), np.floor(span * (index + 1) / pieces)
    return np.repeat(start, parts) + low, high - low
