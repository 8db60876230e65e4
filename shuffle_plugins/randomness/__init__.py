"""Where random bits come from: the operating system, or a seed, stretched by ChaCha20 on any device."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
