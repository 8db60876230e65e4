"""The mix node: a SuperNode of another organisation, which shuffles reports that it cannot read.

A SuperNode becomes the mix node if its ``node_config`` says ``shuffle-role="mixer"``. The other settings that
it needs are listed in :mod:`flwr_shuffle.stages.serving`. A mix node has four more, which are optional unless
the text says otherwise:

    shuffle-mixer-public-key  public keys of all mixers of a mix cascade, separated by commas, in the order in
                              which the mixers work; this mixer's own key is one of them. Required if there is
                              more than one mixer
    shuffle-batch-folder      folder for batches on their way; by default the key file's name with
                              ``.batches`` after it
    shuffle-batch-reports     the most reports that this folder may hold at once, over all batches
    shuffle-batch-bytes       the most bytes that this folder may hold at once, over all batches

Without the last two, the ``limits`` of :func:`register_mix_node` apply.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flwr_shuffle.mix_messages import MixMessage, mixed_content, refused_content
from flwr_shuffle.service_messages import Role
from flwr_shuffle.stages.serving import (
    answer_role,
    answered,
    log_rejected,
    refused_if_unreadable,
    signed_or_declined,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import BatchLimits, BatchSpool, Mixer, keys

CASCADE = "shuffle-mixer-public-key"
BATCH_FOLDER = "shuffle-batch-folder"
BATCH_REPORTS = "shuffle-batch-reports"
BATCH_BYTES = "shuffle-batch-bytes"

_log = logging.getLogger("flwr")


def register_mix_node(app: ClientApp, *, limits: BatchLimits | None = None) -> None:
    """Let a node that runs this app be the mix node, if its ``node_config`` says so.

    Adds handlers of ``query.shuffle_role`` and ``query.shuffle_mix``. A node that is not the mix node answers
    that it is not, and nothing else. The mix node signs its replies. A reply holds a batch or a refusal code,
    and says which envelopes were refused. Details of an error are written to the node's own log only.

    Args:
        app: the app of all nodes, made without ``client_fn``.
        limits: how much the mix node keeps on disk at once, if its ``node_config`` does not say; by default
            10 million reports and 64 GiB.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    @app.query(Role.MIXER.action)
    def role(message: Message, context: Context) -> Message:
        return answer_role(message, context, Mixer)

    @app.query("shuffle_mix")
    def mix(message: Message, context: Context) -> Message:
        config = context.node_config
        return answered(message, context, Mixer, lambda mixer: _answer(mixer, message, config, limits))


def _answer(mixer: Mixer, message: Message, config: UserConfig, limits: BatchLimits | None) -> RecordDict:
    """Take a piece of a batch, or give one back, and return the answer. A refusal is signed like any answer.

    Raises:
        BatchRefused: if the message cannot be read, so that there is no request that an answer could name.
    """
    with refused_if_unreadable():
        asked = MixMessage.from_content(message.content)
    request = asked.request

    def done() -> RecordDict:
        spool = _spool(mixer, config, limits or BatchLimits())
        if not asked.items:
            return mixed_content(asked, items=spool.take(request, first=asked.first, most=asked.most))
        said = spool.put(request, asked.items, first=asked.first)
        if said is None:
            return mixed_content(asked)
        log_rejected(said.rejected)
        _log.info("shuffle: %d good envelopes, %d reports given out", said.answered, said.count)
        return mixed_content(asked, said=said, items=spool.take(request, first=0, most=asked.most))

    return signed_or_declined(
        Role.MIXER,
        request.count,
        done,
        lambda refused: refused_content(refused, message=asked, mixer=mixer),
    )


def _spool(mixer: Mixer, config: UserConfig, limits: BatchLimits) -> BatchSpool:
    """The node's batches on disk; limits in its ``node_config`` take the place of ``limits``.

    Raises:
        ValueError: if a limit is no whole number, at least 1, or the pinned keys are malformed.
    """
    folder = config.get(BATCH_FOLDER, f"{config[f'shuffle-{Role.MIXER}-key-file']}.batches")
    reports, size = config.get(BATCH_REPORTS), config.get(BATCH_BYTES)
    own = BatchLimits(
        most_reports=limits.most_reports if reports is None else checks.whole(BATCH_REPORTS, reports),
        most_bytes=limits.most_bytes if size is None else checks.whole(BATCH_BYTES, size),
    )
    cascade = keys.parse_mix_cascade(config[CASCADE]) if CASCADE in config else ()
    return BatchSpool(Path(str(folder)), mixer=mixer, cascade=cascade, limits=own)
