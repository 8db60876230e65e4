"""The mix node: a SuperNode of another organisation, which shuffles reports that it cannot read.

All SuperNodes of a run get the same app; a node is the mix node by its own ``node_config``:

    shuffle-role           "mixer"
    shuffle-mixer-key-file the private keys, made by ``shuffle-plugins keys mixer``
    shuffle-enrolled-file  public signing keys of the clients that may take part
    shuffle-min-batch      fewest reports given out, at least 2
    shuffle-state-file     file of spent rounds; by default the key file's name and ``.rounds``

Who runs a mix node must know what code it runs: see docs/guides/shuffling.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flwr_shuffle.mix_messages import (
    MixerRole,
    MixRequest,
    WrongVersionError,
    batch_content,
    is_mix_node,
    read_question,
    refusal_content,
    refused_content,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import BatchRefused, Mixer, Refusal, ShuffleError, keys, state_beside

KEY_FILE = "shuffle-mixer-key-file"
ENROLLED_FILE = "shuffle-enrolled-file"
MIN_BATCH = "shuffle-min-batch"
STATE_FILE = "shuffle-state-file"

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

    @app.query("role")
    def role(message: Message, context: Context) -> Message:
        try:
            mixer = mixer_of(context)
            with _refused_if_unreadable():
                challenge = read_question(message.content)
        except BatchRefused as refused:
            return Message(refusal_content(refused.code), reply_to=message)
        answer = MixerRole.signed(mixer, challenge=challenge, run=str(context.run_id), node=context.node_id)
        return Message(answer.to_content(), reply_to=message)

    @app.query("mix")
    def mix(message: Message, context: Context) -> Message:
        try:
            content = _mixed(mixer_of(context), message)
        except BatchRefused as refused:
            content = refusal_content(refused.code)
        return Message(content, reply_to=message)


def mixer_of(context: Context) -> Mixer:
    """The mixer that a node's ``node_config`` describes. Files are read anew, so clients can enrol any time.

    Raises:
        BatchRefused: NOT_A_MIXER for a client's node; MISCONFIGURED, with the reason in the log, if files or
            numbers are missing or wrong.
    """
    config = context.node_config
    if not is_mix_node(config):
        raise BatchRefused(Refusal.NOT_A_MIXER)
    try:
        key_file = _text(config, KEY_FILE)
        return Mixer(
            key=keys.read_mixer_key(key_file),
            enrolled=keys.read_enrolled(_text(config, ENROLLED_FILE)),
            minimum=checks.whole(f"{MIN_BATCH} in node_config", config.get(MIN_BATCH), at_least=2),
            state=_text(config, STATE_FILE) if STATE_FILE in config else state_beside(key_file),
        )
    except ValueError as error:
        _log.error("shuffle: this mix node cannot work: %s", error)
        raise BatchRefused(Refusal.MISCONFIGURED) from None


def _mixed(mixer: Mixer, message: Message) -> RecordDict:
    """The signed answer to a request.

    Raises:
        BatchRefused: if the message is no request, so that there is nothing to sign an answer to.
    """
    with _refused_if_unreadable():
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
        _log_rejected(refused.rejected)
        _log.warning("shuffle: %d envelopes: %s", len(request.envelopes), refused)
        return refused_content(refused, request=request, mixer=mixer)
    except ShuffleError as error:
        _log.error("shuffle: this mix node cannot work: %s", error)
        return refused_content(BatchRefused(Refusal.MISCONFIGURED), request=request, mixer=mixer)
    _log_rejected(batch.rejected)
    _log.info("shuffle: %d good envelopes, %d reports given out", batch.answered, len(batch.reports))
    return batch_content(batch, request=request, mixer=mixer)


def _log_rejected(rejected: Mapping[int, Refusal]) -> None:
    for code, count in Counter(rejected.values()).items():
        _log.warning("shuffle: %d envelopes dropped (%s)", count, code)


@contextmanager
def _refused_if_unreadable() -> Iterator[None]:
    """Refuse a server's message that cannot be read, by a code; the log says why."""
    try:
        yield
    except WrongVersionError as error:
        _log.error("shuffle: the server speaks %s", error)
        raise BatchRefused(Refusal.WRONG_VERSION) from None
    except ValueError as error:
        _log.error("shuffle: a request that cannot be read: %s", error)
        raise BatchRefused(Refusal.UNREADABLE) from None


def _text(config: UserConfig, key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ShuffleError(f"{key} is missing in node_config, or is not a string")
    return value
