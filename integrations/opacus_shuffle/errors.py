"""What the adapter refuses, and why nothing was released when it did."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from shuffle_plugins.accounting import BudgetExceeded

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
