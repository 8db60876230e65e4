"""Which public frame spreads a vector over coefficients of which none is large."""

from __future__ import annotations

import math
from enum import StrEnum

from shuffle_plugins.compressors import KashinFrame, Rotation, TightFrame, kashin_level, kashin_stretch
from shuffle_plugins.core import checks


class Frame(StrEnum):
    """How an l2 ball is spread over coefficients."""

    ROTATION = "rotation"
    KASHIN = "kashin"


def representation(frame: Frame, *, dim: int, seed: int, level: float | None = None) -> TightFrame:
    """The frame of that kind, the same wherever dim, seed and level are.

    Args:
        frame: which.
        dim: length of a vector.
        seed: any whole number, public.
        level: of a Kashin frame; its default if None.
    """
    checks.whole("seed", seed, at_least=-math.inf)
    if frame is Frame.ROTATION:
        return Rotation(dim=dim, seed=seed)
    level = kashin_level(dim) if level is None else level
    return KashinFrame(dim=dim, seed=seed, level=level, stretch=kashin_stretch(dim, level=level))
