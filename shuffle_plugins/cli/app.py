"""``shuffle-plugins``: accounting questions answered in a shell. Neighbouring relation: replace-one."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from shuffle_plugins import __version__
from shuffle_plugins.cli.keys import app as keys_app
from shuffle_plugins.cli.options import (
    BEST,
    GENERIC,
    ROUNDS_HELP,
    CohortOption,
    ConfidenceOption,
    DeltaOption,
    DimOption,
    JsonOption,
    LocalEpsilonOption,
    PlotOption,
    PopulationOption,
    Randomizer,
    RoundsOption,
    Scheme,
    SolvableCohortOption,
    TargetOption,
    TrialsOption,
    listed,
    number,
    unfolded,
    whole,
)
from shuffle_plugins.cli.plotting import (
    PlottingUnavailable,
    check_drawable,
    plot_choices,
    plot_comparisons,
    plot_plan,
)
from shuffle_plugins.cli.tables import (
    WIDE,
    bounds_table,
    budget_footing,
    budget_table,
    catalogue_table,
    choices_table,
    client_footing,
    client_table,
    rounds_tables,
    verdict,
)
from shuffle_plugins.core.rounding import rounded
from shuffle_plugins.mechanisms import registry

# The accounting itself needs SciPy: it is imported by the commands that ask it something.
if TYPE_CHECKING:
    from shuffle_plugins.accounting import Blanket, EpsilonInterval, ShuffleRound
    from shuffle_plugins.accounting.comparison import Comparison
    from shuffle_plugins.ledger.summary import ClientSpent, ModelBudget, Spent
    from shuffle_plugins.planning.choosing import Domain

T = TypeVar("T")

_NARROWEST = 60
_PLOT_POINTS = 13
_PATIENCE = 0.5
_DELTA = 1e-5
_HELD = {"l1": "ℓ1 ball", "l2": "ℓ2 ball", "linf": "ℓ∞ ball", "categories": "categories"}
_PROBE_DIMS = (1, 2, 1_000)

_ancestry = typer.BadParameter.__mro__
# Base of all complaints about a command line: its name and package depend on the version of typer.
_CommandLineError = cast(type[typer.BadParameter], _ancestry[_ancestry.index(Exception) - 1])


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))


class _Group(TyperGroup):
    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))


def _as_flag(option: Any) -> Any:
    """The option, shown without a type: newer typer prints ``<bool>`` after a flag."""
    if option is not None:
        option.metavar = ""
    return option


app = typer.Typer(
    name="shuffle-plugins",
    cls=_Group,
    help="What rounds of the shuffle model cost: certified ε for replace-one neighbours.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(keys_app, cls=_Group)


class Unknown(StrEnum):
    """What ``calibrate`` solves for."""

    LOCAL_EPSILON = "local-epsilon"
    ROUNDS = "rounds"
    COHORT = "cohort"


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        text = context.get_help()  # printed already, and empty, if typer has Rich
        if text:
            print(text)
        raise typer.Exit(2)


@app.command("epsilon", cls=_Command)
@unfolded
def epsilon_command(
    *,
    population: PopulationOption,
    local_epsilon: LocalEpsilonOption,
    rounds: RoundsOption,
    delta: DeltaOption,
    cohort: CohortOption = None,
    scheme: Scheme,
    randomizer: Randomizer,
    everything: Annotated[
        bool,
        typer.Option("--all", metavar="", help="Compute every published bound, not two of them; seconds."),
    ] = False,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """The ε of T rounds at δ: certified, and by other bounds."""
    from shuffle_plugins.accounting.comparison import ALL_PUBLISHED, FEW_PUBLISHED

    _check_picture(plot)
    published = ALL_PUBLISHED if everything else FEW_PUBLISHED
    shuffle_round = _round(
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        scheme=scheme,
        randomizer=randomizer,
    )
    answer = _compare(shuffle_round, num_steps=rounds, delta=delta, scheme=scheme)
    if as_json:
        _print_json(_answer_json(answer.beside(published)))
    else:
        _show(answer, published=published, population=population)
        left_out = len(ALL_PUBLISHED) - len(published)
        _say(f"{left_out} more published bounds: --all shows them." if left_out else None)
    if plot is not None:
        points = sorted({*_spread(rounds), rounds})
        with _patience("drawing", as_json=as_json) as progress:
            others = []
            for num_steps in points:
                other = _compare(shuffle_round, num_steps=num_steps, delta=delta, scheme=scheme)
                others.append(other.beside(published))
                progress(len(others), len(points))
        plot_comparisons(comparisons=others, path=plot)
    _say(_drawn(plot), aside=as_json)


@app.command("compare", cls=_Command)
@unfolded
def compare_command(
    *,
    population: PopulationOption,
    local_epsilon: Annotated[
        str,
        typer.Option("--local-epsilon", "-e", metavar="EPS0,…", help="One ε0 or several, comma-separated."),
    ],
    delta: DeltaOption,
    cohort: CohortOption = None,
    rounds: Annotated[
        str,
        typer.Option("--rounds", "-t", metavar="T,…", help=f"One number or several. {ROUNDS_HELP}"),
    ] = "1,10,100,1000,10000",
    scheme: Scheme,
    randomizer: Randomizer,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """The ε of every bound over several numbers of rounds and several ε0; up to seconds for each of them."""
    from shuffle_plugins.accounting.comparison import ALL_PUBLISHED

    _check_picture(plot)
    steps = listed(rounds, whole, "--rounds")
    levels = listed(local_epsilon, number, "--local-epsilon")
    if not steps or not levels:
        raise typer.BadParameter("give at least one number of rounds and one ε0")
    answers: list[Comparison] = []
    with _patience("comparing", as_json=as_json) as progress:
        for level in levels:
            shuffle_round = _round(
                local_epsilon=level,
                population=population,
                cohort=cohort,
                scheme=scheme,
                randomizer=randomizer,
            )
            for num_steps in steps:
                answer = _compare(shuffle_round, num_steps=num_steps, delta=delta, scheme=scheme)
                answers.append(answer.beside(ALL_PUBLISHED))
                progress(len(answers), len(levels) * len(steps))
    if as_json:
        _print_json([_answer_json(answer) for answer in answers])
    else:
        for level in levels:
            asked = [answer for answer in answers if answer.shuffle_round.local_epsilon == level]
            _print(*rounds_tables(asked, width=_width()))
        _say(_only_the_cohort(answers[0], population=population))
    if plot is not None:
        plot_comparisons(comparisons=answers, path=plot)
    _say(_drawn(plot), aside=as_json)


@app.command("calibrate", cls=_Command)
@unfolded
def calibrate_command(
    *,
    target_epsilon: TargetOption,
    delta: DeltaOption,
    population: PopulationOption,
    solve: Annotated[
        Unknown,
        typer.Option("--solve", metavar="WHAT", help="What to solve for: local-epsilon, rounds or cohort."),
    ] = Unknown.LOCAL_EPSILON,
    cohort: SolvableCohortOption = None,
    local_epsilon: Annotated[
        float | None,
        typer.Option(
            "--local-epsilon",
            "-e",
            parser=number,
            metavar="EPS0",
            help="ε0 of one report. Required unless solved for.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            "-t",
            parser=whole,
            metavar="T",
            help=f"{ROUNDS_HELP} Required unless solved for.",
        ),
    ] = None,
    scheme: Scheme,
    randomizer: Randomizer,
    as_json: JsonOption = False,
) -> None:
    """The largest ε0, the most rounds, or the cohort that stays within (ε, δ)."""
    from shuffle_plugins.accounting import calibrate_cohort, calibrate_local_epsilon, calibrate_num_steps
    from shuffle_plugins.accounting.comparison import FEW_PUBLISHED

    given = {Unknown.LOCAL_EPSILON: local_epsilon, Unknown.ROUNDS: rounds, Unknown.COHORT: cohort}
    if given[solve] is not None:
        raise typer.BadParameter(f"leave out --{solve}: it is what --solve asks for")
    found: float
    with _patience("calibrating", as_json=as_json):
        match solve:
            case Unknown.LOCAL_EPSILON:
                rounds = _needed(rounds, "--rounds")
                hiding, cohort = _participants(population=population, cohort=cohort, scheme=scheme)
                found = local_epsilon = calibrate_local_epsilon(
                    target_epsilon=target_epsilon,
                    delta=delta,
                    population=hiding,
                    cohort=cohort,
                    num_steps=rounds,
                    sampling=scheme.sampling,
                    adversary=scheme.adversary,
                    mechanism=randomizer.mechanism,
                    blanket_factory=_blanket_factory(randomizer),
                    method=scheme.composition,
                )
            case Unknown.ROUNDS:
                local_epsilon = _needed(local_epsilon, "--local-epsilon")
                found = rounds = calibrate_num_steps(
                    target_epsilon=target_epsilon,
                    delta=delta,
                    shuffle_round=_round(
                        local_epsilon=local_epsilon,
                        population=population,
                        cohort=cohort,
                        scheme=scheme,
                        randomizer=randomizer,
                    ),
                    method=scheme.composition,
                )
            case Unknown.COHORT:
                local_epsilon, rounds = _needed(local_epsilon, "--local-epsilon"), _needed(rounds, "--rounds")
                factory = _blanket_factory(randomizer)
                found = cohort = calibrate_cohort(
                    target_epsilon=target_epsilon,
                    delta=delta,
                    population=population,
                    local_epsilon=local_epsilon,
                    num_steps=rounds,
                    sampling=scheme.sampling,
                    adversary=scheme.adversary,
                    mechanism=randomizer.mechanism,
                    blanket=factory(local_epsilon) if factory else None,
                    method=scheme.composition,
                )
    answer = _compare(
        _round(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            scheme=scheme,
            randomizer=randomizer,
        ),
        num_steps=rounds,
        delta=delta,
        scheme=scheme,
    )
    if as_json:
        _print_json({"solve": solve.value, "value": found, **_answer_json(answer.beside(FEW_PUBLISHED))})
    else:
        shown = f"{found:,}" if isinstance(found, int) else rounded(found, up=False, digits=6)
        _print(f"[bold]{solve} = {shown}[/] keeps the certified ε within {target_epsilon:g}")
        _show(answer, published=FEW_PUBLISHED, population=population)
    _say(_capped(solve, found), aside=as_json)


@app.command("plan", cls=_Command)
@unfolded
def plan_command(
    *,
    population: PopulationOption,
    target_epsilon: TargetOption,
    delta: DeltaOption,
    dim: Annotated[
        int, typer.Option("--dim", parser=whole, metavar="D", help="Length of a client's vector.")
    ],
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="NAME", help="Randomizer; best compares all of them.")
    ] = BEST,
    rounds: Annotated[
        str | None,
        typer.Option(
            "--rounds",
            "-t",
            metavar="T,…",
            help="Rounds, one number or several to choose from; searched unless given. Under single-pass "
            "sampling and check-in, passes; under epoch, epochs.",
        ),
    ] = None,
    cohort: Annotated[
        str | None,
        typer.Option(
            "--cohort",
            "-k",
            metavar="K,…",
            help="Reports per round, one number or several to choose from; searched unless given.",
        ),
    ] = None,
    scheme: Scheme,
    radius: Annotated[
        float,
        typer.Option("--radius", parser=number, metavar="R", help="Radius of the ball of the vectors."),
    ] = 1.0,
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            metavar="NORM",
            help="Norm of that ball, l1, l2 or linf: the mechanism's own unless given, l2 for best.",
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            "--spread",
            parser=number,
            metavar="S",
            help="Root mean square distance of the vectors from their mean; the worst case unless given.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            parser=number,
            metavar="SHARE",
            help="Error to give away for less communication, as a share.",
        ),
    ] = 0.05,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw error and ε0 against k (Matplotlib).")
    ] = None,
) -> None:
    """The cohort, ε0 and rounds with the least error of the averaged vectors within (ε, δ)."""
    from shuffle_plugins.cli.plan_tables import footing, headline, plan_json, plan_tables
    from shuffle_plugins.planning import plan
    from shuffle_plugins.planning.variance import check_norm

    _check_picture(plot)
    steps = None if rounds is None else listed(rounds, whole, "--rounds")
    with _patience("planning", as_json=as_json) as progress:
        found = plan(
            target_epsilon=target_epsilon,
            delta=delta,
            population=population,
            dim=dim,
            mechanism=mechanism,
            num_steps=steps,
            cohorts=None if cohort is None else listed(cohort, whole, "--cohort"),
            sampling=scheme.sampling,
            adversary=scheme.adversary,
            method=scheme.composition,
            radius=radius,
            norm=None if norm is None else check_norm(norm),
            spread=spread,
            tolerance=tolerance,
            whole_grid=plot is not None,
            progress=progress,
        )
    if as_json:
        _print_json(plan_json(found))
    else:
        _print(headline(found), *plan_tables(found, width=_width()), footing(found))
        for remark in found.remarks():
            _say(remark)
        for left in found.dismissed:
            _say(f"Left out: {left.mechanism}: {left.reason}.")
    if plot is not None:
        plot_plan(plan=found, path=plot)
    _say(_drawn(plot), aside=as_json)


@app.command("audit", cls=_Command)
@unfolded
def audit_command(
    *,
    mechanism: Annotated[str, typer.Option("--mechanism", metavar="NAME", help="Randomizer to attack.")],
    local_epsilon: LocalEpsilonOption,
    dim: Annotated[
        int, typer.Option("--dim", parser=whole, metavar="D", help="Length of a client's vector.")
    ] = 1,
    population: Annotated[
        int | None,
        typer.Option(
            "--population",
            "-n",
            parser=whole,
            metavar="N",
            help="Clients in the population, to attack shuffled rounds as well; a few dozen.",
        ),
    ] = None,
    cohort: CohortOption = None,
    rounds: RoundsOption = 1,
    delta: Annotated[
        float,
        typer.Option("--delta", "-d", parser=number, metavar="DELTA", help="δ of the rounds; 0.001 or more."),
    ] = 0.01,
    scheme: Scheme,
    trials: TrialsOption = 20_000,
    confidence: ConfidenceOption = 0.99,
    as_json: JsonOption = False,
) -> None:
    """Attack a randomizer's reports, and its shuffled rounds; ends with status 1 if a claim is refuted."""
    from shuffle_plugins.auditing import audit_local, audit_round

    if population is None and cohort is not None:
        raise typer.BadParameter("--cohort needs --population: without it a single report is attacked")
    attacked = registry.get(mechanism, local_epsilon=local_epsilon, dim=dim)
    found = [
        (
            "one report",
            local_epsilon,
            audit_local(attacked, delta=attacked.local_delta, num_trials=trials, confidence=confidence),
        ),
    ]
    if population is not None:
        shuffle_round = _round(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            scheme=scheme,
            randomizer=Randomizer(mechanism=mechanism, dim=dim),
        )
        answer = _compare(shuffle_round, num_steps=rounds, delta=delta, scheme=scheme)
        attack = audit_round(
            attacked,
            shuffle_round,
            delta=delta,
            num_steps=rounds,
            num_trials=trials,
            confidence=confidence,
        )
        found.append(("shuffled rounds", answer.interval.upper, attack))
    if as_json:
        _print_json(
            [
                {
                    "what": what,
                    "claimed_epsilon": claimed,
                    "attained_epsilon": result.epsilon,
                    "delta": result.delta,
                    "confidence": result.confidence,
                    "attack": result.attack,
                    "neighbouring_relation": result.neighbouring_relation,
                    "refuted": result.violates(claimed),
                }
                for what, claimed, result in found
            ]
        )
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("attacked", no_wrap=True)
        for heading in ("claimed ε at most", "attained ε at least", "δ"):
            table.add_column(heading, justify="right")
        table.add_column("attack")
        for what, claimed, result in found:
            cells = (rounded(claimed, up=True), rounded(result.epsilon, up=False), f"{result.delta:g}")
            table.add_row(what, *cells, result.attack)
        _print(table)
        for what, claimed, result in found:
            verdict_ = "REFUTES the claim" if result.violates(claimed) else "is consistent with it"
            _print(f"{what}: at {result.confidence:.4g} confidence the attack {verdict_}.")
    if any(result.violates(claimed) for _, claimed, result in found):
        raise typer.Exit(1)


@app.command("mechanisms", cls=_Command)
def mechanisms_command(
    dim: DimOption = None,
    local_epsilon: Annotated[
        float | None,
        typer.Option("--local-epsilon", "-e", parser=number, metavar="EPS0", help="ε0 of one report."),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            metavar="NORM",
            help="What clients hold: vectors in an l1, l2 or linf ball, or categories. Each mechanism's own "
            "unless given.",
        ),
    ] = None,
    radius: Annotated[
        float,
        typer.Option("--radius", parser=number, metavar="R", help="Radius of the ball of the vectors."),
    ] = 1.0,
    timed: Annotated[
        bool,
        typer.Option("--time", metavar="", help="Measure the time of a report too; some ten seconds."),
    ] = False,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw error against bits (Matplotlib).")
    ] = None,
) -> None:
    """The randomizers by name; with --dim and --local-epsilon also their error and bits."""
    if (dim is None) != (local_epsilon is None):
        raise typer.BadParameter("give --dim and --local-epsilon together, or neither")
    if dim is None or local_epsilon is None:
        if norm is not None or plot is not None or radius != 1 or timed:
            raise typer.BadParameter("--norm, --radius, --time and --plot need --dim and --local-epsilon")
        entries = [{"name": name, "summary": registry.summary(name)} for name in registry.available()]
        return _print_json(entries) if as_json else _print(catalogue_table(entries))
    from shuffle_plugins.planning.choosing import choices

    _check_picture(plot)
    found, refused = choices(
        local_epsilon=local_epsilon,
        dim=dim,
        norm=cast("Domain | None", norm),
        radius=radius,
        timed=timed,
    )
    if as_json:
        _print_json([*map(asdict, found), *map(asdict, refused)])
    else:
        _print(choices_table(found, one_question=norm is not None, width=_width()))
        for reason in dict.fromkeys(each.reason for each in refused):
            names = ", ".join(each.name for each in refused if each.reason == reason)
            _say(f"Left out: {names}: {reason.removeprefix(f'{names} ')}.")
    if plot is not None:
        domains = dict.fromkeys(norm or each.domain for each in found)
        plot_choices(
            panels={
                f"{_HELD[domain]}, dim = {dim:,}, ε0 = {local_epsilon:g}": [
                    each for each in found if norm is not None or each.domain == domain
                ]
                for domain in domains
            },
            path=plot,
        )
    _say(_drawn(plot), aside=as_json)
    return None


@app.command("budget", cls=_Command)
def budget_command(
    ledger: Annotated[
        Path, typer.Argument(metavar="LEDGER", help="File of a server's or of a client's ledger; only read.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Only this model; all unless given.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta", "-d", parser=number, metavar="DELTA", help="δ in (0, 1), the run's own; else 1e-5."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What federated training has cost, by model and run, or one client by run; also while it is going on."""
    from shuffle_plugins.ledger.client import is_client_ledger
    from shuffle_plugins.ledger.summary import read_budget

    if is_client_ledger(ledger):
        if model is not None:
            raise typer.BadParameter("--model is for a server's ledger; this is a client's")
        return _client_budget(ledger, delta=delta, as_json=as_json)
    budgets = read_budget(ledger, delta=_DELTA if delta is None else delta, model=model)
    if as_json:
        return _print_json([_budget_json(budget) for budget in budgets])
    for budget in budgets:
        _print(budget_table(budget), *budget_footing(budget), "")
    if budgets and delta is None:
        _say(f"A ledger has no δ of its own: this is for {_DELTA:g}; give the run's by --delta.")
    return _say(None if budgets else "No rounds yet.")


def _client_budget(ledger: Path, *, delta: float | None, as_json: bool) -> None:
    from shuffle_plugins.ledger.summary import read_client_budget

    budget = read_client_budget(ledger, delta=_DELTA if delta is None else delta)
    if as_json:
        runs = [{"run": run, **_client_json(spent)} for run, spent in budget.runs.items()]
        return _print_json(
            {"client": True, "delta": budget.delta, **_client_json(budget.total), "runs": runs}
        )
    if not budget.runs:
        return _say("No rounds yet.")
    _print(client_table(budget), *client_footing(budget), "")
    return _say(
        f"A ledger has no δ of its own: this is for {_DELTA:g}; give the run's by --delta."
        if delta is None
        else None
    )


def _client_json(spent: ClientSpent) -> dict[str, Any]:
    spending = spent.spending
    return {
        "rounds": spending.reports,
        "server_upper": spent.epsilon if math.isfinite(spent.epsilon) else None,
        "local_epsilon": spending.local_epsilon if math.isfinite(spending.local_epsilon) else None,
        "local_delta": spending.local_delta,
    }


def _needed(value: T | None, option: str) -> T:
    if value is None:
        raise typer.BadParameter(f"{option} is needed")
    return value


def _round(
    *,
    local_epsilon: float,
    population: int,
    cohort: float | None,
    scheme: Scheme,
    randomizer: Randomizer,
) -> ShuffleRound:
    from shuffle_plugins.accounting import Adversary, Sampling, ShuffleRound

    hiding, cohort = _participants(population=population, cohort=cohort, scheme=scheme)
    factory = _blanket_factory(randomizer)
    return ShuffleRound(
        local_epsilon=local_epsilon,
        population=hiding,
        cohort=cohort,
        sampling=Sampling(scheme.sampling),
        adversary=Adversary(scheme.adversary),
        mechanism=randomizer.mechanism,
        blanket=factory(local_epsilon) if factory else None,
        local_delta=randomizer.local_delta,
    )


def _participants(*, population: int, cohort: float | None, scheme: Scheme) -> tuple[int, float]:
    """(n, k) to account for.

    Under full participation sampling earns nothing: a client hides among the reports of its cohort alone, so
    a cohort smaller than the population is the whole population of its rounds.
    """
    if scheme.sampling != "full":
        if cohort is None:
            raise typer.BadParameter(f"--cohort is needed under {scheme.sampling} sampling")
        return population, cohort
    if cohort is None:
        return population, population
    alone = 0 < cohort < population and float(cohort).is_integer()
    return (int(cohort) if alone else population), cohort


def _compare(shuffle_round: ShuffleRound, *, num_steps: int, delta: float, scheme: Scheme) -> Comparison:
    """The package's own bounds; published ones stand beside them on request."""
    from shuffle_plugins.accounting.comparison import compare

    return compare(
        shuffle_round=shuffle_round,
        num_steps=num_steps,
        delta=delta,
        method=scheme.composition,
        published=(),
    )


def _show(answer: Comparison, *, published: Sequence[str], population: int) -> None:
    """Print the certified interval at once, then the table of all bounds."""
    _print(verdict(answer))
    sys.stdout.flush()
    with _patience("published bounds") as progress:
        answer = answer.beside(published, progress=progress)
    _print(bounds_table(answer, width=_width()))
    _say(_only_the_cohort(answer, population=population))


def _only_the_cohort(answer: Comparison, *, population: int) -> str | None:
    counted = answer.shuffle_round.population
    if counted == population:
        return None
    return (
        f"Full participation: sampling earns nothing, so this counts only the {counted:,} reports shuffled "
        f"together, everybody among them, not the population of {population:,}."
    )


def _capped(solve: Unknown, found: float) -> str | None:
    from shuffle_plugins.accounting import LARGEST_SEARCHED_LOCAL_EPSILON
    from shuffle_plugins.accounting.calibrate import MAX_NUM_STEPS

    if solve is Unknown.LOCAL_EPSILON and found >= LARGEST_SEARCHED_LOCAL_EPSILON:
        cap = f"ε0 = {LARGEST_SEARCHED_LOCAL_EPSILON:g}"
    elif solve is Unknown.ROUNDS and found >= MAX_NUM_STEPS:
        cap = f"T = {MAX_NUM_STEPS:,}"
    else:
        return None
    return f"{cap} is the solver's cap, not the target's: more may stay within the target too."


def _check_picture(path: Path | None) -> None:
    if path is not None:
        check_drawable(path)


def _drawn(path: Path | None) -> str | None:
    return None if path is None else f"Picture written to {path}"


def _blanket_factory(randomizer: Randomizer) -> Callable[[float], Blanket] | None:
    mechanism, dim = randomizer.mechanism, randomizer.dim
    if mechanism == GENERIC:
        return None
    if randomizer.local_delta > 0:
        raise typer.BadParameter("--local-delta is for --mechanism generic")

    def blanket(local_epsilon: float) -> Blanket:
        if dim is not None:
            own = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=dim)
            if own.local_epsilon != local_epsilon:
                raise typer.BadParameter(
                    f"reports of {mechanism} are (ε0, δ0)-LDP: use --mechanism generic with --local-delta"
                )
            return own
        found = {registry.blanket(mechanism, local_epsilon=local_epsilon, dim=probe) for probe in _PROBE_DIMS}
        if len(found) > 1:
            raise typer.BadParameter(f"--dim is needed: the blanket of {mechanism} depends on the dimension")
        return found.pop()

    return blanket


def _spread(rounds: int) -> list[int]:
    """About a dozen numbers of rounds from 1 to T, evenly spread in logarithm."""
    if rounds < 1:
        return []
    ratio = math.log(rounds) / (_PLOT_POINTS - 1)
    return sorted({round(math.exp(i * ratio)) for i in range(_PLOT_POINTS)})


def _answer_json(answer: Comparison) -> dict[str, Any]:
    asked = answer.shuffle_round
    return {
        "mechanism": asked.mechanism,
        "local_epsilon": asked.local_epsilon,
        "local_delta": asked.local_delta,
        "population": asked.population,
        "cohort": asked.cohort,
        "sampling": str(asked.sampling),
        "adversary": str(asked.adversary),
        "rounds": answer.num_steps,
        "delta": answer.interval.delta,
        "lower": answer.interval.lower,
        "upper": answer.interval.upper,
        "upper_bound": answer.interval.upper_bound,
        "lower_bound": answer.interval.lower_bound,
        "neighbouring_relation": answer.interval.neighbouring_relation,
        "bounds": [
            {"name": b.name, "kind": b.kind, "epsilon": b.epsilon, "source": b.source} for b in answer.bounds
        ],
    }


def _budget_json(budget: ModelBudget) -> dict[str, Any]:
    runs = [{"run": run, **_spent_json(spent)} for run, spent in budget.runs.items()]
    return {"model": budget.model, **_spent_json(budget.total), "runs": runs}


def _spent_json(spent: Spent) -> dict[str, Any]:
    spending = spent.spending
    return {
        "rounds": {str(state): count for state, count in spent.rounds.items()},
        "rounds_charged": spending.num_rounds,
        "reports": spent.reports,
        "worst_client_rounds": spending.worst_client_rounds,
        "delta": spending.delta,
        "neighbouring_relation": spending.observer.neighbouring_relation,
        "observer": _interval_json(spending.observer),
        "server": _interval_json(spending.server),
        "local_epsilon": spending.local_epsilon if math.isfinite(spending.local_epsilon) else None,
    }


def _interval_json(found: EpsilonInterval) -> dict[str, Any]:
    return {
        "lower": found.lower,
        "upper": found.upper,
        "adversary": found.adversary,
        "upper_bound": found.upper_bound,
        "lower_bound": found.lower_bound,
    }


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _width() -> int:
    """Columns to print in: the terminal's, or $COLUMNS; enough for the widest layout in a pipe without it."""
    asked = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (asked.isdecimal() and int(asked) > 0):
        return max(_NARROWEST, Console().width)
    return WIDE


def _print(*parts: Any) -> None:
    console = Console(highlight=False, width=_width())
    for part in parts:
        console.print(part)


def _say(note: str | None, *, aside: bool = False) -> None:
    """Print a remark if there is one, on stderr where stdout is for a program to read."""
    if note is not None:
        print(note, file=sys.stderr if aside else sys.stdout)


@contextmanager
def _patience(what: str, *, as_json: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr after half a second, if a person watches; called with the done and the expected."""
    if as_json or not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield lambda done, expected: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    started = Timer(_PATIENCE, bar.start)
    started.daemon = True
    started.start()
    try:
        yield lambda done, expected: bar.update(task, completed=done, total=expected)
    finally:
        started.cancel()
        started.join()
        bar.stop()


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on stderr and exit code 2."""
    try:
        status = app(list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except _CommandLineError as error:
        return _refuse(error.format_message())
    except (ValueError, OSError, PlottingUnavailable) as error:
        return _refuse(str(error))
    except ArithmeticError as error:
        return _refuse(f"out of numerical reach: {error}")
    except typer.Abort:
        return 130
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
