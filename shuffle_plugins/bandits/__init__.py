"""Recommending under privacy: batched elimination for stochastic linear bandits.

There are actions (items) with known features, and the expected reward of an action is linear in them. Clients
come one by one; each is given one action and answers with one reward, which is private. A
:class:`LinearBandit` says which actions to give to how many clients (``select``), takes their rewards
(``update``) and drops the actions that are worse than another one. The rewards are protected in the central,
the local or the shuffle model.

Follows chapter 6 of Girgis's thesis; what differs from its text is said where it does.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
