"""``shuffle-plugins audit``: attack a randomizer, and rounds of it, and compare with what is claimed."""

from __future__ import annotations

from typing import Annotated

import typer

from shuffle_plugins import auditing, mechanisms
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.questions import AskedRounds, check_one_report
from shuffle_plugins.cli.tables import plain_table
from shuffle_plugins.core import rounded


def audit_command(
    context: typer.Context,
    *,
    mechanism: Annotated[str, typer.Option("--mechanism", metavar="NAME", help="Randomizer to attack.")],
    local_epsilon: options.LocalEpsilonOption,
    dim: options.VectorDimOption = 1,
    population: Annotated[
        int | None,
        options.whole_option(
            "--population",
            "-n",
            metavar="N",
            help="Clients in the population, to attack shuffled rounds as well; a few dozen.",
        ),
    ] = None,
    cohort: options.CohortOption = None,
    rounds: options.RoundsOption = 1,
    delta: Annotated[
        float,
        options.number_option(
            "--delta",
            "-d",
            metavar="DELTA",
            help="δ of the rounds; 0.001 or more.",
        ),
    ] = 0.01,
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    trials: options.TrialsOption = 20_000,
    confidence: options.ConfidenceOption = 0.99,
    as_json: options.JsonOption = False,
) -> None:
    """Attack a randomizer's reports, and its shuffled rounds; ends with status 1 if a claim is refuted."""
    if population is None:
        of_rounds = ("cohort", "rounds", "delta", "sampling", "adversary", "method")
        options.refuse_given(context, of_rounds, "without --population a single report is attacked")
    check_one_report(mechanism)
    attacked = mechanisms.get(mechanism, local_epsilon=local_epsilon, dim=dim)
    found = [
        (
            "one report",
            local_epsilon,
            auditing.audit_local(
                attacked, delta=attacked.local_delta, num_trials=trials, confidence=confidence
            ),
        ),
    ]
    if population is not None:
        asked = AskedRounds.of(context.params)
        answer = asked.compare(local_epsilon=local_epsilon, num_steps=rounds, delta=delta)
        attack = auditing.audit_round(
            attacked,
            answer.shuffle_round,
            delta=delta,
            num_steps=rounds,
            num_trials=trials,
            confidence=confidence,
        )
        found.append(("shuffled rounds", answer.interval.upper, attack))
    if as_json:
        output.print_json(
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
        table = plain_table()
        table.add_column("attacked", no_wrap=True)
        for heading in ("claimed ε at most", "attained ε at least", "δ"):
            table.add_column(heading, justify="right")
        table.add_column("attack")
        for what, claimed, result in found:
            cells = (rounded(claimed, up=True), rounded(result.epsilon, up=False), f"{result.delta:g}")
            table.add_row(what, *cells, result.attack)
        output.show(table)
        for what, claimed, result in found:
            outcome = "REFUTES the claim" if result.violates(claimed) else "is consistent with it"
            output.show(f"{what}: at {result.confidence:.4g} confidence the attack {outcome}.")
    if any(result.violates(claimed) for _, claimed, result in found):
        raise typer.Exit(1)
