"""``shuffle-plugins epsilon``: the ε of T rounds at δ."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.questions import AskedRounds, answer_json, show_answer, warnings
from shuffle_plugins.core import rounded

# Numbers of rounds at which a curve is drawn: enough for a smooth line, few enough for seconds.
_PLOT_POINTS = 13


def epsilon_command(
    context: typer.Context,
    *,
    population: options.PopulationOption,
    local_epsilon: options.LocalEpsilonOption,
    rounds: options.RoundsOption,
    delta: options.DeltaOption,
    cohort: options.CohortOption = None,
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    mechanism: options.MechanismOption = options.GENERIC,
    dim: options.DimOption = None,
    local_delta: options.LocalDeltaOption = 0.0,
    records_per_client: options.RecordsOption = 1,
    samples_per_client: options.SamplesOption = 1,
    everything: Annotated[
        bool,
        typer.Option("--all", metavar="", help="Compute every published bound, not two of them; seconds."),
    ] = False,
    as_json: options.JsonOption = False,
    plot: options.PlotOption = None,
) -> None:
    """The ε of T rounds at δ: certified, and by other bounds."""
    output.check_picture(plot)
    published = accounting.ALL_PUBLISHED if everything else accounting.FEW_PUBLISHED
    asked = AskedRounds.of(context.params)

    def answer(num_steps: int) -> accounting.Comparison:
        return asked.compare(local_epsilon=local_epsilon, num_steps=num_steps, delta=delta)

    found = answer(rounds)
    client = _of_a_client(asked.whole_client(local_epsilon), num_steps=rounds, delta=delta, method=method)
    if as_json:
        also = {} if client is None else {"epsilon_of_a_client": client}
        output.print_json(answer_json(found.beside(published)) | also)
    else:
        show_answer(found, published=published)
        if client is not None:
            output.remark(
                "That is for one record. For neighbours that differ in all records of a client: "
                f"ε ≤ {rounded(client, up=True)}."
            )
        left_out = len(accounting.ALL_PUBLISHED) - len(published)
        output.remark(f"{left_out} more published bounds: --all shows them." if left_out else None)
    output.warn(warnings(found))
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_comparisons

        points = sorted({*_spread(rounds), rounds})
        with output.progress("drawing", as_json=as_json) as progress:
            others = []
            for num_steps in points:
                others.append(answer(num_steps).beside(published))
                progress(len(others), len(points))
        plot_comparisons(comparisons=others, path=plot)
    output.picture_written(plot, as_json=as_json)


def _of_a_client(
    whole: accounting.Round | None, *, num_steps: int, delta: float, method: accounting.Method
) -> float | None:
    """The upper end of ε of these rounds; None if there are none."""
    if whole is None:
        return None
    accountant = accounting.ShuffleAccountant(method=method)
    accountant.step(whole, num_steps=num_steps)
    return accountant.epsilon(delta, lower=False).upper


def _spread(rounds: int) -> list[int]:
    """About a dozen numbers of rounds from 1 to T, evenly spread in logarithm."""
    if rounds < 1:
        return []
    ratio = math.log(rounds) / (_PLOT_POINTS - 1)
    return sorted({round(math.exp(i * ratio)) for i in range(_PLOT_POINTS)})
