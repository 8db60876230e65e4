"""Batched elimination: find the best of many actions by dropping the worse ones, batch of clients by batch.

Algorithms 6.3.1, 6.3.2 and 6.4.1 of Girgis's thesis (*Privacy-preserving distributed machine learning*, UCLA
2023). T clients come in all; batch i has about q^i of them, q = (2T)^(1/ln T), for i = 1 … ⌊ln T⌋ - 1. Each
is given an action of the *core set*, a near-optimal design; least squares estimates all rewards, and each
action more than twice the *width* γ below the best is dropped: with probability 1 - 1/T no estimate is off by
more than γ. The remaining clients are given the action that is best at last.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shuffle_plugins.accounting import Cover, DataAccess, EpsilonInterval, Floats, PrivacyStatement, Unit
from shuffle_plugins.accounting.statement import Guarantee, StatedRounds
from shuffle_plugins.bandits.designs import (
    Design,
    Indices,
    Vectors,
    checked_actions,
    even_design,
    near_optimal_design,
    span_coordinates,
)
from shuffle_plugins.bandits.privacy import NonPrivate, PrivacyModel, RewardNoise, checked_rewards
from shuffle_plugins.core import checks

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports
    from shuffle_plugins.randomness.sources import Randomness

_STATE_FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A group of clients that are served together: which actions to give them, and how rewards are protected.

    Attributes:
        number: which batch of the run it is, counted from 1.
        actions: indices of the actions to play, int64 (played,), each by ``counts`` clients.
        noise: protects the rewards; what it costs is recorded before the batch is handed out.
        width: γ, if all rewards come: how far off the estimate of any action may be. Actions more than 2γ
            below the best one are dropped.
        final: whether this is the last batch, which gives the best action to all clients that are left. It
            asks for no rewards.
    """

    number: int
    actions: Indices
    counts: Indices
    noise: RewardNoise
    width: float = math.inf
    final: bool = False

    @property
    def size(self) -> int:
        """How many clients the batch needs."""
        return int(self.counts.sum())

    def assignment(self, *, randomness: Randomness | None = None) -> Indices:
        """An action for each client of the batch, in a uniformly random order, int64 (size,).

        In the shuffle model the shuffler calls this, and the server must not learn the result.
        """
        from shuffle_plugins.randomness.sources import secure

        order = secure(randomness).permutation(self.size).numpy()
        found: Indices = np.repeat(self.actions, self.counts)[order]
        return found

    def randomize(self, rewards: Floats, *, randomness: Randomness | None = None) -> Floats | Reports:
        """Turn rewards, (clients,) in [-1, 1], into what the clients send, one report for each.

        In the local and the shuffle model every client calls this on its own device, with its own reward
        alone; a client without a reward reports 0. Else rewards come back as they are.
        """
        if self.final:
            raise ValueError("the last batch asks for no rewards: keep them")
        return self.noise.randomized(checked_rewards(rewards), randomness=randomness)


class LinearBandit:
    """Finds the best of many actions while clients are served, and keeps the clients' rewards private.

    Args:
        actions: features of the actions, (actions, dim) float64, of Euclidean norm at most 1. The expected
            reward of an action is ⟨θ*, features⟩, ‖θ*‖ ≤ 1. Every reward lies in [-1, 1].
        horizon: T, how many clients will come in all, each for one action; at least 8.
        failure: β, the probability that some estimate is off by more than its width γ; 1/T by default.
        core_set: False plays all actions that are left, equally often, to compare with.

    Example:
        >>> bandit = LinearBandit(actions=features, horizon=100_000, privacy=CentralModel(epsilon=1.0))
        >>> while (batch := bandit.select()) is not None:
        ...     chosen = batch.assignment()  # an action for each of the next batch.size clients
        ...     rewards = serve(chosen)  # yours: in [-1, 1]
        ...     if not batch.final:
        ...         bandit.update(batch, chosen, batch.randomize(rewards))
        >>> best = bandit.best
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
        self._actions = short_actions(actions)
        # For fewer than 8 clients there is no batch to learn from: ⌊ln 8⌋ - 1 = 1.
        self.horizon = checks.whole("horizon", horizon, at_least=8, at_most=10**12)
        self._privacy = privacy
        share = 1 / self.horizon if failure is None else failure
        self._failure = checks.number("failure", share, above=0, below=1)
        self._slack = checks.number("slack", slack, at_least=1.001)
        self._core_set = bool(core_set)
        self._left = np.arange(len(self._actions))
        self.remaining_clients = self.horizon  # who were not yet given an action
        self._number = 0
        self._open: Batch | None = None
        self._finished = False
        self._parameter = np.zeros(self._actions.shape[1])
        self._widths: list[float] = []
        self._costs: list[EpsilonInterval | None] = []
        self._design: tuple[Design, Vectors, Vectors] | None = None

    # -- what is known ----------------------------------------------------------------------------------

    @property
    def num_batches(self) -> int:
        """How many batches are learnt from at most, ⌊ln T⌋ - 1."""
        return int(math.log(self.horizon)) - 1

    @property
    def remaining_actions(self) -> Indices:
        """Indices of the actions that were not dropped, int64."""
        return self._left.copy()

    @property
    def parameter(self) -> Floats:
        """The last estimate of θ*, (dim,), in the span of its actions; zeros before the first."""
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
        """What the run has cost any client so far, replace-one; None if nothing was protected."""
        costs = [cost for cost in self._costs if cost is not None]
        return max(costs, key=lambda cost: cost.upper) if costs else None

    @property
    def costs(self) -> tuple[EpsilonInterval | None, ...]:
        """What each batch so far costs its own clients, in order. No client is in two of them."""
        return tuple(self._costs)

    def statement(self) -> PrivacyStatement:
        """Everything that has to be said beside the ε of the batches so far; ``print`` it."""
        model, cost, unprotected = self._privacy, self.epsilon, isinstance(self._privacy, NonPrivate)
        batches = sum(each is not None or unprotected for each in self._costs)
        guarantee = Guarantee.of_nothing(delta=0.0)
        if batches:
            guarantee = Guarantee(
                adversary="any" if cost is None else cost.adversary,
                sees=f"sees {model.seen}",
                delta=0.0 if cost is None else cost.delta,
                epsilon=cost,
                detail="nothing is protected" if cost is None else "for the clients of the dearest batch",
            )
        rounds = StatedRounds(
            mechanism=f"a batch of rewards under {type(model).__name__}",
            rounds=batches,
            unreleased=0,
            local_epsilon=None,
            local_delta=0.0,
            population=(self.horizon, self.horizon),
            cohort=None,
            sampling="once per client",
            seen=model.seen,
            secrecy="every client is in one batch only",
            source="docs/guides/bandits.md",
        )
        return PrivacyStatement(
            subject="a linear bandit's rewards",
            unit=Unit.CLIENT,
            guarantees=(guarantee,),
            rounds=(rounds,) if batches else (),
            composition="no client is in two batches, so that a run costs what its dearest batch costs",
            trust=(model.trust,),
            clipping="rewards outside [-1, 1] are refused",
            accesses=(
                DataAccess(
                    what="rewards",
                    cover=Cover.NOT_COVERED if unprotected else Cover.COVERED,
                    detail="of a client, all that it could give, replaced at once",
                ),
                DataAccess(
                    what="actions and their features",
                    cover=Cover.NOT_COVERED,
                    detail="they are public; if they were made from the clients' data, that costs ε as well",
                ),
            ),
            warnings=("rewards are not protected at all",) if unprotected else (),
        )

    def plan(self) -> tuple[Batch, ...]:
        """The batches still to come, as they will be if no action is dropped. Planning costs no privacy."""
        batches: list[Batch] = []
        clients = self.remaining_clients
        for number in range(self._number + 1, self.num_batches + 1):
            batch = self._batch(number, clients)
            if batch is None:
                break
            batches.append(batch)
            clients -= batch.size
        return tuple(batches)

    # -- the loop ---------------------------------------------------------------------------------------

    def select(self) -> Batch | None:
        """The next batch: which actions to give to how many clients. None once every client has an action.

        Its cost is recorded whether or not its rewards ever come. The bandit then waits for them: give them
        to :meth:`update`, or give them up by :meth:`discard`.
        """
        if self._open is not None:
            raise ValueError(
                f"the rewards of batch {self._open.number} are missing: pass them to update(), or give them "
                "up with discard()"
            )
        if self.remaining_clients == 0 or self._finished:
            return None
        number = self._number + 1
        if len(self._left) > 1 and number <= self.num_batches:
            self._open = self._batch(number, self.remaining_clients)
            if self._open is not None:
                self._number = number
                self._costs.append(self._open.noise.epsilon)
                self.remaining_clients -= self._open.size
                return self._open
        self._number, self._finished = number, True
        rest, self.remaining_clients = self.remaining_clients, 0
        return Batch(
            number=self._number,
            actions=np.array([self.best]),
            counts=np.array([rest]),
            noise=RewardNoise(),
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
        """Estimate rewards from the reports of a batch, and drop the actions that are clearly worse.

        Args:
            actions: the action that each report is about, (reports,), indices as in :meth:`Batch.assignment`.
                The shuffler hands out the pairs in an order that does not show whose they are.
            reports: what :meth:`Batch.randomize` gave, (reports,); in the shuffle model of all clients.
            randomness: source of the central model's noise, which is added here, once.
        """
        self._check_open(batch)
        places, counts = self._received(batch, actions, reports)
        totals = batch.noise.totals(reports, places=places, played=len(batch.actions), randomness=randomness)
        self._learn(batch, totals, counts)

    def update_totals(self, batch: Batch, totals: Floats) -> None:
        """As :meth:`update`, from unbiased sums in place of reports: (played,), over all asked for."""
        self._check_open(batch)
        found = np.asarray(totals, dtype=np.float64)
        if found.shape != batch.actions.shape or not np.isfinite(found).all():
            raise ValueError(
                f"totals must be {len(batch.actions)} finite numbers, one for each action played"
            )
        self._learn(batch, found, batch.counts)

    def discard(self, batch: Batch) -> None:
        """Stop waiting for the rewards of a batch; its clients count as served, its cost stays."""
        self._check_open(batch)
        self._open = None

    # -- stopping and going on --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that :meth:`load_state_dict` needs to go on, as plain types that JSON can hold.

        Save it after every :meth:`select`, before the actions are given to clients, and after every
        :meth:`update`: a run that went on from an older state would cost more ε than is recorded.
        """
        return {
            "format": _STATE_FORMAT,
            "identity": self._identity(),
            "number": self._number,
            "clients": self.remaining_clients,
            "left": self._left.tolist(),
            "parameter": self._parameter.tolist(),
            "widths": list(self._widths),
            "reports": [] if self._open is None else self._open.counts.tolist(),
            "costs": [None if cost is None else asdict(cost) for cost in self._costs],
            "finished": self._finished,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Batch | None:
        """Go on where a saved bandit of the same arguments stopped, with what :meth:`state_dict` gave.

        Returns the batch whose rewards were awaited when the state was saved; None if there was none.
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
            number, clients, finished = int(state["number"]), int(state["clients"]), bool(state["finished"])
            widths = list(state["widths"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a LinearBandit: {error}") from error
        if (
            left.ndim != 1
            or not len(left)
            or not 0 <= left[0] <= left[-1] < len(self._actions)
            or (np.diff(left) <= 0).any()
            or parameter.shape != self._parameter.shape
            or not np.isfinite(parameter).all()
            or not 0 <= clients <= self.horizon
            or counts.ndim != 1
            or (counts < 1).any()
            or len(costs) != number - finished
        ):
            raise ValueError("the state of the LinearBandit is damaged: nothing was changed")
        design, batch = None, None
        if len(counts):
            design = self._design_of(left)
            if len(counts) != len(design[0].support):
                raise ValueError("the state of the LinearBandit is damaged: nothing was changed")
            noise = self._privacy.noise(int(counts.sum()))
            width = self._width(design, counts, noise)
            actions = left[design[0].support]
            batch = Batch(number=number, actions=actions, counts=counts, noise=noise, width=width)
        self._left, self._parameter, self._costs, self._design = left, parameter, costs, design
        self._number, self.remaining_clients, self._widths, self._finished = number, clients, widths, finished
        self._open = batch
        return batch

    # -- inside -----------------------------------------------------------------------------------------

    def _identity(self) -> str:
        """A digest of all arguments, by which a saved state is recognised as this bandit's."""
        about = self.horizon, self._privacy, self._failure, self._slack, self._core_set, self._actions.shape
        return hashlib.sha256(repr(about).encode() + self._actions.tobytes()).hexdigest()

    def _designed(self) -> tuple[Design, Vectors, Vectors]:
        """The design of the actions that are left, their coordinates in their own span, and its basis."""
        if self._design is None:
            self._design = self._design_of(self._left)
        return self._design

    def _design_of(self, left: Indices) -> tuple[Design, Vectors, Vectors]:
        rows = self._actions[left]
        design = near_optimal_design(rows, slack=self._slack) if self._core_set else even_design(rows)
        return (design, *span_coordinates(rows))

    def _batch(self, number: int, clients: int) -> Batch | None:
        """A batch of at most so many clients; None if they are too few."""
        design = self._designed()
        growth = (2 * self.horizon) ** (1 / math.log(self.horizon))
        counts = design[0].counts(growth**number, at_most=clients)
        if not counts.all():
            return None
        noise = self._privacy.noise(int(counts.sum()))
        actions, width = self._left[design[0].support], self._width(design, counts, noise)
        return Batch(number=number, actions=actions, counts=counts, noise=noise, width=width)

    def _width(self, designed: tuple[Design, Vectors, Vectors], counts: Indices, noise: RewardNoise) -> float:
        """γ: how far off the estimate of any action that is left may be, except with small probability."""
        design, rows, _ = designed
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
        """Estimate θ* by least squares from the sums of rewards, and drop the actions 2γ below the best."""
        design, rows, basis = self._designed()
        played = rows[design.support]
        matrix = (played * counts[:, None]).T @ played
        inner = np.linalg.solve(matrix, played.T @ totals)
        estimates = rows @ inner
        width = self._width(self._designed(), counts, batch.noise)
        kept = estimates >= estimates.max() - 2 * width
        self._parameter = np.linalg.pinv(basis) @ inner
        self._widths.append(width)
        self._open = None
        if not kept.all():
            self._left, self._design = self._left[kept], None


def short_actions(actions: Vectors) -> Vectors:
    """The features of actions, checked, as a new float64 array; refused if a row is longer than 1."""
    found = checked_actions(actions)
    largest = float(np.linalg.norm(found, axis=1).max())
    if largest > 1 + 1e-6:
        raise ValueError(
            f"an action has norm {largest:.6g}: divide all by {largest:.6g}, so that none exceeds 1"
        )
    return found


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
    """Actions whose rewards are +1 with probability (1 + ⟨θ*, a⟩)/2, else -1; vectors of norm at most 1."""

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
        """Simulate all clients of a fresh bandit with these actions; sums are drawn from their exact law.

        Rewards and noise have streams of their own, so that with one seed bandits of different privacy models
        see the same rewards while they play the same batches. The seed is not secure.
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
