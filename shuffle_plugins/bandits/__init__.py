"""Recommending under privacy: batched elimination for stochastic linear bandits.

A :class:`LinearBandit` says which actions, with known features, to give to how many clients (``select``),
takes their private rewards (``update``) and drops the actions that are worse than another one. The rewards
are protected in the central, the local or the shuffle model. After chapter 6 of Girgis's thesis.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
