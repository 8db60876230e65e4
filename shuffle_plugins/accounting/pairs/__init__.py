"""Dominating pairs: two distributions that are at least as far apart as any two neighbouring datasets."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
