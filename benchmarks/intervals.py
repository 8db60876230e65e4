"""How far apart are the two ends of the certified interval, for every registered mechanism?

Settings are those of large deployments: cohorts of 1,000 and more, up to 100,000 rounds. Neighbouring
relation: replace-one, before an observer of the model.

Usage: python benchmarks/intervals.py [--output FILE] [--only NAME ...]
       python benchmarks/intervals.py --page docs/reference/benchmarks.md    (writes its table, asks nothing)
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from shuffle_plugins import mechanisms
from shuffle_plugins.accounting import Round, ShuffleAccountant
from shuffle_plugins.mechanisms import registry

RESULTS = Path(__file__).parent / "results" / "intervals.json"
LOCAL_EPSILONS = (0.5, 1.5, 4.0)
NOISE_MULTIPLIERS = (4.0, 16.0)
DIM, CATEGORIES = 1000, 50
LOCAL_DELTA = 1e-12
LARGEST_EPSILON = 40.0  # that a sum of the grid may cost
BAR_MEDIAN, BAR_WORST = 1.05, 1.10
TABLE_BEGINS, TABLE_ENDS = "<!-- intervals: begin -->", "<!-- intervals: end -->"
SPREAD_OVER_DIMENSIONS = ("discrete-laplace", "laplace", "discrete-gaussian", "gaussian")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """T rounds of k of n, asked at δ."""

    population: int
    cohort: int
    num_steps: int
    delta: float


SETTINGS = (
    Setting(population=10_000, cohort=10_000, num_steps=1, delta=1e-6),
    Setting(population=60_000, cohort=10_000, num_steps=1200, delta=1e-5),
    Setting(population=1_000_000, cohort=1_000, num_steps=100_000, delta=1e-8),
    Setting(population=1_000_000, cohort=100_000, num_steps=1_000, delta=1e-8),
)
SUM_SETTINGS = SETTINGS[:3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An answer, and what was asked.

    Attributes:
        mechanism: name.
        dim: length of a vector, or categories.
        level: ε0, or the noise multiplier of a sum.
        setting: the rounds.
        lower: certified; 0 if nothing is.
        upper: certified.
        upper_bound: its name.
        lower_bound: its name.
        seconds: processor time, from a cold start but for imports.
    """

    mechanism: str
    dim: int
    level: float
    setting: Setting
    lower: float
    upper: float
    upper_bound: str
    lower_bound: str
    seconds: float

    @property
    def ratio(self) -> float | None:
        """Upper over lower; None without a lower end."""
        return self.upper / self.lower if self.lower > 0 else None


def asked_of(name: str) -> list[tuple[int, float, Setting]]:
    """Dimensions, levels and settings that a mechanism is asked about."""
    kind = registry.kind_of(name)
    if kind is registry.Kind.SUMS:
        return [(DIM, noise, setting) for noise in NOISE_MULTIPLIERS for setting in SUM_SETTINGS]
    dims = [CATEGORIES] if kind is registry.Kind.CATEGORIES else [DIM]
    if name == "binary-rr":
        dims = [1]
    elif name in SPREAD_OVER_DIMENSIONS:
        dims = [1, DIM]
    return [(dim, epsilon, setting) for dim in dims for epsilon in LOCAL_EPSILONS for setting in SETTINGS]


def round_of(name: str, dim: int, level: float, setting: Setting) -> Round:
    """The round of ``name`` in ``dim`` dimensions at local ε ``level``, in one setting of the grid."""
    if registry.kind_of(name) is registry.Kind.SUMS:
        limits = {}
        if name == "unary-l1-sum":  # its limit on weight is charged in every round, 1 + e^ε times
            charged = setting.num_steps * (1 + math.exp(LARGEST_EPSILON))
            limits = {"failure": 1e-2 * setting.delta / charged}
        built = mechanisms.get(name, dim=dim, cohort=setting.cohort, noise_multiplier=level, **limits)
        found: Round = built.round(population=setting.population)
        return found
    options = {"local_delta": LOCAL_DELTA} if name in ("gaussian", "discrete-gaussian") else {}
    built = mechanisms.get(name, dim=dim, local_epsilon=level, **options)
    reported: Round = built.round(population=setting.population, cohort=setting.cohort)
    return reported


def interval(name: str, dim: int, level: float, setting: Setting) -> Interval:
    """Both ends of ε, with their names, of that round over the rounds and at the δ of the setting."""
    began = time.process_time()
    accountant = ShuffleAccountant()
    accountant.step(round_of(name, dim, level, setting), num_steps=setting.num_steps)
    found = accountant.epsilon(setting.delta)
    return Interval(
        mechanism=name,
        dim=dim,
        level=level,
        setting=setting,
        lower=found.lower,
        upper=found.upper,
        upper_bound=found.upper_bound,
        lower_bound=found.lower_bound,
        seconds=time.process_time() - began,
    )


def summary(rows: list[Interval]) -> dict[str, str]:
    """A line of the table: median and worst ratio by level."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    missing = len(rows) - len(ratios)
    line = {"median": f"{statistics.median(ratios):.3f}" if ratios else "none"}
    line["worst"] = (f"{max(ratios):{'.3f' if max(ratios) < 1e3 else '.3g'}}" if ratios else "none") + (
        f", {missing} without" if missing else ""
    )
    for level in sorted({row.level for row in rows}):
        own = [row.ratio for row in rows if row.level == level and row.ratio is not None]
        line[f"at {level:g}"] = (
            f"{statistics.median(own):{'.3f' if statistics.median(own) < 1e3 else '.3g'}}" if own else "none"
        )
    return line


def page_table(rows: list[Interval]) -> str:
    """The table in Markdown: each mechanism's ratios, and whether they keep to the bar."""
    lines = [
        f"| mechanism | dim | median | worst | by level | at most {BAR_MEDIAN} and {BAR_WORST:.2f} |",
        "|---|---|---|---|---|---|",
    ]
    for name, dim in dict.fromkeys((row.mechanism, row.dim) for row in rows):
        own = [row for row in rows if (row.mechanism, row.dim) == (name, dim)]
        ratios = [row.ratio for row in own if row.ratio is not None]
        kept = len(ratios) == len(own) and max(ratios) <= BAR_WORST
        kept = kept and statistics.median(ratios) <= BAR_MEDIAN
        median, worst, *levels = summary(own).values()
        lines.append(
            f"| {name} | {dim} | {median} | {worst} | {', '.join(levels)} | {'yes' if kept else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def write_table(page: Path) -> None:
    """Put the committed result into the page, between its two marks."""
    listed = json.loads(RESULTS.read_text())["intervals"]
    rows = [Interval(**{**row, "setting": Setting(**row["setting"])}) for row in listed]
    before, _, rest = page.read_text(encoding="utf-8").partition(TABLE_BEGINS)
    _, _, after = rest.partition(TABLE_ENDS)
    page.write_text(f"{before}{TABLE_BEGINS}\n\n{page_table(rows)}\n{TABLE_ENDS}{after}", encoding="utf-8")


def main() -> None:
    """Ask, write and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=None, metavar="NAME")
    parser.add_argument("--page", type=Path, default=None, metavar="FILE")
    given = parser.parse_args()
    if given.page is not None:
        write_table(given.page)
        return
    names = given.only or list(registry.available())
    questions = [(name, *asked) for name in names for asked in asked_of(name)]
    rows, refused = [], []
    for question in track(questions, console=Console(stderr=True)):
        try:
            rows.append(interval(*question))
        except (ValueError, ArithmeticError) as error:
            refused.append(
                {"mechanism": question[0], "dim": question[1], "level": question[2], "why": str(error)}
            )
    lines = [json.dumps(asdict(row)) for row in rows]
    listed = ",\n".join(lines)
    given.output.write_text(f'{{"intervals": [\n{listed}\n], "refused": {json.dumps(refused)}}}\n')
    table = Table("mechanism", "dim", "median", "worst", "by level (median)")
    every = [row.ratio for row in rows if row.ratio is not None]
    for name in names:
        for dim in dict.fromkeys(row.dim for row in rows if row.mechanism == name):
            line = summary([row for row in rows if (row.mechanism, row.dim) == (name, dim)])
            median, worst, *levels = line.values()
            table.add_row(name, str(dim), median, worst, ", ".join(levels))
    Console(width=120).print(table)
    print(f"all: median {statistics.median(every):.3f}, worst {max(every):.3f}; refused: {len(refused)}")
    print("\n".join(sorted({f"  {each['mechanism']}: {each['why'][:100]}" for each in refused})))


if __name__ == "__main__":
    main()
