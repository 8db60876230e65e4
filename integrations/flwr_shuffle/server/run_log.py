"""What a run's log says: what protects the clients, what was spent, how strong the noise is."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Literal

from flwr_shuffle.evaluation import PrivateEvaluation
from flwr_shuffle.server.sampling import SelfSampling
from flwr_shuffle.server.settings import Settings
from flwr_shuffle.server.spending_record import SpendingRecord
from shuffle_plugins.accounting import delta_warning
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.planning import ExpectedNoise, expected_noise

_log = logging.getLogger("flwr")

_NAMED = 5  # how many arrays a line of the log names

OPEN_EVALUATION = "Evaluation is NOT private: clients' evaluate replies reach the server as they are"


def log_summary(
    settings: Settings,
    record: SpendingRecord,
    *,
    clipping_norm: float,
    evaluation: PrivateEvaluation | Literal["raw"] | None,
    one_reply: bool,
) -> None:
    """Log what protects the clients of a run, and what was spent.

    Args:
        settings: the run's settings.
        record: the record of what the run's rounds cost.
        clipping_norm: clipping norm of the coming round.
        evaluation: what clients are asked about a model.
        one_reply: whether the inner strategy is known to work with one reply.
    """
    drawn, each = settings.samples_per_client, settings.records_per_client
    on = f" on each of {drawn} of {each} records of a client" if each > 1 else ""
    budget = "none"
    if settings.max_epsilon is not None:
        budget = f"ε ≤ {settings.max_epsilon:g} against {settings.adversary}"
    lines = [
        f"Randomizer: {settings.mechanism.name}, ε0 = {settings.mechanism.local_epsilon:g}{on}",
        f"Clipping norm: {clipping_norm:g}",
        f"Sampling: {settings.sampling} of at least {settings.population} clients",
        f"Fewest reports: {settings.fewest_reports}",
        f"Assumed honest: {settings.honest_fraction:.0%} of the clients",
        f"Budget: {budget}, δ = {settings.delta:g}, replace-one neighbours",
        f"Recorded: {record.where}",
    ]
    if rounds := record.accountant.num_rounds:
        lines.append(f"Spent: {record} ({rounds} rounds)")
    if (shown := delta_warning(settings.delta, population=settings.population)) is not None:
        lines.append(shown)
    if evaluation == "raw":
        lines.append(OPEN_EVALUATION)
    elif evaluation is None:
        lines.append("Evaluation: clients are asked nothing (evaluation=None)")
    if not one_reply:
        lines.append("The inner strategy's own aggregate_train gets one reply, the mean of all reports")
    if (opened := open_participation(settings)) is not None:
        lines.append(opened)
    _log.info("\t├──> Shuffle-model differential privacy:")
    for line in lines:
        _log.info("\t│\t├── %s", line)
    _log.info("\t│\t└── Trust: %s", settings.stage.trust)


def open_participation(settings: Settings) -> str | None:
    """That clients' secret coins are open to this process; None if they are not, or nobody tosses any."""
    stage = settings.stage
    hidden = stage.hides_shares or (stage.analyzer_key and not stage.adds_up)
    if hidden or not isinstance(settings.sampling, SelfSampling):
        return None
    stages = "a stage that hides shares" if stage.adds_up else "a mix node"
    return f"Participation is open to this process: only {stages} hides it from the server"


def log_statistics(names: Sequence[str], *, before: Sequence[str]) -> None:
    """Log that running statistics are not trained, if there are other ones than in the round before."""
    if names and names != before:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _log.warning(
            "Running statistics stay at the server's values: %s%s. With noise a variance would soon be "
            "negative. Take another normalization, such as GroupNorm, or evaluate with statistics of public "
            "data",
            ", ".join(names[:_NAMED]),
            more,
        )


def log_outlook(mechanism: PrivateSum, *, reports: float, num_rounds: int) -> None:
    """Log how a round's noise compares with the largest mean that clipping allows, and warn if noise wins.

    Noise wins if the noise of all rounds together is expected to be longer than the sum of all means, even if
    every update were as long as clipping allows and all of them had one direction. Then the model moves more
    by noise than by training, however it is trained.

    Args:
        mechanism: the mechanism of the reports, built for the model's dimension.
        reports: how many reports are expected in one round.
        num_rounds: number of rounds of the whole run.
    """
    outlook = expected_noise(mechanism, cohort=reports)
    over = outlook.signal_to_noise_ratio_over(num_rounds)
    _log.info(
        "Expected noise: %.3g long in the mean of %.0f reports of %s numbers; the largest mean that clipping "
        "allows is %.3g long. Signal to noise: at most %.2g in one round, %.2g over all %d",
        outlook.noise,
        reports,
        f"{outlook.dim:,}",
        outlook.largest_signal,
        outlook.signal_to_noise_ratio,
        over,
        num_rounds,
    )
    if over < 1:
        _log.warning(
            "This run will move the model by noise more than by training: signal to noise is at most %.2g "
            "over all rounds. What would help: about %s reports in each round, for a ratio of 1; or %s",
            over,
            f"{_reports_for_one(outlook, over):,.0f}",
            "; ".join(outlook.remedies()[1:]),
        )


def _reports_for_one(outlook: ExpectedNoise, ratio: float) -> float:
    """Reports of a round with which the ratio would be 1; a sum would have to be built anew for so many."""
    more = 1 / ratio if outlook.local_epsilon is None else 1 / ratio**2
    return math.ceil(outlook.cohort * more)
