"""Private stochastic convex optimisation in the shuffle model.

Describe what to minimise by a :class:`Problem`, choose a method, and call :func:`minimize`. Or call the
method's ``plan``, read the plan, and ``run`` it.

The methods follow Cheu, Joseph, Mao, Peng 2022, "Shuffle Private Stochastic Convex Optimization".
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
