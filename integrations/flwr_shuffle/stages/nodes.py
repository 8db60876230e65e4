"""Service nodes' side of a run: mix nodes, which shuffle reports that they cannot read, and aggregators.

All SuperNodes of a run get the same app. What makes one a service node is its own ``node_config``, whose keys
docs/guides/shuffling.md lists. Its operator must know what code it runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from flwr_shuffle.service_messages import (
    AggregateRequest,
    Answer,
    MixMessage,
    NodeRole,
    Role,
    RoleQuestion,
    ServiceMessage,
    Step,
    Unable,
    declined,
    role_of,
)
from flwr_shuffle.wire import WrongVersionError
from shuffle_plugins.core import checks
from shuffle_plugins.secure_aggregation import VerifiedTerms
from shuffle_plugins.secure_aggregation.verified import VerifyingAggregator
from shuffle_plugins.shuffler import (
    BatchLimits,
    BatchRefused,
    Mixer,
    Refusal,
    ShuffleError,
    keys,
    state_beside,
)
from shuffle_plugins.shuffler.mixer import BatchSpool
from shuffle_plugins.shuffler.service import BatchService

_Service = TypeVar("_Service", bound=BatchService)
_Asked = TypeVar("_Asked", MixMessage, AggregateRequest)
_Read = TypeVar("_Read", bound=ServiceMessage)

_log = logging.getLogger("flwr")


def register_mix_node(app: ClientApp, *, limits: BatchLimits | None = None) -> None:
    """Let a node that runs this app be the mix node, if its ``node_config`` says ``shuffle-role="mixer"``.

    Any other node answers that it is not, and nothing else. The mix node signs its replies, refusals too.
    Details of an error are written to its own log only.

    Args:
        app: the app of all nodes, made without ``client_fn``.
        limits: how much the mix node keeps on disk at once, if its ``node_config`` does not say; by default
            10 million reports and 64 GiB.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    _register(
        app,
        Role.MIXER,
        Mixer,
        MixMessage,
        lambda mixer, asked, config: _mixed(mixer, asked, config, limits or BatchLimits()),
    )


def register_aggregator(app: ClientApp) -> None:
    """Let a node that runs this app be an aggregator, if its ``node_config`` says
    ``shuffle-role="aggregator"``.

    Any other node answers that it is not, and nothing else. An aggregator signs its replies, refusals too. It
    sees seeds, which are independent of all counts. Details of an error are written to its own log only.

    Args:
        app: the app of all nodes, made without ``client_fn``.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    _register(
        app,
        Role.AGGREGATOR,
        VerifyingAggregator,
        AggregateRequest,
        lambda aggregator, asked, _: _aggregated(aggregator, asked),
    )


def _mixed(mixer: Mixer, asked: MixMessage, config: UserConfig, limits: BatchLimits) -> Answer:
    """Take a piece of a batch, or give one back; errors are those of the :class:`BatchSpool`'s methods."""
    spool, request, token = _spool(mixer, config, limits), asked.request, asked.token
    if not asked.items:
        return Answer(token=token, items=spool.take(request, first=asked.first, most=asked.most))
    said = spool.put(request, asked.items, first=asked.first)
    if said is None:
        return Answer(token=token)
    _log_rejected(said.rejected.values())
    _log.info("shuffle: %d good envelopes, %d reports given out", said.answered, said.count)
    return Answer(token=token, said=said, items=spool.take(request, first=0, most=asked.most))


def _aggregated(aggregator: VerifyingAggregator, request: AggregateRequest) -> Answer:
    """Do the step that a request asks for, and sign the answer."""
    answer = _added(aggregator, request)
    _log_rejected(answer.rejected.values())
    if answer.total:
        what = "%d clients whose proofs hold" if request.largest else "the seeds of %d clients"
        _log.info(f"shuffle: {what} are added up", request.count - len(answer.rejected))
    return replace(answer, signature=aggregator.sign(request.said(answer)))


def _added(aggregator: VerifyingAggregator, request: AggregateRequest) -> Answer:
    """Do the step that a request asks for; errors are those of the :class:`VerifyingAggregator`'s methods."""
    terms, sealed, minimum, token = request.terms, request.sealed, request.minimum, request.token
    if isinstance(terms, VerifiedTerms):
        if request.step is Step.VERIFY:
            found = aggregator.verify(sealed, terms=terms, verify_key=request.verify_key, minimum=minimum)
            shares = [share for _, share in sorted(found.verifier_shares.items())]
            return Answer(token=token, rejected=dict(found.rejected), shares=shares)
        decided = zip(sealed, request.messages, strict=True)
        return Answer(token=token, total=aggregator.add_verified(decided, terms=terms, minimum=minimum))
    if request.step is Step.CHECK:
        return Answer(token=token, rejected=aggregator.check(sealed, terms=terms))
    exact = request.step is Step.ADD_ALL
    added = aggregator.add_up(sealed, terms=terms, minimum=minimum, exact=exact)
    return Answer(token=token, rejected=dict(added.rejected), total=added.total.to_bytes())


def _register(
    app: ClientApp,
    role: Role,
    kind: type[_Service],
    asks: type[_Asked],
    work: Callable[[_Service, _Asked, UserConfig], Answer],
) -> None:
    """Add the handlers of a role: one that says who the node is, and one that does its work of a round."""

    def known(service: _Service, message: Message, context: Context) -> ServiceMessage:
        asked = _read(RoleQuestion, message)
        return NodeRole.signed(
            service, challenge=asked.challenge, run=str(context.run_id), node=context.node_id
        )

    def worked(service: _Service, message: Message, context: Context) -> ServiceMessage:
        asked = _read(asks, message)
        try:
            return work(service, asked, context.node_config)
        except BatchRefused as refused:
            _log_rejected(refused.rejected.values())
            _log.warning("shuffle: %s (envelopes: %d)", refused, asked.count)
            return declined(refused, request=asked, service=service)
        except Exception as error:  # Flower would send its text to the server
            _log_unable(role, error)
            return declined(BatchRefused(Refusal.MISCONFIGURED), request=asked, service=service)

    def handler(
        answer: Callable[[_Service, Message, Context], ServiceMessage],
    ) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                said = answer(service_of(context, kind), message, context)
            except BatchRefused as refused:
                said = Unable(code=refused.code)
            return Message(said.to_content(), reply_to=message)

        return handle

    app.query(role.question.removeprefix("query."))(handler(known))
    app.query(role.work.removeprefix("query."))(handler(worked))


def service_of(context: Context, kind: type[_Service]) -> _Service:
    """Build the mixer or aggregator that a node's ``node_config`` describes.

    Files are read again on every call, so clients can be enrolled at any time.

    Raises:
        BatchRefused: NOT_THIS_ROLE for a node without this role; MISCONFIGURED, with the reason in the log,
            if files or numbers are missing or wrong.
    """
    config, role = context.node_config, Role(kind.role)
    if role_of(config) is not role:
        raise BatchRefused(Refusal.NOT_THIS_ROLE)
    try:
        key_file = _named_in(config, f"shuffle-{role}-key-file")
        state = config.get("shuffle-state-file", str(state_beside(key_file)))
        minimum = checks.whole(
            "shuffle-min-batch in node_config", config.get("shuffle-min-batch"), at_least=2
        )
        return kind(
            key=keys.read_service_key(key_file),
            enrolled=keys.read_enrolled(_named_in(config, "shuffle-enrolled-file")),
            minimum=minimum,
            state=_named_in({"shuffle-state-file": state}, "shuffle-state-file"),
        )
    except ValueError as error:
        _log_unable(role, error)
        raise BatchRefused(Refusal.MISCONFIGURED) from None


def _named_in(config: UserConfig, key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ShuffleError(f"{key} is missing in node_config, or is not a string")
    return value


def _spool(mixer: Mixer, config: UserConfig, limits: BatchLimits) -> BatchSpool:
    """The node's batches on disk; limits in its ``node_config`` take the place of ``limits``."""
    folder = config.get("shuffle-batch-folder", f"{config['shuffle-mixer-key-file']}.batches")
    own = BatchLimits(
        most_reports=config.get("shuffle-batch-reports", limits.most_reports),  # type: ignore[arg-type]
        most_bytes=config.get("shuffle-batch-bytes", limits.most_bytes),  # type: ignore[arg-type]
    )
    pinned = config.get("shuffle-mixer-public-key")
    cascade = () if pinned is None else keys.parse_mix_cascade(pinned)
    return BatchSpool(Path(str(folder)), mixer=mixer, cascade=cascade, limits=own)


def _read(kind: type[_Read], message: Message) -> _Read:
    """Read a server's message; a refusal if it cannot be read, and the node's log says why."""
    try:
        return kind.from_content(message.content)
    except WrongVersionError as error:
        _log.error("shuffle: the server speaks %s", error)
        raise BatchRefused(Refusal.WRONG_VERSION) from None
    except ValueError as error:
        _log.error("shuffle: a request that cannot be read: %s", error)
        raise BatchRefused(Refusal.UNREADABLE) from None


def _log_unable(role: Role, error: Exception) -> None:
    """Say in the node's own log why it cannot do its work, and where, if the error was not foreseen."""
    unforeseen = None if isinstance(error, ValueError) else error
    _log.error("shuffle: this %s cannot work: %s", role.node, error, exc_info=unforeseen)


def _log_rejected(codes: Iterable[Refusal]) -> None:
    for code, count in Counter(codes).items():
        _log.warning("shuffle: envelopes dropped (%s): %d", code, count)
