"""What everything else stands on: batches of vectors, reports and their wire format, checks of arguments."""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
