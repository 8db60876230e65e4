"""What a run in Flower adds to a privacy statement: trust, clipping, and what else clients are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from flwr_shuffle.clipping import UpdateTerms
from flwr_shuffle.evaluation import PrivateEvaluation
from flwr_shuffle.server.run_log import OPEN_EVALUATION, open_participation
from flwr_shuffle.server.sampling import SelfSampling
from flwr_shuffle.server.settings import Settings
from flwr_shuffle.server.spending_record import SpendingRecord
from shuffle_plugins.accounting import Cover, DataAccess, PrivacyStatement, Unit
from shuffle_plugins.mechanisms import SumSpec


def statement_of(
    settings: Settings,
    record: SpendingRecord,
    *,
    delta: float,
    unit: Unit,
    terms: UpdateTerms,
    evaluation: PrivateEvaluation | Literal["raw"] | None,
) -> PrivacyStatement:
    """The privacy statement of a run.

    Args:
        settings: the run's settings.
        record: the record of what the rounds cost; a round under way is stated at its highest cost.
        delta: δ in (0, 1).
        unit: what a client stands for.
        terms: how clients prepare their updates.
        evaluation: what clients are asked about a model.

    Raises:
        ValueError: if ``delta`` is out of range.
    """
    warnings = []
    if evaluation == "raw":
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
        accesses=tuple(_accesses(record, terms, evaluation)),
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
    share: float | None = settings.honest_fraction
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
    if settings.records_per_client > 1:
        samples, records = settings.samples_per_client, settings.records_per_client
        what = f"the update of each of {samples} records, drawn in secret from its {records},"
    return f"each client clips {what} to {ball}{moves}"


def _accesses(
    record: SpendingRecord, terms: UpdateTerms, evaluation: PrivateEvaluation | Literal["raw"] | None
) -> Iterator[DataAccess]:
    asked = "evaluation on clients"
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
