"""The largest ε0 within a target, from a good guess: a secant search on logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_plugins.accounting.calibrate import MAX_LOCAL_EPSILON, MIN_LOCAL_EPSILON

PRECISION = 2e-4
"""Relative precision of the ε0 that is found."""

_FARTHEST = math.log(8)
_LEAST_SLOPE, _GREATEST_SLOPE = 0.2, 50.0
_MOST_SECANTS = 8
_MOST_PROBES = 64


def largest_within(cost: Callable[[float], float], *, target: float, start: float) -> float | None:
    """The largest ε0 in [1e-4, 20], to ``PRECISION``, whose cost was checked to be at most ``target``.

    Log ε is a smooth, increasing function of log ε0, so secants need three or four probes from a guess within
    some per cent; bisection takes over where they do not close in.

    Args:
        cost: certified ε of an ε0; not decreasing.
        target: ε to stay within.
        start: guess.

    Returns:
        ε0, or None if even the smallest costs too much.
    """
    lowest, highest = math.log(MIN_LOCAL_EPSILON), math.log(MAX_LOCAL_EPSILON)
    good = bad = last = None
    slope = 1.0
    x = math.log(start)
    for probe in range(_MOST_PROBES):
        x = min(max(x, lowest), highest)
        spent = cost(_level(x))
        y = math.log(spent / target) if spent > 0 else -math.inf
        if spent <= target:
            good = x
            if x == highest:
                return _level(x)
        else:
            bad = x
            if x == lowest:
                return None
        if good is not None and bad is not None and bad - good <= PRECISION:
            return _level(good)
        if last is not None and math.isfinite(y - last[1]) and x != last[0]:
            slope = min(max((y - last[1]) / (x - last[0]), _LEAST_SLOPE), _GREATEST_SLOPE)
            if -PRECISION * slope <= y <= 0:
                return _level(x)
        last = x, y
        step = -y / slope - PRECISION / 2 if math.isfinite(y) else _FARTHEST
        following = x + min(max(step, -_FARTHEST), _FARTHEST)
        if good is not None and bad is not None and not (probe < _MOST_SECANTS and good < following < bad):
            following = (good + bad) / 2
        x = following
    raise ArithmeticError(f"the certified ε does not rise steadily with ε0 around {_level(x)}; report it")


def _level(x: float) -> float:
    return min(max(math.exp(x), MIN_LOCAL_EPSILON), MAX_LOCAL_EPSILON)
