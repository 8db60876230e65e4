"""Step hooks that record a round before it is released."""

from __future__ import annotations

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from opacus.accountants import IAccountant

from opacus_shuffle.errors import ShufflePrivacyError
from shuffle_plugins.accounting import Round

_logger = logging.getLogger(__name__)
_SECONDS = 10  # between two lines about progress


class RoundAccountant(IAccountant):  # type: ignore[misc]
    """What accountants that record whole rounds have in common: they refuse Opacus's two numbers."""


class AccountingHook(ABC):
    """A step hook that records the round about to be released.

    The optimizer releases nothing unless one is attached.
    """

    @abstractmethod
    def __call__(self, optimizer: Any) -> None:
        """Record ``optimizer.round``, or raise to refuse it."""

    def released(self, *, at_least: int = 0) -> int:
        """How many rounds were released, as far as it knows; 0 if it keeps no history.

        Args:
            at_least: so many were, by an optimizer whose state was loaded; it takes note of that.
        """
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PaidEpoch:
    """An epoch that was recorded as one round.

    Attributes:
        iteration: number of the iteration over the loader.
        round: the round as it was recorded.
        hooks: those that recorded it.
    """

    iteration: int
    round: Round
    hooks: tuple[AccountingHook, ...] = ()

    def continued(self, *, iteration: int, present: Round) -> PaidEpoch:
        """This epoch if the iteration is still the same, otherwise a new one of which nothing is paid.

        Raises:
            ShufflePrivacyError: if the round changed within the epoch.
        """
        if iteration != self.iteration:
            return PaidEpoch(iteration=iteration, round=present)
        if present != self.round:
            raise ShufflePrivacyError(
                "the randomizer changed within an epoch, which is accounted for as one round of one "
                "randomizer. Change it after the last step of an epoch, or begin a new iteration over the "
                "loader, which is a new epoch"
            )
        return self

    def recorded_by(self, hook: AccountingHook, optimizer: Any) -> PaidEpoch:
        """Have the hook record the epoch, unless it did before."""
        if any(hook is other for other in self.hooks):
            return self
        hook(optimizer)
        return replace(self, hooks=(*self.hooks, hook))


class StepLog:
    """A step hook that logs at level INFO, every ten seconds at most, how far training has come.

    Args:
        num_steps: steps of the whole run, if known.
    """

    def __init__(self, *, num_steps: int | None) -> None:
        self._of = "" if num_steps is None else f" of {num_steps:,}"
        self._steps = 0
        self._begun = self._told = time.monotonic()

    def __call__(self, _: Any) -> None:
        """Count a step."""
        self._steps += 1
        now = time.monotonic()
        if now >= self._told + _SECONDS:
            self._told = now
            _logger.info("step %s%s, after %.0f s", f"{self._steps:,}", self._of, now - self._begun)


def refuse_other_accountants(hook: Callable[[Any], None]) -> None:
    """Refuse a step hook that feeds an accountant of Opacus's kind with two numbers.

    Raises:
        ShufflePrivacyError: since such accountants count Gaussian noise and add/remove neighbours.
    """
    if isinstance(hook, AccountingHook):
        return
    owners = [getattr(hook, "__self__", None)]
    with suppress(TypeError, ValueError):  # not a Python function, or a variable of it has no value yet
        owners += inspect.getclosurevars(hook).nonlocals.values()
    for owner in owners:
        # A hook may read one of our accountants, to log ε; they refuse two numbers by themselves.
        if isinstance(owner, IAccountant) and not isinstance(owner, RoundAccountant):
            raise ShufflePrivacyError(
                f"{type(owner).__name__} accounts for Gaussian noise under Poisson sampling, which these "
                "rounds are not: attach get_optimizer_hook_fn(sample_rate=k / n) of a "
                "SubsampledShufflePLDAccountant, or use opacus_shuffle.PrivacyEngine"
            )
