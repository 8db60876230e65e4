"""Kernels under the compressors: one function each, on the GPU by Triton where it runs, else by torch.

Both paths return the same bits from the same keystream. The paths themselves are
``*_torch`` and ``*_triton``; importing this package does not import Triton.
"""

from shuffle_plugins.compressors.kernels.bits import decode_signs, pack_signs, unpack_signs
from shuffle_plugins.compressors.kernels.signs import encode_signs, gather_signs

__all__ = ["decode_signs", "encode_signs", "gather_signs", "pack_signs", "unpack_signs"]
