r"""The numbers of ProjUnit: how far to project, how much larger the ball becomes, the blanket. Torch-free."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from scipy import special

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.privunit_law import optimal_privunit, privunit_blanket

DEFAULT_PROJECTED_DIM = 4096
DEFAULT_SLACK = 3.0


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
def projunit_blanket(*, local_epsilon: float, dim: int, projected_dim: int | None = None) -> Blanket:
    """PrivUnit's in ``projected_dim`` dimensions: exact without folding, a bound with it.

    The pattern of a report does not depend on the row. Given it, a report is PrivUnit's of a point of the
    ball, and PrivUnit's blanket covers every pair of points; folded rows just need not reach the boundary.

    Raises:
        ValueError: if a parameter is out of range.
    """
    checks.local_epsilon(local_epsilon)
    size = check_projected_dim(projected_dim, dim=dim)
    own = privunit_blanket(local_epsilon=local_epsilon, dim=size)
    return own if size == dim else replace(own, exact=False, outside=0.0)
