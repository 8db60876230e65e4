"""Randomizers of vectors in an l2 ball that send a direction: PrivUnit and its kin."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
