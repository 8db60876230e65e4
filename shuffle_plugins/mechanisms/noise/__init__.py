"""Randomizers of vectors that add noise to every coordinate."""

from shuffle_plugins.core import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
