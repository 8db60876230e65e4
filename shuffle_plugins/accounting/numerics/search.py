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
    """The largest level in [lowest, highest] whose cost was itself checked to be at most ``target``.

    Where log cost is a smooth, increasing function of the log of the level, as ε is of ε0, secants need three
    or four probes from a guess within some per cent; bisection takes over where they do not close in.

    Args:
        cost: of a level, such as the certified ε of an ε0; not decreasing, may be zero or infinite.
        target: what to stay within; positive.
        start: guess of the answer.
        lowest: least level to try; positive.
        highest: largest level to try; above ``lowest``.
        precision: relative, of the level.
        slope: guess of how log cost rises with the log of the level, if there is one better than 1. It saves
            a probe: an answer that fits is then taken to be the largest if it uses the target to within
            ``precision`` by this slope.

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
    """Bracket of the point where a predicate turns false, by bisection on a logarithmic scale.

    Args:
        is_below: true up to that point, and false beyond.
        low: positive, where it is true.
        high: where it is false.
        precision: relative width of the bracket that is returned.
    """
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def zero_between(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    xtol: float = 2e-12,
    rtol: float = 8.881784197001252e-16,
    most_steps: int = 100,
) -> float:
    """Where a function is zero between two points at which its signs differ: Brent's method (Brent 1973).

    The same arithmetic as ``scipy.optimize.brentq``, whose package takes a tenth of a second to import: too
    long for every answer in a shell to wait.

    Args:
        function: continuous.
        low: one end, at which the function has another sign than at ``high``, or is zero.
        high: the other end.
        xtol: absolute error of the answer.
        rtol: relative error of the answer, on top.
        most_steps: after so many the best point so far is the answer, whatever its error.

    Raises:
        ValueError: if the signs at both ends are the same, or the function is nan somewhere.
    """
    before, here = low, high
    at_before, at_here = _number(function(before), before), _number(function(here), here)
    if at_before == 0:
        return before
    if at_here == 0:
        return here
    if (at_before < 0) == (at_here < 0):
        raise ValueError("the function has the same sign at both ends")
    across = at_across = last_step = step = 0.0
    for _ in range(most_steps):
        if at_before != 0 and at_here != 0 and (at_before < 0) != (at_here < 0):
            across, at_across = before, at_before
            last_step = step = here - before
        if abs(at_across) < abs(at_here):
            before, here, across = here, across, here
            at_before, at_here, at_across = at_here, at_across, at_here
        tolerance = (xtol + rtol * abs(here)) / 2
        half = (across - here) / 2
        if at_here == 0 or abs(half) < tolerance:
            return here
        following = math.inf
        if abs(last_step) > tolerance and abs(at_here) < abs(at_before):
            if before == across:  # a secant
                following = -at_here * (here - before) / (at_here - at_before)
            else:  # an inverse parabola
                slope = (at_before - at_here) / (before - here)
                chord = (at_across - at_here) / (across - here)
                spread = chord * slope * (at_across - at_before)
                if spread != 0:
                    following = -at_here * (at_across * chord - at_before * slope) / spread
        if 2 * abs(following) < min(abs(last_step), 3 * abs(half) - tolerance):
            last_step, step = step, following
        else:
            last_step = step = half
        before, at_before = here, at_here
        here += step if abs(step) > tolerance else math.copysign(tolerance, half)
        at_here = _number(function(here), here)
    return here


def _number(value: float, at: float) -> float:
    if math.isnan(value):
        raise ValueError(f"the function is nan at {at}")
    return float(value)
