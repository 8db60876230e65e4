"""``plan`` and ``recipe``: the cohort, ε0 and rounds with the least error, and a training run's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shuffle_plugins import planning
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import number_option, option, whole_option
from shuffle_plugins.cli.output import WIDE, down, times, up, width

if TYPE_CHECKING:
    from shuffle_plugins.planning.plans import Baseline, SumPlan

_BEST = "best"  # planning.BEST_MECHANISM, without loading the planner for --help


def plan_command(
    *,
    population: commands.PopulationOption,
    target_epsilon: commands.TargetOption,
    delta: commands.DeltaOption,
    dim: commands.VectorDimOption,
    mechanism: Annotated[
        str,
        option(
            "--mechanism NAME",
            "Of reports, best of all unless given; or vector-sum, poisson-binomial, windowed-sum.",
        ),
    ] = _BEST,
    rounds: Annotated[
        str | None,
        option("--rounds -t T,…", "Rounds (or passes), one number or several to choose from; else searched."),
    ] = None,
    cohort: Annotated[
        str | None,
        option("--cohort -k K,…", "Clients in a round, one number or several to choose from; else searched."),
    ] = None,
    sampling: commands.SamplingOption = "without-replacement",
    adversary: commands.AdversaryOption = "model-observer",
    method: commands.MethodOption = "pld",
    radius: commands.RadiusOption = 1.0,
    norm: Annotated[
        str | None,
        option("--norm NORM", "Of that ball, l1, l2 or linf; else the mechanism's own, l2 for best."),
    ] = None,
    spread: Annotated[
        float | None,
        number_option(
            "--spread S", "Root mean square distance of the vectors from their mean; else the worst."
        ),
    ] = None,
    tolerance: Annotated[
        float, number_option("--tolerance SHARE", "Error to give away for less communication, as a share.")
    ] = 0.05,
    as_json: commands.JsonOption = False,
    plot: commands.PlotOption = None,
) -> None:
    """The cohort, ε0 and rounds with the least error of the averaged vectors within (ε, δ).

    To train a model, `recipe` is the command to begin with.
    """
    from shuffle_plugins.planning.errors import check_norm
    from shuffle_plugins.planning.sums import SUMS

    output.check_picture(plot)
    steps = None if rounds is None else commands.read_list(rounds, commands.read_whole, "--rounds")
    asked: dict[str, Any] = {
        "target_epsilon": target_epsilon,
        "delta": delta,
        "population": population,
        "dim": dim,
        "mechanism": mechanism,
        "cohorts": None if cohort is None else commands.read_list(cohort, commands.read_whole, "--cohort"),
        "adversary": adversary,
        "radius": radius,
        "norm": None if norm is None else check_norm(norm),
        "spread": spread,
    }
    warnings = output.delta_warnings(delta, population=population)
    if mechanism in SUMS:
        if sampling != "without-replacement" or method != "pld" or plot is not None:
            raise typer.BadParameter(
                "a sum is planned for all its ways of drawing clients, by pld, without a picture: leave out "
                "--sampling, --method and --plot"
            )
        output.progress("planning")
        sums = planning.plan_sums(**asked | {"norm": asked["norm"] or "l2"}, num_steps=steps or 1)
        if not output.answered(as_json, _json(sums), warnings=warnings):
            output.show(_sums_table(sums), output.legend(_SUMS_LEGEND), _footing(sums))
            output.remark("\n".join(sums.remarks()))
        return
    if mechanism != _BEST:
        commands.check_one_report(mechanism)
    progress = output.progress("planning")
    found = planning.plan(
        **asked,
        num_steps=steps,
        sampling=sampling,
        method=method,
        tolerance=tolerance,
        whole_grid=plot is not None,
        progress=progress,
    )
    if not output.answered(as_json, _json(found), warnings=warnings):
        legend = output.legend(
            _LEGEND
            | {"thrifty": f"least communication with an error at most {found.tolerance:.0%} above the best"}
        )
        output.show(_headline(found), *_plan_tables(found), legend, _footing(found))
        for text in found.remarks():
            output.remark(text)
        if steps is None:
            output.remark(
                "This is the least error of averages. To train a model, ask `shuffle-plugins recipe`: it "
                "chooses clipping and the learning rate, too."
            )
        output.left_out((each.name, each.reason) for each in found.dismissed)
        if found.adversary == "server":
            output.remark(
                "Reports hide their clients' data from a server, but not who sent them. In a sum clients can "
                f"take part in secret, so that sampling counts against a server too: --mechanism {SUMS[0]}."
            )
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_plan

        plot_plan(plan=found, path=plot)
        output.picture_written(plot, as_json=as_json)


def _headline(plan: planning.Plan) -> str:
    best = plan.best
    said = (
        f"[bold]{escape(best.mechanism)}: k = {best.cohort:,}, ε0 = {down(best.local_epsilon)}, "
        f"T = {best.num_steps:,}[/] keeps the certified ε within {plan.target_epsilon:g} "
        f"at δ = {plan.delta:g}"
    )
    each = round(best.num_reports / plan.population)
    if each <= 10:
        return said
    return (
        f"{said}\nThe least error, not the least effort: each of the {plan.population:,} clients sends some "
        f"{each:,} reports. If that is too many, say what is possible with --cohort and --rounds, or take "
        "another row below."
    )


def _plan_tables(plan: planning.Plan) -> Iterator[Table]:
    best = plan.best
    shown: dict[str, planning.PlanRow | Baseline] = {"best": best}
    if plan.thrifty != best:
        shown["thrifty"] = plan.thrifty
    shown |= {other.name: other for other in plan.baselines}
    rows = [
        {
            "": name,
            "k": None if row.cohort is None else f"{row.cohort:,}",
            "T": None if row.num_steps is None else f"{row.num_steps:,}",
            "ε0": None if row.local_epsilon is None else down(row.local_epsilon),
            "error": up(row.average_mse, digits=3),
            "× best": times(row.average_mse / best.average_mse),
        }
        for name, row in shown.items()
    ]
    yield output.table(rows, text={"": ""}, title="what the target buys", styles=["bold"])
    by_cohort = plan.curve()
    if len(by_cohort) > 1:
        title = f"{best.mechanism}, by cohort, T = {best.num_steps:,}"
        yield _rows(title, by_cohort, best, changing="k")
    by_rounds = sorted(
        (row for row in plan.rows if (row.mechanism, row.cohort) == (best.mechanism, best.cohort)),
        key=lambda row: row.num_steps,
    )
    if len(by_rounds) > 1:
        title = f"{best.mechanism}, by number of rounds, k = {best.cohort:,}"
        yield _rows(title, by_rounds, best, changing="T")


def _rows(title: str, rows: Sequence[planning.PlanRow], best: planning.PlanRow, *, changing: str) -> Table:
    wide = width() >= WIDE
    cells = [
        {
            changing: f"{row.cohort if changing == 'k' else row.num_steps:,}",
            "ε0": down(row.local_epsilon),
            **_interval(row.epsilon),
            "noise": up(row.noise_mse, digits=3),
            "sampling": up(row.sampling_mse, digits=3),
            "error": up(row.average_mse, digits=3),
            "bits per client" if wide else "bits": up(row.bits_per_client, digits=3),
            **({"bits in total": up(float(row.total_bits), digits=3)} if wide else {}),
        }
        for row in rows
    ]
    return output.table(cells, title=title, styles=["bold" if row == best else "" for row in rows])


def _sums_table(plan: SumPlan) -> Table:
    rows = [
        {
            "who draws": str(row.drawn_by),
            "k": f"{row.cohort:,}",
            "answer": f"{row.answering:,}",
            "T": f"{row.num_steps:,}",
            "charged": f"{row.charged_steps:,}",
            "noise": up(row.model_noise),
            **_interval(row.epsilon),
            "error": up(row.average_mse, digits=3),
            "bits per client" if width() >= WIDE else "bits": up(row.bits_per_client, digits=3),
        }
        for row in plan.rows
    ]
    title = f"{plan.mechanism}, ε within {plan.target_epsilon:g} at δ = {plan.delta:g}"
    styles = ["bold" if row == plan.best else "" for row in plan.rows]
    return output.table(rows, text={"who draws": ""}, title=title, styles=styles)


def _interval(found: Any) -> dict[str, str | None]:
    """Cells of both ends; where columns are few of the upper one, which digits keep below the target."""
    lower = None if found.lower_bound == "none" else down(found.lower)
    return ({"ε from": lower} if width() >= WIDE else {}) | {"ε up to": up(found.upper, digits=6)}


_COMMON_LEGEND = {
    "error": "mean squared error of the average of all rounds",
    "bits per client": "that a client of the population sends in all rounds",
}
_LEGEND = {
    "k, T": "reports of a round, and rounds (under single-pass sampling, check-in and epoch, passes)",
    "ε0": "of one report, the largest with which T rounds stay within the target",
    "ε from, ε up to": "certified interval of the ε of all T rounds",
    "noise, sampling": "mean squared error of one round's average: by the mechanism, by drawing k of n",
    **_COMMON_LEGEND,
    "× best": "error over that of the best row",
    "no shuffler": "all clients report to a server that sees who sent what",
    "trusted curator": "a server that all trust adds the noise to the true average",
}
_SUMS_LEGEND = {
    "who draws": "those whose data are in a round: the server (in turn: each client once in n // k rounds, "
    "in windows of sums), the clients in secret by coins, or nobody",
    "k, answer": "clients whose data are in a round, and clients who send something",
    "T, charged": "rounds, and the rounds that ε counts",
    "noise": "deviation of the noise of a round's sum, over the radius of the clients' ball; of windows, of "
    "independent sums that leave as much in a model",
    "ε from, ε up to": "certified interval of the ε of the charged rounds",
    **_COMMON_LEGEND,
}


def _footing(plan: planning.Plan | SumPlan) -> str:
    return (
        f"{plan.neighbouring_relation} neighbours · adversary: {plan.adversary} · n = {plan.population:,} · "
        f"d = {plan.dim:,} · vectors in an {plan.norm} ball of radius {plan.radius:g} · "
        f"spread ≤ {plan.spread:g}"
    )


def _json(plan: planning.Plan | SumPlan) -> dict[str, Any]:
    values: dict[str, Any] = _plain(plan) | {
        "neighbouring_relation": plan.neighbouring_relation,
        "best": _plain(plan.best),
        "remarks": list(plan.remarks()),
    }
    first = "mechanism"
    if isinstance(plan, planning.Plan):
        values["everybody"] = plan.everybody
    else:
        first = "drawn_by"
        del values["sampling"]  # every row has its own
    values["infeasible"] = [
        {first: who, "cohort": cohort, "rounds": steps} for who, cohort, steps in plan.infeasible
    ]
    return values


def _plain(value: Any) -> Any:
    """In dict, list, str, int, float and bool, with the command line's word for T."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not is_dataclass(value):
        return value
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(value)):
        if name == "epsilon":
            found |= output.interval_json(getattr(value, name))
        else:
            found[re.sub("(num_)?steps", "rounds", name)] = _plain(getattr(value, name))
    if isinstance(value, planning.PlanRow):
        found |= {"round_mse": value.round_mse, "total_bits": value.total_bits}
    return found


def recipe_command(
    *,
    population: commands.PopulationOption,
    target_epsilon: commands.TargetOption,
    delta: commands.DeltaOption,
    dim: Annotated[int, whole_option("--dim D", "Trained parameters of the model.")],
    model: Annotated[
        str, option("--model KIND", "linear: a classifier on rows of length one, from weights 0; or network.")
    ] = "linear",
    mechanism: Annotated[
        str,
        option(
            "--mechanism NAME", "Of one report per record, best of all unless given; or a sum, as vector-sum."
        ),
    ] = _BEST,
    cohort: Annotated[
        int | None, whole_option("--cohort -k K", "Records of a step; a tenth of N unless given.")
    ] = None,
    rounds: Annotated[int | None, whole_option("--rounds -t T", "Steps; 200 unless given.")] = None,
    as_json: commands.JsonOption = False,
) -> None:
    """Settings of a training run for a target (ε, δ), without tuning on the data, and why.

    Mechanism, records of a step, steps, noise, clipping and learning rate of stochastic gradient descent. ε
    is for replace-one neighbours, against an observer of the model.
    """
    found = planning.training_recipe(
        target_epsilon=target_epsilon,
        delta=delta,
        population=population,
        dim=dim,
        model=model,
        mechanism=mechanism,
        cohort=cohort,
        num_steps=rounds,
    )
    warnings = output.delta_warnings(delta, population=population)
    if (noisy := found.warning()) is not None:
        warnings.append(noisy)
    rows = [dict(zip(("name", "value", "reason"), row, strict=True)) for row in found.settings()]
    values = asdict(found) | {
        "epsilon": output.interval_json(found.epsilon),
        "neighbouring_relation": found.epsilon.neighbouring_relation,
        "signal_to_noise_ratio": found.expected_noise.signal_to_noise_ratio,
        "settings": rows,
    }
    del values["expected_noise"]
    if not output.answered(as_json, values, warnings=warnings):
        cells = [{"setting": row["name"], "value": row["value"], "why": row["reason"]} for row in rows]
        output.show(output.table(cells, text={"setting": "", "why": ""}, title=found.title))
