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


def kashin_stretch(dim: int, *, level: float) -> float:
    """How long coefficients may be over their vector: few vectors have longer ones (:class:`~.KashinFrame`).

    At the frame's own level the mean over random vectors is 1.045 where N = 4d and 1.02 where N = 2d; single
    ones of few numbers stray from it by up to 0.4/√d. Coefficients of a lower level are longer, and not
    limited.
    """
    if level < kashin_level(dim):
        return math.inf
    return 1.055 - 0.1 * (dim / kashin_size(dim) - 0.25) + 0.6 / math.sqrt(dim)
