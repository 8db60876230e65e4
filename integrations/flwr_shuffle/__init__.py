"""Flower under the shuffle model: clients randomise, somebody shuffles, a certified budget holds.

In the client app put :class:`ShuffleMod` first among the mods; in the server app wrap your strategy in
:class:`ShuffleStrategy`. Every ε is for replace-one neighbours and says against whom it holds.

Names are loaded when they are first used: a client process needs little of the server's side.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__, extra="flower")
