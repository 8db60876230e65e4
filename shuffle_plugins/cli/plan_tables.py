"""Plans as tables for a terminal, and as plain values for JSON. Errors and ε are rounded up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.markup import escape
from rich.table import Table

from shuffle_plugins import accounting, planning
from shuffle_plugins.cli import output
from shuffle_plugins.cli.tables import NOTHING, WIDE, plain_table, times
from shuffle_plugins.core import rounded

_FEW_REPORTS = 10  # of a client in all rounds; more are worth a warning


def plan_tables(plan: planning.Plan, *, width: int = WIDE) -> Iterator[Table]:
    """The choice beside its alternatives, then the error by cohort and by number of rounds.

    Args:
        plan: the plan to show.
        width: width of the terminal in characters; below ``WIDE`` the lower end of ε and the total of bits
            are left out.
    """
    wide = width >= WIDE
    yield _choices(plan, wide=wide)
    by_cohort, best = plan.curve(), plan.best
    if len(by_cohort) > 1:
        yield _rows(f"by cohort, T = {best.num_steps:,}", by_cohort, plan, changing="k", wide=wide)
    by_rounds = sorted(
        (row for row in plan.rows if (row.mechanism, row.cohort) == (best.mechanism, best.cohort)),
        key=lambda row: row.num_steps,
    )
    if len(by_rounds) > 1:
        yield _rows(f"by number of rounds, k = {best.cohort:,}", by_rounds, plan, changing="T", wide=wide)


def headline(plan: planning.Plan) -> str:
    """The plan's best choice in one line, and what it asks of the clients in another if that is much."""
    best = plan.best
    said = (
        f"[bold]{escape(best.mechanism)}: k = {best.cohort:,}, ε0 = {rounded(best.local_epsilon, up=False)}, "
        f"T = {best.num_steps:,}[/] keeps the certified ε within {plan.target_epsilon:g} "
        f"at δ = {plan.delta:g}"
    )
    each = round(best.num_reports / plan.population)
    if each <= _FEW_REPORTS:
        return said
    return (
        f"{said}\nThe least error, not the least effort: each of the {plan.population:,} clients sends some "
        f"{each:,} reports. If that is too many, say what is possible with --cohort and --rounds, or take "
        "another row below."
    )


def legend(plan: planning.Plan) -> Table:
    """What the columns and rows of :func:`plan_tables` are."""
    meanings = {
        "k, T": "reports of a round, and rounds (under single-pass sampling, check-in and epoch, passes)",
        "ε0": "of one report, the largest with which T rounds stay within the target",
        "ε from, ε up to": "certified interval of the ε of all T rounds",
        "noise, sampling": "mean squared error of one round's average: by the mechanism, by drawing k of n",
        "error": "mean squared error of the average of all rounds",
        "× best": "error over that of the best row",
        "bits per client, in total": "that a client of the population sends in all rounds, and all clients",
        "thrifty": f"least communication with an error at most {plan.tolerance:.0%} above the best",
        "no shuffler": "all clients report to a server that sees who sent what",
        "trusted curator": "a server that all trust adds the noise to the true average",
    }
    return _legend(meanings)


def sums_legend() -> Table:
    """What the columns of :func:`sums_table` are."""
    meanings = {
        "who draws": "those whose data are in a round: the server, the clients in secret by coins, or nobody",
        "k, answer": "clients whose data are in a round, and clients who send something",
        "T, charged": "rounds, and the rounds that ε counts",
        "noise": "deviation of the noise of a round's sum, over the radius of the clients' ball",
        "ε from, ε up to": "certified interval of the ε of the charged rounds",
        "error": "mean squared error of the average of all rounds",
        "bits per client": "that a client of the population sends in all rounds",
    }
    return _legend(meanings)


def _legend(meanings: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(style="dim")
    for name, meaning in meanings.items():
        table.add_row(name, meaning)
    return table


def sums_table(plan: planning.SumPlan, *, width: int = WIDE) -> Table:
    """The ways to take sums, one a row.

    Args:
        plan: the plan to show.
        width: as of :func:`plan_tables`.
    """
    wide = width >= WIDE
    title = f"{plan.mechanism}, ε within {plan.target_epsilon:g} at δ = {plan.delta:g}"
    table = plain_table(title, wide=wide)
    table.add_column("who draws")
    headings = ["k", "answer", "T", "charged", "noise", *(["ε from"] if wide else []), "ε up to", "error"]
    for heading in (*headings, "bits per client" if wide else "bits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        table.add_row(
            str(row.drawn_by),
            *(f"{count:,}" for count in (row.cohort, row.answering, row.num_steps, row.charged_steps)),
            rounded(row.noise_multiplier, up=True),
            *([_lower(row.epsilon)] if wide else []),
            rounded(row.epsilon.upper, up=True),
            *(rounded(value, up=True, digits=3) for value in (row.average_mse, row.bits_per_client)),
            style="bold" if row == plan.best else None,
        )
    return table


def footing(plan: planning.Plan | planning.SumPlan) -> str:
    """One line that says for which setting the tables' numbers hold."""
    return (
        f"{plan.neighbouring_relation} neighbours · adversary: {plan.adversary} · n = {plan.population:,} · "
        f"d = {plan.dim:,} · vectors in an {plan.norm} ball of radius {plan.radius:g} · "
        f"spread ≤ {plan.spread:g}"
    )


def plan_json(plan: planning.Plan) -> dict[str, Any]:
    """The plan in plain dict, list, str, int, float and bool."""
    return {
        **{field.name: getattr(plan, field.name) for field in fields(planning.PlanQuestion)},
        "neighbouring_relation": plan.neighbouring_relation,
        "tolerance": plan.tolerance,
        "best": _row_json(plan.best),
        "thrifty": _row_json(plan.thrifty),
        "everybody": plan.everybody,
        "cohort_edge": plan.cohort_edge.value,
        "rounds_edge": plan.steps_edge.value,
        "baselines": [_renamed(asdict(each)) for each in plan.baselines],
        "rows": [_row_json(row) for row in plan.rows],
        "dismissed": [asdict(each) for each in plan.dismissed],
        "infeasible": [
            {"mechanism": name, "cohort": cohort, "rounds": steps} for name, cohort, steps in plan.infeasible
        ],
        "remarks": list(plan.remarks()),
    }


def sum_plan_json(plan: planning.SumPlan) -> dict[str, Any]:
    """The plan of a sum in plain dict, list, str, int, float and bool."""
    asked = {field.name: getattr(plan, field.name) for field in fields(planning.PlanQuestion)}
    del asked["sampling"]  # every row has its own
    return {
        **asked,
        "mechanism": plan.mechanism,
        "neighbouring_relation": plan.neighbouring_relation,
        "best": _sum_row_json(plan.best),
        "rows": [_sum_row_json(row) for row in plan.rows],
        "infeasible": [
            {"drawn_by": drawn_by, "cohort": cohort, "rounds": steps}
            for drawn_by, cohort, steps in plan.infeasible
        ],
        "remarks": list(plan.remarks()),
    }


def _sum_row_json(row: planning.SumRow) -> dict[str, Any]:
    values = asdict(row)
    del values["epsilon"]
    values["charged_rounds"] = values.pop("charged_steps")
    return _renamed(values | output.interval_json(row.epsilon))


def _choices(plan: planning.Plan, *, wide: bool) -> Table:
    best = plan.best
    table = plain_table("what the target buys", wide=wide)
    table.add_column("")
    for heading in ("k", "T", "ε0", "error", "× best"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown: dict[str, planning.PlanRow | planning.Baseline] = {"best": best}
    if plan.thrifty != best:
        shown["thrifty"] = plan.thrifty
    shown |= {escape(other.name): other for other in plan.baselines}
    for name, row in shown.items():
        table.add_row(
            name,
            NOTHING if row.cohort is None else f"{row.cohort:,}",
            NOTHING if row.num_steps is None else f"{row.num_steps:,}",
            NOTHING if row.local_epsilon is None else rounded(row.local_epsilon, up=False),
            rounded(row.average_mse, up=True, digits=3),
            times(row.average_mse / best.average_mse),
            style="bold" if row is best else None,
        )
    return table


def _rows(
    title: str, rows: Sequence[planning.PlanRow], plan: planning.Plan, *, changing: str, wide: bool
) -> Table:
    table = plain_table(f"{plan.best.mechanism}, {title}", wide=wide)
    headings = [changing, "ε0", *(["ε from"] if wide else []), "ε up to", "noise", "sampling", "error"]
    for heading in (*headings, "bits per client" if wide else "bits"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("bits in total", justify="right", no_wrap=True)
    for row in rows:
        errors = (row.noise_mse, row.sampling_mse, row.average_mse, row.bits_per_client)
        table.add_row(
            f"{row.cohort if changing == 'k' else row.num_steps:,}",
            rounded(row.local_epsilon, up=False),
            *([_lower(row.epsilon)] if wide else []),
            rounded(row.epsilon.upper, up=True),
            *(rounded(value, up=True, digits=3) for value in errors),
            *([rounded(float(row.total_bits), up=True, digits=3)] if wide else []),
            style="bold" if row == plan.best else None,
        )
    return table


def _lower(found: accounting.EpsilonInterval) -> str:
    return NOTHING if found.lower_bound == "none" else rounded(found.lower, up=False)


def _row_json(row: planning.PlanRow) -> dict[str, Any]:
    values = asdict(row)
    del values["epsilon"], values["num_reports"]
    ends = {"lower": row.epsilon.lower, "upper": row.epsilon.upper}
    return _renamed(values | ends | {"round_mse": row.round_mse, "total_bits": row.total_bits})


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """With the command line's word for T."""
    return {"rounds" if key == "num_steps" else key: value for key, value in values.items()}
