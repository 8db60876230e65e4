"""What rounds of the subsampled shuffle model cost. Neighbouring relation: replace-one, fixed population.

Describe a round with :class:`ShuffleRound`, record rounds in a :class:`ShuffleAccountant`, read an
:class:`EpsilonInterval`. The mathematics and its proofs are in ``docs/accounting.md``.
"""

from shuffle_plugins.accounting.accountant import (
    DeltaInterval,
    EpsilonInterval,
    Method,
    NamedBound,
    ShuffleAccountant,
)
from shuffle_plugins.accounting.blanket import Blanket
from shuffle_plugins.accounting.calibrate import (
    calibrate_cohort,
    calibrate_local_epsilon,
    calibrate_num_steps,
)
from shuffle_plugins.accounting.rounds import NEIGHBOURING_RELATION, Adversary, Sampling, ShuffleRound
from shuffle_plugins.accounting.sum_rounds import SumRound

__all__ = [
    "NEIGHBOURING_RELATION",
    "Adversary",
    "Blanket",
    "DeltaInterval",
    "EpsilonInterval",
    "Method",
    "NamedBound",
    "Sampling",
    "ShuffleAccountant",
    "ShuffleRound",
    "SumRound",
    "calibrate_cohort",
    "calibrate_local_epsilon",
    "calibrate_num_steps",
]
