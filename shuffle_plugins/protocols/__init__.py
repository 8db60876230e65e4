"""Multi-message shuffle protocols: many small messages per client, and central-model accuracy."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
