"""Ledgers in files that survive a kill at any moment: what a model has cost, and what a client has spent."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
