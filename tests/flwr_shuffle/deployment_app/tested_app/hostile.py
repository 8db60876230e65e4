"""Nodes that run code of their own: what a SuperNode can do that anybody has connected.

Which of them a node is stands in its ``node_config``, under "hostile".
"""

from __future__ import annotations

import os

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr_shuffle.messages import (
    PAYLOAD_KEY,
    RECORD_KEY,
    Answer,
    MixMessage,
    NodeRole,
    Role,
    Unable,
    instruction_of,
)

from shuffle_plugins.shuffler import MixedStatement, Refusal
from shuffle_plugins.shuffler.envelopes import envelope_size
from shuffle_plugins.shuffler.keys import SigningKey, parse_mixer_public_key
from shuffle_plugins.shuffler.mixer import items_digest
from tested_app.pauses import add_line

DIM = 40


def hostile_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """What a hostile node answers; all others answer as they are."""
    match context.node_config.get("hostile"), message.metadata.message_type:
        case "impostor", Role.MIXER.question:
            content = _claim(str(context.node_config["public-key"]))
        case "impostor", Role.MIXER.work:
            add_line("impostor-was-asked", "1")
            content = _forged_batch(message)
        case "garbage", "train":
            content = _garbage(message)
        case "stranger", kind if kind.startswith("query."):
            reason = f"No query function registered with name '{kind.partition('.')[2]}'"  # Flower's own text
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
        case "garbage" | "impostor", _:
            content = Unable(code=Refusal.NOT_THIS_ROLE).to_content()
        case _:
            return call_next(message, context)
    return Message(content, reply_to=message)


def _claim(public_key: str) -> RecordDict:
    """The role of the mixer, with its public key, which is no secret, and a signature of one's own."""
    key = parse_mixer_public_key(public_key).sealing
    return NodeRole(public_key=key, minimum=2, signature=SigningKey.generate().sign(b"me")).to_content()


def _forged_batch(message: Message) -> RecordDict:
    asked = MixMessage.from_content(message.content)
    items = [os.urandom(asked.request.output_size) for _ in asked.items]
    said = MixedStatement(
        request=asked.request.digest(),
        answered=len(items),
        count=len(items),
        outputs=items_digest(items, size=asked.request.output_size),
        signature=SigningKey.generate().sign(b"me"),
    )
    return Answer(token=asked.token, said=said, items=items).to_content()


def _garbage(message: Message) -> RecordDict:
    """Random bytes of an envelope's length."""
    instruction = instruction_of(message)
    assert instruction is not None
    size = envelope_size(instruction.mechanism.report_bytes(dim=DIM))
    return RecordDict({RECORD_KEY: ConfigRecord({PAYLOAD_KEY: os.urandom(size)})})
