"""What the page asks about: read from a query, and written as a query, a command line and Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any, Self

import typer

from shuffle_plugins import mechanisms
from shuffle_plugins.cli.options import (
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

# Positions of a slider within each power of ten.
_STEPS = tuple(map(Decimal, ("1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6", "8")))
_CHOICES = {"sampling": tuple(SAMPLINGS), "adversary": tuple(ADVERSARIES), "over": OVER}
# How the accountant's sentences begin, and the field that they are then about.
_NAMED = re.compile(
    r"(?:--)?(population|cohort|local[_-]epsilon|num_steps|rounds|delta|dim|categories|no mechanism)\b"
)
_FIELDS = {
    "local_epsilon": "local-epsilon",
    "num_steps": "rounds",
    "categories": "dim",
    "no mechanism": "mechanism",
}


class RefusedSetting(ValueError):
    """A setting that no answer can be given for.

    Attributes:
        field: name of the field that the sentence is about, one of the query's; None if it is about several.
        sentence: what is wrong, and what would be right.
    """

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.field = sentence, field
        if field is None and (found := _NAMED.match(sentence)) is not None:
            self.field = _FIELDS.get(found[1], found[1])


def slider_positions(number: AskedNumber) -> list[str]:
    """The slider's positions in order, as they can be typed."""
    least, most = number.decades
    values = [step.scaleb(power) for power in range(least, most) for step in _STEPS]
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
        """The setting of a query; what it does not name is as at first.

        Numbers are read as the command line reads them, and whether they are in range is for the accountant
        to say.

        Raises:
            RefusedSetting: if a field cannot be read.
        """
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
    """A number as Python code, thousands apart."""
    return f"{int(value):_}" if float(value).is_integer() else as_typed(value)
