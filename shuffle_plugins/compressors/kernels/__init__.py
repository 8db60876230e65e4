"""Kernels under the compressors: one function each, on the GPU by Triton where it runs, else by torch.

Both paths return the same bits from the same keystream. The paths themselves are
``*_torch`` and ``*_triton``; importing this package does not import Triton.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
