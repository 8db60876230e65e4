"""What the page asks about: read from a query, and written as a query, a command line and Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

import typer

from shuffle_plugins import accounting, mechanisms
from shuffle_plugins.cli import options
from shuffle_plugins.cli.questions import AskedRounds

# Positions of a slider within each power of ten.
_STEPS = tuple(Decimal(step) for step in ("1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6", "8"))
_FULL = accounting.Sampling.FULL.value


class RefusedSetting(ValueError):
    """A setting that no answer can be given for.

    Attributes:
        field: name of the field that the sentence is about, one of the query's; None if it is about several.
        sentence: what is wrong, and what would be right.
    """

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.field = _field_named_by(sentence) if field is None else field


@dataclass(frozen=True, kw_only=True, slots=True)
class Slider:
    """A number that a person can set by dragging or by typing.

    Attributes:
        name: its field in the query, and without dashes in front its option on the command line.
        symbol: how formulas call it.
        label: what it is, in words.
        hint: more on it; may be empty.
        values: positions of the slider, in order, as text. Other values may be typed.
        start: the value at first.
        read: turns text into the number; raises ``typer.BadParameter``.
    """

    name: str
    symbol: str
    label: str
    hint: str = ""
    values: tuple[str, ...]
    start: str
    read: Callable[[str], Any]


def _positions(least: int, most: int, *, whole: bool) -> tuple[str, ...]:
    """Round numbers from ten to the ``least`` to ten to the ``most``."""
    found = [step.scaleb(power) for power in range(least, most) for step in _STEPS]
    found.append(Decimal(1).scaleb(most))
    return tuple(as_typed(float(value)) for value in found if not whole or value == value.to_integral_value())


def as_typed(value: float) -> str:
    """A number as short as it can be typed: 60000, 0.5, 1e-5."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return re.sub(r"e([+-]?)0+", r"e\1", repr(float(value)).replace("e+", "e"))


SLIDERS = (
    Slider(
        name="population",
        symbol="n",
        label="Clients in the population",
        values=_positions(1, 9, whole=True),
        start="60000",
        read=options.read_whole,
    ),
    Slider(
        name="cohort",
        symbol="k",
        label="Reports shuffled together",
        hint="Everybody's, if everybody takes part.",
        values=_positions(0, 9, whole=True),
        start="10000",
        read=options.read_number,
    ),
    Slider(
        name="local-epsilon",
        symbol="ε0",
        label="Local ε of one report",
        values=tuple(value for value in _positions(-2, 2, whole=False) if float(value) <= 20),
        start="1.5",
        read=options.read_number,
    ),
    Slider(
        name="rounds",
        symbol="T",
        label="Rounds",
        hint="Passes under single-pass and check-in, epochs under epoch. Against the server, the rounds that "
        "one client takes part in.",
        values=_positions(0, 6, whole=True),
        start="1200",
        read=options.read_whole,
    ),
    Slider(
        name="delta",
        symbol="δ",
        label="Probability that ε does not hold",
        values=_positions(-12, -1, whole=False),
        start="1e-5",
        read=options.read_number,
    ),
    Slider(
        name="dim",
        symbol="d",
        label="Length of a client's vector, or number of categories",
        hint="Only for a mechanism with a law of its own.",
        values=_positions(0, 7, whole=True),
        start="1000",
        read=options.read_whole,
    ),
)
"""All numbers of a setting, in the order of the page."""

OVER = ("population", "cohort", "local-epsilon", "rounds")
"""The fields that the picture may run over."""

SAMPLINGS = {
    "without-replacement": "k of n each round",
    "poisson": "each with probability k/n",
    "full": "everybody, every round",
    "single-pass": "one pass, in batches of k",
    "check-in": "each picks a round in secret",
    "epoch": "batches of a fresh shuffle",
}
"""How the cohort is chosen, in a few words."""

ADVERSARIES = {
    "model-observer": "reads the model, does not see who took part",
    "server": "sees who took part, too",
}
"""Who watches, in a few words."""

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


def _field_named_by(sentence: str) -> str | None:
    """The field that a sentence begins with, or None."""
    found = _NAMED.match(sentence)
    return None if found is None else _FIELDS.get(found[1], found[1])


def offered_mechanisms() -> tuple[str, ...]:
    """Names of the mechanisms whose own law the page can take: those with one report of pure ε0."""
    names = mechanisms.available(*mechanisms.ONE_MESSAGE)
    return (options.GENERIC, *(name for name in names if name not in ("gaussian", "discrete-gaussian")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A run of rounds, and what the picture runs over.

    Attributes:
        asked: the rounds, apart from ε0 and their number.
        local_epsilon: ε0.
        num_steps: T.
        delta: δ.
        over: the field that the picture's axis shows, one of ``OVER``.
    """

    asked: AskedRounds
    local_epsilon: float
    num_steps: int
    delta: float
    over: str = "rounds"

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """The setting of a query; what it does not name is as at first.

        Numbers are read as the command line reads them, and whether they are in range is for the accountant
        to say.

        Args:
            query: text by field: names of ``SLIDERS``, ``sampling``, ``adversary``, ``mechanism``, ``over``.

        Raises:
            RefusedSetting: if a field cannot be read.
        """
        mechanism = query.get("mechanism", options.GENERIC)
        sampling = _choice(query, "sampling", tuple(SAMPLINGS))
        unused = {"dim"} if mechanism == options.GENERIC else set()
        unused |= {"cohort"} if sampling == _FULL else set()
        numbers: dict[str, Any] = {}
        for slider in SLIDERS:
            text = query.get(slider.name, slider.start).strip()
            try:
                numbers[slider.name] = None if slider.name in unused else slider.read(text)
            except typer.BadParameter as error:
                sentence = error.message if text else f"{slider.symbol} is missing: type a number"
                raise RefusedSetting(sentence, field=slider.name) from error
        over = _choice(query, "over", OVER, start="rounds")
        return cls(
            asked=AskedRounds(
                population=numbers["population"],
                cohort=numbers["cohort"],
                sampling=sampling,
                adversary=_choice(query, "adversary", tuple(ADVERSARIES)),
                method="pld",
                mechanism=mechanism,
                dim=numbers["dim"],
            ),
            local_epsilon=numbers["local-epsilon"],
            num_steps=numbers["rounds"],
            delta=numbers["delta"],
            over="population" if over in unused else over,
        )

    def query(self) -> dict[str, str]:
        """The same setting as a query."""
        asked = self.asked
        found = {
            "population": as_typed(asked.population),
            "cohort": None if asked.cohort is None else as_typed(asked.cohort),
            "local-epsilon": as_typed(self.local_epsilon),
            "rounds": as_typed(self.num_steps),
            "delta": as_typed(self.delta),
            "sampling": asked.sampling,
            "adversary": asked.adversary,
            "mechanism": asked.mechanism,
            "dim": None if asked.dim is None else as_typed(asked.dim),
            "over": self.over,
        }
        return {name: text for name, text in found.items() if text is not None}

    @property
    def place(self) -> float:
        """The value of what the picture runs over."""
        asked = self.asked
        found = {
            "population": asked.population,
            "cohort": asked.cohort,
            "local-epsilon": self.local_epsilon,
            "rounds": self.num_steps,
        }[self.over]
        return float(asked.population if found is None else found)

    def at(self, place: float) -> Setting:
        """The same setting at another place of the picture."""
        if self.over == "local-epsilon":
            return replace(self, local_epsilon=place)
        if self.over == "rounds":
            return replace(self, num_steps=int(place))
        if self.over == "cohort":
            return replace(self, asked=replace(self.asked, cohort=place))
        return replace(self, asked=replace(self.asked, population=int(place)))

    def arguments(self) -> list[str]:
        """Of the command line that asks the same: ``shuffle-plugins`` and these."""
        query = self.query()
        started = {"sampling": next(iter(SAMPLINGS)), "adversary": next(iter(ADVERSARIES))}
        started |= {"mechanism": options.GENERIC, "over": self.over}
        named = [(name, text) for name, text in query.items() if text != started.get(name)]
        return ["epsilon", *(word for name, text in named for word in (f"--{name}", text))]

    def command(self) -> str:
        """The command line that prints the same interval."""
        return shlex.join(["shuffle-plugins", *self.arguments()])

    def python(self) -> str:
        """Lines of Python that print the same interval."""
        asked = self.asked
        population, cohort = asked.participants()
        given = [
            f"local_epsilon={as_typed(self.local_epsilon)}",
            f"population={_digits(population)}",
            f"cohort={_digits(cohort)}",
        ]
        lines = ["import shuffle_plugins as sp", ""]
        if asked.sampling != next(iter(SAMPLINGS)):
            given.append(f'sampling="{asked.sampling}"')
        if asked.adversary != next(iter(ADVERSARIES)):
            given.append(f'adversary="{asked.adversary}"')
        if asked.mechanism != options.GENERIC:
            own = [f'"{asked.mechanism}"', given[0], f"dim={_digits(asked.dim or 1)}"]
            lines.append(f"blanket = sp.mechanisms.blanket({', '.join(own)})  # of its default options")
            given += [f'mechanism="{asked.mechanism}"', "blanket=blanket"]
        given.append("channel_fixed=True")
        lines += [
            "clients = sp.ShuffleRound(",
            *(f"    {each}," for each in given),
            ")",
            "accountant = sp.ShuffleAccountant()",
            f"accountant.step(clients, num_steps={_digits(self.num_steps)})",
            f"print(accountant.epsilon({as_typed(self.delta)}))",
        ]
        return "\n".join(lines)


def _choice(query: Mapping[str, str], name: str, choices: tuple[str, ...], *, start: str = "") -> str:
    text = query.get(name, start or choices[0])
    if text not in choices:
        raise RefusedSetting(f"{text!r} is not one of {', '.join(choices)}", field=name)
    return text


def _digits(value: float) -> str:
    """A number as Python code, thousands apart."""
    return f"{int(value):_}" if float(value).is_integer() else as_typed(value)
