"""How many coefficients a Kashin frame has, and how large they may be. Torch-free."""

from __future__ import annotations

import math

LEVEL_MARGIN = 1e-3
"""Share of a frame's level that covers rounding."""


def kashin_size(dim: int) -> int:
    """N, twice the smallest power of two that is at least ``dim``."""
    return 2 << (dim - 1).bit_length()


def kashin_level(dim: int) -> float:
    """The level of a frame that is given none: 1.25 times the hardest row's, or what every row keeps to."""
    hardest = math.sqrt(math.pi / 2 / (1 - dim / kashin_size(dim)))
    return min(1.25 * hardest, math.sqrt(dim) / (1 - LEVEL_MARGIN))
