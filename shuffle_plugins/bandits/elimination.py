r"""Batched elimination: try a few actions on many clients, drop the actions that are worse, and again.

Algorithms 6.3.1, 6.3.2 and 6.4.1 of the thesis, which differ in where noise is added. Batch i has about q^i
clients, :math:`q = (2T)^{1/\ln T}`, for i = 1 … ⌊ln T⌋ - 1. It plays the core set of a near-optimal design of
the actions that are left, estimates all rewards by least squares, and drops each action whose estimate lies
more than 2γ below the best one. γ is a width that all estimates of all batches keep, but for a probability of
1/T; it is computed, not taken from the printed closed forms, of which two do not hold. The clients that are
left at the end are given the best action.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shuffle_plugins.accounting import EpsilonInterval, Floats
from shuffle_plugins.bandits.designs import (
    Design,
    Indices,
    Vectors,
    even_design,
    near_optimal_design,
    span_coordinates,
)
from shuffle_plugins.bandits.privacy import NoNoise, PrivacyModel, RewardNoise
from shuffle_plugins.core import checks

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports
    from shuffle_plugins.randomness import Randomness

LEAST_HORIZON = 8
"""The fewest clients for which there is a batch to learn from: ⌊ln 8⌋ - 1 = 1."""

_MAX_HORIZON = 10**12
_NORM_TOLERANCE = 1e-6
_STATE_FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Which actions to give to how many clients.

    Attributes:
        number: from 1.
        actions: indices of the actions to play, int64 (played,).
        counts: how many clients are given each, int64 (played,).
        noise: what protects the rewards of the batch, and what it costs: recorded before the batch is handed
            out.
        final: whether this is the last one: the best action for all clients that are left. Nothing is learnt
            from it, so no rewards are asked for and none are protected.
    """

    number: int
    actions: Indices
    counts: Indices
    noise: RewardNoise
    final: bool = False

    @property
    def size(self) -> int:
        """How many clients the batch needs."""
        return int(self.counts.sum())

    @property
    def epsilon(self) -> EpsilonInterval | None:
        """What the batch costs each of its clients; None if nothing is protected or asked for."""
        return self.noise.epsilon

    @property
    def local_epsilon(self) -> float | None:
        """ε0 of one client's report; None if clients send their rewards as they are."""
        return self.noise.local_epsilon

    def assignment(self, *, randomness: Randomness | None = None) -> Indices:
        """An action for each client of the batch, in a uniformly random order, int64 (size,).

        In the shuffle model this is the shuffler's secret: the server must not learn it.

        Args:
            randomness: by default a fresh, secure source.
        """
        from shuffle_plugins.randomness import secure

        order = secure(randomness).permutation(self.size).numpy()
        found: Indices = np.repeat(self.actions, self.counts)[order]
        return found

    def randomize(self, rewards: Floats, *, randomness: Randomness | None = None) -> Floats | Reports:
        """What clients send for their rewards: one report each.

        In the local and the shuffle model every client calls this for its own reward, on its own device. A
        client that got no reward sends the report of 0. In the central model, and without privacy, rewards go
        to the trusted server as they are.

        Args:
            rewards: (clients,), in [-1, 1].
            randomness: by default a fresh, secure source.

        Raises:
            ValueError: if a reward is not in [-1, 1], or the batch asks for none.
        """
        if self.final:
            raise ValueError("the last batch asks for no rewards: keep them")
        found = checked_rewards(rewards)
        if self.local_epsilon is None:
            return found
        from shuffle_plugins.bandits import reports

        return reports.randomized(self.noise, found, randomness=randomness)


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch as it will be if no action is dropped before it.

    Attributes:
        number: from 1.
        reports: how many clients it has.
        actions: how many different actions it plays.
        local_epsilon: ε0 of one report; None if clients send their rewards as they are.
        epsilon: what it costs its clients; None if nothing is protected.
        width: γ; actions whose estimates lie more than 2γ below the best one are dropped after it.
    """

    number: int
    reports: int
    actions: int
    local_epsilon: float | None
    epsilon: EpsilonInterval | None
    width: float


class LinearBandit:
    """Find the best of many actions while clients come, under privacy.

    Args:
        actions: features of the actions, (actions, dim) float64, of Euclidean norm at most 1. The expected
            reward of an action is ⟨θ*, features⟩ with ‖θ*‖ ≤ 1 unknown, and every reward lies in [-1, 1].
        horizon: T, how many clients will come, each for one action; at least 8.
        privacy: who is trusted; :class:`NonPrivate`, :class:`CentralModel`, :class:`LocalModel` or
            :class:`ShuffledModel`.
        failure: probability β that some width is too small; 1/T by default. It bears on regret, never on
            privacy.
        slack: how far designs may be from optimal; see :func:`near_optimal_design`.
        core_set: False plays every action that is left equally often, to compare with.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> bandit = LinearBandit(actions=features, horizon=100_000, privacy=CentralModel(epsilon=1.0))
        >>> while (batch := bandit.select()) is not None:
        ...     chosen = batch.assignment()  # an action for each of the next batch.size clients
        ...     rewards = serve(chosen)  # yours: in [-1, 1]
        ...     if not batch.final:
        ...         bandit.update(batch, chosen, batch.randomize(rewards))
        >>> bandit.best
    """

    def __init__(
        self,
        *,
        actions: Vectors,
        horizon: int,
        privacy: PrivacyModel,
        failure: float | None = None,
        slack: float = 2.0,
        core_set: bool = True,
    ) -> None:
        self._actions = checked_actions(actions)
        self._horizon = checks.whole("horizon", horizon, at_least=LEAST_HORIZON, at_most=_MAX_HORIZON)
        if not isinstance(privacy, PrivacyModel):
            raise ValueError(
                "privacy must be NonPrivate(), CentralModel(epsilon=…), LocalModel(local_epsilon=…) or "
                f"ShuffledModel(epsilon=…, delta=…), got {privacy!r}"
            )
        self._privacy = privacy
        share = 1 / self._horizon if failure is None else failure
        self._failure = checks.number("failure", share, above=0, below=1)
        self._slack = checks.number("slack", slack, at_least=1.001)
        self._core_set = bool(core_set)
        self._left = np.arange(len(self._actions))
        self._clients = self._horizon
        self._number = 0
        self._open: Batch | None = None
        self._finished = False
        self._parameter = np.zeros(self._actions.shape[1])
        self._widths: list[float] = []
        self._costs: list[EpsilonInterval | None] = []
        self._design: tuple[Design, Vectors, Vectors] | None = None

    # -- what is known ----------------------------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """T, how many clients come in all."""
        return self._horizon

    @property
    def num_batches(self) -> int:
        """How many batches are learnt from at most, ⌊ln T⌋ - 1."""
        return int(math.log(self._horizon)) - 1

    @property
    def remaining_clients(self) -> int:
        """How many clients were not yet given an action."""
        return self._clients

    @property
    def remaining_actions(self) -> Indices:
        """Indices of the actions that were not dropped, int64."""
        return self._left.copy()

    @property
    def parameter(self) -> Floats:
        """The last estimate of θ*, (dim,), within the span of the actions it was made from; zeros before."""
        return self._parameter.copy()

    @property
    def best(self) -> int:
        """Index of the action that looks best of those left."""
        return int(self._left[int((self._actions[self._left] @ self._parameter).argmax())])

    @property
    def widths(self) -> tuple[float, ...]:
        """γ of the batches so far."""
        return tuple(self._widths)

    @property
    def epsilon(self) -> EpsilonInterval | None:
        """What the run has cost any client so far: that of its dearest batch. None if nothing was protected.

        It includes the batch that is out. For replace-one neighbours: the rewards that a client would give to
        each action are replaced by others.
        """
        costs = [cost for cost in self._costs if cost is not None]
        return max(costs, key=lambda cost: cost.upper) if costs else None

    @property
    def costs(self) -> tuple[EpsilonInterval | None, ...]:
        """What each batch so far costs its own clients, in order. No client is in two of them."""
        return tuple(self._costs)

    def plan(self) -> tuple[PlannedBatch, ...]:
        """All batches from the next one, as they will be if no action is dropped. Nothing is spent."""
        rows = []
        clients = self._clients
        for number in range(self._number + 1, self.num_batches + 1):
            found = self._layout(number, clients)
            if found is None:
                break
            counts, noise = found
            rows.append(
                PlannedBatch(
                    number=number,
                    reports=int(counts.sum()),
                    actions=len(counts),
                    local_epsilon=noise.local_epsilon,
                    epsilon=noise.epsilon,
                    width=self._width(counts, noise),
                )
            )
            clients -= int(counts.sum())
        return tuple(rows)

    # -- the loop ---------------------------------------------------------------------------------------

    def select(self) -> Batch | None:
        """The next batch: which actions to give to how many clients. None once every client was given one.

        What it costs is recorded before it is returned, whether or not its rewards ever come.

        Raises:
            ValueError: if the rewards of the batch before are still missing.
        """
        if self._open is not None:
            raise ValueError(
                f"the rewards of batch {self._open.number} are missing: pass them to update(), or give them "
                "up with discard()"
            )
        if self._clients == 0 or self._finished:
            return None
        self._number += 1
        if len(self._left) > 1 and self._number <= self.num_batches:
            found = self._layout(self._number, self._clients)
            if found is not None:
                counts, noise = found
                played = self._left[self._designed()[0].support]
                self._costs.append(noise.epsilon)
                self._clients -= int(counts.sum())
                self._open = Batch(number=self._number, actions=played, counts=counts, noise=noise)
                return self._open
        self._finished = True
        rest, self._clients = self._clients, 0
        return Batch(
            number=self._number,
            actions=np.array([self.best]),
            counts=np.array([rest]),
            noise=NoNoise(),
            final=True,
        )

    def update(
        self,
        batch: Batch,
        actions: Indices,
        reports: Floats | Reports,
        *,
        randomness: Randomness | None = None,
    ) -> None:
        """Learn from the reports of a batch, and drop the actions that are worse.

        In the central model the noise is added here, once.

        Args:
            batch: the batch that is out.
            actions: the action of each report, (reports,), indices as in :meth:`Batch.assignment`. In the
                shuffle model pairs of action and report come from the shuffler in an order that says nothing.
            reports: what :meth:`Batch.randomize` gave, (reports,).
            randomness: of the noise of a central server; by default a fresh, secure source.

        Raises:
            ValueError: if the batch is not the one that is out, reports are malformed, are for other actions
                than the batch's, are more than were asked for, or, in the shuffle model, fewer. Nothing was
                released, and the batch is still out.
        """
        self._check_open(batch)
        places, counts = self._received(batch, actions, reports)
        from shuffle_plugins.bandits import reports as received

        totals = received.released_totals(
            batch.noise, reports, places=places, played=len(batch.actions), randomness=randomness
        )
        self._learn(batch, totals, counts)

    def update_totals(self, batch: Batch, totals: Floats) -> None:
        """Learn from sums that were released already: one for each action of the batch, noise included.

        For simulations (:meth:`RewardNoise.simulated`), and where somebody else adds the reports up. All
        reports that were asked for must be in them.

        Args:
            batch: the batch that is out.
            totals: (played,), unbiased for the sums of the rewards.

        Raises:
            ValueError: if the batch is not the one that is out, or the sums are malformed; it is still out.
        """
        self._check_open(batch)
        found = np.asarray(totals, dtype=np.float64)
        if found.shape != batch.actions.shape or not np.isfinite(found).all():
            raise ValueError(
                f"totals must be {len(batch.actions)} finite numbers, one for each action played"
            )
        self._learn(batch, found, batch.counts)

    def discard(self, batch: Batch) -> None:
        """Give up the rewards of a batch; its clients were given their actions, and its cost stays recorded.

        Raises:
            ValueError: if the batch is not the one that is out.
        """
        self._check_open(batch)
        self._open = None

    # -- stopping and going on --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that :meth:`load_state_dict` needs to go on, of plain types, fit for JSON.

        Save it after every ``select`` before the actions are given out, and after every ``update`` before the
        next ones are: then no noise is ever drawn twice for rewards of which something was seen.
        """
        return {
            "format": _STATE_FORMAT,
            "identity": self._identity(),
            "number": self._number,
            "clients": self._clients,
            "left": self._left.tolist(),
            "parameter": self._parameter.tolist(),
            "widths": list(self._widths),
            "reports": [] if self._open is None else self._open.counts.tolist(),
            "costs": [None if cost is None else _cost_state(cost) for cost in self._costs],
            "finished": self._finished,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Batch | None:
        """Go on where a saved bandit of the same arguments stopped.

        Args:
            state: what :meth:`state_dict` gave.

        Returns:
            the batch that was out when the state was saved, if one was.

        Raises:
            ValueError: if it is no such state, or one of a bandit with other arguments.
        """
        try:
            if state["format"] != _STATE_FORMAT or state["identity"] != self._identity():
                raise ValueError(
                    "the state is of a bandit with other actions, horizon, privacy, failure or design: build "
                    "this one with the same arguments"
                )
            left = np.array(state["left"], dtype=np.int64)
            parameter = np.array(state["parameter"], dtype=np.float64)
            counts = np.array(state["reports"], dtype=np.int64)
            costs = [None if cost is None else EpsilonInterval(**cost) for cost in state["costs"]]
            rest = (
                int(state["number"]),
                int(state["clients"]),
                list(state["widths"]),
                bool(state["finished"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a LinearBandit: {error}") from error
        self._left, self._parameter, self._costs, self._design = left, parameter, costs, None
        self._number, self._clients, self._widths, self._finished = rest
        self._open = None
        if len(counts):
            noise = self._privacy.noise(int(counts.sum()))
            played = left[self._designed()[0].support]
            self._open = Batch(number=self._number, actions=played, counts=counts, noise=noise)
        return self._open

    # -- inside -----------------------------------------------------------------------------------------

    def _identity(self) -> str:
        about = (
            self._horizon,
            repr(self._privacy),
            self._failure,
            self._slack,
            self._core_set,
            self._actions.shape,
        )
        return hashlib.sha256(repr(about).encode() + self._actions.tobytes()).hexdigest()

    def _designed(self) -> tuple[Design, Vectors, Vectors]:
        """The design of the actions that are left, their coordinates and the basis of these."""
        if self._design is None:
            rows = self._actions[self._left]
            design = near_optimal_design(rows, slack=self._slack) if self._core_set else even_design(rows)
            self._design = (design, *span_coordinates(rows))
        return self._design

    def _layout(self, number: int, clients: int) -> tuple[Indices, RewardNoise] | None:
        """Clients for each action of a batch, and its noise; None if too few clients are left."""
        growth = (2 * self._horizon) ** (1 / math.log(self._horizon))
        counts = self._designed()[0].counts(growth**number, at_most=clients)
        if not counts.all():
            return None
        return counts, self._privacy.noise(int(counts.sum()))

    def _width(self, counts: Indices, noise: RewardNoise) -> float:
        """γ: the largest deviation of an estimate, over the actions that are left."""
        design, rows, _ = self._designed()
        played = rows[design.support]
        inverse = np.linalg.inv((played * counts[:, None]).T @ played)
        lengths = np.einsum("ki,ij,kj->k", rows, inverse, rows, optimize=True)
        coefficients = rows @ inverse @ played.T
        share = self._failure / (len(rows) * self.num_batches)
        return noise.width(lengths=lengths, coefficients=coefficients, counts=counts, failure=share)

    def _check_open(self, batch: Batch) -> None:
        if batch.final:
            raise ValueError("the last batch asks for no rewards")
        if batch is not self._open:
            raise ValueError(
                f"batch {batch.number} is not the one that is out: answered before, or of another run"
            )

    def _received(self, batch: Batch, actions: Indices, reports: Floats | Reports) -> tuple[Indices, Indices]:
        """The place of each report's action in the batch, and how many reports each action has."""
        chosen = np.asarray(actions)
        if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer) or len(chosen) != len(reports):
            raise ValueError(f"actions must be {len(reports)} whole numbers, one for each report")
        places = np.searchsorted(batch.actions, chosen)
        places = np.minimum(places, len(batch.actions) - 1)
        strange = chosen[batch.actions[places] != chosen]
        if len(strange):
            raise ValueError(f"action {int(strange[0])} is not one of batch {batch.number}")
        counts = np.bincount(places, minlength=len(batch.actions))
        if (counts > batch.counts).any():
            raise ValueError("there are more reports than clients were asked: drop what nobody was asked for")
        if self._privacy.needs_every_report and (counts < batch.counts).any():
            raise ValueError(
                f"{batch.size - len(chosen)} reports of batch {batch.number} are missing; its ε holds for "
                f"all {batch.size}, so the shuffler must not hand out fewer (a client without a reward "
                "reports 0). Give the batch up with discard()"
            )
        if not counts.all():
            raise ValueError(
                "an action of the batch has no report at all: wait for one, or discard() the batch"
            )
        return places, counts

    def _learn(self, batch: Batch, totals: Floats, counts: Indices) -> None:
        design, rows, basis = self._designed()
        played = rows[design.support]
        matrix = (played * counts[:, None]).T @ played
        inner = np.linalg.solve(matrix, played.T @ totals)
        estimates = rows @ inner
        width = self._width(counts, batch.noise)
        kept = estimates >= estimates.max() - 2 * width
        self._parameter = np.linalg.pinv(basis) @ inner
        self._widths.append(width)
        self._open = None
        if not kept.all():
            self._left, self._design = self._left[kept], None


def checked_actions(actions: Vectors) -> Vectors:
    """A table of features, float64, copied and checked.

    Raises:
        ValueError: if it is no table of finite numbers, all are zero, or a row is longer than 1.
    """
    found = np.array(actions, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"actions must be a table (actions, dim) with rows, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("actions have entries that are not finite")
    largest = float(np.linalg.norm(found, axis=1).max())
    if largest == 0:
        raise ValueError("all actions are zero: there is nothing to learn about")
    if largest > 1 + _NORM_TOLERANCE:
        raise ValueError(
            f"an action has norm {largest:.6g}: divide all by {largest:.6g}, so that none exceeds 1"
        )
    return found


def checked_rewards(rewards: Floats) -> Floats:
    """Rewards as float64, checked.

    Raises:
        ValueError: if they are no list of numbers in [-1, 1].
    """
    found = np.asarray(rewards, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError(f"rewards must be a list, one number for each client, got shape {found.shape}")
    if not (np.abs(found) <= 1).all():  # false for NaN too
        raise ValueError("a reward is outside [-1, 1]: scale rewards by a public constant, or clip them")
    return found


def _cost_state(cost: EpsilonInterval) -> dict[str, Any]:
    return {name: getattr(cost, name) for name in EpsilonInterval.__dataclass_fields__}
