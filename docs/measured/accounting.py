"""The accountant: its speed, and how near its ends are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS
from shuffle_plugins.core import rounded

BENCHMARKS = "docs/reference/benchmarks.md"


def accounting_speed() -> str:
    """A history of distinct rounds, beside Opacus's accountant."""
    found = result("benchmarks/accounting_speed")
    ours, opacus = found["pld_first_question_s"], found["opacus_rdp_s"]
    compared = f"{ours / opacus:.1f} times slower" if ours > opacus else f"{opacus / ours:.1f} times faster"
    return (
        f"ε(1e-5) after 1,000 *distinct* rounds, processor time: {ours:.1f} s here from a cold cache, both\n"
        f"ends of the interval, against {opacus:.1f} s for Opacus's `RDPAccountant` on 1,000 distinct\n"
        f"entries, **{compared}**. A round's pair, over all mixes of others, takes {ours:.0f} ms, once.\n"
        f"Another δ costs {found['pld_other_delta_s']:.1f} s, the same question again "
        f"{found['repeated_question_us']:.1f} µs. `step` adds {found['step_us']:.1f} µs.\n"
        f"The numerical width of that answer is {100 * found['numerical_width']:.1f} %."
    )


_HISTORIES = {
    "shuffle_upper": "`ShuffleAccountant`, upper end",
    "shuffle_both_ends": "`ShuffleAccountant`, both ends",
    "federated_observer": "`FederatedAccountant`, observer, each round also asked about before it",
    "federated_server": "`FederatedAccountant`, server, each round also asked about before it",
}


def histories() -> str:
    """Accountants that are asked after every round."""
    found = result("benchmarks/growing_histories")

    def long(seconds: float) -> str:
        return f"{seconds / 1e6:.2g} million s" if seconds >= 1e5 else f"{seconds:,.0f} s"

    prv = found["opacus_prv"]["seconds_extrapolated"]
    rdp, added = (found[name]["seconds_extrapolated"] for name in ("opacus_rdp", "opacus_rdp_curves_added"))
    rows = [
        ("Opacus PRV", f"{found['rounds']:,}", f"{long(prv)} (extrapolated)", "1", "", ""),
        ("Opacus RDP", f"{found['rounds']:,}", f"{long(rdp)} (extrapolated)", f"{rdp / prv:.2g}", "", ""),
        (
            "Opacus RDP, its curves added up by hand as rounds come",
            f"{found['rounds']:,}",
            f"{long(added)} (extrapolated)",
            f"{added / prv:.2g}",
            "",
            "",
        ),
        ("Opacus GDP", "", "refuses rates that change", "", "", ""),
    ]
    for key, name in _HISTORIES.items():
        if own := found.get(key):
            rows.append(
                (
                    f"**{name}**",
                    f"{own['rounds']:,}",
                    f"**{long(own['seconds'])}**",
                    f"**{own['over_prv']:.2g}**",
                    f"{own['last_tenth_over_second']:.2g}",
                    f"{own['megabytes']} MB",
                )
            )
    head = (
        "accountant",
        "questions",
        "processor time",
        "over PRV",
        "last over second tenth",
        "memory",
    )
    return table(head, rows)


_COMMANDS = {
    "epsilon": "`epsilon`, as the README prints it",
    "epsilon --json": "the same with `--json`",
    "epsilon --all": "the same with `--all`: all published bounds",
    "calibrate, ε0": "`calibrate`: ε0",
    "calibrate, rounds": "`calibrate --solve rounds`",
    "calibrate, random cohorts": "`calibrate`: ε0, cohorts of random size before a server",
    "plan, one mechanism": "`plan`, one mechanism, cohorts and rounds searched",
    "plan, all mechanisms": "`plan`, all mechanisms, cohorts and rounds searched",
    "plan, one cell": "`plan`, one mechanism, one cohort, one T",
    "mechanisms": "`mechanisms`, listed",
    "mechanisms, compared": "`mechanisms --dim … --local-epsilon … --norm l2`",
    "mechanisms, of every kind": "the same without `--norm`",
    "help": "`--help`",
    "keys": "`keys --help`",
}


def command_line() -> str:
    """Processor time of commands over that of importing NumPy and SciPy."""
    found = result("benchmarks/command_line")["commands"]
    return table(
        ("command", "s", "over the import"),
        (
            (title, f"{found[name]['seconds']:.2g}", f"{found[name]['over_import']:.2g}")
            for name, title in _COMMANDS.items()
            if name in found
        ),
    )


def _ratio(value: float | None) -> str:
    """A ratio of upper over lower; what JSON has no number for is infinite."""
    if value is None:
        return "no lower end"
    return f"{value:.4f}" if value < 1.0095 else f"{value:.3g}"


def grid_published() -> str:
    """Published bounds over ours on the grid."""
    found = result("benchmarks/published_grid")
    known = {bound.name for bound in PUBLISHED_BOUNDS}

    def number(value: float | None) -> str:
        return "∞" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"

    def time(name: str) -> str:
        median = 1e3 * found["seconds"][name]["median"]
        return f"{median:.2g}" if median < 100 else f"{median:.0f}"

    rows = [
        (name, str(spread["count"]), f"{spread['least']:.3g}", number(spread["median"]), time(name))
        for name, spread in sorted(found["published"].items(), key=lambda item: item[1]["median"] or math.inf)
        if name in known
    ]
    best = found["best_published"]
    rows.append(
        (
            "**the best of all of them**",
            str(best["count"]),
            f"{best['least']:.4g}",
            f"**{number(best['median'])}**",
            "",
        )
    )
    rows.append(("ours, both ends", "", "", "1", time("ours")))
    return table(("bound", "settings", "least", "median", "ms each"), rows)


def grid_widths() -> str:
    """Upper over lower for every ε0-LDP randomizer, by regime."""
    found = result("benchmarks/published_grid")
    rows = [
        (regime, str(spread["count"]), _ratio(spread["median"]), _ratio(spread["most"]))
        for regime, spread in found["generic"].items()
    ]
    return table(("where", "settings", "median", "worst"), rows)


def grid_mechanisms() -> str:
    """The same for mechanisms with their own law, and bounds that are made for them."""
    found = result("benchmarks/published_grid")
    beside = {
        name.split(": ")[0]: f"{spread['least']:.3g} ({name.split(': ')[1]})"
        for name, spread in sorted(found["specific"].items(), key=lambda item: -item[1]["least"])
    }
    rows = [
        (law, str(spread["count"]), _ratio(spread["median"]), _ratio(spread["most"]), beside.get(law, ""))
        for law, spread in sorted(found["mechanisms"].items(), key=lambda item: item[1]["median"] or math.inf)
    ]
    return table(("law", "settings", "median", "worst", "least of a published bound for it, over ours"), rows)


def grid_summary() -> str:
    """How many settings, and how many are wide."""
    found = result("benchmarks/published_grid")
    ratios = [each["own"]["upper"] / each["own"]["lower"] for each in found["cells"] if each["own"]["lower"]]
    wide = sum(ratio > 1.16 for ratio in ratios)
    without = sum(not each["own"]["lower"] and bool(each["own"]["upper"]) for each in found["cells"])
    free = sum(not each["own"]["upper"] for each in found["cells"])
    none = f"{len(found['violations'])} violations" if found["violations"] else "`violations` is empty"
    return (
        f"{found['settings']} settings, {found['processor_seconds']:.0f} s of processor time; {none} (a part "
        f"in 10⁶ is allowed).\n{wide} settings have upper over lower above 1.16, {without} have no lower "
        f"end, and {free} cost nothing at their δ."
    )


TABLES: Tables = {
    BENCHMARKS: {
        "accounting speed": accounting_speed,
        "histories": histories,
        "command line": command_line,
        "grid, summary": grid_summary,
        "grid, published": grid_published,
        "grid, widths": grid_widths,
        "grid, mechanisms": grid_mechanisms,
    }
}


def _least_and_most(ratios: Iterable[float]) -> str:
    """Such as "1.02 to 1.30"."""
    found = list(ratios)
    return " to ".join(f"{end(found):.2f}" for end in (min, max))


def _several() -> str:
    """Widths of rounds in which a client makes several reports."""

    def together(population: int, cohort: int, *, half_spaces: bool) -> list[float]:
        return [
            row["upper"] / row["lower"]
            for row in result("benchmarks/certified")["several_reports"]
            if (row["population"], row["cohort"]) == (population, cohort)
            and (row["mechanism"] == "privunit-g") == half_spaces
        ]

    whole, few = (10**4, 10**4), (60_000, 1_000)
    return (
        f"{_least_and_most(together(*whole, half_spaces=False))} where all of 10⁴ clients take part in one "
        f"round, by K-ary response, the generic mechanism and Laplace noise (ε0 = 1), "
        f"{_least_and_most(together(*whole, half_spaces=True))} with PrivUnitG (ε0 = 2); up to "
        f"{max(together(*few, half_spaces=False)):.2f} and {max(together(*few, half_spaces=True)):.2f} "
        "if 1,000 of 60,000 do"
    )


def sentences() -> Sentences:
    """Pieces of text on the command line, and on composing beside another library."""
    started = result("benchmarks/command_line")["import_s"]
    asked = [
        max(result("benchmarks/growing_histories")[name]["asked_at_lengths"])
        for name in ("opacus_prv", "opacus_rdp")
    ]
    long = [each for each in result("benchmarks/pld_composition") if each["steps"] == 100_000]
    ours = [each["shuffle_plugins"] for each in long]
    theirs = [run for each in long for run in each["dp_accounting"] if not run["optimistic"]]
    too_low = max(
        each["delta"]
        for each in long
        for run in each["dp_accounting"]
        if not run["optimistic"] and run["epsilon"] < each["shuffle_plugins"]["epsilon"][0]
    )

    def milliseconds(runs: list[dict[str, Any]]) -> str:
        return " to ".join(f"{1e3 * end(run['seconds'] for run in runs):.0f}" for end in (min, max))

    ten = ShuffleAccountant()
    ten.step(ShuffleRound(local_epsilon=4.0, population=1_000, cohort=100), num_steps=10)
    return {
        "README.md": [f"Ten rounds cost ε ≤ {rounded(ten.epsilon(1e-5).upper, up=True)} against an observer"],
        BENCHMARKS: [
            _several(),
            f"They were asked at up to {asked[0]} and {asked[1]} entries",
            f"importing NumPy and `scipy.special` ({started:.2f} s in this run",
            f"({milliseconds(ours)} ms and {milliseconds(theirs)} ms at T = 1e5). "
            f"At δ = {too_low:g} and below",
        ],
    }
