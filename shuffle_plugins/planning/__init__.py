"""Which cohort, ε0 and number of rounds serve best: the least error within a target (ε, δ).

:func:`plan` searches, and :func:`plan_sums` does for multi-message sums; :func:`training_recipe` recommends
every setting of a training run; :func:`expected_noise` tells a round's noise beside its largest signal.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
