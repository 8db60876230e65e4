r"""Clients with contexts, whose law is known: a policy for contexts becomes one action of a linear bandit.

A client comes with a context c, such as an age group, and action a then has the features φ(c, a). A policy
says which action to play in each context; the policies worth playing are argmax_a ⟨φ(c, a), θ⟩ for some θ.
With the law of contexts known, a policy has the known expected features :math:`g(θ) = E_c\, φ(c, \arg\max_a
⟨φ(c, a), θ⟩)`, and its expected reward is ⟨θ*, g(θ)⟩: a linear bandit over policies (Hanna, Yang, Fragouli
2023; Corollary 6.3.1 of the thesis). The client is told the policy, looks up its own action and reports its
reward: its context never leaves it, and enters nothing but the reward. So context and reward together are
protected by the noise of the reward: joint differential privacy in the central model (all that *other*
clients see is ε-DP), ε0-LDP and (ε, δ)-DP of all that the server sees in the local and the shuffle model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting import Floats
from shuffle_plugins.bandits.designs import Indices, Vectors
from shuffle_plugins.core import checks

_LAW_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextualActions:
    """The policies of a problem with contexts, as actions of a linear bandit.

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

    For any dimension. If one of the ``samples`` directions lies within ζ of θ*/‖θ*‖ the best of these
    policies is worth at most 2ζ less than the best of all, per client. Directions and law are public and must
    not come from clients' data. ``features`` and ``law`` are as of :class:`ContextualActions`.
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
    if not (probabilities >= 0).all() or abs(probabilities.sum() - 1) > _LAW_TOLERANCE:
        raise ValueError("law must be probabilities that add up to 1")
    return found, probabilities
