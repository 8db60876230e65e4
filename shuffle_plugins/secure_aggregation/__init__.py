"""Sums of clients' vectors that nobody sees one by one: shares for several parties, and proofs about them.

docs/guides/range-proofs.md says what a proof shows. Importing this package does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
