"""Randomizers of vectors in an l2 ball that send a direction: PrivUnit and its kin."""

from shuffle_plugins.core import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
