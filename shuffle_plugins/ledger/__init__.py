"""Ledgers in files that survive a kill at any moment: what a model has cost, and what a client has spent."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
