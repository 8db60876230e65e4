"""What everything else stands on: batches of vectors, reports and their wire format, checks of arguments."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
