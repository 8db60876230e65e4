"""Worlds to try a bandit in: actions, the true parameter, and rewards of plus or minus one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from shuffle_plugins.accounting import Floats
from shuffle_plugins.bandits.designs import Indices, Vectors
from shuffle_plugins.bandits.elimination import Batch, LinearBandit, short_actions
from shuffle_plugins.core import checks


@dataclass(frozen=True, kw_only=True)
class Play:
    """What a bandit did in an environment.

    ``regret`` is Σ ⟨θ*, a* - a_t⟩ over all clients, ``batches`` (clients, their regret, actions left when it
    was chosen) of each batch, and ``best`` the index of the action that the bandit ended with.
    """

    regret: float
    batches: tuple[tuple[int, float, int], ...]
    best: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """Actions whose rewards are +1 with probability (1 + ⟨θ*, a⟩)/2, else -1.

    Attributes:
        actions: (actions, dim) float64, of norm at most 1.
        parameter: θ*, (dim,), of norm at most 1.
    """

    actions: Vectors
    parameter: Floats

    def __post_init__(self) -> None:
        actions = short_actions(self.actions)
        parameter = np.array(self.parameter, dtype=np.float64)
        if parameter.shape != actions.shape[1:] or not np.isfinite(parameter).all():
            raise ValueError(
                f"parameter must be {actions.shape[1]} finite numbers, got shape {parameter.shape}"
            )
        if np.abs(actions @ parameter).max() > 1 + 1e-6:
            raise ValueError("an expected reward is outside [-1, 1]: make the parameter shorter")
        object.__setattr__(self, "actions", actions)
        object.__setattr__(self, "parameter", parameter)

    @classmethod
    def random(cls, *, actions: int, dim: int, seed: int) -> Self:
        """Actions and θ* uniform on the unit sphere, as in section 6.6 of the thesis."""
        checks.whole("actions", actions)
        checks.dim(dim)
        drawn = np.random.default_rng(seed).standard_normal((actions + 1, dim))
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return cls(actions=drawn[1:], parameter=drawn[0])

    @cached_property
    def means(self) -> Floats:
        """Expected reward of each action, (actions,)."""
        return np.clip(self.actions @ self.parameter, -1.0, 1.0)

    @cached_property
    def gaps(self) -> Floats:
        """How much less than the best action each one is worth, (actions,)."""
        found: Floats = self.means.max() - self.means
        return found

    def successes(self, actions: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
        """How many rewards of +1 so many plays of each action bring: a binomial draw for each."""
        drawn: Indices = rng.binomial(counts, (1 + self.means[actions]) / 2)
        return drawn

    def rewards(self, actions: Indices, rng: np.random.Generator) -> Floats:
        """A reward for each client, given the action of each."""
        drawn: Floats = np.where(rng.random(len(actions)) < (1 + self.means[actions]) / 2, 1.0, -1.0)
        return drawn

    def play(
        self, bandit: LinearBandit, *, seed: int, on_batch: Callable[[Batch], None] | None = None
    ) -> Play:
        """Simulate all clients of a fresh bandit with these actions, by batches: sums are drawn from their
        exact law.

        Its seconds do not grow with the number of clients. Rewards and noise have streams of their own, so
        that with one seed bandits of different privacy models see the same rewards as long as they play the
        same batches. The seed is not secure: for simulations only. ``on_batch`` is called with each batch.
        """
        if bandit.remaining_clients != bandit.horizon or len(bandit.remaining_actions) != len(self.actions):
            raise ValueError("play a fresh bandit that has the environment's actions")
        outcomes, noise = (np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(2))
        rows = []
        left = len(self.actions)
        while (batch := bandit.select()) is not None:
            rows.append((batch.size, float(batch.counts @ self.gaps[batch.actions]), left))
            if on_batch is not None:
                on_batch(batch)
            if not batch.final:
                plus = self.successes(batch.actions, batch.counts, outcomes)
                bandit.update_totals(batch, batch.noise.simulated(plus, batch.counts, noise))
                left = len(bandit.remaining_actions)
        return Play(regret=sum(row[1] for row in rows), batches=tuple(rows), best=bandit.best)
