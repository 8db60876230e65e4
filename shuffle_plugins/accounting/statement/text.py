"""A privacy statement as plain text, as Markdown and as plain values for JSON."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shuffle_plugins.accounting.intervals import known
from shuffle_plugins.core import rounded

if TYPE_CHECKING:
    from shuffle_plugins.accounting.statement.parts import Guarantee, StatedRounds
    from shuffle_plugins.accounting.statement.statement import PrivacyStatement

_SCHEMA = "shuffle-plugins privacy statement"
_MOST_KINDS = 12  # kinds of rounds printed; the JSON has all
_MARKED = re.compile(r"([\\`*<])|(\])(?=\()")


@dataclass(frozen=True, slots=True)
class _Part:
    """A heading, and what stands under it: paragraphs of a list, each with lines below it."""

    heading: str
    items: tuple[tuple[str, tuple[str, ...]], ...]


def as_text(statement: PrivacyStatement, *, width: int) -> str:
    """Plain text in lines of at most ``width`` columns."""
    lines = ["PRIVACY STATEMENT", *_wrapped(_title(statement), width=width)]
    for part in _parts(statement):
        lines += ["", part.heading]
        for item, below in part.items:
            lines += _wrapped(item, width=width, first="  ", then="  ")
            for line in below:
                lines += _wrapped(line, width=width, first="    - ", then="      ")
    return "\n".join(lines)


def as_markdown(statement: PrivacyStatement) -> str:
    """Markdown: a heading for each part, and lists."""
    lines = ["# Privacy statement", "", _escaped(_title(statement))]
    for part in _parts(statement):
        lines += ["", f"## {part.heading}", ""]
        for item, below in part.items:
            lines.append(f"- {_escaped(item)}")
            lines += [f"  - {_escaped(line)}" for line in below]
    return "\n".join(lines) + "\n"


def as_dict(statement: PrivacyStatement, *, version: int) -> dict[str, Any]:
    """Plain dicts, lists, numbers, strings and None."""
    target, spread = statement.target, statement.spread
    return {
        "schema": _SCHEMA,
        "schema_version": version,
        "subject": statement.subject,
        "warnings": list(statement.warnings),
        "guarantees": [_guarantee_dict(each) for each in statement.guarantees],
        "budget": None
        if target is None
        else {
            "epsilon": target.epsilon,
            "delta": target.delta,
            "adversary": target.adversary,
            "spent": _finite(target.spent),
            "exceeded": target.exceeded,
        },
        "unit": {"name": statement.unit.value, "meaning": statement.unit_detail},
        "neighbouring_relation": statement.neighbouring_relation,
        "released": statement.released,
        "trust": list(statement.trust),
        "num_rounds": statement.num_rounds,
        "rounds": [_rounds_dict(each) for each in statement.rounds],
        "clipping": statement.clipping,
        "composition": {"method": statement.method, "meaning": statement.composition},
        "clients": None
        if spread is None
        else {name: _finite(value) for name, value in asdict(spread).items()},
        "data_accesses": [
            {"what": each.what, "covered": each.cover.value, "detail": each.detail}
            for each in statement.accesses
        ],
        "not_covered": list(statement.uncovered),
        "versions": dict(statement.versions),
    }


def _guarantee_dict(each: Guarantee) -> dict[str, Any]:
    found = each.epsilon
    return {
        "adversary": each.adversary,
        "sees": each.sees,
        "delta": each.delta,
        "lower": None if found is None or found.lower_bound == "none" else found.lower,
        "upper": None if found is None else found.upper,
        "lower_bound": None if found is None else found.lower_bound,
        "upper_bound": None if found is None else found.upper_bound,
        "detail": each.detail,
    }


def _rounds_dict(each: StatedRounds) -> dict[str, Any]:
    plain = asdict(each)
    for name in ("population", "cohort"):
        plain[name] = None if plain[name] is None else list(plain[name])
    return plain | {"local_epsilon": _finite(each.local_epsilon)}


def _finite(value: float | None) -> float | None:
    """The number, or None in its place: JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else value


# -- parts --------------------------------------------------------------------------------------------------


def _title(statement: PrivacyStatement) -> str:
    count = statement.num_rounds
    rounds = f"{count:,} round{'s' if count > 1 else ''}" if count else "nothing recorded"
    return f"Of {statement.subject}: {rounds}."


def _parts(statement: PrivacyStatement) -> Iterator[_Part]:
    if statement.warnings:
        yield _Part("Warnings", tuple((text, ()) for text in statement.warnings))
    yield _Part("Guarantees", tuple(_guarantees(statement)))
    yield _Part(
        "Unit of privacy",
        (
            (f"{statement.unit.capitalize()}: {statement.unit_detail}.", ()),
            (
                f"Neighbouring datasets: {statement.neighbouring_relation}. They are of the same public "
                "size, and differ in one unit.",
                (),
            ),
            (f"ε covers {statement.released}." if statement.rounds else _sentence(statement.released), ()),
        ),
    )
    yield _Part("Trust", tuple((_sentence(text), ()) for text in statement.trust))
    if statement.rounds:
        yield _Part("Rounds", tuple(_rounds(statement)))
    yield _Part("Clipping", ((_sentence(statement.clipping), ()),))
    yield _Part("Composition", tuple(_composition(statement)))
    yield _Part(
        "Accesses to the data",
        tuple(
            (f"{_sentence(each.what, end='')}: {each.cover}. {_sentence(each.detail)}", ())
            for each in statement.accesses
        ),
    )
    yield _Part("Not covered", tuple((_sentence(text), ()) for text in statement.uncovered))
    yield _Part("Versions", ((", ".join(f"{name} {version}" for name, version in statement.versions), ()),))


def _guarantees(statement: PrivacyStatement) -> Iterator[tuple[str, tuple[str, ...]]]:
    for each in statement.guarantees:
        found = each.epsilon
        below = [f"The adversary {each.sees}."] if statement.rounds else []
        if each.detail:
            below.append(_sentence(each.detail))
        if found is not None and statement.rounds:
            below.append(f"Upper end, a proven bound: {found.upper_bound}.")
            below.append(
                "Lower end: none is known."
                if found.lower_bound == "none"
                else f"Lower end, attained by a real mechanism and dataset: {found.lower_bound}."
            )
        epsilon = "No ε" if found is None else known("ε", found)
        yield f"{epsilon} at δ = {each.delta:g}, adversary: {each.adversary}.", tuple(below)
    target = statement.target
    if target is not None:
        spent = rounded(target.spent, up=True)
        yield (
            f"Budget: ε ≤ {target.epsilon:g} at δ = {target.delta:g}, adversary: {target.adversary}; "
            f"{spent} spent{', which EXCEEDS it' if target.exceeded else ''}.",
            (),
        )


def _rounds(statement: PrivacyStatement) -> Iterator[tuple[str, tuple[str, ...]]]:
    for each in statement.rounds[:_MOST_KINDS]:
        unreleased = f", {each.unreleased:,} of which let nothing out" if each.unreleased else ""
        worst = "Generic: the bound for any mechanism of that ε0, whichever was used."
        yield (
            f"{each.rounds:,} × {each.mechanism}{unreleased}.",
            (
                *([worst] if "generic" in each.mechanism.split() else []),
                f"Local ε0 = {_local(each)}, δ0 = {each.local_delta:g}, of what one {statement.member} sends "
                "in a round.",
                f"Accounted for as k = {_range(*each.cohort or ())} of n = {_range(*each.population)} "
                f"{statement.member}s, sampled {each.sampling}: {each.secrecy}.",
                f"Nobody may see more than {each.seen}.",
                f"Bounds: {each.source}.",
            ),
        )
    more = statement.rounds[_MOST_KINDS:]
    if more:
        yield (
            f"{sum(each.rounds for each in more):,} rounds of {len(more):,} more kinds; the JSON has all.",
            (),
        )


def _composition(statement: PrivacyStatement) -> Iterator[tuple[str, tuple[str, ...]]]:
    method = "" if statement.method is None else f"{statement.method.upper()}: "
    yield f"{_sentence(method + statement.composition)} Rounds may follow from earlier ones.", ()
    spread = statement.spread
    if spread is not None:
        yield (
            f"Rounds of a client, of {spread.clients:,} known by name: {spread.fewest_rounds:,} at least, "
            f"{spread.median_rounds:,} in the middle, {spread.most_rounds:,} at most. Against the server "
            f"ε ≤ {_up(spread.fewest_epsilon)} for the first of these clients, "
            f"≤ {_up(spread.median_epsilon)} for the second.",
            (),
        )


def _up(value: float) -> str:
    return rounded(value, up=True)


def _local(each: StatedRounds) -> str:
    if each.local_epsilon is None:
        return "unknown"
    return "infinite (private only in the sum)" if math.isinf(each.local_epsilon) else _up(each.local_epsilon)


def _range(low: float | None = None, high: float | None = None) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{low:,.12g}" if low == high else f"{low:,.12g} to {high:,.12g}"


def _sentence(text: str, *, end: str = ".") -> str:
    """The text with a capital letter and a full stop; names such as ε0 stay as they are."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:] + ("" if text.endswith(".") else end)


def _wrapped(text: str, *, width: int, first: str = "", then: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _MARKED.sub(r"\\\1\2", text)
