"""The aggregator: a SuperNode of another organisation, which adds up seeds and sees nobody's counts.

A node is an aggregator by ``shuffle-role="aggregator"`` in its ``node_config``;
:mod:`flwr_shuffle.stages.serving` lists what else stands there.
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

    Adds handlers of ``query.aggregator_role`` and ``query.aggregate``. Nodes that are no aggregator say so,
    and no more. An aggregator signs its replies. A reply holds one sum of expanded seeds or a constant code,
    and which envelopes were refused; details of an error are in the node's own log alone.

    Args:
        app: the app of all nodes, made without ``client_fn``.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    @app.query(Role.AGGREGATOR.action)
    def role(message: Message, context: Context) -> Message:
        return answer_role(message, context, Aggregator)

    @app.query("aggregate")
    def aggregate(message: Message, context: Context) -> Message:
        return answered(
            message, context, VerifyingAggregator, lambda aggregator: _aggregated(aggregator, message)
        )


def _answer(
    aggregator: VerifyingAggregator, request: AggregateRequest
) -> Expanded | Answers | bytes | Mapping[int, Refusal]:
    """What is asked for; raises as the methods of the aggregator."""
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
    """The signed answer to a request.

    Raises:
        BatchRefused: if the message is no request, so that there is nothing to sign an answer to.
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
