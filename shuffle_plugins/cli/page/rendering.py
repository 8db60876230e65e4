"""Answers as HTML: each part of the page comes when it is known, the quickest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from shuffle_plugins import __version__, accounting
from shuffle_plugins.cli import options
from shuffle_plugins.cli.page import answers, picture, settings
from shuffle_plugins.cli.page.settings import RefusedSetting, Setting
from shuffle_plugins.cli.questions import warnings
from shuffle_plugins.cli.tables import times
from shuffle_plugins.core import rounded

# Published bounds that take seconds come last.
_SLOW = ("clones, RDP", "stronger clones, RDP")
_QUICK = tuple(name for name in accounting.ALL_PUBLISHED if name not in _SLOW)
_LEAST_WIDTH, _USUAL_WIDTH, _LARGEST_WIDTH = 280.0, 640.0, 1000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the page is sent in one piece.

    Attributes:
        name: id of the element that it belongs into; ``refused`` if there is no answer.
        html: its new content.
        field: the field that a refusal is about; None if it is about several.
        done: whether nothing more will come for this element.
    """

    name: str
    html: str
    field: str | None = None
    done: bool = True

    def line(self) -> str:
        """The part as a line of JSON."""
        about = {"part": self.name, "html": self.html, "field": self.field, "done": self.done}
        return json.dumps(about, ensure_ascii=False) + "\n"


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("shuffle_plugins.cli.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["up"] = lambda value, digits=4: rounded(value, up=True, digits=digits)
    found.filters["down"] = lambda value, digits=4: rounded(value, up=False, digits=digits)
    found.filters["times"] = times
    found.filters["short"] = picture.short
    return found


def page(query: Mapping[str, str]) -> str:
    """The whole page, its fields filled from the query; answers come later."""
    return (
        _templates()
        .get_template("page.html")
        .render(
            version=__version__,
            sliders=settings.SLIDERS,
            samplings=settings.SAMPLINGS,
            adversaries=settings.ADVERSARIES,
            mechanisms=settings.offered_mechanisms(),
            over={each.name: each for each in settings.SLIDERS if each.name in settings.OVER},
            query=query,
        )
    )


def parts(query: Mapping[str, str]) -> Iterator[Part]:
    """The answers to a query, one part after the other; computing goes on only while parts are asked for.

    A refusal is the only part of its answer. ``width`` of the query is that of the picture in pixels.
    """
    try:
        setting = Setting.read(query)
        width = _width(query.get("width", ""))
        answer = answers.certified(setting)
    except RefusedSetting as refused:
        yield refused_part(refused.sentence, field=refused.field)
        return
    known = _known(setting, answer)
    yield Part(name="verdict", html=_html("verdict.html", **known))
    yield Part(name="facts", html=_html("facts.html", **known))
    yield Part(name="code", html=_html("code.html", setting=setting))
    few = accounting.FEW_PUBLISHED if answers.asks_published(setting) else ()
    yield Part(
        name="bounds",
        html=_bounds(setting, answers.with_published(setting, few), more=bool(few)),
        done=not few,
    )
    yield from _plots(setting, published=few, width=width)
    if few:
        quick = answers.with_published(setting, _QUICK)
        yield Part(name="bounds", html=_bounds(setting, quick, more=True), done=False)
        every = answers.with_published(setting, (*_QUICK, *_SLOW))
        yield Part(name="bounds", html=_bounds(setting, every, more=False))


def refused_part(sentence: str, *, field: str | None = None) -> Part:
    """That there is no answer, and why."""
    return Part(name="refused", html=_html("refused.html", sentence=sentence), field=field)


def _plots(setting: Setting, *, published: Sequence[str], width: float) -> Iterator[Part]:
    of = next(each for each in settings.SLIDERS if each.name == setting.over)
    expected = (2 if published else 1) * len(answers.places(setting))
    for count, points in enumerate(answers.curve(setting, published=published), start=1):
        drawn = picture.draw(points, own=setting.place, symbol=of.symbol, width=width)
        html = _html("plot.html", picture=drawn, points=points, of=of, delta=setting.delta)
        yield Part(name="plot", html=html, done=count == expected)


def _width(text: str) -> float:
    try:
        return min(max(float(text), _LEAST_WIDTH), _LARGEST_WIDTH)
    except ValueError:
        return _USUAL_WIDTH


def _html(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(**values)


def _known(setting: Setting, answer: accounting.Comparison) -> dict[str, Any]:
    """What is said of the certified interval."""
    asked, found = answer.shuffle_round, answer.interval
    local = asked.local_epsilon * setting.num_steps
    return {
        "interval": picture.interval(found.lower, found.upper),
        "found": found,
        "delta": settings.as_typed(found.delta),
        "asked": asked,
        "local": local,
        "times": local / found.upper if found.upper > 0 else None,
        "gaussian": answers.equally_noisy_gaussian(setting),
        "generic": setting.asked.mechanism == options.GENERIC,
        "warnings": warnings(answer),
    }


def _bounds(setting: Setting, answer: accounting.Comparison, *, more: bool) -> str:
    published = set(accounting.ALL_PUBLISHED)
    return _html(
        "bounds.html",
        answer=answer,
        own=[each for each in answer.bounds if each.name not in published],
        published=[each for each in answer.bounds if each.name in published],
        missing=answer.out_of_range,
        certified=answer.interval.upper,
        more=more,
        waits=not answers.asks_published(setting),
    )
