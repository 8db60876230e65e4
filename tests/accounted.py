"""An accountant of one kind of round."""

from __future__ import annotations

from typing import Any

from shuffle_plugins.accounting import Round, ShuffleAccountant


def accounted(one: Round, **how: Any) -> ShuffleAccountant:
    """The accountant of so many such rounds, ``num_steps``, or of one."""
    accountant = ShuffleAccountant()
    accountant.step(one, **how)
    return accountant
