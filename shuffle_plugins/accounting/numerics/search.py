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
    """Where a continuous function is zero between two points at which its signs differ (Chandrupatla 1997).

    SciPy's root finders do the same; to import ``scipy.optimize`` takes a tenth of a second, for which every
    answer in a shell would wait.
    """
    a, b = low, high
    at_a, at_b = function(a), function(b)
    if math.isnan(at_a + at_b) or (at_a and at_b and (at_a < 0) == (at_b < 0)):
        raise ValueError("the function has the same sign at both ends, or is nan there")
    c, at_c, share = a, at_a, 0.5
    while True:
        best, at_best = (a, at_a) if abs(at_a) < abs(at_b) else (b, at_b)
        tolerance = (xtol + rtol * abs(best)) / 2
        if at_best == 0 or abs(b - a) <= 2 * tolerance:
            return best
        x = a + share * (b - a)
        if x in (a, b):
            return best
        at_x = function(x)
        if math.isnan(at_x):
            raise ValueError(f"the function is nan at {x}")
        if (at_x < 0) == (at_a < 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        # An inverse parabola through the three points where it is monotone between them, or the middle.
        place, value = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        share = 0.5
        if value**2 < place and (1 - value) ** 2 < 1 - place:
            share = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            share += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        least = tolerance / abs(b - a)
        share = min(max(share, least), 1 - least)
