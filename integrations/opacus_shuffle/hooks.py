"""Step hooks that record a round before it is released."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from opacus.accountants import IAccountant

from opacus_shuffle.errors import ShufflePrivacyError
from shuffle_plugins.accounting import Round

_OURS = "subsampled_shuffle_"  # how the names of accountants that know rounds begin


class AccountingHook(ABC):
    """A step hook that records the round about to be released.

    The optimizer releases nothing unless one is attached.
    """

    @abstractmethod
    def __call__(self, optimizer: Any) -> None:
        """Record ``optimizer.round``, or raise to refuse it."""

    @property
    def recorded_in(self) -> object:
        """The object that holds what was recorded: another one after a saved history was loaded."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class PaidEpoch:
    """An epoch that was recorded as one round.

    Attributes:
        iteration: number of the iteration over the loader.
        round: the round as it was recorded.
        recorded_in: where, for each hook that recorded it.
    """

    iteration: int
    round: Round
    recorded_in: tuple[object, ...] = ()

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
        if any(place is hook.recorded_in for place in self.recorded_in):
            return self
        hook(optimizer)
        return replace(self, recorded_in=(*self.recorded_in, hook.recorded_in))


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
        if isinstance(owner, IAccountant) and not owner.mechanism().startswith(_OURS):
            raise ShufflePrivacyError(
                f"{type(owner).__name__} accounts for Gaussian noise under Poisson sampling, which these "
                "rounds are not: attach get_optimizer_hook_fn(sample_rate=k / n) of a "
                "SubsampledShufflePLDAccountant, or use opacus_shuffle.PrivacyEngine"
            )
