"""Opacus accountants for the subsampled shuffle model, the hooks that record rounds in them, and refusals."""

from __future__ import annotations

import inspect
import logging
import math
import sys
import time
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np
import opacus
from opacus.accountants import IAccountant, register_accountant
from typing_extensions import override

from shuffle_plugins.accounting import BudgetExceeded, EpsilonInterval, Round, ShuffleAccountant
from shuffle_plugins.accounting.accountant import check_none_forgotten
from shuffle_plugins.accounting.comparison import PublishedAccountant
from shuffle_plugins.core import checks

_logger = logging.getLogger(__name__)
_recorded: dict[str, int] = {}  # by run, the rounds known to this process, of all that went on with it
OPTIMIZERS: WeakSet[Any] = WeakSet()  # all of ours that are in use


T = TypeVar("T")


class ShufflePrivacyError(ValueError):
    """A request whose ε would be wrong or unknown; raised before anything is released."""


class CohortMismatch(ShufflePrivacyError):
    """A round holds another number of gradients than it is charged for; nothing of it was released, and its
    batch is recorded as one that is passed over."""


class PrivacyBudgetExceeded(BudgetExceeded, ShufflePrivacyError):
    """The next round would spend more than the budget; it was neither recorded nor released."""


def checked(check: Callable[..., T], *arguments: Any, **limits: Any) -> T:
    """Apply a function of ``core.checks`` to what a user passed, a NumPy scalar included."""
    try:
        return check(*(a.item() if isinstance(a, np.generic) else a for a in arguments), **limits)
    except ValueError as error:
        raise ShufflePrivacyError(str(error)) from None


def warn_caller(message: str) -> None:
    """Warn at the line of the user's code that called into this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class SubsampledShuffleAccountant(IAccountant):  # type: ignore[misc]
    """What the accountants share; every number is :class:`ShuffleAccountant`'s own.

    ε is for replace-one at fixed population; Opacus's own accountants use add/remove, another promise.
    """

    method: ClassVar[Literal["rdp", "pld"]]
    core_type: ClassVar[type[ShuffleAccountant]] = ShuffleAccountant

    def __init__(self) -> None:
        self.core = self.core_type(method=self.method)  # another object after load_state_dict
        self._run = uuid.uuid4().hex
        self.budget: tuple[float, float] | None = None  # ε and δ
        self._taken_over = False

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} rounds>"

    @classmethod
    @override
    def mechanism(cls) -> str:
        """The name under which Opacus's registry knows this class."""
        return f"subsampled_shuffle_{cls.method}"

    @property
    def history(self) -> list[tuple[tuple[Any, ...], int]]:
        """Pairs (the round's ``state()``, number of steps), plain tuples; a copy."""
        return [(recorded.state(), num_steps) for recorded, num_steps in self.core.history]

    @history.setter
    def history(self, value: object) -> NoReturn:
        raise ShufflePrivacyError(
            "history cannot be assigned, as Opacus's get_noise_multiplier does. To meet a target use "
            "PrivacyEngine.make_private_with_epsilon; to restore a history use load_state_dict; to add "
            "rounds use record(round, num_steps=...)"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be said beside its ε, for a privacy statement."""
        if not self._taken_over:
            return ()
        return (
            "rounds were taken over from a checkpoint; how their gradients were clipped, whether their coins "
            "were seeded, and whether batches were passed over, is not known here",
        )

    def record(self, new_round: Round, num_steps: int = 1) -> None:
        """Record ``num_steps`` rounds that are about to be released."""
        self.core.step(new_round, num_steps=num_steps)
        _recorded[self._run] = _recorded.get(self._run, 0) + num_steps

    @override
    def step(self, *, noise_multiplier: float, sample_rate: float) -> NoReturn:
        """Refuse: Opacus's two numbers do not determine a shuffled round's cost. See :meth:`record`."""
        raise ShufflePrivacyError(
            "a noise multiplier and a sample rate do not determine the cost of a shuffled round. Train with "
            "opacus_shuffle.PrivacyEngine, attach get_optimizer_hook_fn to a ShuffleDPOptimizer, or call "
            "record(round, num_steps=...)"
        )

    @override
    def get_epsilon(self, delta: float) -> float:
        """Certified upper bound on ε at δ in (0, 1) for all rounds so far, 0.0 without any."""
        return float(self.get_epsilon_interval(delta).upper)

    def get_epsilon_interval(self, delta: float) -> EpsilonInterval:
        """Certified upper bound on ε at δ in (0, 1), and ε of a real randomizer below it."""
        return self.spent.epsilon(delta)

    @property
    def spent(self) -> ShuffleAccountant:
        """The rounds recorded, and those of batches that a model was trained on and no step followed yet."""
        core = self.core
        for hook, new_round in (each for optimizer in OPTIMIZERS for each in optimizer.outstanding):
            if hook.accountant is self and not hook.over_budget(core, new_round):
                core = core.and_rounds(new_round, num_steps=1)
        return core

    @override
    def __len__(self) -> int:
        """Number of rounds recorded so far: optimization steps, or epochs under ``sampling="epoch"``."""
        return self.core.num_steps

    def __bool__(self) -> bool:
        """Always true: an accountant without history is still an accountant."""
        return True

    @override
    def get_optimizer_hook_fn(
        self, sample_rate: float, *, target_epsilon: float | None = None, target_delta: float | None = None
    ) -> Callable[[Any], None]:
        """A hook that records what a shuffle optimizer is about to release, read off it at every step.

        ``sample_rate`` is k / n, and refused if the optimizer's own differs. The step that would exceed an
        optional budget, ε at δ, is refused.
        """
        caller = sys._getframe(1)
        if caller.f_code is opacus.PrivacyEngine.make_private.__code__:
            _refuse_other_optimizers(caller.f_locals["optimizer"])
        if (target_epsilon is None) != (target_delta is None):
            raise ShufflePrivacyError("a budget needs both target_epsilon and target_delta")
        self.budget = None
        if target_epsilon is not None and target_delta is not None:
            self.budget = (
                checked(checks.target_epsilon, target_epsilon),
                checked(checks.delta, target_delta, name="target_delta"),
            )
        return AccountingHook(accountant=self, sample_rate=sample_rate, budget=self.budget)

    @override
    def state_dict(self, destination: MutableMapping[str, Any] | None = None) -> MutableMapping[str, Any]:
        """State that loads under ``weights_only=True``, in ``destination`` if that is given."""
        destination = OrderedDict() if destination is None else destination
        destination.update(
            core=self.spent.state_dict(),
            mechanism=self.mechanism(),
            run=self._run,
            warnings=self.warnings,
        )
        if self.budget is not None:
            destination["target"] = self.budget
        return destination

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], *, next_round: Round | None = None) -> None:
        """Go on from a saved history, unless the present one does so already, alone; on failure it stays.

        Refused is a state that lacks rounds recorded here, or by its own run since it was saved. It warns if
        the run goes on with other rounds, by ``next_round``, or without its target.
        """
        needed = {"core", "mechanism", "run"}
        if not isinstance(state_dict, Mapping) or not needed <= set(state_dict):
            raise ShufflePrivacyError(
                f"an accountant's state is a dictionary with {sorted(needed)}, which this one lacks"
            )
        if state_dict["mechanism"] != self.mechanism():
            raise ShufflePrivacyError(
                f"a history of {state_dict['mechanism']!r} cannot be continued by {self.mechanism()!r}: "
                "create the engine with the accountant that wrote the checkpoint"
            )
        core, run = self.core_type(method=self.method), state_dict["run"]
        checked(core.load_state_dict, state_dict["core"])
        recorded, spent = _recorded.get(run, 0), self.spent
        alone = recorded <= spent.num_steps  # no other engine went on with the run: each state of it is ours
        if run == self._run and alone and begins_with(spent, core):
            return
        if core.num_steps < recorded:
            raise ShufflePrivacyError(
                f"this process has already trained past this state ({core.num_steps} rounds saved, "
                f"{recorded} recorded), and loading it would report ε without the later rounds. Load the "
                "newest checkpoint, and of this one the weights alone "
                "(module.load_state_dict(checkpoint['module_state_dict'])). If nobody has seen the later "
                "models, restart the Python process and load this one"
            )
        mixed = self.core.num_steps and run != self._run  # alike or not, both runs' count
        if mixed or not begins_with(core, self.core):
            raise ShufflePrivacyError(
                "this engine has recorded rounds that the saved history does not hold; loading it would "
                "report ε without them. To go back to earlier weights, load only those "
                "(module.load_state_dict(checkpoint['module_state_dict'])); to resume a run, use a new engine"
            )
        changes = []
        if next_round is not None and core.history and core.history[-1][0] != next_round:
            changes.append(f"its last rounds were {core.history[-1][0]}, the next are {next_round}")
        if next_round is not None and "target" in state_dict and self.budget is None:
            changes.append(
                f"it was to stop at (ε, δ) = {tuple(state_dict['target'])}, and no target is set now"
            )
        if changes:
            warn_caller(
                f"this run does not go on as the checkpoint's did: {'; and '.join(changes)}. ε counts both "
                "rightly. To resume, call what made the first engine private with the same arguments (epochs "
                "or num_steps of the whole run), in a new engine, and load then"
            )
        _recorded[run] = max(core.num_steps, recorded)
        self.core, self._run, self._taken_over = core, run, True


class SubsampledShuffleRDPAccountant(SubsampledShuffleAccountant):
    """Composes by Rényi divergences of the blanket pair: fast, a few per cent above the PLD accountant."""

    method = "rdp"


class SubsampledShufflePLDAccountant(SubsampledShuffleAccountant):
    """Composes the privacy loss distribution of the blanket pair with certified error: the tighter one."""

    method = "pld"


class Girgis2021Accountant(SubsampledShuffleAccountant):
    """Composes Theorem 1 of Girgis, Data and Diggavi 2021 as published, for comparison only.

    It is several times looser than the others, and refuses sums and Poisson sampling.
    """

    method = "rdp"
    core_type = PublishedAccountant

    @classmethod
    @override
    def mechanism(cls) -> str:
        return "girgis-2021"


def begins_with(core: ShuffleAccountant, earlier: ShuffleAccountant) -> bool:
    """Whether a history goes on from an earlier one, all of whose rounds it has."""
    try:
        check_none_forgotten(core.history, earlier.history)
    except ValueError:
        return False
    return True


def _refuse_other_optimizers(optimizer: object) -> None:
    if not isinstance(getattr(optimizer, "round", None), Round):
        raise ShufflePrivacyError(
            f"{type(optimizer).__name__} does not randomise locally, so a shuffle accountant cannot say what "
            "it costs. Use opacus_shuffle.PrivacyEngine, or wrap the optimizer in ShuffleDPOptimizer"
        )


@dataclass(frozen=True, kw_only=True)
class AccountingHook:
    """A step hook that records the round about to be released, or refuses it. No optimizer steps without."""

    accountant: SubsampledShuffleAccountant
    sample_rate: float
    budget: tuple[float, float] | None  # ε and δ

    def __call__(self, optimizer: Any, new_round: Round | None = None) -> None:
        """Record the optimizer's round, or refuse it: one over the budget, or drawn at another rate."""
        _refuse_other_optimizers(optimizer)
        new_round = optimizer.round if new_round is None else new_round
        # Not the round's own rate: with dishonest clients a round is charged as a draw from fewer people.
        if not math.isclose(self.sample_rate, optimizer.sample_rate, rel_tol=1e-12):
            raise ShufflePrivacyError(
                f"the hook was made for sample_rate={self.sample_rate!r}, the optimizer draws k/n = "
                f"{optimizer.sample_rate!r}. Pass sample_rate=k / n, not 1 / len(data_loader)"
            )
        if self.budget is not None and self.over_budget(self.accountant.core, new_round):
            raise PrivacyBudgetExceeded(
                f"step {len(self.accountant) + 1} would take ε over {self.budget[0]} at δ={self.budget[1]} "
                "(replace-one): stop training here, or agree on a larger budget"
            )
        self.accountant.record(new_round)

    def over_budget(self, history: ShuffleAccountant, new_round: Round) -> bool:
        """Whether a round after this history would exceed the budget, if there is one."""
        if self.budget is None:
            return False
        return history.would_exceed(new_round, target_epsilon=self.budget[0], delta=self.budget[1])


class StepLog:
    """A step hook that logs at level INFO, every ten seconds at most, how far training has come."""

    def __init__(self, *, num_steps: int | None) -> None:
        self._of = "" if num_steps is None else f" of {num_steps:,}"
        self._steps = 0
        self._begun = self._told = time.monotonic()

    def __call__(self, _: Any) -> None:
        """Record one step of the optimizer."""
        self._steps += 1
        now = time.monotonic()
        if now >= self._told + 10:
            self._told = now
            _logger.info("step %s%s, after %.0f s", f"{self._steps:,}", self._of, now - self._begun)


def refuse_other_accountants(hook: Callable[[Any], None]) -> None:
    """Refuse a step hook that feeds an accountant of Opacus's: of Gaussian noise, add/remove neighbours."""
    if isinstance(hook, AccountingHook):
        return
    owners = [getattr(hook, "__self__", None)]
    with suppress(TypeError, ValueError):  # not a Python function, or a variable of it has no value yet
        owners += inspect.getclosurevars(hook).nonlocals.values()
    for owner in owners:
        # A hook may read one of our accountants, to log ε; they refuse two numbers by themselves.
        if isinstance(owner, IAccountant) and not isinstance(owner, SubsampledShuffleAccountant):
            raise ShufflePrivacyError(
                f"{type(owner).__name__} accounts for Gaussian noise under Poisson sampling, which these "
                "rounds are not: attach get_optimizer_hook_fn(sample_rate=k / n) of a "
                "SubsampledShufflePLDAccountant, or use opacus_shuffle.PrivacyEngine"
            )


def register_accountants() -> None:
    """Make the accountants known to Opacus by name; harmless to repeat."""
    for cls in (SubsampledShuffleRDPAccountant, SubsampledShufflePLDAccountant, Girgis2021Accountant):
        register_accountant(cls.mechanism(), cls, force=True)
