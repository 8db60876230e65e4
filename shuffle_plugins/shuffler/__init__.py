"""Shufflers: they break the link between a client and its report, and say who must be trusted for that.

In memory (:class:`InMemoryShuffler`), or a :class:`Mixer` of another organisation, which takes sealed
envelopes. docs/guides/shuffling.md is the threat model. Importing this package does not import torch.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
