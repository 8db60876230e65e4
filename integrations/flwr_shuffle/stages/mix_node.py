"""The mix node: a SuperNode of another organisation, which shuffles reports that it cannot read.

A node is the mix node by ``shuffle-role="mixer"`` in its ``node_config``; :mod:`flwr_shuffle.stages.serving`
lists what else stands there.
"""

from __future__ import annotations

import logging

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_shuffle.mix_messages import MixRequest, batch_content, refused_content
from flwr_shuffle.service_messages import Role, refusal_content
from flwr_shuffle.stages.serving import (
    answer_role,
    log_rejected,
    log_unable,
    refused_if_unreadable,
    service_of,
)
from shuffle_plugins.shuffler import BatchRefused, Mixer, Refusal, ShuffleError

_log = logging.getLogger("flwr")


def register_mix_node(app: ClientApp) -> None:
    """Let a node that runs this app be the mix node, if its ``node_config`` says so.

    Adds handlers of ``query.role`` and ``query.mix``. Nodes that are not the mix node say so, and no more.
    The mix node signs its replies. A reply holds a batch or a constant code, and which envelopes were
    refused; details of an error are in the node's own log alone.

    Args:
        app: the app of all nodes, made without ``client_fn``.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    @app.query(Role.MIXER.action)
    def role(message: Message, context: Context) -> Message:
        return answer_role(message, context, Mixer)

    @app.query("mix")
    def mix(message: Message, context: Context) -> Message:
        try:
            content = _mixed(service_of(context, Mixer), message)
        except BatchRefused as refused:
            content = refusal_content(refused.code)
        return Message(content, reply_to=message)


def _mixed(mixer: Mixer, message: Message) -> RecordDict:
    """The signed answer to a request.

    Raises:
        BatchRefused: if the message is no request, so that there is nothing to sign an answer to.
    """
    with refused_if_unreadable():
        request = MixRequest.from_content(message.content)
    try:
        batch = mixer.mix(
            request.envelopes,
            context=request.context,
            analyzer_key=request.analyzer_key,
            size=request.size,
            minimum=request.minimum,
        )
    except BatchRefused as refused:
        log_rejected(refused.rejected)
        _log.warning("shuffle: %d envelopes: %s", len(request.envelopes), refused)
        return refused_content(refused, request=request, mixer=mixer)
    except ShuffleError as error:
        log_unable(Role.MIXER, error)
        return refused_content(BatchRefused(Refusal.MISCONFIGURED), request=request, mixer=mixer)
    log_rejected(batch.rejected)
    _log.info("shuffle: %d good envelopes, %d reports given out", batch.answered, len(batch.reports))
    return batch_content(batch, request=request, mixer=mixer)
