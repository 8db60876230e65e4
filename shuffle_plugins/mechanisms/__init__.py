"""ε0-LDP randomizers: their registry, their interface, and the mechanisms themselves.

Importing this package does not import torch; it is loaded when a mechanism is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
