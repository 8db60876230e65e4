"""Why a report is not added up."""

from __future__ import annotations


class VerificationError(ValueError):
    """A report whose proof is refused: nobody may add any share of it to a sum."""
