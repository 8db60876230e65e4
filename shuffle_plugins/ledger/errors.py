"""What can be wrong with a ledger."""

from __future__ import annotations


class LedgerError(ValueError):
    """The file is no ledger, is damaged or locked, or what is to be entered contradicts what is in it."""
