"""Searches along a line: the largest parameter within a target, and where a function is zero."""

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
    slope: float | None = None,
) -> float | None:
    """The largest level in [lowest, highest] whose cost was itself checked to be at most ``target``, if any.

    Where log cost is a smooth function of the log of the level, as ε is of ε0, secants need three or four
    probes from a guess within some per cent; bisection takes over where they do not close in.

    Args:
        cost: of a level; not decreasing, may be zero or infinite.
        target: what to stay within; positive.
        start: guess of the answer.
        lowest, highest: levels to try; positive.
        precision: relative, of the level.
        slope: guess of how log cost rises with the log of the level, if there is one better than 1. It saves
            a probe: an answer that fits is then taken to be the largest if it uses the target to within
            ``precision`` by this slope.

    Raises:
        ArithmeticError: if the search does not close in because the cost is no increasing function.
    """
    bottom, top = math.log(lowest), math.log(highest)

    def level(x: float) -> float:
        if x <= bottom:
            return lowest
        return highest if x >= top else math.exp(x)

    good = bad = last = None
    guessed = slope is not None and slope >= _LEAST_SLOPE
    rise, flat = (slope if slope is not None and guessed else 1.0), False
    x = min(max(math.log(start), bottom), top)
    for probe in range(_MOST_PROBES):
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
        if last is not None and math.isfinite(y - last[1]):
            measured = (y - last[1]) / (x - last[0])
            rise = min(max(measured, _LEAST_SLOPE), _GREATEST_SLOPE)
            if measured >= _LEAST_SLOPE and -precision * rise <= y <= 0:
                return level(x)
            flat = measured < _LEAST_SLOPE
        elif guessed and last is None and -precision * rise <= y <= 0:
            return level(x)
        last = x, y
        step = -y / rise - precision / 2
        if flat:
            step = _FARTHEST if y <= 0 else min(step, -_FARTHEST / 4)
        following = x + min(max(step, -_FARTHEST), _FARTHEST)
        if good is not None and bad is not None and not (probe < _MOST_SECANTS and good < following < bad):
            following = (good + bad) / 2
        following = min(max(following, bottom), top)
        x = following if following != x else x + precision  # the least level may use all but the precision
    raise ArithmeticError(f"the certified ε does not rise steadily around {level(x)}; report it")


def narrowed(
    is_below: Callable[[float], bool], low: float, high: float, *, precision: float
) -> tuple[float, float]:
    """Bracket of the point where a predicate turns false, to a relative ``precision``; both ends positive."""
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def zero_between(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12, rtol: float = 1e-15
) -> float:
    """Where a continuous function is zero between two points at which its signs differ."""
    # To import it takes a tenth of a second, for which answers in a shell would wait that need no zero.
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=max(xtol, 1e-300), rtol=rtol, maxiter=10_000))
