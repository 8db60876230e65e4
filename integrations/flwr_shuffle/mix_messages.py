"""What server and mix node send each other of a batch, by one mixer or by a cascade of several.

A batch travels in pieces; a small one in a single piece. Each message names the whole request, and puts a
piece or asks for a part of what came out. The answer to the last piece holds what the mixer has signed of the
batch, and the first part of it. The mix node signs every refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from flwr.app import RecordDict

from flwr_shuffle.service_messages import (
    SERVICE_KEY,
    SERVICE_VERSION,
    all_bytes,
    declined_entries,
    service_content,
    service_values,
    signed_values,
)
from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    BatchRefused,
    BatchRequest,
    MixedStatement,
    Mixer,
    Refusal,
    Statement,
    statements,
)

MIX_QUERY = "query.shuffle_mix"
"""Type of the messages by which a batch goes to a mix node and comes back."""

_ASKED: dict[str, type] = {"version": int, "request": str, "first": int, "most": int}
_ANSWER: dict[str, type] = {"version": int, "token": bytes}
_SAID: dict[str, type] = {"said": str}
_ITEMS: dict[str, type] = {"items": list}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixMessage:
    """A piece of a batch on its way to a mix node, or the question for a part of what came out.

    Attributes:
        request: the batch.
        first: position of the first item among all, of the piece or of what is asked for.
        items: the piece; empty to ask for a part of what came out.
        most: how many items are asked for, or may come with the answer to the last piece.
    """

    request: BatchRequest
    first: int
    items: list[bytes] = field(default_factory=list)
    most: int

    @property
    def last(self) -> bool:
        """Whether this is the last piece, after which the batch is mixed."""
        return bool(self.items) and self.first + len(self.items) == self.request.count

    def to_content(self) -> RecordDict:
        """The content of a ``query.shuffle_mix`` message."""
        values: dict[str, Any] = {
            "version": SERVICE_VERSION,
            "request": self.request.to_json(),
            "first": self.first,
            "most": self.most,
        }
        return service_content(values | ({"items": self.items} if self.items else {}))

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        puts = "items" in content.get(SERVICE_KEY, {})
        values = service_values(content, _ASKED | (_ITEMS if puts else {}))
        return cls(
            request=BatchRequest.from_json(values["request"]),
            first=values["first"],
            items=all_bytes(values.get("items", [])),
            most=checks.whole("most", values["most"]),
        )


def mixed_content(
    message: MixMessage, *, said: MixedStatement | None = None, items: Sequence[bytes] = ()
) -> RecordDict:
    """The content of a mix node's reply: what it has signed after the last piece, and what came out."""
    values: dict[str, Any] = {"version": SERVICE_VERSION, "token": message.request.context.token}
    if said is not None:
        values["said"] = said.to_json()
    return service_content(values | ({"items": list(items)} if items else {}))


def refused_content(refused: BatchRefused, *, message: MixMessage, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to a message that it refuses, signed."""
    request = message.request
    signature = mixer.sign(_declined(request, refused.code, refused.rejected))
    return service_content(declined_entries(refused, token=request.context.token, signature=signature))


def read_mixed(content: RecordDict, *, message: MixMessage) -> tuple[MixedStatement | None, list[bytes]]:
    """What a mixer has signed of a batch, if this answers the last piece, and the items in its answer.

    Raises:
        BatchRefused: with the mixer's own code and the envelopes it dropped; WRONG_ROUND for an answer to
            another round; NOT_PROVEN if the mixer did not sign it, for this very request, or gives other
            items than those asked for.
        ValueError: if it is anything else.
    """
    request, gives = message.request, message.last or not message.items
    values = signed_values(
        content,
        _ANSWER | (_SAID if message.last else {}) | (_ITEMS if gives else {}),
        token=request.context.token,
        envelopes=request.count,
        declined=partial(_declined, request),
        verifying_key=request.verifying_key,
    )
    said, items = None, [*all_bytes(values.get("items", []))]
    if message.last:
        said = MixedStatement.from_json(values["said"])
        request.check_said(said)
    if gives and len(items) != (min(message.most, said.count) if said else message.most):
        raise BatchRefused(Refusal.NOT_PROVEN)
    return said, items


def _declined(request: BatchRequest, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    return statements.refusal_statement(request=request.digest(), code=code, rejected=rejected)
