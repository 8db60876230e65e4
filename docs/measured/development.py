"""The tests: lines that they run, mutants that they find, and versions that were tried."""

from __future__ import annotations

from measured.parts import Tables, result, table

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


TABLES: Tables = {BENCHMARKS: {"line coverage": line_coverage}}
