"""Kinds of rounds: who takes part, how reports are made, and who looks at them.

Importing this package makes the kinds that come with it known to ``Round.from_state``.
"""

from shuffle_plugins.accounting.rounds import (
    coins,
    counted,
    gaussian,
    laplace,
    poisson_binomial,
    records,
    shuffle,
    tags,
)

__all__ = ["coins", "counted", "gaussian", "laplace", "poisson_binomial", "records", "shuffle", "tags"]
