"""Answers as HTML: each part of the page comes when it is known, the quickest first."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from shuffle_plugins import __version__, accounting
from shuffle_plugins.cli import output
from shuffle_plugins.cli.commands import ADVERSARIES, GENERIC, NUMBERS, SAMPLINGS
from shuffle_plugins.cli.page import settings
from shuffle_plugins.cli.page.settings import Point, RefusedSetting, Setting

# Published bounds that take seconds come last.
_SLOW = ("clones, RDP", "stronger clones, RDP")
_MARGIN = 1.25  # factor between the outermost ε and the frame


class Part(NamedTuple):
    """Html for the element of the id ``part``, or a refusal about a ``field``; whether that is all."""

    part: str
    html: str
    field: str | None = None
    done: bool = True

    def line(self) -> str:
        """The part as a line of JSON."""
        return json.dumps(self._asdict(), ensure_ascii=False) + "\n"


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("shuffle_plugins.cli.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"up": output.up, "down": output.down, "times": output.times, "short": short}
    found.filters |= filters | {"positions": settings.slider_positions}
    return found


def _html(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(**values)


def page(query: Mapping[str, str]) -> str:
    """The whole page, its fields filled from the query; answers come later."""
    return _html(
        "page.html",
        version=__version__,
        numbers=NUMBERS,
        samplings=SAMPLINGS,
        adversaries=ADVERSARIES,
        mechanisms=settings.offered_mechanisms(),
        over=settings.OVER,
        query=query,
    )


def parts(query: Mapping[str, str]) -> Iterator[Part]:
    """The answers to a query, one part after the other; computing goes on only while parts are asked for.

    A refusal is the only part of its answer. ``width`` of the query is that of the picture in pixels.
    """
    try:
        setting = Setting.read(query)
        answer = settings.bounds(setting)
    except RefusedSetting as refused:
        yield refused_part(refused.sentence, field=refused.field)
        return
    asked, found = answer.shuffle_round, answer.interval
    local = asked.local_epsilon * setting.rounds
    known = {
        "interval": output.interval(found),
        "found": found,
        "delta": settings.as_typed(found.delta),
        "asked": asked,
        "local": local,
        "times": local / found.upper if found.upper > 0 else None,
        "gaussian": settings.equally_noisy_gaussian(setting),
        "generic": setting.mechanism == GENERIC,
        "warnings": output.delta_warnings(found.delta, population=asked.population),
    }
    yield Part("verdict", _html("verdict.html", **known))
    yield Part("facts", _html("facts.html", **known))
    yield Part("code", _html("code.html", setting=setting))
    few = accounting.FEW_PUBLISHED if settings.asks_published(setting) else ()
    quick = tuple(name for name in accounting.ALL_PUBLISHED if name not in _SLOW)
    yield _bounds(setting, few, more=bool(few))
    expected = (2 if few else 1) * len(settings.places(setting))
    for count, points in enumerate(settings.curve(setting, published=few), start=1):
        yield Part("plot", _plot(setting, points, query.get("width", "")), done=count == expected)
    if few:
        yield _bounds(setting, quick, more=True)
        yield _bounds(setting, (*quick, *_SLOW), more=False)


def refused_part(sentence: str, *, field: str | None = None) -> Part:
    """That there is no answer, and why."""
    return Part("refused", _html("refused.html", sentence=sentence), field=field)


def _bounds(setting: Setting, names: Sequence[str], *, more: bool) -> Part:
    answer = settings.bounds(setting, names)
    published = [each for each in answer.bounds if each.name in accounting.ALL_PUBLISHED]
    html = _html(
        "bounds.html",
        answer=answer,
        own=[each for each in answer.bounds if each not in published],
        published=published,
        missing=answer.out_of_range,
        certified=answer.interval.upper,
        more=more,
        waits=not settings.asks_published(setting),
    )
    return Part("bounds", html, done=not more)


def _plot(setting: Setting, points: Sequence[Point], width: str) -> str:
    try:
        wide = min(max(float(width), 280.0), 1000.0)
    except ValueError:
        wide = 640.0
    of = NUMBERS[setting.over]
    drawn = draw(points, own=setting.place, symbol=of.symbol, width=wide)
    return _html("plot.html", picture=drawn, points=points, of=of)


# -- the picture: ε over one field, on two logarithmic axes, in pixels from the upper left corner -----------


def draw(points: Sequence[Point], *, own: float, symbol: str, width: float) -> dict[str, Any] | None:
    """What ``plot.html`` draws of points in order of place; None if none of them has an ε above zero."""
    shown = [each for each in points if 0 < each.found.upper < math.inf]
    if not shown:
        return None
    height = min(max(0.62 * width, 260.0), 420.0)
    frame = {"left": 62.0, "right": width - 30.0, "top": 16.0, "bottom": height - 48.0}
    highest = max(each.found.upper for each in shown)
    lowest = min(each.found.lower if each.found.lower > 0 else each.found.upper for each in shown)
    others = [value for each in shown for value in (each.local, *each.published.values())]
    # Bounds above thirty times the certified ε are cut off: they would flatten the rest.
    ceiling = _MARGIN * max([highest, *(value for value in others if value <= 30 * highest)])
    across = _Axis(shown[0].place, shown[-1].place, start=frame["left"], end=frame["right"])
    up = _Axis(lowest / _MARGIN, ceiling, start=frame["bottom"], end=frame["top"])

    def path(pairs: Iterable[tuple[float, float]]) -> str:
        spots = [f"{across.at(place):.1f} {up.at(value):.1f}" for place, value in pairs if value > 0]
        return f"M{' L'.join(spots)}" if spots else ""

    lines = {
        name: ("published", [(each.place, each.published.get(name, 0.0)) for each in shown])
        for name in dict.fromkeys(name for each in shown for name in each.published)
    }
    uppers = [(each.place, each.found.upper) for each in shown]
    lowers = [(each.place, each.found.lower) for each in shown]
    lines["local, ε0·T"] = ("local", [(each.place, each.local) for each in shown])
    lines["certified from above"] = ("upper", uppers)
    lines["certified from below"] = ("lower", lowers)
    known = [i for i, each in enumerate(shown) if each.found.lower > 0]
    around = [*(uppers[i] for i in known), *(lowers[i] for i in reversed(known))]
    return {
        "width": width,
        "height": height,
        **frame,
        "across": across.ticks(),
        "up": up.ticks(),
        "band": f"{path(around)} Z" if len(known) > 1 else "",
        "lines": [
            {"name": name, "style": style, "path": path(pairs)} for name, (style, pairs) in lines.items()
        ],
        "dots": [
            {
                "x": round(across.at(each.place), 1),
                "y": round(up.at(each.found.upper), 1),
                "text": f"{symbol} = {short(each.place)}: {output.interval(each.found)}",
                "own": each.place == own,
            }
            for each in shown
        ],
    }


def short(value: float) -> str:
    """A number beside an axis: 0.01, 1,200, 1e6."""
    if value >= 1e5 or value < 1e-3:
        text = f"{value:.4g}" if value < 1e5 or value >= 1e6 else f"{value:,.6g}"
        return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{value:,.6g}"


class _Axis:
    def __init__(self, low: float, high: float, *, start: float, end: float) -> None:
        if low == high:
            low, high = low / 2, high * 2
        self._low, self._high = math.log10(low), math.log10(high)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[dict[str, Any]]:
        """At powers of ten, fewer if they are many, and at others between them if they are few."""
        span = self._high - self._low
        every = max(1, math.ceil(span / 7))
        steps = range(1, 10) if span < 0.5 else (1, 2, 5) if span < 3 else (1,)
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        values = (float(f"{step}e{power}") for power in decades if power % every == 0 for step in steps)
        inside = (v for v in values if self._low - 1e-9 <= math.log10(v) <= self._high + 1e-9)
        return [{"at": round(self.at(value), 1), "label": short(value)} for value in inside]


_under_way: tuple[Mapping[str, str], int, Iterator[Part]] = ({}, 0, iter(()))


def line(query: Mapping[str, str], place: int) -> str | None:
    """The part at a place of an answer, as a line; None behind the last. Parts asked for in turn are computed
    once."""
    global _under_way
    if _under_way[:2] != (query, place):
        _under_way = (query, place, islice(parts(query), place, None))
    found = _under_way[2]
    _under_way = (query, place + 1, found)
    part = next(found, None)
    return None if part is None else part.line()
