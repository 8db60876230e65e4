"""The largest parameter within a target, from a good guess: a secant search on logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable

_FARTHEST = math.log(8)  # of one step
_LEAST_SLOPE, _GREATEST_SLOPE = 0.2, 50.0
_MOST_SECANTS = 8
_MOST_PROBES = 64


def largest_within(
    cost: Callable[[float], float],
    *,
    target: float,
    start: float,
    lowest: float,
    highest: float,
    precision: float,
) -> float | None:
    """The largest level in [lowest, highest] whose cost was itself checked to be at most ``target``.

    Where log cost is a smooth, increasing function of the log of the level, as ε is of ε0, secants need three
    or four probes from a guess within some per cent; bisection takes over where they do not close in.

    Args:
        cost: of a level, such as the certified ε of an ε0; not decreasing, may be zero or infinite.
        target: what to stay within; positive.
        start: guess.
        lowest: positive.
        highest: above ``lowest``.
        precision: relative, of the level.

    Returns:
        The level, or None if even the lowest costs too much.

    Raises:
        ArithmeticError: if the search does not close in because the cost is no increasing function.
    """
    bottom, top = math.log(lowest), math.log(highest)

    def level(x: float) -> float:
        if x <= bottom:
            return lowest
        return highest if x >= top else math.exp(x)

    good = bad = last = None
    slope, flat = 1.0, False
    x = math.log(start)
    for probe in range(_MOST_PROBES):
        x = min(max(x, bottom), top)
        spent = cost(level(x))
        y = math.log(spent / target) if spent > 0 else -math.inf
        if spent <= target:
            good = x
            if x == top:
                return level(x)
        else:
            bad = x
            if x == bottom:
                return None
        if good is not None and bad is not None and bad - good <= precision:
            return level(good)
        if last is not None and math.isfinite(y - last[1]) and x != last[0]:
            measured = (y - last[1]) / (x - last[0])
            slope = min(max(measured, _LEAST_SLOPE), _GREATEST_SLOPE)
            if measured >= _LEAST_SLOPE and -precision * slope <= y <= 0:
                return level(x)
            flat = measured < _LEAST_SLOPE
        last = x, y
        step = -y / slope - precision / 2
        if flat:
            step = _FARTHEST if y <= 0 else min(step, -_FARTHEST / 4)
        following = x + min(max(step, -_FARTHEST), _FARTHEST)
        if good is not None and bad is not None and not (probe < _MOST_SECANTS and good < following < bad):
            following = (good + bad) / 2
        x = following
    raise ArithmeticError(f"the certified ε does not rise steadily around {level(x)}; report it")
