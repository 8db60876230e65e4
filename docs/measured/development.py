"""The tests: lines that they run, and versions that were tried."""

from __future__ import annotations

import re

from measured.parts import ROOT, Sentences, Tables, result, table

BENCHMARKS = "docs/reference/benchmarks.md"
VERSIONS = "docs/reference/versions.md"


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


def _versions() -> list[str]:
    """What versions of PyTorch, Opacus and Flower were run, beside the lower bounds."""
    bounds = dict(re.findall(r'"(torch|flwr)>=([\d.]+)', (ROOT / "pyproject.toml").read_text("utf-8")))
    found = result("benchmarks/versions")
    hosts = [of for of in found.values() if "torch" in of["versions"]]
    minor = sorted({int(of["versions"]["torch"].split(".")[1]) for of in hosts})
    assert len(minor) == 3
    assert f"2.{minor[0]}" == bounds["torch"]
    (python,) = {of["python"].rpartition(".")[0] for of in hosts}
    older = {name: next(key for key in found if f"but {name}==" in key) for name in ("opacus", "flwr")}
    failed = [key for key, of in found.items() if of["failed"] or not of["passed"]]
    assert failed == [older["opacus"]]
    opacus, flower = (key.partition("==")[2] for key in older.values())
    return [
        f"three versions: 2.{minor[0]}, which is the lower bound, 2.{minor[1]} and the newest",
        f"Opacus's lower bound is real: {opacus} has no",
        f"In these environments the hosts ran on Python {python} alone",
        f"Flower {flower} passes this selection too",
        f"so {bounds['flwr']} stays the lower bound",
    ]


def sentences() -> Sentences:
    """What of the core's lines the fast tests run, and versions."""
    return {
        BENCHMARKS: [f"of which they run {100 * core_coverage():.1f} %"],
        VERSIONS: _versions(),
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
