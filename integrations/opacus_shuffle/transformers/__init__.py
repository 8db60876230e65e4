"""For scripts with Hugging Face's ``Trainer``; loaded when a name is used."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__, extra="transformers")
