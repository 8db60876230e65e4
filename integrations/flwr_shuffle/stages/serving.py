"""A service node's side of a run: its files, its signed answer about its role, and its refusals.

A service node is a SuperNode that serves a round instead of training: a mix node or an aggregator. All
SuperNodes of a run get the same app. What makes a node a service node is its own ``node_config``:

    shuffle-role            "mixer" or "aggregator"
    shuffle-ROLE-key-file   the private keys, made by ``shuffle-plugins keys``; for a mixer
                            shuffle-mixer-key-file
    shuffle-enrolled-file   public signing keys of the clients that may take part
    shuffle-min-batch       fewest reports that are given out or added up together, at least 2
    shuffle-state-file      file that lists the rounds already served; by default the key file's name with
                            ``.rounds`` after it

The operator of such a node must know what code it runs: see docs/guides/shuffling.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from flwr.app import Context, Message, RecordDict, UserConfig

from flwr_shuffle.service_messages import (
    NodeRole,
    Role,
    WrongVersionError,
    envelopes_text,
    read_question,
    refusal_content,
    role_of,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import BatchRefused, BatchService, Refusal, ShuffleError, keys, state_beside

ENROLLED_FILE = "shuffle-enrolled-file"
MIN_BATCH = "shuffle-min-batch"
STATE_FILE = "shuffle-state-file"

Service = TypeVar("Service", bound=BatchService)

_log = logging.getLogger("flwr")


def service_of(context: Context, kind: type[Service]) -> Service:
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
        key_file = _text(config, f"shuffle-{role}-key-file")
        return kind(
            key=keys.read_service_key(key_file),
            enrolled=keys.read_enrolled(_text(config, ENROLLED_FILE)),
            minimum=checks.whole(f"{MIN_BATCH} in node_config", config.get(MIN_BATCH), at_least=2),
            state=_text(config, STATE_FILE) if STATE_FILE in config else state_beside(key_file),
        )
    except ValueError as error:
        log_unable(role, error)
        raise BatchRefused(Refusal.MISCONFIGURED) from None


def answer_role(message: Message, context: Context, kind: type[BatchService]) -> Message:
    """The signed answer to a server that asks who this node is, or a refusal."""

    def said(service: BatchService) -> RecordDict:
        with refused_if_unreadable():
            challenge = read_question(message.content)
        role = NodeRole.signed(service, challenge=challenge, run=str(context.run_id), node=context.node_id)
        return role.to_content()

    return answered(message, context, kind, said)


def answered(
    message: Message, context: Context, kind: type[Service], answer: Callable[[Service], RecordDict]
) -> Message:
    """A service node's reply to a request; an unsigned code if it is no such node, or cannot read it."""
    try:
        content = answer(service_of(context, kind))
    except BatchRefused as refused:
        content = refusal_content(refused.code)
    return Message(content, reply_to=message)


def signed_or_declined(
    role: Role,
    number: int,
    answer: Callable[[], RecordDict],
    declined: Callable[[BatchRefused], RecordDict],
) -> RecordDict:
    """The answer to a request that could be read; if there is none, a signed refusal.

    Args:
        role: the node's.
        number: how many envelopes the request has.
        answer: does what is asked.
        declined: signs a refusal; details of an error go to the node's own log alone, since Flower would send
            an exception's text to the server.
    """
    try:
        return answer()
    except BatchRefused as refused:
        log_rejected(refused.rejected)
        _log.warning("shuffle: %s: %s", envelopes_text(number), refused)
        return declined(refused)
    except Exception as error:
        log_unable(role, error)
        return declined(BatchRefused(Refusal.MISCONFIGURED))


@contextmanager
def refused_if_unreadable() -> Iterator[None]:
    """Turn an error in reading a server's message into a refusal code; the node's log says why."""
    try:
        yield
    except WrongVersionError as error:
        _log.error("shuffle: the server speaks %s", error)
        raise BatchRefused(Refusal.WRONG_VERSION) from None
    except ValueError as error:
        _log.error("shuffle: a request that cannot be read: %s", error)
        raise BatchRefused(Refusal.UNREADABLE) from None


def log_unable(role: Role, error: Exception) -> None:
    """Say in the node's own log why it cannot do its work, and where, if the error was not foreseen."""
    unforeseen = None if isinstance(error, ValueError) else error
    _log.error("shuffle: this %s cannot work: %s", role.node, error, exc_info=unforeseen)


def log_rejected(rejected: Mapping[int, Refusal]) -> None:
    """Write to the node's own log how many envelopes were dropped, and why."""
    for code, count in Counter(rejected.values()).items():
        _log.warning("shuffle: %s dropped (%s)", envelopes_text(count), code)


def _text(config: UserConfig, key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ShuffleError(f"{key} is missing in node_config, or is not a string")
    return value
