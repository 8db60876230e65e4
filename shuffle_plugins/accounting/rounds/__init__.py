"""Kinds of rounds: who takes part, how reports are made, and who looks at them.

Importing this package makes the kinds that come with it known to ``Round.from_state``.
"""

from shuffle_plugins.accounting.rounds import central, gaussian, records, shuffle, sums, tags

__all__ = ["central", "gaussian", "records", "shuffle", "sums", "tags"]
