"""What papers promise, for comparison only."""

from shuffle_plugins.core import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
