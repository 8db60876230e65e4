"""What the adapter refuses, and why nothing was released when it did."""

from __future__ import annotations


class ShufflePrivacyError(ValueError):
    """A request whose ε would be wrong or unknown; raised before anything is released."""


class CohortMismatch(ShufflePrivacyError):
    """A round holds another number of reports than it is charged for; it was not recorded, nor released."""


class PrivacyBudgetExceeded(ShufflePrivacyError):
    """The next round would spend more than the budget; it was neither recorded nor released."""
