"""Dominating pairs: two distributions that are at least as far apart as any two neighbouring datasets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
