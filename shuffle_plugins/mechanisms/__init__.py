"""ε0-LDP randomizers: their registry, their interface, and the mechanisms themselves.

Importing this package does not import torch; it is loaded when a mechanism is first used.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
