"""Actions of a bandit: which few of them to try and how often, and policies for contexts as actions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting import Floats
from shuffle_plugins.core import checks

Vectors = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_MOST_NET_POINTS = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Design:
    """A few of the actions (the core set): their indices, ascending int64, and weights, of sum 1.

    With V(π) = Σ π(a)·a·aᵀ, the variance of the least squares estimate of the reward of a is proportional to
    ‖a‖² in the inverse of V(π). A design that makes the largest of these over all actions small is near
    G-optimal; the optimum is m, the ``dimension`` that the actions span (Kiefer and Wolfowitz 1960).
    """

    support: Indices
    weights: Floats
    dimension: int
    largest: float

    def counts(self, size: float, *, at_most: int) -> Indices:
        """How often to play each action of the support: ⌈π(a)·size⌉, and ``at_most`` times in all, int64.

        Where that many are not left the weights are kept as well as whole numbers can, by largest remainders.
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
    """A design of few of the actions (actions, dim) with largest ‖a‖² at most ``slack`` times the optimum m.

    Frank-Wolfe (Fedorov, Wynn) from m actions that span the space, with exact steps. Then actions are
    removed, at an equal V(π) or a larger one, until at most m(m + 1)/2 are left (Carathéodory). Lattimore and
    Szepesvári 2020, chapter 21; Lemma 6.3.2 of the thesis, which takes a slack of 2.
    """
    checks.number("slack", slack, at_least=1.001)  # in about dimension/(slack - 1) steps
    rows, _ = span_coordinates(checked_actions(actions))
    dimension = rows.shape[1]
    weights = np.zeros(len(rows))
    weights[_spanning(rows)] = 1 / dimension
    while True:
        lengths = _lengths(rows, weights)
        best = int(lengths.argmax())
        largest = float(lengths[best])
        if largest <= slack * dimension:
            break
        step = (largest / dimension - 1) / (largest - 1)
        weights *= 1 - step
        weights[best] += step
    return _design(rows, _pruned(rows, weights))


def even_design(actions: Vectors) -> Design:
    """The design that plays every action equally often: what one would do without a core set."""
    rows, _ = span_coordinates(checked_actions(actions))
    return _design(rows, np.full(len(rows), 1 / len(rows)))


def unit_ball_net(*, dim: int, spacing: float) -> Vectors:
    """Points of the unit sphere such that every point of it is within ``spacing`` of one, (points, dim).

    Stands for the unit ball as a set of actions, in one or two dimensions: a linear reward is largest on the
    sphere. The thesis takes ``spacing``, in (0, 1], as 1/T.
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
    """Coordinates (actions, m) with orthonormal columns, and a basis (m, dim), whose product they are."""
    left, singular, right = np.linalg.svd(actions, full_matrices=False)
    kept = singular > 1e-9 * singular[0]  # smaller ones are rounding
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


def _lengths(rows: Vectors, weights: Floats) -> Floats:
    """‖a‖² of each row in the inverse of V(π)."""
    inverse = np.linalg.inv((rows * weights[:, None]).T @ rows)
    return np.asarray(np.einsum("ki,ij,kj->k", rows, inverse, rows, optimize=True))


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
    return Design(
        support=support,
        weights=weights[support] / weights[support].sum(),
        dimension=rows.shape[1],
        largest=float(_lengths(rows, weights).max()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextualActions:
    """The policies of a problem with contexts, whose law is known, as actions of a linear bandit.

    A client comes with a context c, such as an age group, and action a then has the features φ(c, a). A
    policy says which action to play in each context; those worth playing are argmax_a ⟨φ(c, a), θ⟩ for some
    θ, and have known expected features (Hanna, Yang, Fragouli 2023; Corollary 6.3.1 of the thesis). The
    client is told the policy, looks up its own action and reports its reward: its context enters nothing
    else, so that the reward's noise protects both. In the central model that is joint differential privacy.

    Attributes:
        features: φ, (contexts, actions, dim) float64, each of norm at most 1.
        law: probability of each context, (contexts,).
        policies: the action of each policy in each context, int64 (policies, contexts), no two alike.
    """

    features: Floats
    law: Floats
    policies: Indices

    def __post_init__(self) -> None:
        features, law = _checked(self.features, self.law)
        policies = np.array(self.policies, dtype=np.int64)
        if policies.ndim != 2 or policies.shape[1] != len(law) or not len(policies):
            raise ValueError(f"policies must be a table (policies, {len(law)}), got shape {policies.shape}")
        if policies.min() < 0 or policies.max() >= features.shape[1]:
            raise ValueError(f"policies name actions 0 … {features.shape[1] - 1}")
        for name, value in (("features", features), ("law", law), ("policies", policies)):
            object.__setattr__(self, name, value)

    @property
    def actions(self) -> Vectors:
        """Expected features of each policy, (policies, dim): the actions of a :class:`LinearBandit`."""
        contexts = np.arange(len(self.law))
        chosen = self.features[contexts[None, :], self.policies]
        found: Vectors = np.einsum("c,pcd->pd", self.law, chosen)
        return found

    def play(self, policy: int, context: int) -> int:
        """What a client of this context plays when it is given this policy; it looks that up itself."""
        checks.whole("policy", policy, at_least=0, at_most=len(self.policies) - 1)
        checks.whole("context", context, at_least=0, at_most=len(self.law) - 1)
        return int(self.policies[policy, context])


def every_policy(features: Floats, law: Floats) -> ContextualActions:
    """All policies that some θ makes best, in one or two dimensions: no net and no error.

    The best action of a context changes only where two actions are worth the same, so one θ from each arc
    between such directions is enough. ``features`` and ``law`` are as of :class:`ContextualActions`.
    """
    found, probabilities = _checked(features, law)
    dim = found.shape[2]
    if dim > 2:
        raise ValueError(f"features have {dim} dimensions: only sampled_policies() can go through so many")
    if dim == 1:
        directions = np.array([[-1.0], [1.0]])
    else:
        first, second = np.triu_indices(found.shape[1], k=1)
        differences = (found[:, first] - found[:, second]).reshape(-1, 2)
        differences = differences[np.abs(differences).max(axis=1) > 0]
        turns = np.arctan2(differences[:, 1], differences[:, 0]) + math.pi / 2
        breaks = np.unique(np.concatenate([turns, turns + math.pi, [0.0]]) % (2 * math.pi))
        middles = (breaks + np.append(breaks[1:], breaks[0] + 2 * math.pi)) / 2
        directions = np.column_stack([np.cos(middles), np.sin(middles)])
    return _policies(found, probabilities, directions)


def sampled_policies(features: Floats, law: Floats, *, samples: int, seed: int = 0) -> ContextualActions:
    """The policies that random directions θ make best, uniform on the sphere; alike ones once.

    If a direction lies within ζ of θ*/‖θ*‖ the best of these policies is worth at most 2ζ less than the best
    of all, per client. Directions and law are public and must not come from clients' data. ``features`` and
    ``law`` are as of :class:`ContextualActions`.
    """
    found, probabilities = _checked(features, law)
    checks.whole("samples", samples)
    directions = np.random.default_rng(seed).standard_normal((samples, found.shape[2]))
    return _policies(found, probabilities, directions)


def _policies(features: Floats, law: Floats, directions: Vectors) -> ContextualActions:
    best = np.stack([(context @ directions.T).argmax(axis=0) for context in features], axis=1)
    return ContextualActions(features=features, law=law, policies=np.unique(best, axis=0))


def _checked(features: Floats, law: Floats) -> tuple[Floats, Floats]:
    found, probabilities = np.array(features, dtype=np.float64), np.array(law, dtype=np.float64)
    if found.ndim != 3 or not found.size or not np.isfinite(found).all():
        raise ValueError(f"features must be finite numbers (contexts, actions, dim), got shape {found.shape}")
    largest = float(np.linalg.norm(found, axis=2).max())
    if largest > 1 + 1e-6:
        raise ValueError(f"a feature vector has norm {largest:.6g}: divide all by it, so that none exceeds 1")
    if probabilities.shape != (len(found),):
        raise ValueError(f"law must have one probability for each of {len(found)} contexts")
    if not (probabilities >= 0).all() or abs(probabilities.sum() - 1) > 1e-9:
        raise ValueError("law must be probabilities that add up to 1")
    return found, probabilities
