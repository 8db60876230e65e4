"""The one error that says: with these clients the target cannot be kept to, whatever is done."""

from __future__ import annotations


class OutOfReach(ValueError):
    """No parameters keep to the target (ε, δ) with as many clients and steps."""
