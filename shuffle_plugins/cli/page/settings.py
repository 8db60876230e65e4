"""What the page asks about, read from a query, and what the accountant and other analyses say of it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Self

import typer

from shuffle_plugins import accounting, mechanisms, planning
from shuffle_plugins.cli.commands import (
    ADVERSARIES,
    GENERIC,
    NUMBERS,
    SAMPLINGS,
    AskedNumber,
    Question,
    read_whole,
)

OVER = ("population", "cohort", "local-epsilon", "rounds")
"""The fields that the picture may run over."""

_CHOICES = {"sampling": tuple(SAMPLINGS), "adversary": tuple(ADVERSARIES), "over": OVER}
# How the accountant's sentences begin, and the field that they are then about.
_NAMED = re.compile(
    r"(?:--)?(population|cohort|local[_-]epsilon|num_steps|rounds|delta|dim|categories|no mechanism)\b"
)


class RefusedSetting(ValueError):
    """A setting that no answer can be given for, and the field of the query that is to blame, if known."""

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.field = sentence, field
        if field is None and (found := _NAMED.match(sentence)) is not None:
            other = {"num_steps": "rounds", "categories": "dim", "no mechanism": "mechanism"}
            self.field = other.get(found[1], found[1].replace("_", "-"))


def slider_positions(number: AskedNumber) -> list[str]:
    """The slider's positions in order, as they can be typed."""
    least, most = number.decades
    steps = tuple(map(Decimal, ("1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6", "8")))  # of each ten
    values = [step.scaleb(power) for power in range(least, most) for step in steps]
    whole = number.read is read_whole
    values = [each for each in values if not whole or each == each.to_integral_value()]
    return [as_typed(float(each)) for each in (*values, Decimal(1).scaleb(most))]


def as_typed(value: float) -> str:
    """A number as short as it can be typed: 60000, 0.5, 1e-5."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return re.sub(r"e([+-]?)0+", r"e\1", repr(float(value)).replace("e+", "e"))


def offered_mechanisms() -> tuple[str, ...]:
    """Names of the mechanisms whose own law the page can take: those with one report of pure ε0."""
    names = mechanisms.available(*mechanisms.ONE_MESSAGE)
    return (GENERIC, *(name for name in names if name not in ("gaussian", "discrete-gaussian")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting(Question):
    """A question, and the field that the picture runs over, one of ``OVER``."""

    over: str = "rounds"

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """The setting of a query, read as the command line reads it; what it does not name is as at first."""
        given: dict[str, Any] = {"mechanism": query.get("mechanism", GENERIC)}
        started = {each.name: each.default for each in fields(cls)}
        for name, choices in _CHOICES.items():
            given[name] = query.get(name, started[name])
            if given[name] not in choices:
                sentence = f"{given[name]!r} is not one of {', '.join(choices)}"
                raise RefusedSetting(sentence, field=name)
        unused = {"dim"} if given["mechanism"] == GENERIC else set()
        unused |= {"cohort"} if given["sampling"] == "full" else set()
        for name, number in NUMBERS.items():
            text = query.get(name, number.start).strip()
            try:
                given[name.replace("-", "_")] = None if name in unused else number.read(text)
            except typer.BadParameter as error:
                sentence = error.message if text else f"{number.symbol} is missing: type a number"
                raise RefusedSetting(sentence, field=name) from error
        if given["over"] in unused:
            given["over"] = "population"
        return cls(**given)

    def query(self) -> dict[str, str]:
        """The same setting as a query."""
        found = {}
        for name in (*NUMBERS, "sampling", "adversary", "mechanism", "over"):
            value = getattr(self, name.replace("-", "_"))
            if value is not None:
                found[name] = as_typed(value) if name in NUMBERS else value
        return found

    @property
    def place(self) -> float:
        """The value of what the picture runs over."""
        value = getattr(self, self.over.replace("-", "_"))
        return float(self.population if value is None else value)

    def at(self, place: float) -> Self:
        """The same setting at another place of the picture."""
        value: Any = int(place) if NUMBERS[self.over].read is read_whole else place
        return replace(self, **{self.over.replace("-", "_"): value})

    def arguments(self) -> list[str]:
        """Of the command line that asks the same: ``shuffle-plugins`` and these."""
        started = {each.name: each.default for each in fields(self)} | {"over": self.over}
        named = ((name, text) for name, text in self.query().items() if text != started.get(name))
        return ["epsilon", *(word for name, text in named for word in (f"--{name}", text))]

    def command(self) -> str:
        """The command line that prints the same interval."""
        return shlex.join(["shuffle-plugins", *self.arguments()])

    def python(self) -> str:
        """Lines of Python that print the same interval."""
        population, cohort = self.participants()
        given = [
            f"local_epsilon={as_typed(self.local_epsilon)}",
            f"population={_digits(population)}",
            f"cohort={_digits(cohort)}",
        ]
        lines = ["import shuffle_plugins as sp", ""]
        for name in ("sampling", "adversary"):
            if (value := getattr(self, name)) != _CHOICES[name][0]:
                given.append(f'{name}="{value}"')
        if self.mechanism != GENERIC:
            own = [f'"{self.mechanism}"', given[0], f"dim={_digits(self.dim or 1)}"]
            lines.append(f"blanket = sp.mechanisms.blanket({', '.join(own)})  # of its default options")
            given += [f'mechanism="{self.mechanism}"', "blanket=blanket"]
        given.append("channel_fixed=True")
        lines += [
            "clients = sp.ShuffleRound(",
            *(f"    {each}," for each in given),
            ")",
            "accountant = sp.ShuffleAccountant()",
            f"accountant.step(clients, num_steps={_digits(self.rounds)})",
            f"print(accountant.epsilon({as_typed(self.delta)}))",
        ]
        return "\n".join(lines)


def _digits(value: float) -> str:
    return f"{int(value):_}" if float(value).is_integer() else as_typed(value)


# -- what is said of it --------------------------------------------------------------------------------------


def asks_published(setting: Setting) -> bool:
    """Whether published bounds take seconds, so that a page can wait for them."""
    # Of more reports the numerical clone bounds add up so many terms that they take minutes and gigabytes.
    return setting.participants()[1] <= 10**10


def bounds(setting: Setting, published: Sequence[str] = ()) -> accounting.Comparison:
    """The accountant's own bounds, and published ones of these names; or it is refused in its words."""
    asked = replace(setting, over="rounds")
    try:
        _bounds(asked, ())
        return _bounds(asked, tuple(published) if asks_published(setting) else ())
    except typer.BadParameter as error:
        raise RefusedSetting(error.message) from error
    except ValueError as error:
        raise RefusedSetting(str(error)) from error
    except ArithmeticError as error:
        raise RefusedSetting(f"out of numerical reach: {error}") from error


# A slider that is moved back finds its answers there: a curve's points do not move with the setting.
@lru_cache(maxsize=8192)
def _bounds(asked: Question, published: tuple[str, ...]) -> accounting.Comparison:
    return _bounds(asked, published[:-1]).beside(published) if published else asked.compare()


def places(setting: Setting) -> tuple[float, ...]:
    """Where a curve has its points: the setting's own place first, then others, nearer ones earlier."""
    of_epsilon = setting.over == "local-epsilon"
    own, reach, steps = setting.place, 10.0 if of_epsilon else 100.0, (1, 2, 5) if of_epsilon else (1, 3)
    # Beyond these only the setting itself is a point.
    most = min(own * reach, {"local-epsilon": 20.0, "rounds": 1e6}.get(setting.over, math.inf))
    if setting.over == "cohort":
        most = min(most, setting.population)
    least = own / reach
    if setting.over in ("cohort", "rounds"):
        least = max(least, 1.0)
    if setting.over == "population":
        least = max(least, setting.cohort or 2.0)
    found = {
        float(f"{step}e{power}")
        for power in range(math.floor(math.log10(least)), math.ceil(math.log10(max(most, least))) + 1)
        for step in steps
    }
    ends = {most} if setting.over == "cohort" and own < most == setting.population else set()
    near = sorted((found | ends) - {own}, key=lambda place: abs(math.log(place / own)))
    return (own, *(place for place in near if least <= place <= most))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """ε at one place of the picture: the certified interval, ε0·T, and ε of published bounds by name."""

    place: float
    found: accounting.EpsilonInterval
    local: float
    published: dict[str, float]


def point(setting: Setting, place: float, *, published: Sequence[str] = ()) -> Point | None:
    """ε with the picture's field at ``place``; None if the accountant refuses that."""
    there = setting.at(place)
    try:
        answer = bounds(there, published)
    except RefusedSetting:
        return None
    return Point(
        place=place,
        found=answer.interval,
        local=there.local_epsilon * there.rounds,
        published={each.name: each.epsilon for each in answer.bounds if each.name in published},
    )


def curve(setting: Setting, *, published: Sequence[str]) -> Iterator[tuple[Point, ...]]:
    """The picture's points in order of place, whenever one more is known; published bounds come last."""
    found: dict[float, Point] = {}
    for names in ((), tuple(published)) if published else ((),):
        for place in places(setting):
            one = point(setting, place, published=names)
            if one is not None:
                found[place] = one
            yield tuple(found[each] for each in sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralGaussian:
    """A trusted server that adds as large Gaussian noise on the same rounds: its ε at δ."""

    epsilon: float
    noise_multiplier: float


def equally_noisy_gaussian(setting: Setting) -> CentralGaussian | str:
    """What a trusted server pays for noise of the mechanism's mean squared error, or why nothing compares.

    The sum of k reports on vectors of the unit ℓ2 ball has error k·V; the server's noise has k·V/d in each of
    the d coordinates. A replaced record moves the sum by twice the clipping norm.
    """
    if setting.mechanism == GENERIC or setting.dim is None:
        return "choose a mechanism for vectors: what noise the generic randomizer makes is not known"
    if mechanisms.kind_of(setting.mechanism) is mechanisms.Kind.CATEGORIES:
        return f"{setting.mechanism} takes categories, not vectors"
    if setting.sampling not in ("without-replacement", "full"):
        return "compared only where k of n are drawn, or everybody takes part"
    population, cohort = setting.participants()
    try:
        report = planning.report_error(
            setting.mechanism, local_epsilon=setting.local_epsilon, dim=setting.dim, radius=1.0, norm="l2"
        )
        multiplier = math.sqrt(cohort * report.variance / setting.dim)
        law = accounting.gaussian_losses(
            noise_multiplier=multiplier / 2,
            sampling_rate=1.0 if setting.adversary == "server" else cohort / population,
            resolution=accounting.FINE,
        )
        epsilon = accounting.LossComposition([law], [setting.rounds]).epsilon(setting.delta)
    except (ValueError, ArithmeticError) as error:
        return str(error)
    return CentralGaussian(epsilon=epsilon, noise_multiplier=multiplier)
