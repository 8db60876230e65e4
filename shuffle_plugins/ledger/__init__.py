"""Books on disk that survive a kill at any moment: what a model has cost, and what a client has spent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuffle_plugins.ledger.budget import BudgetLedger, Checkpoint, LedgerRound, RoundState
    from shuffle_plugins.ledger.client import (
        ClientLedger,
        ClientLimits,
        ClientSpending,
        Refused,
        ReportRefused,
    )
    from shuffle_plugins.ledger.errors import LedgerError

_LAZY = {
    "BudgetLedger": "shuffle_plugins.ledger.budget",
    "Checkpoint": "shuffle_plugins.ledger.budget",
    "ClientLedger": "shuffle_plugins.ledger.client",
    "ClientLimits": "shuffle_plugins.ledger.client",
    "ClientSpending": "shuffle_plugins.ledger.client",
    "LedgerError": "shuffle_plugins.ledger.errors",
    "LedgerRound": "shuffle_plugins.ledger.budget",
    "Refused": "shuffle_plugins.ledger.client",
    "ReportRefused": "shuffle_plugins.ledger.client",
    "RoundState": "shuffle_plugins.ledger.budget",
}

__all__ = [
    "BudgetLedger",
    "Checkpoint",
    "ClientLedger",
    "ClientLimits",
    "ClientSpending",
    "LedgerError",
    "LedgerRound",
    "Refused",
    "ReportRefused",
    "RoundState",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
