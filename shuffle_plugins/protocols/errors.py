"""The error that says: with these clients a privacy target cannot be reached, whatever is done."""

from __future__ import annotations


class TargetUnreachable(ValueError):
    """No parameters keep to the target (ε, δ) with as many clients and rounds."""
