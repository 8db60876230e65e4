"""Randomizers of a category, and what chapter 7 of Girgis's thesis builds on them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
