"""Which cohort, ε0 and number of rounds serve best: the least error within a target (ε, δ).

:func:`plan` searches, a :class:`Plan` is the answer. The error model is in
:mod:`shuffle_plugins.planning.variance` and, with what follows from it, in ``docs/guides/planning.md``.
:func:`expected_noise` tells how much noise a round of a given mechanism has beside its largest signal.
"""

from shuffle_plugins.planning.noise import ExpectedNoise, expected_noise
from shuffle_plugins.planning.plans import Baseline, Dismissed, Edge, Plan, PlanRow
from shuffle_plugins.planning.search import BEST, MOST_SEARCHED_STEPS, plan
from shuffle_plugins.planning.variance import NormName

__all__ = [
    "BEST",
    "MOST_SEARCHED_STEPS",
    "Baseline",
    "Dismissed",
    "Edge",
    "ExpectedNoise",
    "NormName",
    "Plan",
    "PlanRow",
    "expected_noise",
    "plan",
]
