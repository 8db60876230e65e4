"""The aggregator: a SuperNode of another organisation, which adds up seeds and sees nobody's counts.

A SuperNode becomes an aggregator if its ``node_config`` says ``shuffle-role="aggregator"``. The other
settings that it needs are listed in :mod:`flwr_shuffle.stages.serving`.

A client's counts are split into shares: a random seed for each aggregator, and for the server the counts
minus the vectors that the seeds expand to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_shuffle.aggregate_messages import AggregateRequest, Step, answered_content, declined_content
from flwr_shuffle.service_messages import Role
from flwr_shuffle.stages.serving import (
    answer_role,
    answered,
    log_rejected,
    refused_if_unreadable,
    signed_or_declined,
)
from shuffle_plugins.secure_aggregation import (
    Aggregator,
    Answers,
    Expanded,
    VerifiedTerms,
    VerifyingAggregator,
)
from shuffle_plugins.shuffler import Refusal

_log = logging.getLogger("flwr")


def register_aggregator(app: ClientApp) -> None:
    """Let a node that runs this app be an aggregator, if its ``node_config`` says so.

    Adds handlers of ``query.shuffle_aggregator_role`` and ``query.shuffle_aggregate``. A node that is not an
    aggregator answers that it is not, and nothing else. An aggregator signs its replies. A reply holds one
    sum of expanded seeds or a refusal code, and says which envelopes were refused. Details of an error are
    written to the node's own log only.

    Args:
        app: the app of all nodes, made without ``client_fn``.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    @app.query(Role.AGGREGATOR.action)
    def role(message: Message, context: Context) -> Message:
        return answer_role(message, context, Aggregator)

    @app.query("shuffle_aggregate")
    def aggregate(message: Message, context: Context) -> Message:
        return answered(
            message, context, VerifyingAggregator, lambda aggregator: _aggregated(aggregator, message)
        )


def _answer(
    aggregator: VerifyingAggregator, request: AggregateRequest
) -> Expanded | Answers | bytes | Mapping[int, Refusal]:
    """Do the step that a request asks for; errors are those of the :class:`VerifyingAggregator`'s methods."""
    terms, minimum = request.terms, request.minimum
    if isinstance(terms, VerifiedTerms):
        if request.step is Step.VERIFY:
            return aggregator.verify(
                request.sealed, terms=terms, verify_key=request.verify_key, minimum=minimum
            )
        decided = zip(request.sealed, request.messages, strict=True)
        return aggregator.add_verified(decided, terms=terms, minimum=minimum)
    if request.step is Step.CHECK:
        return aggregator.check(request.sealed, terms=terms)
    exact = request.step is Step.ADD_ALL
    return aggregator.add_up(request.sealed, terms=terms, minimum=minimum, exact=exact)


def _aggregated(aggregator: VerifyingAggregator, message: Message) -> RecordDict:
    """Do what a request asks for, and return the signed answer.

    A refusal is an answer too.

    Raises:
        BatchRefused: if the message cannot be read as a request, so that there is no request that an answer
            could name.
    """
    with refused_if_unreadable():
        request = AggregateRequest.from_content(message.content)

    def aggregated() -> RecordDict:
        answer = _answer(aggregator, request)
        if isinstance(answer, Expanded | Answers):
            log_rejected(answer.rejected)
        if isinstance(answer, Expanded):
            _log.info("shuffle: the seeds of %d clients are added up", answer.added)
        if isinstance(answer, bytes):
            _log.info("shuffle: %d clients whose proofs hold are added up", len(request.envelopes))
        return answered_content(answer, request=request, aggregator=aggregator)

    return signed_or_declined(
        Role.AGGREGATOR,
        len(request.envelopes),
        aggregated,
        lambda refused: declined_content(refused, request=request, aggregator=aggregator),
    )
