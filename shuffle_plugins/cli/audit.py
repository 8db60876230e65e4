"""``audit``: attack a randomizer, and rounds of it, and compare with what is claimed."""

from __future__ import annotations

from typing import Annotated

import typer

from shuffle_plugins import auditing, mechanisms
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import number_option, option, whole_option
from shuffle_plugins.cli.output import down, up


@commands.asks(without=("local_delta", "records_per_client", "samples_per_client"))
def audit_command(
    context: typer.Context,
    *,
    asked: commands.Question,
    mechanism: Annotated[str, option("--mechanism NAME", "Randomizer to attack.")],
    population: Annotated[
        int | None,
        whole_option("--population -n N", "To attack shuffled rounds as well: clients, a few dozen."),
    ] = None,
    dim: commands.VectorDimOption = 1,
    rounds: commands.RoundsOption = 1,
    delta: Annotated[float, number_option("--delta -d DELTA", "δ of the rounds; 0.001 or more.")] = 0.01,
    trials: Annotated[int, whole_option("--trials N", "Simulated rounds per dataset.")] = 20_000,
    confidence: Annotated[float, number_option("--confidence C", "Confidence of the attack's bound.")] = 0.99,
    as_json: commands.JsonOption = False,
) -> None:
    """Attack a randomizer's reports, and its shuffled rounds; ends with status 1 if a claim is refuted."""
    if population is None:
        of_rounds = ("cohort", "rounds", "delta", "sampling", "adversary", "method")
        commands.refuse_given(context, of_rounds, "without --population a single report is attacked")
    commands.check_one_report(mechanism)
    attacked = mechanisms.get(mechanism, local_epsilon=asked.local_epsilon, dim=dim)
    found = [
        (
            "one report",
            asked.local_epsilon,
            auditing.audit_local(
                attacked, delta=attacked.local_delta, num_trials=trials, confidence=confidence
            ),
        ),
    ]
    if population is not None:
        answer = asked.compare()
        attack = auditing.audit_round(
            attacked,
            answer.shuffle_round,
            delta=delta,
            num_steps=rounds,
            num_trials=trials,
            confidence=confidence,
        )
        found.append(("shuffled rounds", answer.interval.upper, attack))
    values = [
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
    if not output.answered(as_json, values):
        rows = [
            {
                "attacked": what,
                "claimed ε at most": up(claimed),
                "attained ε at least": down(result.epsilon),
                "δ": f"{result.delta:g}",
                "attack": result.attack,
            }
            for what, claimed, result in found
        ]
        output.show(output.table(rows, text={"attacked": "", "attack": ""}))
        for what, claimed, result in found:
            outcome = "REFUTES the claim" if result.violates(claimed) else "is consistent with it"
            output.show(f"{what}: at {result.confidence:.4g} confidence the attack {outcome}.")
    if any(result.violates(claimed) for _, claimed, result in found):
        raise typer.Exit(1)
