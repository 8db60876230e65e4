"""Randomizers of a category, and what chapter 7 of Girgis's thesis builds on them."""

from shuffle_plugins.core import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
