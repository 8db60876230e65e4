r"""The numbers of ProjUnit: how far to project, how much larger the ball becomes, the blanket. Torch-free."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import special

from shuffle_plugins.accounting import Atoms, Blanket, most_telling, read_coarsely
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.privunit_law import optimal_privunit, privunit_blanket
from shuffle_plugins.mechanisms.privunit.sphere import caps_at_angle

DEFAULT_PROJECTED_DIM = 4096
DEFAULT_SLACK = 3.0
_MIXED = 1024  # columns mixed by one transform, short enough for a cache
_SINGLE_PRECISION = 1 - 1e-6  # of folded rows


def mixed_block(dim: int) -> int:
    """How many columns of a row are mixed together before they are folded."""
    return min(1 << (dim - 1).bit_length(), _MIXED)


def check_projected_dim(projected_dim: int | None, *, dim: int) -> int:
    """Return how many numbers a row is folded to; 4096 by default, or ``dim`` where that is less.

    Raises:
        ValueError: unless it is a whole number in [2, dim], or 1 at dim 1.
    """
    checks.dim(dim)
    if projected_dim is None:
        return min(dim, DEFAULT_PROJECTED_DIM)
    return checks.whole("projected_dim", projected_dim, at_least=min(dim, 2), at_most=dim)


def inflation(*, projected_dim: int, dim: int, slack: float) -> float:
    """1 + slack/√(2k): how much larger than the ball of rows that of folded rows is; 1 without folding.

    Raises:
        ValueError: unless the slack is a number in [0, 100].
    """
    checks.number("slack", slack, at_least=0, at_most=100)
    return 1.0 if projected_dim == dim else 1 + slack / math.sqrt(2 * projected_dim)


@lru_cache(maxsize=256)
def along_square(*, local_epsilon: float, dim: int) -> float:
    r"""E⟨V, u⟩² of PrivUnit's report V around a direction u, slightly more than 1/dim.

    With probability c it is that of the uniform law, 1/d. On the cap, :math:`A^2 \sim Beta(1/2, (d-1)/2)`
    gives :math:`E[A^2; A \ge t] = P[Beta(3/2, (d-1)/2) \ge t^2]/(2d)`.
    """
    parameters = optimal_privunit(local_epsilon=local_epsilon, dim=dim)
    if dim == 1:
        return 1.0
    c, t = parameters.uniform_probability, parameters.threshold
    in_cap = float(special.betaincc(1.5, (dim - 1) / 2, t * t)) / (2 * dim)
    return c / dim + (1 - c) * in_cap / parameters.cap_measure


@lru_cache(maxsize=256)
def projunit_blanket(
    *, local_epsilon: float, dim: int, projected_dim: int | None = None, slack: float = DEFAULT_SLACK
) -> Blanket:
    """PrivUnit's in ``projected_dim`` dimensions: exact without folding, a bound with it.

    The pattern of a report does not depend on the row. Given it, a report is PrivUnit's of a point of the
    ball, and PrivUnit's blanket covers every pair of points; folded rows just need not reach the boundary.

    Raises:
        ValueError: if a parameter is out of range.
    """
    checks.local_epsilon(local_epsilon)
    size = check_projected_dim(projected_dim, dim=dim)
    own = privunit_blanket(local_epsilon=local_epsilon, dim=size)
    if size == dim:
        return own
    lean = _SINGLE_PRECISION / inflation(projected_dim=size, dim=dim, slack=slack)
    known = size > 1 and mixed_block(dim) <= dim
    instances = (_folded_instance(local_epsilon, size, lean),) if known else ()
    return replace(own, exact=False, outside=0.0, instances=instances)


def _folded_instance(local_epsilon: float, size: int, lean: float) -> Atoms:
    """The instance of rows that are one coordinate of the folded row, and so shorter than its ball.

    PrivUnit reports about their direction with probability (1 + lean)/2, else about the opposite one. The
    rows are opposite to each other; everybody else's is x', or at a right angle. Such rows exist where
    coordinates are mixed in blocks no longer than a row, as they undo the mixing of one block.
    """
    parameters = optimal_privunit(local_epsilon=local_epsilon, dim=size)
    measure, density = parameters.cap_measure, parameters.uniform_probability
    shared = float(caps_at_angle(parameters.threshold, angle=math.pi / 2, dim=size))
    weight = {s: 1 + math.expm1(local_epsilon) * (1 + s * lean) / 2 if s else 1.0 for s in (1, 0, -1)}
    candidates = []
    for parts in (
        {(s, -s): measure for s in (1, -1)},
        {
            **{(s, t): shared for s in (1, -1) for t in (1, -1)},
            **{(s, 0): measure - 2 * shared for s in (1, -1)},
            **{(0, t): measure - 2 * shared for t in (1, -1)},
        },
    ):
        atoms = [
            (weight[s] / weight[t], weight[-s] / weight[t], density * area * weight[t])
            for (s, t), area in parts.items()
        ]
        columns = (np.array(column) for column in zip(*atoms, strict=True))
        first, second, mass = columns
        candidates.append(read_coarsely(first - 1, second - 1, mass))
    return most_telling(candidates)
