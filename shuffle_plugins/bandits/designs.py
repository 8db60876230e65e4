r"""Which few actions to try, and how often: near-optimal experimental designs.

A design gives weight π(a) to each action. With :math:`V(π) = \sum_a π(a)\,a a^T`, the variance of the least
squares estimate of the reward of a is proportional to :math:`\|a\|^2_{V(π)^{-1}}`. A design that makes the
largest of these values over all actions small is near G-optimal; the optimum is m, the dimension that the
actions span (Kiefer and Wolfowitz 1960). The actions of positive weight are called the core set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting import Floats
from shuffle_plugins.core import checks

Vectors = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_RANK_TOLERANCE = 1e-9  # singular values below this share of the largest are taken for rounding
_LEAST_SLACK = 1.001  # Frank-Wolfe needs about dimension/(slack - 1) steps
_MOST_NET_POINTS = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Design:
    """Weights of a few of the actions.

    Attributes:
        support: indices of the actions of positive weight (the core set), ascending, int64.
        weights: their weights, positive, with sum 1.
        dimension: m, the dimension that all actions span together.
        largest: the largest ‖a‖² in the inverse of V(π), over all actions; at best m.
    """

    support: Indices
    weights: Floats
    dimension: int
    largest: float

    def counts(self, size: float, *, at_most: int) -> Indices:
        """How often to play each action of the support: ⌈π(a)·size⌉, and ``at_most`` times in all.

        Where that many are not left the weights are kept as well as whole numbers can, by largest remainders.

        Returns:
            int64, one number for each action of the support; zeros only where fewer are left than it has.
        """
        wanted = np.ceil(self.weights * size - 1e-9).astype(np.int64)
        if wanted.sum() <= at_most:
            return wanted
        exact = self.weights * at_most
        counts = np.floor(exact).astype(np.int64)
        order = np.argsort(counts - exact, kind="stable")
        counts[order[: at_most - int(counts.sum())]] += 1
        return counts


def near_optimal_design(actions: Vectors, *, slack: float = 2.0) -> Design:
    """A design of few actions with largest ‖a‖² at most ``slack`` times the optimum m.

    Frank-Wolfe (Fedorov, Wynn) from m actions that span the space, found greedily, with exact steps: weight
    moves to the action of the largest ‖a‖². Then actions are removed, at an equal V(π) or a larger one,
    until at most m(m + 1)/2 are left (Carathéodory). Lattimore and Szepesvári 2020, chapter 21; Lemma 6.3.2
    of the thesis, which takes a slack of 2.

    Args:
        actions: (actions, dim); they need not span all dimensions.
        slack: how far from the optimum to stop, at least 1.001.
    """
    checks.number("slack", slack, at_least=_LEAST_SLACK)
    rows, _ = span_coordinates(checked_actions(actions))
    dimension = rows.shape[1]
    weights = np.zeros(len(rows))
    weights[_spanning(rows)] = 1 / dimension
    inverse = np.linalg.inv((rows * weights[:, None]).T @ rows)
    while True:
        lengths = np.einsum("ki,ij,kj->k", rows, inverse, rows, optimize=True)
        best = int(lengths.argmax())
        largest = float(lengths[best])
        if largest <= slack * dimension:
            break
        step = (largest / dimension - 1) / (largest - 1)
        weights *= 1 - step
        weights[best] += step
        inverse = np.linalg.inv((rows * weights[:, None]).T @ rows)
    return _design(rows, _pruned(rows, weights))


def even_design(actions: Vectors) -> Design:
    """The design that plays every action equally often: what one would do without a core set."""
    rows, _ = span_coordinates(checked_actions(actions))
    return _design(rows, np.full(len(rows), 1 / len(rows)))


def unit_ball_net(*, dim: int, spacing: float) -> Vectors:
    """Points of the unit sphere such that every point of it is within ``spacing`` of one, (points, dim).

    Stands for the unit ball as a set of actions: a linear reward is largest on the sphere. There are 2 points
    in one dimension and π/arcsin(spacing/2)/2 in two; in more a net has too many for any method that looks at
    each. The thesis takes ``spacing``, in (0, 1], as 1/T.
    """
    checks.dim(dim)
    checks.number("spacing", spacing, above=0, at_most=1)
    if dim == 1:
        return np.array([[-1.0], [1.0]])
    if dim > 2:
        raise ValueError(
            f"a net of the ball in {dim} dimensions has about (3/spacing)**{dim} points: give a finite "
            "set of actions instead"
        )
    count = math.ceil(math.pi / (2 * math.asin(spacing / 2)))
    if count > _MOST_NET_POINTS:
        raise ValueError(f"{count:,} points are too many: take spacing >= {math.pi / _MOST_NET_POINTS:.1g}")
    angles = 2 * math.pi * np.arange(count) / count
    return np.column_stack([np.cos(angles), np.sin(angles)])


def span_coordinates(actions: Vectors) -> tuple[Vectors, Vectors]:
    """Well-conditioned coordinates of the actions in the space that they span.

    Returns:
        coordinates (actions, m) with orthonormal columns, and a basis (m, dim); their product is the actions.
    """
    left, singular, right = np.linalg.svd(actions, full_matrices=False)
    kept = singular > _RANK_TOLERANCE * singular[0]
    return left[:, kept], singular[kept, None] * right[kept]


def checked_actions(actions: Vectors) -> Vectors:
    """The features of actions, a table of finite numbers that are not all zero, as a new float64 array."""
    found = np.array(actions, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"actions must be a table (actions, dim) with rows, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("actions have entries that are not finite")
    if not found.any():
        raise ValueError("all actions are zero: there is nothing to learn about")
    return found


def _spanning(rows: Vectors) -> Indices:
    """As many rows as there are dimensions, each the one farthest from the span of those before."""
    left = rows.copy()
    chosen = []
    for _ in range(rows.shape[1]):
        best = int(np.einsum("ki,ki->k", left, left).argmax())
        chosen.append(best)
        direction = left[best] / np.linalg.norm(left[best])
        left -= np.outer(left @ direction, direction)
    return np.array(chosen)


def _pruned(rows: Vectors, weights: Floats) -> Floats:
    """Weights of at most m(m + 1)/2 rows, whose V(π) is at least as large."""
    dimension = rows.shape[1]
    upper = np.triu_indices(dimension)
    weights = weights.copy()
    while True:
        support = np.flatnonzero(weights > 0)
        if len(support) <= len(upper[0]):
            kept: Floats = weights / weights.sum()
            return kept
        products = np.einsum("ki,kj->kij", rows[support], rows[support])[:, upper[0], upper[1]]
        null = np.linalg.svd(products.T)[2][-1]  # Σ null_a·a·aᵀ = 0
        null = null if null.sum() >= 0 else -null  # taking it away does not raise the sum of the weights
        shrinking = null > 0
        ratios = np.where(shrinking, weights[support] / np.where(shrinking, null, 1.0), np.inf)
        first = int(ratios.argmin())
        weights[support] = np.maximum(weights[support] - ratios[first] * null, 0.0)
        weights[support[first]] = 0.0


def _design(rows: Vectors, weights: Floats) -> Design:
    support = np.flatnonzero(weights > 0)
    matrix = (rows[support] * weights[support, None]).T @ rows[support]
    lengths = np.einsum("ki,ij,kj->k", rows, np.linalg.inv(matrix), rows, optimize=True)
    return Design(
        support=support,
        weights=weights[support] / weights[support].sum(),
        dimension=rows.shape[1],
        largest=float(lengths.max()),
    )
