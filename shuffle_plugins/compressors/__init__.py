"""Public, data-independent transforms and codecs under the mechanisms: batched over clients, and not private.

Nothing here protects anybody: a mechanism randomises what these functions return, or what they are given.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
