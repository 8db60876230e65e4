"""Which cohort, ε0 and number of rounds serve best: the least error within a target (ε, δ).

:func:`plan` searches, a :class:`Plan` is the answer. The error model is in
:mod:`shuffle_plugins.planning.errors` and, with what follows from it, in ``docs/guides/planning.md``.
:func:`plan_sums` plans multi-message sums, with clients that the server draws or that take part in secret.
:func:`training_recipe` recommends every setting of a training run.
:func:`expected_noise` tells how much noise a round of a given mechanism has beside its largest signal.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
