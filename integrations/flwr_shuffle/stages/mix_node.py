"""The mix node: a SuperNode of another organisation, which shuffles reports that it cannot read.

A SuperNode becomes the mix node if its ``node_config`` says ``shuffle-role="mixer"``. The other settings that
it needs are listed in :mod:`flwr_shuffle.stages.serving`. A mix node has four more, which are optional unless
the text says otherwise:

    shuffle-mixer-public-key  public keys of all mixers of a mix cascade, separated by commas, in the order in
                              which the mixers work; this mixer's own key is one of them. Required if there is
                              more than one mixer
    shuffle-batch-folder      folder for the batches that arrive in several messages (in pieces); by default
                              the key file's name with ``.batches`` after it
    shuffle-batch-reports     the most reports that this folder may hold at once, over all batches
    shuffle-batch-bytes       the most bytes that this folder may hold at once, over all batches

Without the last two, the ``limits`` of :func:`register_mix_node` apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flwr_shuffle.batch_messages import (
    BatchMessage,
    BatchStep,
    done_content,
    mixed_content,
    refused_step_content,
    taken_content,
)
from flwr_shuffle.mix_messages import MixRequest, batch_content, refused_content
from flwr_shuffle.service_messages import Role
from flwr_shuffle.stages.serving import (
    answer_role,
    answered,
    log_rejected,
    refused_if_unreadable,
    signed_or_declined,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    BatchLimits,
    BatchSpool,
    Mixer,
    ServicePublicKey,
    keys,
)

CASCADE = "shuffle-mixer-public-key"
BATCH_FOLDER = "shuffle-batch-folder"
BATCH_REPORTS = "shuffle-batch-reports"
BATCH_BYTES = "shuffle-batch-bytes"

_log = logging.getLogger("flwr")


def register_mix_node(app: ClientApp, *, limits: BatchLimits | None = None) -> None:
    """Let a node that runs this app be the mix node, if its ``node_config`` says so.

    Adds handlers of ``query.shuffle_role``, ``query.shuffle_mix`` and ``query.shuffle_batch``. A node that is
    not the mix node answers that it is not, and nothing else. The mix node signs its replies. A reply holds a
    batch or a refusal code, and says which envelopes were refused. Details of an error are written to the
    node's own log only.

    Args:
        app: the app of all nodes, made without ``client_fn``.
        limits: how much the mix node keeps on disk at once, of batches that arrive in pieces, if its
            ``node_config`` does not say; by default 10 million reports and 64 GiB.

    Raises:
        ValueError: if the app has such handlers already, or was made with ``client_fn``.
    """

    @app.query(Role.MIXER.action)
    def role(message: Message, context: Context) -> Message:
        return answer_role(message, context, Mixer)

    @app.query("shuffle_mix")
    def mix(message: Message, context: Context) -> Message:
        return answered(message, context, Mixer, lambda mixer: _mixed(mixer, message))

    @app.query("shuffle_batch")
    def batch(message: Message, context: Context) -> Message:
        chosen = limits or BatchLimits()
        return answered(message, context, Mixer, lambda mixer: _step(mixer, message, context, chosen))


def _step(mixer: Mixer, message: Message, context: Context, limits: BatchLimits) -> RecordDict:
    """Do one step (begin, put, mix or take) of a batch that travels in pieces, and return the answer.

    A refusal is an answer too, and is signed.

    Raises:
        BatchRefused: if the message cannot be read as a step, so that there is no request that an answer
            could name.
    """
    with refused_if_unreadable():
        asked = BatchMessage.from_content(message.content)
    config = context.node_config
    return signed_or_declined(
        Role.MIXER,
        asked.request.count,
        lambda: _STEPS[asked.step](asked, mixer, _spool(config, limits), _cascade(config)),
        lambda refused: refused_step_content(refused, message=asked, mixer=mixer),
    )


_Cascade = tuple[ServicePublicKey, ...]  # public keys of a cascade's mixers, in the order in which they work


def _begin(asked: BatchMessage, mixer: Mixer, spool: BatchSpool, cascade: _Cascade) -> RecordDict:
    spool.begin(asked.request, mixer=mixer, cascade=cascade)
    return done_content(asked)


def _put(asked: BatchMessage, mixer: Mixer, spool: BatchSpool, cascade: _Cascade) -> RecordDict:
    spool.put(asked.request, asked.items, first=asked.first)
    return done_content(asked)


def _mix(asked: BatchMessage, mixer: Mixer, spool: BatchSpool, cascade: _Cascade) -> RecordDict:
    said = spool.mix(asked.request, mixer=mixer)
    log_rejected(said.rejected)
    _log.info("shuffle: %d good envelopes, %d reports given out", said.answered, said.count)
    return mixed_content(asked, said)


def _take(asked: BatchMessage, mixer: Mixer, spool: BatchSpool, cascade: _Cascade) -> RecordDict:
    items = spool.take(asked.request, first=asked.first, count=asked.number, size=asked.item_size)
    return taken_content(asked, items)


_STEPS: dict[BatchStep, Callable[[BatchMessage, Mixer, BatchSpool, _Cascade], RecordDict]] = {
    BatchStep.BEGIN: _begin,
    BatchStep.PUT: _put,
    BatchStep.MIX: _mix,
    BatchStep.TAKE: _take,
}


def _spool(config: UserConfig, limits: BatchLimits) -> BatchSpool:
    """The node's batches on disk; limits in its ``node_config`` take the place of ``limits``.

    Raises:
        ValueError: if a limit is no whole number, at least 1.
    """
    folder = config.get(BATCH_FOLDER, f"{config[f'shuffle-{Role.MIXER}-key-file']}.batches")
    reports, size = config.get(BATCH_REPORTS), config.get(BATCH_BYTES)
    own = BatchLimits(
        most_reports=limits.most_reports if reports is None else checks.whole(BATCH_REPORTS, reports),
        most_bytes=limits.most_bytes if size is None else checks.whole(BATCH_BYTES, size),
    )
    return BatchSpool(Path(str(folder)), limits=own)


def _cascade(config: UserConfig) -> _Cascade:
    """Public keys of the cascade's mixers that this node's operator has pinned; empty for a single mixer.

    Raises:
        ShuffleError: if they are malformed.
    """
    return keys.parse_mix_cascade(config[CASCADE]) if CASCADE in config else ()


def _mixed(mixer: Mixer, message: Message) -> RecordDict:
    """Mix the envelopes of a request that came in one message, and return the signed answer.

    A refusal is an answer too.

    Raises:
        BatchRefused: if the message cannot be read as a request, so that there is no request that an answer
            could name.
    """
    with refused_if_unreadable():
        request = MixRequest.from_content(message.content)

    def mixed() -> RecordDict:
        batch = mixer.mix(
            request.envelopes,
            context=request.context,
            analyzer_key=request.analyzer_key,
            size=request.size,
            minimum=request.minimum,
        )
        log_rejected(batch.rejected)
        _log.info("shuffle: %d good envelopes, %d reports given out", batch.answered, len(batch.reports))
        return batch_content(batch, request=request, mixer=mixer)

    return signed_or_declined(
        Role.MIXER,
        len(request.envelopes),
        mixed,
        lambda refused: refused_content(refused, request=request, mixer=mixer),
    )
