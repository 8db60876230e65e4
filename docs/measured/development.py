"""The tests: lines that they run, mutants that they find, and versions that were tried."""

from __future__ import annotations

from typing import Any

from measured.parts import Sentences, Tables, result, table

BENCHMARKS = "docs/reference/benchmarks.md"


def line_coverage() -> str:
    """Share of each package's lines that the fast tests run, and of all."""
    found = result("benchmarks/line_coverage")
    total = {key: sum(of[key] for of in found.values()) for key in ("lines", "not_run")}
    return table(
        ("package", "lines", "run by the fast tests"),
        (
            (
                f"`{name}`" if name != "all" else name,
                f"{of['lines']:,}",
                f"{1 - of['not_run'] / of['lines']:.1%}",
            )
            for name, of in (*found.items(), ("all", total))
            if of["lines"]
        ),
    )


def mutants() -> str:
    """What small changes of a module the tests find."""

    def row(module: str, of: dict[str, Any]) -> tuple[str, ...]:
        killed, survived = len(of["killed"]), len(of["survived"])
        numbers = (of["mutants"], killed + survived, killed, survived)
        return (f"`{module.removeprefix('shuffle_plugins.')}`", *(str(number) for number in numbers))

    head = ("module of `shuffle_plugins`", "possible changes", "tried", "killed", "survived")
    return table(head, (row(*each) for each in result("benchmarks/mutants").items()))


TABLES: Tables = {BENCHMARKS: {"line coverage": line_coverage, "mutants": mutants}}


def sentences() -> Sentences:
    """How many mutants survive, and what of the core's lines the fast tests run."""
    survived = sum(len(of["survived"]) for of in result("benchmarks/mutants").values())
    return {
        BENCHMARKS: [
            f"Of the {survived} that survive",
            f"of which they run {100 * core_coverage():.1f} %",
        ]
    }


CORE = (
    "flwr_shuffle",
    "opacus_shuffle",
    "shuffle_plugins.accounting",
    "shuffle_plugins.core",
    "shuffle_plugins.mechanisms",
    "shuffle_plugins.protocols",
    "shuffle_plugins.shuffler",
)
"""What an ε rests on: the accountant, what randomises, what shuffles, and the two hosts."""


def core_coverage() -> float:
    """Share of the core's lines that the fast tests run."""
    found = result("benchmarks/line_coverage")
    return 1 - sum(found[name]["not_run"] for name in CORE) / sum(found[name]["lines"] for name in CORE)
