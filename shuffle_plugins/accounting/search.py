"""The largest ε0 within a target, from a good guess: a secant search on logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_plugins.accounting.calibrate import MAX_LOCAL_EPSILON, MIN_LOCAL_EPSILON

PRECISION = 2e-4
"""Relative precision of the ε0 that is found."""

_LOWEST, _HIGHEST = math.log(MIN_LOCAL_EPSILON), math.log(MAX_LOCAL_EPSILON)
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
    good = bad = last = None
    slope, flat = 1.0, False
    x = math.log(start)
    for probe in range(_MOST_PROBES):
        x = min(max(x, _LOWEST), _HIGHEST)
        spent = cost(_level(x))
        y = math.log(spent / target) if spent > 0 else -math.inf
        if spent <= target:
            good = x
            if x == _HIGHEST:
                return _level(x)
        else:
            bad = x
            if x == _LOWEST:
                return None
        if good is not None and bad is not None and bad - good <= PRECISION:
            return _level(good)
        if last is not None and math.isfinite(y - last[1]) and x != last[0]:
            measured = (y - last[1]) / (x - last[0])
            slope = min(max(measured, _LEAST_SLOPE), _GREATEST_SLOPE)
            if measured >= _LEAST_SLOPE and -PRECISION * slope <= y <= 0:
                return _level(x)
            flat = measured < _LEAST_SLOPE
        last = x, y
        step = _FARTHEST if y == -math.inf or (flat and y <= 0) else -y / slope - PRECISION / 2
        following = x + min(max(step, -_FARTHEST), _FARTHEST)
        if good is not None and bad is not None and not (probe < _MOST_SECANTS and good < following < bad):
            following = (good + bad) / 2
        x = following
    raise ArithmeticError(f"the certified ε does not rise steadily with ε0 around {_level(x)}; report it")


def _level(x: float) -> float:
    if x <= _LOWEST:
        return MIN_LOCAL_EPSILON
    return MAX_LOCAL_EPSILON if x >= _HIGHEST else math.exp(x)
