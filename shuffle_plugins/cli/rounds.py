"""``epsilon``, ``compare`` and ``calibrate``: what the bounds say of rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.markup import escape

from shuffle_plugins import accounting
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import choice_option, number_option, option

_PLOT_POINTS = 13  # numbers of rounds of a curve: enough for a smooth line, few enough for seconds


def _read_group(text: str) -> tuple[float, int]:
    """ε0 and a number of clients, such as 1.5:2000."""
    level, colon, count = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"--group {text} is not an ε0 and a number of clients, such as 1.5:2000")
    return commands.read_number(level), commands.read_whole(count)


@commands.asks(optional=("population", "local_epsilon"))
def epsilon_command(
    *,
    asked: commands.Question,
    context: typer.Context,
    group: Annotated[
        list[str] | None,
        option(
            "--group EPS0:COUNT",
            "So many clients of this ε0, in place of --population and --local-epsilon; once for each group. "
            "The answer is one ε for the members of each.",
        ),
    ] = None,
    everything: Annotated[
        bool, option("--all", "Compute every published bound, not two of them; seconds.")
    ] = False,
    as_json: commands.JsonOption = False,
    plot: commands.PlotOption = None,
) -> None:
    """The ε of T rounds at δ: certified, and by other bounds."""
    if group:
        unused = ("population", "local_epsilon", "records_per_client", "method", "everything", "plot")
        commands.refuse_given(context, unused, "--group says who takes part")
        _show_groups(asked, [_read_group(each) for each in group], as_json=as_json)
        return
    for name in ("population", "local_epsilon"):
        if getattr(asked, name) is None:
            raise typer.BadParameter(f"give --{name.replace('_', '-')}, or a --group for each ε0")
    output.check_picture(plot)
    published = accounting.ALL_PUBLISHED if everything else accounting.FEW_PUBLISHED
    found = asked.compare()
    client = _of_a_client(asked)
    output.warn(warnings(found))
    if as_json:
        also = {} if client is None else {"epsilon_of_a_client": client}
        output.print_json(answer_json(found.beside(published)) | also)
    else:
        _show_answer(found, published=published)
        if client is not None:
            output.remark(
                "That is for one record. For neighbours that differ in all records of a client: "
                f"ε ≤ {output.up(client)}."
            )
        if left_out := len(accounting.ALL_PUBLISHED) - len(published):
            output.remark(f"{left_out} more published bounds: --all shows them.")
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_comparisons

        ratio = asked.rounds ** (1 / (_PLOT_POINTS - 1))
        points = sorted({*(round(ratio**i) for i in range(_PLOT_POINTS)), asked.rounds})
        others = []
        progress = output.progress("drawing")
        for rounds in points:
            others.append(replace(asked, rounds=rounds).compare().beside(published))
            progress(len(others), len(points))
        plot_comparisons(comparisons=others, path=plot)
        output.picture_written(plot, as_json=as_json)


def _show_groups(asked: commands.Question, groups: Sequence[tuple[float, int]], *, as_json: bool) -> None:
    """ε for the members of each group: hidden by their own group alone, and by all in one encoding."""
    population = sum(count for _, count in groups)
    cohort = commands.taking_part(population, asked.cohort, sampling=asked.sampling)
    output.progress("composing")
    names = {"labelled": "reports show their group", "one_encoding": "one encoding"}
    answers: list[dict[str, Any]] = []
    for (level, count), among in zip_longest(groups, _one_encoding(asked, groups, cohort=cohort)):
        share = _share(cohort, count, population, asked)
        own = replace(asked, population=count, local_epsilon=level, cohort=share).round()
        found = {"labelled": output.certified(own, delta=asked.delta, rounds=asked.rounds)}
        if among is not None:
            found["one_encoding"] = output.certified(among, delta=asked.delta, rounds=asked.rounds)
        answers.append({"local_epsilon": level, "population": count, "cohort": share, **found})
    kinds = [kind for kind in names if kind in answers[0]]
    values = {
        "groups": [each | {kind: output.interval_json(each[kind]) for kind in kinds} for each in answers],
        "mechanism": asked.mechanism,
        "sampling": asked.sampling,
        "adversary": asked.adversary,
        "rounds": asked.rounds,
        "delta": asked.delta,
        "neighbouring_relation": accounting.NEIGHBOURING_RELATION,
    }
    if output.answered(as_json, values, warnings=output.delta_warnings(asked.delta, population=population)):
        return
    rows = [
        {
            "ε0": f"{each['local_epsilon']:g}",
            "clients": f"{each['population']:,}",
            **{names[kind]: output.interval(each[kind]) for kind in kinds},
        }
        for each in answers
    ]
    output.show(output.table(rows, text={names[kind]: "" for kind in kinds}))
    output.remark(
        f"{asked.mechanism} · T = {asked.rounds:,} · δ = {asked.delta:g} · {values['neighbouring_relation']} "
        f"neighbours · adversary: {asked.adversary}"
    )
    if asked.mechanism not in accounting.ONE_ENCODING:
        output.remark(
            f"Reports of {asked.mechanism} may show their ε0, so that only a member's own group hides it. "
            f"Those of {', '.join(sorted(accounting.ONE_ENCODING))} do not."
        )


def _one_encoding(
    asked: commands.Question, groups: Sequence[tuple[float, int]], *, cohort: float
) -> tuple[accounting.GroupsRound, ...]:
    """The round for members of each group among all; none if reports may differ, or it is not accounted."""
    factory = asked.blanket_factory()
    if factory is None or asked.mechanism not in accounting.ONE_ENCODING:
        return ()
    sampling, server = accounting.Sampling(asked.sampling), asked.adversary == "server"
    known = server and sampling is accounting.Sampling.WITHOUT_REPLACEMENT
    if known or sampling is accounting.Sampling.SINGLE_PASS:  # all of those who report do
        everybody = sum(count for _, count in groups)
        groups = [(each, int(_share(cohort, count, everybody, asked))) for each, count in groups]
        sampling = accounting.Sampling.FULL
    elif server and sampling is not accounting.Sampling.FULL:
        return ()
    return accounting.GroupsRound.each_of(
        groups,
        blanket=factory,
        cohort=cohort,
        sampling=sampling,
        adversary=accounting.Adversary(asked.adversary),
        mechanism=asked.mechanism,
        channel_fixed=True,
    )


def _share(cohort: float, count: int, population: int, asked: commands.Question) -> float:
    """The cohort of a group, in proportion to its clients."""
    share = cohort * count / population
    if asked.sampling not in ("poisson", "check-in") and not share.is_integer():
        raise typer.BadParameter(
            f"of {cohort:,.12g} clients {share:,.6g} would be of a group of {count:,}: give a --cohort that "
            "the groups share evenly, or --sampling poisson"
        )
    return share


def _of_a_client(asked: commands.Question) -> float | None:
    """ε for neighbours that differ in all records of a client; None if it is the same, or not accounted."""
    one_record = asked.round()
    if not isinstance(one_record, accounting.SampledRecordsRound):
        return None
    whole: accounting.Round = one_record.clients
    if asked.samples_per_client > 1:
        if one_record.sampling not in accounting.SeveralReportsRound.SAMPLINGS:
            return None
        whole = accounting.SeveralReportsRound.of(
            one_record.clients, reports_per_client=asked.samples_per_client
        )
    accountant = accounting.ShuffleAccountant(method=asked.method)
    accountant.step(whole, num_steps=asked.rounds)
    return accountant.epsilon(asked.delta, lower=False).upper


@commands.asks()
def compare_command(
    *,
    asked: commands.Question,
    local_epsilon: Annotated[str, option("--local-epsilon -e EPS0,…", "One ε0 or several, comma-separated.")],
    rounds: Annotated[
        str,
        option("--rounds -t T,…", f"One number or several. {commands.NUMBERS['rounds'].hint}"),
    ] = "1,10,100,1000,10000",
    as_json: commands.JsonOption = False,
    plot: commands.PlotOption = None,
) -> None:
    """The ε of every bound over several numbers of rounds and several ε0; up to seconds for each of them."""
    output.check_picture(plot)
    steps = commands.read_list(rounds, commands.read_whole, "--rounds")
    levels = commands.read_list(local_epsilon, commands.read_number, "--local-epsilon")
    if not steps or not levels:
        raise typer.BadParameter("give at least one number of rounds and one ε0")
    answers: list[accounting.Comparison] = []
    progress = output.progress("comparing")
    for level in levels:
        for each in steps:
            answer = replace(asked, local_epsilon=level, rounds=each).compare()
            answers.append(answer.beside(accounting.ALL_PUBLISHED))
            progress(len(answers), len(levels) * len(steps))
    output.warn(warnings(answers[0]))
    if as_json:
        output.print_json([answer_json(answer) for answer in answers])
    else:
        for level in levels:
            same = [answer for answer in answers if answer.shuffle_round.local_epsilon == level]
            output.show(*output.rounds_tables(same))
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_comparisons

        plot_comparisons(comparisons=answers, path=plot)
        output.picture_written(plot, as_json=as_json)


def central_command(
    *,
    population: commands.PopulationOption,
    rounds: Annotated[int, commands.NUMBERS["rounds"]._replace(hint="").option()],
    delta: commands.DeltaOption,
    noise_multiplier: Annotated[
        float,
        number_option(
            "--noise-multiplier Z",
            "Deviation of the noise over the norm that vectors are clipped to, as in Opacus and in Flower's "
            "strategies. Replaced vectors are two such norms apart, which is counted.",
        ),
    ],
    cohort: Annotated[
        float | None,
        commands.NUMBERS["cohort"]
        ._replace(
            label="Clients that take part",
            hint="The expected number under poisson; under full everybody's.",
        )
        .option(),
    ] = None,
    sampling: Annotated[
        str,
        choice_option(
            "--sampling SCHEME",
            "How the cohort is chosen",
            {
                "without-replacement": "k of n each round",
                "poisson": "as Opacus does",
                "full": "everybody, or against who sees the cohort",
            },
        ),
    ] = "without-replacement",
    neighbours: Annotated[
        str,
        choice_option(
            "--neighbours RELATION",
            "Which datasets are told apart",
            {"replace-one": "as everywhere else here", "add-or-remove-one": "as in Opacus"},
        ),
    ] = "replace-one",
    as_json: commands.JsonOption = False,
) -> None:
    """The ε of DP-SGD or DP-FedAvg with a trusted server, to be compared with what a shuffler gives."""
    relation = accounting.NeighbouringRelation(neighbours)
    replaced = relation is accounting.NeighbouringRelation.REPLACE_ONE
    if not replaced and sampling == "without-replacement":
        raise typer.BadParameter(
            "with a client more or less, k of n are drawn by another law: --neighbours add-or-remove-one "
            "needs --sampling poisson, or full"
        )
    central = accounting.CentralGaussianRound(
        noise_multiplier=noise_multiplier / 2 if replaced else noise_multiplier,
        population=population,
        cohort=commands.taking_part(population, cohort, sampling=sampling),
        sampling=accounting.Sampling(sampling),
        neighbouring_relation=relation,
    )
    output.progress("composing")
    found = output.certified(central, delta=delta, rounds=rounds)
    values = {
        "noise_multiplier": noise_multiplier,
        "population": population,
        "cohort": central.cohort,
        "sampling": sampling,
        "rounds": rounds,
        "delta": delta,
        **output.interval_json(found),
        "neighbouring_relation": neighbours,
        "trusted": "server",
    }
    if not output.answered(as_json, values, warnings=output.delta_warnings(delta, population=population)):
        output.show(
            f"[bold]{escape(output.interval(found))}[/] at δ = {delta:g} · {neighbours} · trusted server\n"
            f"n = {population:,} · k = {central.cohort:,.12g} ({sampling}) · "
            f"noise multiplier = {noise_multiplier:g} · T = {rounds:,}"
        )


class Unknown(StrEnum):
    """The quantity that ``calibrate`` solves for, given the others."""

    LOCAL_EPSILON = "local-epsilon"
    ROUNDS = "rounds"
    COHORT = "cohort"


@commands.asks(optional=("local_epsilon", "rounds"))
def calibrate_command(
    *,
    asked: commands.Question,
    target_epsilon: commands.TargetOption,
    solve: Annotated[
        Unknown,
        option(
            "--solve WHAT", "What to solve for: local-epsilon, rounds or cohort; the others are required."
        ),
    ] = Unknown.LOCAL_EPSILON,
    as_json: commands.JsonOption = False,
) -> None:
    """The largest ε0, the most rounds, or the cohort that stays within (ε, δ)."""
    for each in (Unknown.LOCAL_EPSILON, Unknown.ROUNDS, Unknown.COHORT):
        given = getattr(asked, each.replace("-", "_"))
        if each is solve and given is not None:
            raise typer.BadParameter(f"leave out --{solve}: it is what --solve asks for")
        if each not in (solve, Unknown.COHORT) and given is None:
            raise typer.BadParameter(f"--{each} is needed")
    goal: dict[str, Any] = {
        "target_epsilon": target_epsilon,
        "delta": asked.delta,
        "method": asked.method,
        "sampling": asked.sampling,
        "adversary": asked.adversary,
        "mechanism": asked.mechanism,
        "records_per_client": asked.records_per_client,
        "samples_per_client": asked.samples_per_client,
        "channel_fixed": True,
    }
    found: float
    cap = ""
    output.progress("calibrating")
    if solve is Unknown.LOCAL_EPSILON:
        population, cohort = asked.participants()
        found = accounting.calibrate_local_epsilon(
            **goal,
            population=population,
            cohort=cohort,
            num_steps=asked.rounds,
            blanket_factory=asked.blanket_factory(),
        )
        asked = replace(asked, local_epsilon=found)
        if found >= accounting.LARGEST_SEARCHED_LOCAL_EPSILON:
            cap = f"ε0 = {accounting.LARGEST_SEARCHED_LOCAL_EPSILON:g}"
    elif solve is Unknown.ROUNDS:
        found = accounting.calibrate_num_steps(
            target_epsilon=target_epsilon,
            delta=asked.delta,
            shuffle_round=asked.round(),
            method=asked.method,
        )
        asked = replace(asked, rounds=found)
        if found >= accounting.MAX_NUM_STEPS:
            cap = f"T = {accounting.MAX_NUM_STEPS:,}"
    else:
        found = accounting.calibrate_cohort(
            **goal,
            population=asked.population,
            local_epsilon=asked.local_epsilon,
            num_steps=asked.rounds,
            blanket=asked.blanket(),
        )
        asked = replace(asked, cohort=found)
    answer = asked.compare()
    told = warnings(answer)
    if cap:
        told.append(f"{cap} is the solver's cap, not the target's: more may stay within the target too")
    output.warn(told)
    if as_json:
        beside = answer.beside(accounting.FEW_PUBLISHED)
        output.print_json({"solve": solve.value, "value": found, **answer_json(beside), "warnings": told})
    else:
        shown = f"{found:,}" if isinstance(found, int) else output.down(found, digits=6)
        output.show(f"[bold]{solve} = {shown}[/] keeps the certified ε within {target_epsilon:g}")
        _show_answer(answer, published=accounting.FEW_PUBLISHED)


def _show_answer(answer: accounting.Comparison, *, published: Sequence[str]) -> None:
    """Print the certified interval at once, then the table of all bounds."""
    output.show(output.verdict(answer))
    sys.stdout.flush()
    progress = output.progress("published bounds")
    answer = answer.beside(published, progress=progress)
    output.show(output.bounds_table(answer))


def warnings(answer: accounting.Comparison) -> list[str]:
    """What makes the answer's ε worth little."""
    return output.delta_warnings(answer.interval.delta, population=answer.shuffle_round.population)


def answer_json(answer: accounting.Comparison) -> dict[str, Any]:
    """The round, its certified interval and every bound, as plain values."""
    asked, interval = answer.shuffle_round, answer.interval
    records = {}
    if isinstance(asked, accounting.SampledRecordsRound):
        records = {
            "records_per_client": asked.records_per_client,
            "samples_per_client": asked.samples_per_client,
        }
    return {
        "mechanism": asked.mechanism,
        "local_epsilon": asked.local_epsilon,
        "local_delta": asked.local_delta,
        "population": asked.population,
        "cohort": asked.cohort,
        **records,
        "sampling": str(asked.sampling),
        "adversary": str(asked.adversary),
        "rounds": answer.num_steps,
        "delta": interval.delta,
        **output.interval_json(interval),
        "neighbouring_relation": interval.neighbouring_relation,
        "bounds": [asdict(bound) for bound in answer.bounds],
        "warnings": warnings(answer),
    }
