"""Multi-message shuffle protocols: many small messages per client, and central-model accuracy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
