"""Blankets of scalar records released with additive noise, discrete Laplace or Gaussian.

For these the two ends of an interval are the worst pair of records at every ε (``docs/proofs/noise.md``,
Theorem 2). Continuous weights are spread over a few levels at equal mean, which is an upper bound.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.accounting import Atoms, Blanket, Floats
from shuffle_plugins.accounting.pairs.reports import most_telling, read_coarsely
from shuffle_plugins.core import checks

_LINE_CELLS = 4096  # in which reports about a number are read
_CELLS_ACROSS = 800  # of records in an l1 ball, along the axis of everybody else's
_IN_ORDER = np.tri(_CELLS_ACROSS + 1, dtype=np.bool_).T  # of two records the first is no further along it
_CELLS = 1 << 13  # in which continuous weights are counted first
_MOST_LEVELS = 96
_LARGEST_LOG_WEIGHT = 150.0  # keeps products of weights in float64's range
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)  # exact to the last digit in cells of a few tenths


def discrete_laplace_blanket(*, local_epsilon: float, steps: int) -> Blanket:
    """x in {0, …, steps} is released as x + k with P[k] ∝ e^(−|k|·ε0/steps), ε0 at most 150."""
    checks.whole("steps", steps)
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOG_WEIGHT)
    rate = local_epsilon / steps
    scale = math.tanh(rate / 2)  # P[k = 0]
    last = math.exp(-local_epsilon) / (1 + math.exp(-rate))
    # y above the middle has weight e^{(2y − steps)·rate} and ω mass scale·e^{−y·rate}.
    y = np.arange(steps // 2 + 1, steps, dtype=np.float64)
    weight, mass = np.exp((2 * y - steps) * rate), scale * np.exp(-y * rate)
    middle = scale * math.exp(-local_epsilon / 2) if steps % 2 == 0 else 0.0
    if len(y) <= _MOST_LEVELS:
        return Blanket(
            local_epsilon=local_epsilon,
            differing=last,
            low=middle,
            edges=tuple(zip(weight.tolist(), mass.tolist(), strict=True)),
            exact=True,
        )
    log_weights = np.linspace(0.0, local_epsilon, _CELLS + 1)
    cell = np.clip(np.searchsorted(log_weights, np.log(weight), side="right") - 1, 0, _CELLS - 1)
    blanket = np.bincount(cell, weights=mass, minlength=_CELLS).astype(np.float64)
    record = np.bincount(cell, weights=mass * weight, minlength=_CELLS).astype(np.float64)
    return _on_levels(log_weights, blanket, record, last=last, tail=0.0, low=middle)


@lru_cache(maxsize=256)
def discrete_laplace_instances(*, rate: float, steps: int, axes: int) -> tuple[Atoms, ...]:
    """The instances of noise P[k] ∝ e^(−rate·|k|) on whole numbers that tell most: on a line, and on axes.

    Records are ``steps`` apart on a line, and everybody else's is between them; or all are half as far from 0
    on axes, which tells more in large rounds.
    """
    places = sorted({round(steps * i / 16) for i in range(9)})  # of everybody else
    edges = np.unique(np.round(np.linspace(0, steps, _LINE_CELLS + 1)).astype(np.int64))
    edges = np.unique(np.concatenate([edges, places]))
    ends = _line_masses(rate, edges, steps), _line_masses(rate, edges, 0)
    candidates = []
    for place in places:
        other = _line_masses(rate, edges, place)
        candidates.append(read_coarsely(ends[0] / other - 1, ends[1] / other - 1, other))
    found: tuple[Atoms, ...] = (most_telling(candidates),)
    half = steps // 2
    if axes > 1 and half:
        edges = np.unique(np.round(np.linspace(0, 2 * half, 49)).astype(np.int64))
        edges = np.union1d(edges, [half])
        low, middle, high = (_line_masses(rate, edges, place) for place in (0, half, 2 * half))
        one = np.ones(1)
        rows = [  # of x, x' and everybody else's: masses along three axes
            ((high, middle, one), (middle, high, one), (middle, middle, one)),
            ((high, middle, one), (middle, high, one), (low, middle, one)),
            ((high, middle, one), (low, middle, one), (middle, high, one)),
        ]
        if axes > 2:
            rows.append(((high, middle, middle), (middle, high, middle), (middle, middle, high)))
        found += (most_telling([_product_atoms(*each) for each in rows]),)
    return found


def _product_atoms(first: tuple[Floats, ...], second: tuple[Floats, ...], other: tuple[Floats, ...]) -> Atoms:
    """Of records whose reports' coordinates have these masses, independently."""
    x, y, z = (reduce(np.multiply.outer, along).ravel() for along in (first, second, other))
    return read_coarsely(x / z - 1, y / z - 1, z)


def _line_masses(rate: float, edges: NDArray[np.int64], record: int) -> Floats:
    """Masses of the reports up to edges[0], of those above each edge up to the next, and of those beyond."""
    share = 1 / (1 + math.exp(-rate))
    below = np.minimum(edges - record, 0.0)  # of reports up to an edge left of the record
    above = np.maximum(edges - record, 0.0)
    left = share * np.exp(rate * below)
    right = share * np.exp(-rate * above) * math.exp(-rate)  # beyond an edge right of it
    width = np.diff(edges)
    rising = left[1:] * -np.expm1(-rate * width)
    falling = right[:-1] * -np.expm1(-rate * width)
    inner = np.where(edges[1:] <= record, rising, falling)
    return np.concatenate([left[:1], inner, right[-1:]])


def discrete_laplace_information(*, local_epsilon: float, steps: int) -> float:
    """The most that a report tells: of both ends, everybody else at one (proofs on noise, section 8)."""
    w = math.exp(-local_epsilon / steps)
    whole = 1 + w + w * w
    far = (1 + w * w) / whole * math.expm1(local_epsilon) + w / whole * math.expm1(-2 * local_epsilon)
    return far * (1 + 1e-9)


@lru_cache(maxsize=256)
def laplace_ball_information(*, rate: float, radius: float, dim: int) -> float:
    """How much a report tells of vectors of an l1 ball, at most (section 8 of the proofs on noise).

    The noise falls by ``rate`` nats per step; ``radius`` is in steps, and dim at least 2.
    """
    spread = min(radius, dim / 4)  # variance of the rounded vector's norm, at most
    candidates = []
    for deviations in (1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0):  # that rounding may take vectors out of the ball
        beyond = deviations * (math.sqrt(spread) + deviations / 3)
        tilt = max(math.log1p(beyond / spread), 2 * rate)
        log_rare = 2 * rate * (radius + beyond) - tilt * beyond + spread * (math.expm1(tilt) - tilt)
        # Of three vectors one may be rounded farther out; then a report tells no more than 2·e^(2·rate·norm).
        farthest, rare = rate * math.floor(radius + beyond), 6 * math.exp(log_rare)
        candidates.append((_whole_ball_information(farthest, rate, every=20) + rare, farthest, rare))
    least = math.inf
    for at_least, farthest, rare in sorted(candidates):
        if at_least >= least:
            break
        least = min(least, _whole_ball_information(farthest, rate) + rare)
    return least * (1 + 1e-9)


def _whole_ball_information(radius: float, rate: float, *, every: int = 1) -> float:
    """Of vectors of whole steps in a ball, its radius in nats; ``every`` above 1 gives at most that."""
    w = math.exp(-rate)
    rising, falling = (1 + w * w) / (1 + w + w * w), w / (1 + w + w * w)
    half = radius / _CELLS_ACROSS  # of a cell

    def alpha(t: Floats) -> Floats:
        return np.asarray(rising * np.exp(t) + falling * np.exp(-2 * t))

    along = np.linspace(-radius, radius, _CELLS_ACROSS + 1)[::every]
    left = np.exp(-(radius - np.abs(along)))  # of the other coordinates
    single = alpha(radius + along) * alpha(radius - np.abs(along)) * math.exp(2 * half)
    near = np.exp(-(radius + along))  # falls, so that of two the first is the larger one
    beta = (1 / near)[:, None] - (falling * (1 / near**2 - near))[:, None] * near
    beta *= 1 - (1 - left)[:, None] * (1 - left)
    found = single[:, None] + single - 2 * math.exp(-5 * half) * beta
    return float(found.max(where=_IN_ORDER[::every, ::every], initial=-math.inf))


def gaussian_blanket(*, sigma: float, radius: float, tail: float = 1e-18) -> Blanket:
    """Gaussian noise on an interval: x in [−radius, radius] is released as x + N(0, sigma²).

    Its weights have no bound. They are cut at the blanket's ``local_epsilon``; the mass of the client's own
    report above it is the blanket's ``tail``, at most the one given, in (0, 0.01].
    """
    checks.number("sigma", sigma, above=0)
    checks.number("radius", radius, above=0)
    checks.number("tail", tail, above=0, at_most=0.01)
    a = radius / sigma
    largest = 2 * a * (a - float(special.ndtri(tail)))
    if not largest <= _LARGEST_LOG_WEIGHT:
        raise ValueError(
            f"sigma={sigma!r} is too little noise for a radius of {radius!r}: a report would speak for its "
            f"client with odds of e^{largest:.0f}, above e^{_LARGEST_LOG_WEIGHT:g}; add noise, or allow more "
            "tail"
        )
    log_weights = np.linspace(0.0, largest, _CELLS + 1)
    y = log_weights / (2 * a)  # in units of sigma
    blanket, record = _between(y + a), _between(y - a)
    beyond = float(special.ndtr(-(y[-1] + a)))
    lost = max(float(special.ndtr(-(y[-1] - a))) - math.exp(largest) * beyond, 0.0)
    return _on_levels(log_weights, blanket, record, last=beyond, tail=lost)


@lru_cache(maxsize=256)
def gaussian_instance(*, sigma: float, radius: float) -> Atoms:
    """That of records ±radius plus N(0, sigma²), in whole steps; everybody else holds −radius."""
    return _gaussian_cells(sigma, ((radius, 1.0),))


@lru_cache(maxsize=256)
def discrete_gaussian_instance(*, sigma: int, radius: float) -> Atoms:
    """As :func:`gaussian_instance`, of noise P[k] ∝ e^(−k²/(2·sigma²)) on records rounded without bias.

    Where codes are too many to list, noise of variance 4 more makes it a Gaussian one, up to a relative
    e^-76.
    """
    below = math.floor(radius)
    records = ((float(below), below + 1 - radius), (below + 1.0, radius - below))
    if sigma > 1 << 17:
        return _gaussian_cells(math.hypot(sigma, 2.0), records)
    edges = _code_edges(sigma, radius)
    far = math.ceil(radius + 13 * sigma)
    codes = np.arange(-far, far + 1, dtype=np.float64)
    mass, gain = _opposite(codes / sigma, sigma, records)
    cells = np.concatenate([[0], np.ceil(edges + far).astype(np.int64)])
    return _atoms_of_cells(*(np.add.reduceat(column, cells) for column in (mass, gain)))


def _gaussian_cells(sigma: float, records: tuple[tuple[float, float], ...]) -> Atoms:
    edges = _code_edges(sigma, records[-1][0]) / sigma
    half = np.diff(edges)[:, None] / 2
    inner = _opposite(edges[:-1, None] + half * (1 + NODES), sigma, records)
    mass, gain = ((half * WEIGHTS * column).sum(axis=1) for column in inner)
    low, high = (
        [
            math.fsum(share * float(special.ndtr(-edge + sign * c / sigma)) for c, share in records)
            for sign in (-1, 1)
        ]
        for edge in (-edges[0], edges[-1])
    )
    # Left of all edges x is the farther record, right of them z.
    return _atoms_of_cells(
        np.concatenate([[low[1]], mass, [high[0]]]),
        np.concatenate([[low[0] - low[1]], gain, [high[1] - high[0]]]),
    )


def _opposite(y: Floats, sigma: float, records: tuple[tuple[float, float], ...]) -> tuple[Floats, Floats]:
    """Densities at y deviations from the middle: of z = −record, and how far that of x exceeds it."""
    density = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    parts = [(c / sigma, share * math.exp(-((c / sigma) ** 2) / 2)) for c, share in records]
    other = sum(share * np.exp(-c * y) for c, share in parts)
    # e^(cy) − e^(−cy): the excess is never a difference of two masses.
    excess = sum(share * 2 * np.sinh(c * y) for c, share in parts)
    return np.asarray(density * other), np.asarray(density * excess)


def _code_edges(sigma: float, radius: float) -> Floats:
    """Edges of cells, halfway between whole numbers, ending where reports are rare and weigh too much."""
    a = max(radius / sigma, 1e-300)
    beyond = min(max(7.0 / (2 * a) - a, 1.0), 8.5)  # the heaviest weight is e^7, or there is no cell
    reach = radius + beyond * sigma
    return np.asarray(np.unique(np.floor(np.linspace(-reach, reach, _LINE_CELLS + 1))) + 0.5)


def _atoms_of_cells(mass: Floats, excess: Floats) -> Atoms:
    keep = mass > 0
    mass, excess = mass[keep], excess[keep]
    return read_coarsely(np.maximum(excess / mass, -1.0), np.zeros(len(mass)), mass / mass.sum())


def _between(z: Floats) -> Floats:
    """Standard normal mass between neighbouring points, increasing, from the nearer tail."""
    below, above = np.diff(special.ndtr(z)), -np.diff(special.ndtr(-z))
    return np.asarray(np.where(z[:-1] > 0, above, below), dtype=np.float64)


def _on_levels(
    log_weights: Floats, blanket: Floats, record: Floats, *, last: float, tail: float, low: float = 0.0
) -> Blanket:
    """Spread one edge of a blanket over levels of r, at equal mean.

    Between neighbours of increasing ``log_weights`` from 0 on there are ω masses ``blanket`` and the record's
    own masses ``record``, r times as much; ω has mass ``last`` at the largest weight and ``low`` at (1, 1).
    """
    weights = np.exp(log_weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        second = np.where(blanket > 0, record * (record / blanket), 0.0)
    offset = np.expm1(log_weights)
    information = float((second - 2 * record + blanket).sum()) + last * float(offset[-1]) ** 2
    # For a given number of levels the least is added if their distance goes as the density to the power −1/3.
    # Some more do the same for the logarithms of weights, which decide where few clients take part, and keep
    # the record's tail where it is.
    crowding = np.cumsum(np.cbrt(blanket * np.diff(weights) ** 2))
    log_crowding = np.cumsum(np.cbrt(record * np.diff(log_weights) ** 2))
    remaining = np.cumsum(record[::-1])[::-1] + last * weights[-1]
    tail_depth = np.log(remaining[0] / np.maximum(np.append(remaining[1:], last * weights[-1]), 1e-300))
    crowding = crowding / crowding[-1] + 0.2 * log_crowding / log_crowding[-1] + 0.01 * tail_depth
    count = 6
    while True:
        wanted = np.linspace(0.0, crowding[-1], count)[1:-1]
        knots = np.unique(np.concatenate([[0], np.searchsorted(crowding, wanted) + 1, [len(blanket)]]))
        w, r, s = (np.add.reduceat(column, knots[:-1]) for column in (blanket, record, second))
        below, above = weights[knots[:-1]], weights[knots[1:]]
        added = float(((below + above) * r - below * above * w - s).sum())
        if added <= 1e-3 * information or count >= _MOST_LEVELS:
            break
        count += 2
    share = np.clip(r - below * w, 0.0, w * (above - below)) / (above - below)
    mass = np.append(w - share, last)
    mass[1:] += share
    edges = zip(weights[knots][1:-1].tolist(), mass[1:-1].tolist(), strict=True)
    return Blanket(
        local_epsilon=float(log_weights[-1]),
        differing=float(mass[-1]),
        low=low + 2 * float(mass[0]),
        edges=tuple((weight, m) for weight, m in edges if m > 0),
        tail=tail,
        exact=False,
    )
