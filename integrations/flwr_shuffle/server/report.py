"""What a run says of its privacy: in the log, and as a statement."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

from flwr_shuffle.server.sampling import SelfSampling
from flwr_shuffle.server.settings import Settings
from flwr_shuffle.server.spending_record import SpendingRecord
from flwr_shuffle.updates import UpdateTerms
from shuffle_plugins.accounting import Cover, DataAccess, PrivacyStatement, Unit
from shuffle_plugins.accounting.statement import delta_warning
from shuffle_plugins.mechanisms import PrivateSum, SumSpec
from shuffle_plugins.planning import expected_noise

_log = logging.getLogger("flwr")

_NAMED = 5  # how many arrays a line of the log names

OPEN_EVALUATION = "Evaluation is NOT private: clients' evaluate replies reach the server as they are"


def log_summary(settings: Settings, record: SpendingRecord, *, clipping_norm: float, one_reply: bool) -> None:
    """Log what protects the clients of a run, the coming round's clipping norm, and what was spent.

    ``one_reply`` is whether the inner strategy is known to work with one reply.
    """
    drawn, each = settings.updates.samples_per_client, settings.updates.records_per_client
    on = f" on each of {drawn} of {each} records of a client" if each > 1 else ""
    budget = "none"
    if settings.max_epsilon is not None:
        budget = f"ε ≤ {settings.max_epsilon:g} against {settings.adversary}"
    lines = [
        f"Randomizer: {settings.mechanism.name}, ε0 = {settings.mechanism.local_epsilon:g}{on}",
        f"Clipping norm: {clipping_norm:g}",
        f"Sampling: {settings.sampling} of at least {settings.population} clients",
        f"Fewest reports: {settings.fewest_reports}",
        f"Assumed honest: {settings.sampling.honest_fraction:.0%} of the clients",
        f"Budget: {budget}, δ = {settings.delta:g}, replace-one neighbours",
        f"Recorded: {record.where}",
    ]
    if rounds := record.accountant.num_rounds:
        lines.append(f"Spent: {record} ({rounds} rounds)")
    if (shown := delta_warning(settings.delta, population=settings.population)) is not None:
        lines.append(shown)
    if settings.evaluation == "raw":
        lines.append(OPEN_EVALUATION)
    elif settings.evaluation is None:
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

    It wins if the noise of all rounds is expected to be longer than the sum of all means, even if every
    update were as long as clipping allows and all of them had one direction: then noise moves the model more
    than training.
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
        # reports of a round with which the ratio would be 1; a sum would have to be built anew for so many
        enough = outlook.cohort / (over if outlook.local_epsilon is None else over**2)
        _log.warning(
            "This run will move the model by noise more than by training: signal to noise is at most %.2g "
            "over all rounds. What would help: about %s reports in each round, for a ratio of 1; or %s",
            over,
            f"{math.ceil(enough):,}",
            "; ".join(outlook.remedies()[1:]),
        )


def statement_of(
    settings: Settings, record: SpendingRecord, *, delta: float, unit: Unit, terms: UpdateTerms
) -> PrivacyStatement:
    """The privacy statement of a run; a round under way is stated at its highest cost."""
    warnings = []
    if settings.evaluation == "raw":
        warnings.append(OPEN_EVALUATION)
    if record.under_way:
        warnings.append("a round is under way, and is charged the most that it can cost")
    return PrivacyStatement.of(
        record.charged(),
        delta=delta,
        subject=f"federated training by flwr_shuffle, recorded {record.kept}",
        unit=unit,
        trust=tuple(_trust(settings)),
        clipping=_clipping(settings, terms),
        accesses=tuple(_accesses(settings, record, terms)),
        warnings=warnings,
        target_epsilon=settings.max_epsilon,
        target_delta=settings.delta,
        target_adversary=settings.adversary,
        packages=("torch", "flwr"),
    )


def _trust(settings: Settings) -> Iterator[str]:
    stage = settings.stage
    yield stage.trust
    opened = open_participation(settings)
    if opened is not None:
        yield opened
    if stage.analyzer_key and not stage.adds_up:
        if isinstance(settings.sampling, SelfSampling):
            yield (
                "the first mixer sees who sent a dummy, so that secret participation hides nobody from it; ε "
                "against a mixer that also reads the models is not stated"
            )
        else:
            yield (
                "a mixer that also reads the models learns no more than the server, whose ε holds against it"
            )
    yield "whoever submits the app is trusted with the code that runs on clients, mix nodes and aggregators"
    share: float | None = settings.sampling.honest_fraction
    if isinstance(settings.mechanism, SumSpec):
        share = getattr(settings.mechanism.protocol, "honest_fraction", None)
    counted = "an unknown share" if share is None else f"{share:.0%}"
    yield f"{counted} of the clients are counted on to follow the protocol and not to help the adversary"


def _clipping(settings: Settings, terms: UpdateTerms) -> str:
    mechanism = settings.mechanism
    norm = terms.clipping_norm or mechanism.radius
    moves = "" if terms.clipping_norm is None else ", which moves with a private bit of every report"
    ball = f"a ball of radius {norm:.6g} in the norm of {mechanism.name}"
    what = "its whole update"
    if settings.updates.records_per_client > 1:
        samples, records = settings.updates.samples_per_client, settings.updates.records_per_client
        what = f"the update of each of {samples} records, drawn in secret from its {records},"
    return f"each client clips {what} to {ball}{moves}"


def _accesses(settings: Settings, record: SpendingRecord, terms: UpdateTerms) -> Iterator[DataAccess]:
    asked, evaluation = "evaluation on clients", settings.evaluation
    if evaluation == "raw":
        yield DataAccess(what=asked, cover=Cover.NOT_COVERED, detail=OPEN_EVALUATION)
    elif evaluation is None:
        yield DataAccess(
            what=asked, cover=Cover.COVERED, detail="clients are asked nothing (evaluation=None)"
        )
    else:
        names = ", ".join(map(repr, evaluation.names))
        yield DataAccess(what=asked, cover=Cover.COVERED, detail=f"rounds of their own, reporting {names}")
    if terms.max_examples is not None:
        yield DataAccess(
            what="numbers of examples, as weights",
            cover=Cover.COVERED,
            detail="they stay on the clients, and move updates within the ball",
        )
    yield DataAccess(
        what="data of the server's own, in evaluate_fn or the inner strategy",
        cover=Cover.UNKNOWN,
        detail="not covered",
    )
    yield DataAccess(
        what="other messages that clients' operators let the app answer (shuffle-allow-…)",
        cover=Cover.UNKNOWN,
        detail="not covered",
    )
    others = (
        "all that are in its ledger" if record.durable else "those whose accountant was given to this run"
    )
    yield DataAccess(
        what="other runs that train this model",
        cover=Cover.COVERED if record.durable else Cover.UNKNOWN,
        detail=f"covered are {others}",
    )
