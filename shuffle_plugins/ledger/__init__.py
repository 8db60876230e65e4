"""Books on disk that survive a kill at any moment: what a model has cost, and what a client has spent."""

from shuffle_plugins.ledger.budget import BudgetLedger, Checkpoint, LedgerRound, RoundState
from shuffle_plugins.ledger.client import ClientLedger, ClientLimits, ClientSpending, Refused, ReportRefused
from shuffle_plugins.ledger.errors import LedgerError

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
