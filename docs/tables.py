"""The tables of pages that hold measured numbers, written from the committed result files.

A page has a table between the marks ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. What a run costs in
privacy is in its result file: ``examples/paper_mnist.py --report-only`` writes it anew without training.
Sentences that hold such numbers are listed too; this script says which of them a page lacks.

Usage: python docs/tables.py            (writes the tables into the pages)
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound  # noqa: E402
from shuffle_plugins.core import rounded  # noqa: E402

MNIST = "docs/reference/mnist.md"
BENCHMARKS = "docs/reference/benchmarks.md"
REPRODUCTION = "docs/reference/reproduction.md"


def result(name: str) -> Any:
    """A committed result file, such as ``examples/untuned``."""
    folder, _, file = name.partition("/")
    return json.loads((ROOT / folder / "results" / f"{file}.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def percent(point: dict[str, Any], *, bold: bool = False) -> str:
    """Mean ± deviation in per cent."""
    spread = "" if point["deviation"] is None else f" ± {100 * point['deviation']:.1f}"
    text = f"{100 * point['accuracy']:.1f}{spread}"
    return f"**{text}**" if bold else text


def interval(point: dict[str, Any], *, digits: int = 4) -> str:
    """Certified ends, rounded outwards."""
    ends = ((point["epsilon_lower"], False), (point["epsilon_upper"], True))
    return "[" + ", ".join(rounded(value, up=up, digits=digits) for value, up in ends) + "]"


# -- MNIST -----------------------------------------------------------------------------------------------


def _curve(preset: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result(f"examples/paper_mnist_{preset}")["curve"]
    return found


def _within(curve: list[dict[str, Any]], reading: str, epsilon: float) -> dict[str, Any] | None:
    """The last epoch whose ε, by a reading, is at most that."""
    key = f"epsilon_{reading}"
    return next((e for e in reversed(curve) if e[key] is not None and e[key] <= epsilon), None)


def mnist_runs() -> str:
    """Accuracy and certified ε where the source reports them."""
    a, b, thesis, plain = (_curve(name) for name in ("fig5a", "fig5b", "fig4.2", "non-private"))
    rows = []
    for label, published, accuracy, point, bold in (
        ("Fig. 5(a), five seeds", "1.40", "80 ± 1.8 (10 runs)", _within(a, "published", 1.4), True),
        ("", "2.91", "90 ± 0.5", _within(a, "published", 2.91), True),
        ("", f"{rounded(a[-1]['epsilon_published'], up=True, digits=3)}, the end", "—", a[-1], False),
        ("Fig. 5(b), four seeds", "3.0", "81.15 ± 0.7 (4 runs)", _within(b, "published", 3.0), True),
        ("", "5.8, the end", "89.7 ± 0.5", b[-1], True),
        ("Fig. 4.2, five seeds", "10, the end (see below)", "87.9 ± 1 (10 runs)", thesis[-1], True),
    ):
        assert point is not None
        rows.append(
            (label, published, accuracy, percent(point, bold=bold), str(point["epoch"]), interval(point))
        )
    last = plain[-1]
    rows.append(
        ("without privacy, three seeds", "—", "99", percent(last, bold=True), str(last["epoch"]), "—")
    )
    return table(("", "published ε", "published accuracy", "ours", "epoch", "certified ε"), rows)


def mnist_clones() -> str:
    """At the ε of the earlier analysis."""

    def within(preset: str, epsilon: float) -> str:
        point = _within(_curve(preset), "clones_numerical", epsilon)
        assert point is not None
        return f"{percent(point)} % (epoch {point['epoch']})"

    def reached(preset: str, accuracy: float) -> str:
        curve = _curve(preset)
        point = next(e for e in curve if e["accuracy"] >= accuracy)
        end = curve[-1]["epsilon_clones_numerical"]
        return f"{point['epsilon_clones_numerical']:.2f} (epoch {point['epoch']}), {end:.2f} at the end"

    return table(
        ("", "published, clones", "ours at that ε, clones"),
        [
            ("Fig. 5(a), ε = 1.4", "70.7 ± 2.1 %", within("fig5a", 1.4)),
            ("Fig. 5(a), ε at 90 %", "4.82", reached("fig5a", 0.9)),
            ("Fig. 5(b), ε = 3", "76.46 ± 1.9 %", within("fig5b", 3.0)),
            ("Fig. 5(b), ε at 89.7 %", "18.3", reached("fig5b", 0.897)),
        ],
    )


def mnist_thesis() -> str:
    """Figure 4.2 by each reading of its ε."""
    curve = _curve("fig4.2")
    middle, end = curve[33], curve[-1]

    def line(name: str, reading: str) -> tuple[str, ...]:
        found = []
        for epsilon in (5.0, 10.0):
            point = _within(curve, reading, epsilon)
            inside = point is not None and point["epoch"] < end["epoch"]
            found.append(f"{percent(point)} % (epoch {point['epoch']})" if inside else "not reached")  # type: ignore[arg-type, index]
        values = (f"{each[f'epsilon_{reading}']:.3g}" for each in (middle, end))
        return (name, *values, *found)

    certified = (rounded(each["epsilon_upper"], up=True) for each in (middle, end))
    return table(
        ("", "epoch 34", "epoch 80", "accuracy at its ε = 5", "at its ε = 10"),
        [
            line("clones, closed form, strong composition", "clones_closed"),
            line("Theorem 5.4.1 (Rényi, subsampled)", "published"),
            line("clones, numerical, strong composition", "clones_numerical"),
            ("published", "5", "10", "", ""),
            ("certified here", *certified, "", ""),
        ],
    )


def mnist_sums() -> str:
    """Noise of all clients beside a trusted server's."""
    recorded = result("examples/mnist_vector_sum")
    runs = {name: found[0] for name, found in recorded["runs"].items()}
    own, central, plain = runs["vector-sum"], runs["central Gaussian"], runs["no noise"]
    ends = {"epsilon_lower": own["epsilon_leaked_at_least"], "epsilon_upper": own["epsilon_certified"]}
    return table(
        ("noise", "test accuracy", "certified ε", "deviation of the sum's noise / clipping norm"),
        [
            (
                "P_vec, no trusted server",
                f"**{100 * own['accuracy']:.1f} %**",
                interval(ends),
                f"{own['noise_deviation_over_radius']:.2f}",
            ),
            (
                "Gaussian, trusted server",
                f"{100 * central['accuracy']:.1f} %",
                f"{recorded['settings']['epsilon']:.3f}",
                f"{central['noise_multiplier']:.2f}",
            ),
            ("none", f"{100 * plain['accuracy']:.1f} %", "∞", "0"),
        ],
    )


# -- measurements ----------------------------------------------------------------------------------------


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


def _ratio(value: float | None) -> str:
    """A ratio of upper over lower; what JSON has no number for is infinite."""
    if value is None:
        return "no lower end"
    return f"{value:.4f}" if value < 1.0095 else f"{value:.3g}"


def grid_published() -> str:
    """Published bounds over ours on the grid."""
    found = result("benchmarks/published_grid")
    from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS

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


# -- reproduction ----------------------------------------------------------------------------------------


def recorded_runs() -> str:
    """What came out of the training runs whose results are committed."""
    rows: list[tuple[str, str, str, str]] = []
    for run in result("examples/mnist_recipes"):
        name = f"[{run['task']}, `{run['randomizer']}`](../guides/opacus.md#two-recipes)"
        epsilon = rounded(run["epsilon_certified"], up=True)
        rows.append((name, "`mnist_recipes.json`", epsilon, f"{100 * run['accuracy']:.1f} %"))
    for run in result("examples/untuned"):
        what = f"{run['data']}, {run['model']}, `{run['randomizer']}`"
        name = f"[without tuning: {what}](../guides/opacus.md#without-tuning)"
        epsilon = rounded(run["epsilon_certified"], up=True)
        rows.append((name, "`untuned.json`", epsilon, f"{100 * run['accuracy']:.1f} %"))
    for preset, title in (("fig5a", "Fig. 5(a)"), ("fig5b", "Fig. 5(b)"), ("fig4.2", "Fig. 4.2")):
        last = _curve(preset)[-1]
        name = f"[published MNIST run, {title}](mnist.md)"
        rows.append((name, f"`paper_mnist_{preset}.json`", interval(last), f"{percent(last)} %"))
    own = result("examples/mnist_vector_sum")["runs"]["vector-sum"][0]
    ends = {"epsilon_lower": own["epsilon_leaked_at_least"], "epsilon_upper": own["epsilon_certified"]}
    name = "[without a trusted server](mnist.md#without-a-trusted-server)"
    rows.append((name, "`mnist_vector_sum.json`", interval(ends), f"{100 * own['accuracy']:.1f} %"))
    shared = result("examples/mnist_shared_sum")
    name = "[sums that nobody sees](../guides/flower.md#sums-that-nobody-sees)"
    epsilon = rounded(shared["epsilon_observer"], up=True)
    rows.append((name, "`mnist_shared_sum.json`", epsilon, f"{100 * shared['accuracy']:.1f} %"))
    return table(("run", "results", "certified ε", "test accuracy"), rows)


# -- the tests -------------------------------------------------------------------------------------------


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


def equal_epsilon() -> str:
    """PrivUnit and the blanket-mixed Gaussian mechanism at the same ε after shuffling."""
    return table(
        ("ε ≤", "ε0 of `privunit`", "ε0 of `blanket-mixed-gaussian`", "its error, over that of `privunit`"),
        (
            (
                rounded(of["epsilon"][1], up=True, digits=3),
                f"{of['local_epsilon']:g}",
                rounded(of["mixed_local_epsilon"], up=False),
                f"{of['mixed_variance'] / of['variance']:.2f}",
            )
            for of in result("benchmarks/mechanisms")["shuffled"]
        ),
    )


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    MNIST: {
        "runs": mnist_runs,
        "clones": mnist_clones,
        "thesis": mnist_thesis,
        "sums": mnist_sums,
    },
    BENCHMARKS: {
        "accounting speed": accounting_speed,
        "histories": histories,
        "grid, summary": grid_summary,
        "grid, published": grid_published,
        "grid, widths": grid_widths,
        "grid, mechanisms": grid_mechanisms,
        "line coverage": line_coverage,
    },
    REPRODUCTION: {"recorded runs": recorded_runs},
    "docs/guides/mechanisms.md": {"equal epsilon": equal_epsilon},
}


def sentences() -> dict[str, list[str]]:
    """Pieces of text with measured numbers that a page must have."""
    last = _curve("fig5a")[-1]
    upper, lower = (
        rounded(last[f"epsilon_{end}"], up=end == "upper", digits=3) for end in ("upper", "lower")
    )
    published = rounded(last["epsilon_published"], up=True, digits=3)
    epochs = ShuffleAccountant()
    epochs.step(ShuffleRound(local_epsilon=3.0, population=60_000, cohort=64, sampling="epoch"), num_steps=20)
    twenty = rounded(epochs.epsilon(1e-5, lower=False).upper, up=True)
    recipes = result("examples/mnist_recipes")
    reached = {
        name: sorted(
            run["accuracy"]
            for run in recipes
            if run["randomizer"] == name and "features" in run["task"] and run["target_epsilon"] == 2.93
        )
        for name in ("vector-sum", "privunit")
    }
    one_report = " and ".join(f"{100 * each:.1f}" for each in reached["privunit"])
    tuned = fmean(
        run["accuracy"]
        for run in json.loads((ROOT / "examples" / "frontier" / "results.json").read_text("utf-8"))["runs"]
        if (run["data"], run["arm"], run["target_epsilon"]) == ("mnist", "sum", "3")
    )
    shared = result("examples/mnist_shared_sum")
    ratios = [
        point["epsilon_published"] / point["epsilon_upper"]
        for preset in ("fig5a", "fig5b")
        for point in (
            _curve(preset)[-1],
            _within(_curve(preset), "published", {"fig5a": 1.4, "fig5b": 3.0}[preset]),
        )
        if point is not None
    ]
    first = next(point for point in _curve("fig5a") if point["accuracy"] >= 0.8)
    told = rounded(first["epsilon_published"], up=True, digits=3)
    return {
        "README.md": [
            f"**ε = {upper} instead of {published}** for the {last['steps']:,} rounds",
            f"data for which that ε is at least {lower}",
            f"**{100 * reached['vector-sum'][-1]:.1f} % on MNIST at ε = 2.93**",
            f"{one_report} % with one report per client and round",
            f"[{100 * tuned:.1f} % with all that was tuned]",
        ],
        "docs/guides/opacus.md": [
            f"20 epochs of 60,000 records at ε0 = 3 cost ε ≤ {twenty} at δ = 1e-5",
        ],
        MNIST: [
            f"It ends at **{100 * shared['accuracy']:.1f} %** and a certified ε of "
            f"{shared['epsilon_observer']:.3f} against an observer",
            f"against it ε is {shared['epsilon_server']:.1f} for the client",
            f"on average at epoch {first['epoch']}, published ε {told}",
            f"is {min(ratios):.1f} to {max(ratios):.1f} times less",
        ],
    }


def with_tables(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """A page's text with its tables as the results have them.

    Raises:
        ValueError: if a mark is missing.
    """
    for name, write in tables.items():
        begins, ends = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begins)
        _, closed, after = rest.partition(ends)
        if not found or not closed:
            raise ValueError(f"the page has no marks for {name!r}")
        text = f"{before}{begins}\n\n{write()}\n\n{ends}{after}"
    return text


def main() -> int:
    """Write the tables, and say what sentences are stale; 1 if there are any."""
    stale = 0
    for name, tables in TABLES.items():
        page = ROOT / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for name, pieces in sentences().items():
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for piece in pieces:
            if piece not in text:
                print(f"{name} lacks: {piece}")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
