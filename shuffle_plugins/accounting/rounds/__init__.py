"""Kinds of rounds: who takes part, how reports are made, and who looks at them.

Importing this package makes the kinds that come with it known to ``Round.from_state``.
"""

from shuffle_plugins.accounting.rounds import records, round, sums, tags

__all__ = ["records", "round", "sums", "tags"]
