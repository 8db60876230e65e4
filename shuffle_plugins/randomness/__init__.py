"""Where random bits come from: the operating system, or a seed, stretched by ChaCha20 on any device."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
