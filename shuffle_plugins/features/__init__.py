"""Fixed features: numbers computed from one record alone, on which a linear model is trained.

Under differential privacy every step is noisy, and a linear model on good fixed features beats networks,
which must learn features too (Tramèr, Boneh 2021). What is computed from one record alone spends no privacy:
it is preprocessing.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
