"""The accountant: its speed, and how near its ends are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry

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


def _over(mechanism: str, *, level: float, cohort: int, steps: int, dim: int = 1_000) -> float:
    """Upper over lower end of one mechanism in one setting."""
    (found,) = (
        each["upper"] / each["lower"]
        for each in result("benchmarks/intervals")["intervals"]
        if (each["mechanism"], each["dim"], each["level"]) == (mechanism, dim, level)
        and (each["setting"]["cohort"], each["setting"]["num_steps"]) == (cohort, steps)
    )
    return float(found)


def _widths() -> list[str]:
    """Sentences on what keeps mechanisms from narrow intervals."""
    everybody, drawn, few, many = (10_000, 1), (10_000, 1_200), (1_000, 100_000), (100_000, 1_000)

    def width(mechanism: str, level: float, setting: tuple[int, int]) -> str:
        cohort, steps = setting
        return f"{_over(mechanism, level=level, cohort=cohort, steps=steps):.2f}"

    levels = (4.0, 16.0)
    planes = [width("linf-bit-planes", 4.0, each) for each in (many, drawn, everybody, few)]
    assert planes == [width("sampled-bits", 4.0, each) for each in (many, drawn, everybody, few)]
    signs = [
        f"{median(_over(name, level=level, cohort=k, steps=t) for k, t in (everybody, drawn, few, many)):.2f}"
        for name in ("sqkr", "l2-block")
        for level in (0.5, 1.5, 4.0)
    ]
    assert signs[:3] == signs[3:]
    tags = [width("multi-message", 4.0, each) for each in (everybody, drawn)]
    alone = [
        float(width("multi-message", level, each))
        for level, each in ((4.0, few), *((16.0, each) for each in (everybody, drawn, few)))
    ]
    counts = [
        float(width("poisson-binomial", level, each)) for level in levels for each in (everybody, drawn, few)
    ]
    (whole,) = {width("poisson-binomial", level, everybody) for level in levels}
    quiet, loud = (width("poisson-binomial", level, drawn) for level in levels)
    (coins,) = {width("vector-sum", level, everybody) for level in levels}
    sampled = [width("vector-sum", level, each) for level, each in ((16.0, drawn), (16.0, few), (4.0, drawn))]
    (flips,) = {width("unary-l1-sum", level, everybody) for level in levels}
    unary = [width("unary-l1-sum", 16.0, each) for each in (drawn, few)]
    bare = [float(width("unary-l1-sum", 4.0, each)) for each in (drawn, few)]
    return [
        f"{planes[0]} (k = 10⁵), {planes[1]} (10⁴, 1,200 rounds), {planes[2]} (10⁴, one round), "
        f"{planes[3]} (k = 1,000)",
        f"`sqkr`, `l2-block`: {signs[0]}, {signs[1]} and {signs[2]}.",
        f"(noise 4, cohorts of 10⁴) {tags[0]} and {tags[1]}; with one plane {min(alone):.1f} to "
        f"{max(alone):.1f}.",
        f"{min(counts)} to {max(counts)}. - `poisson-binomial`: {whole} in one round of everybody, {loud} "
        f"and {quiet} on samples.",
        f"`vector-sum`: {coins} in one round of everybody; on samples {min(sampled)} to {max(sampled)}, and "
        f"{width('vector-sum', 4.0, few)} with k = 1,000",
        f"`unary-l1-sum`: {flips} in one round of everybody, {unary[0]} and {unary[1]} at noise 16 on "
        "samples.",
        f"*Noise 4 on samples: {bare[0]:.1f} and {bare[1]:.1f};",
    ]


def _least_and_most(ratios: Iterable[float]) -> str:
    """Such as "1.02 to 1.30", or one number if both round to it."""
    found = list(ratios)
    ends = [f"{end(found):.2f}" for end in (min, max)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _ratios(mechanism: str, dim: int, *levels: float, fewest: int = 0, most: int = 10**9) -> list[float]:
    """Upper over lower end at some levels, in the settings whose cohorts lie between two numbers."""
    return [
        each["upper"] / each["lower"]
        for each in result("benchmarks/intervals")["intervals"]
        if (each["mechanism"], each["dim"]) == (mechanism, dim)
        and each["level"] in levels
        and fewest <= each["setting"]["cohort"] <= most
    ]


def _information(mechanism: str, level: float, dim: int = 1_000) -> float:
    """How much one report can tell, of section 3d of the proofs."""
    bound = registry.blanket(mechanism, local_epsilon=level, dim=dim).information_bound
    assert bound is not None
    return bound.information


def _causes() -> list[str]:
    """Sentences on small rounds, on noise, and on several reports."""
    small, large = {"most": 1_000}, {"fewest": 10_000}
    place = {
        (k, t): _over("linf-bit-planes", level=4.0, cohort=k, steps=t)
        for k, t in ((100_000, 1_000), (10_000, 1_200), (1_000, 100_000), (10_000, 1))
    }
    told = _information("linf-bit-planes", 4.0) / math.exp(8.0)
    shares = [f"{100 * (ratio - 1):.0f}" for ratio in place.values()]
    counts = [f"{float(f'{k * told:.2g}'):,.0f}" for k, _ in place]
    apart = max(
        abs(_over(name, level=4.0, cohort=k, steps=t, dim=1) - ratio)
        for name in ("laplace", "discrete-laplace")
        for (k, t), ratio in place.items()
    )
    below = [100 * (ratio - 1) for ratio in _ratios("laplace", 1_000, 0.5, 1.5)]
    planes = [
        f"{ratio:.2f}" for level in (0.5, 1.5) for ratio in _ratios("l2-bit-planes", 1_000, level, **small)
    ]
    levels = (0.5, 1.5, 4.0)
    laplace = [f"{_information('laplace', level):.3g}" for level in levels]
    every = [
        f"{max((math.exp(x) - 1) ** 2 / math.exp(x), 2 * (math.exp(x) - 1) ** 2 / (math.exp(x) + 2)):.3g}"
        for x in levels
    ]

    def gaussian(dim: int, *levels: float, fewest: int = 0, most: int = 10**9) -> str:
        limits = {"fewest": fewest, "most": most}
        return _least_and_most(
            ratio
            for name in ("gaussian", "discrete-gaussian")
            for ratio in _ratios(name, dim, *levels, **limits)
        )

    one_round = _over("gaussian", level=4.0, cohort=10_000, steps=1)
    several = result("benchmarks/certified")["several_reports"]

    def together(population: int, cohort: int, *, half_spaces: bool) -> list[float]:
        return [
            row["upper"] / row["lower"]
            for row in several
            if (row["population"], row["cohort"]) == (population, cohort)
            and (row["mechanism"] == "privunit-g") == half_spaces
        ]

    whole, tenth, few = (10**4, 10**4), (60_000, 10**4), (60_000, 1_000)
    flips = result("benchmarks/protocols")["single_sums"]["unary"]
    lower, upper = flips["epsilon"]
    return [
        f"Over many rounds that is {shares[0]} per cent of ε where k·I/e² is {counts[0]}, {shares[1]} per "
        f"cent at {counts[1]}, {shares[2]} per cent at {counts[2]}; in one round, which is decided in the "
        f"tail, {shares[3]} per cent at {counts[3]}",
        f"the same numbers within {math.ceil(100 * apart) / 100}, and I is attained",
        f"the same, {_least_and_most(_ratios('laplace', 1_000, 4.0))}. Below, {min(below):.0f} to "
        f"{max(below):.0f} per cent",
        f"{_least_and_most(_ratios('l2-bit-planes', 1_000, 0.5, 1.5, **large))} with k ≥ 10⁴ up to "
        f"ε0 = 1.5, but {planes[0]} and {planes[1]} with k = 1,000",
        f"{_information('discrete-laplace', 0.5):.2f} is certified for I at ε0 = 0.5, where every randomizer "
        f"has {every[0]}. On the finer grid of `laplace` it is {laplace[0]}, {laplace[1]} and {laplace[2]} "
        f"at 0.5, 1.5 and 4 (every randomizer: {every[0]}, {every[1]} and {every[2]})",
        f"one sampled round of 10⁴ of 60,000 has [{rounded(lower, up=False, digits=3)}, "
        f"{rounded(upper, up=True, digits=3)}].* There a count of a bit that nobody holds has "
        f"{flips['flips']:.0f} flips on average",
        f"{_least_and_most(together(*whole, half_spaces=False))} where all of 10⁴ clients take part in one "
        f"round, with 2 to 20 reports each by K-ary response, the generic mechanism and Laplace noise "
        f"(ε0 = 1), {_least_and_most(together(*whole, half_spaces=True))} with PrivUnitG (ε0 = 2); up to "
        f"{max(together(*tenth, half_spaces=False)):.2f} and {max(together(*tenth, half_spaces=True)):.2f} "
        f"if they are drawn from 60,000, and {max(together(*few, half_spaces=False)):.2f} and "
        f"{max(together(*few, half_spaces=True)):.2f} if only 1,000 of these are",
        f"on vectors: {gaussian(1_000, 0.5, 1.5)} up to ε0 = 1.5",
        f"what remains: {one_round:.0f} times, and no amplification over 1,200 rounds; with k = 10⁵ it is "
        f"{gaussian(1_000, 4.0, fewest=100_000)}",
        f"{gaussian(1, 0.5, 1.5)} up to ε0 = 1.5. At ε0 = 4 it is {gaussian(1, 4.0, fewest=100_000)} with "
        f"k = 10⁵, and {gaussian(1, 4.0, most=10_000)} below",
    ]


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

    return {
        BENCHMARKS: [
            *_widths(),
            *_causes(),
            f"They were asked at up to {asked[0]} and {asked[1]} entries",
            f"importing NumPy and `scipy.special` ({started:.2f} s in this run",
            f"({milliseconds(ours)} ms and {milliseconds(theirs)} ms at T = 1e5). "
            f"At δ = {too_low:g} and below",
        ]
    }
