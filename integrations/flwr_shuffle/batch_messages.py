"""What server and mix node send each other of a batch in pieces, by one mixer or by a cascade of several.

Each message names the whole request and one step of it. A batch is begun, put in pieces, mixed, and taken in
pieces; the mix node answers every step, and signs a refusal of any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Self

from flwr.app import RecordDict

from flwr_shuffle.mix_messages import several_entry, several_type
from flwr_shuffle.service_messages import (
    SERVICE_KEY,
    SERVICE_VERSION,
    all_bytes,
    check_signed,
    declined_entries,
    positions_text,
    read_positions,
    service_content,
    service_values,
    signed_values,
)
from shuffle_plugins.shuffler import (
    KEY_BYTES,
    BatchRefused,
    BatchRequest,
    ItemsDigest,
    MixedStatement,
    Mixer,
    Refusal,
    RoundContext,
    ServicePublicKey,
    Statement,
    mark_bytes,
    read_marks,
    statements,
)

BATCH_QUERY = "query.shuffle_batch"
"""Type of the messages that bring a batch to a mix node in pieces."""

PIECE_BYTES = 1 << 25
"""Bytes of ciphertexts in one message, by default: 32 MiB."""

_REQUEST: dict[str, type] = {
    "version": int,
    "step": str,
    "run": str,
    "token": bytes,
    "fingerprint": bytes,
    "analyzer-key": bytes,
    "promised": int,
    "minimum": int,
    "size": int,
    "count": int,
    "inputs": bytes,
    "mixers": bytes,
    "position": int,
}
_PREVIOUS: dict[str, type] = {"previous": list}
_PIECE: dict[str, type] = {"first": int, "items": list}
_RANGE: dict[str, type] = {"first": int, "number": int, "item-size": int}
_ANSWER: dict[str, type] = {"version": int, "token": bytes, "step": str}
_MIXED: dict[str, type] = {
    "answered": int,
    "rejected": str,
    "count": int,
    "outputs": bytes,
    "masks": str,
    "signature": bytes,
}


class BatchStep(StrEnum):
    """What a message asks a mix node to do with a batch."""

    BEGIN = "begin"
    PUT = "put"
    MIX = "mix"
    TAKE = "take"


_STEPS: dict[BatchStep, dict[str, type]] = {
    BatchStep.BEGIN: {},
    BatchStep.PUT: _PIECE,
    BatchStep.MIX: {},
    BatchStep.TAKE: _RANGE,
}
_ANSWERS: dict[BatchStep, dict[str, type]] = {
    BatchStep.BEGIN: {},
    BatchStep.PUT: {},
    BatchStep.MIX: _MIXED,
    BatchStep.TAKE: _PIECE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMessage:
    """One step of a batch, as the server asks a mix node for it.

    Attributes:
        step: what to do.
        request: the batch.
        first: position of the piece's first item among all; for ``PUT`` and ``TAKE``.
        items: the piece, of ``PUT``.
        number: how many items are wanted, of ``TAKE``.
        item_size: bytes of each of those.
    """

    step: BatchStep
    request: BatchRequest
    first: int = 0
    items: list[bytes] = field(default_factory=list)
    number: int = 0
    item_size: int = 0

    def to_content(self) -> RecordDict:
        """The content of a ``query.shuffle_batch`` message."""
        request, context = self.request, self.request.context
        values: dict[str, Any] = {
            "version": SERVICE_VERSION,
            "step": str(self.step),
            "run": context.run,
            "token": context.token,
            "fingerprint": context.fingerprint,
            "analyzer-key": request.analyzer_key,
            "promised": context.minimum,
            "minimum": request.minimum,
            "size": request.size,
            "count": request.count,
            "inputs": request.inputs,
            "mixers": b"".join(key.sealing + key.verifying for key in request.mixers),
            "position": request.position,
        }
        if request.previous:
            values["previous"] = [_to_text(said) for said in request.previous]
        values |= several_entry(context)
        if self.step is BatchStep.PUT:
            values |= {"first": self.first, "items": self.items}
        elif self.step is BatchStep.TAKE:
            values |= {"first": self.first, "number": self.number, "item-size": self.item_size}
        return service_content(values)

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        record: Mapping[str, Any] = content.get(SERVICE_KEY, {})
        step = BatchStep(str(record.get("step")))
        later = "previous" in record
        optional = several_type(content) | (_PREVIOUS if later else {})
        values = service_values(content, _REQUEST | _STEPS[step] | optional)
        request = BatchRequest(
            context=RoundContext(
                run=values["run"],
                token=values["token"],
                fingerprint=values["fingerprint"],
                minimum=values["promised"],
                reports=values.get("reports", 1),
            ),
            analyzer_key=values["analyzer-key"],
            mixers=_mixers(values["mixers"]),
            position=values["position"],
            minimum=values["minimum"],
            size=values["size"],
            count=values["count"],
            inputs=values["inputs"],
            previous=tuple(_of_text(text) for text in values.get("previous", [])),
        )
        return cls(
            step=step,
            request=request,
            first=values.get("first", 0),
            items=all_bytes(values.get("items", [])),
            number=values.get("number", 0),
            item_size=values.get("item-size", 0),
        )


def done_content(message: BatchMessage) -> RecordDict:
    """The content of a mix node's reply to ``BEGIN`` and ``PUT``: that it is done."""
    return service_content(_answer(message))


def mixed_content(message: BatchMessage, said: MixedStatement) -> RecordDict:
    """The content of a mix node's reply to ``MIX``: what it has signed of the batch that is to be taken."""
    values = {
        "answered": said.answered,
        "rejected": positions_text(said.rejected),
        "count": said.count,
        "outputs": said.outputs,
        "masks": _masks_text(said),
        "signature": said.signature,
    }
    return service_content(_answer(message) | values)


def taken_content(message: BatchMessage, items: list[bytes]) -> RecordDict:
    """The content of a mix node's reply to ``TAKE``: items of the batch."""
    return service_content(_answer(message) | {"first": message.first, "items": items})


def refused_step_content(refused: BatchRefused, *, message: BatchMessage, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to a step that it refuses, signed."""
    request = message.request
    signature = mixer.sign(_declined(request, refused.code, refused.rejected))
    return service_content(declined_entries(refused, token=request.context.token, signature=signature))


def read_step(content: RecordDict, *, message: BatchMessage) -> dict[str, Any]:
    """The entries of a mix node's reply to a step.

    Raises:
        BatchRefused: with the mixer's own code and the envelopes it dropped; WRONG_ROUND for an answer to
            another round or step; NOT_PROVEN for a refusal that the mixer did not sign for this request.
        ValueError: if it is anything else.
    """
    request = message.request
    values = signed_values(
        content,
        _ANSWER | _ANSWERS[message.step],
        token=request.context.token,
        envelopes=request.count,
        declined=partial(_declined, request),
        verifying_key=request.mixers[request.position].verifying,
    )
    if values["step"] != message.step:
        raise BatchRefused(Refusal.WRONG_ROUND)
    return values


def read_mixed(content: RecordDict, *, message: BatchMessage) -> MixedStatement:
    """What a mixer has signed of a batch, in its reply to ``MIX``.

    Raises:
        BatchRefused: as by :func:`read_step`; NOT_PROVEN if the mixer did not sign it for this request.
        ValueError: if it is anything else.
    """
    values, request = read_step(content, message=message), message.request
    rejected = read_positions(values["rejected"], envelopes=request.count)
    said = MixedStatement(
        request=request.digest(),
        answered=values["answered"],
        rejected=rejected,
        count=values["count"],
        outputs=values["outputs"],
        masks=_read_masks(values["masks"]),
        signature=values["signature"],
    )
    key = request.mixers[request.position].verifying
    check_signed(request.statement(said), said.signature, verifying_key=key)
    clients, rest = divmod(said.count, request.context.reports)
    if said.answered + len(rejected) != request.count or rest or not 1 <= clients <= said.answered:
        raise ValueError("not as many good and bad envelopes as were sent, or more reports than good ones")
    return said


def read_taken(content: RecordDict, *, message: BatchMessage) -> list[bytes]:
    """The items in a reply to ``TAKE``.

    Raises:
        BatchRefused: as by :func:`read_step`; NOT_PROVEN if they are not the items that were asked for.
        ValueError: if it is anything else.
    """
    values = read_step(content, message=message)
    items = all_bytes(values["items"])
    sizes = [len(item) for item in items]
    if values["first"] != message.first or sizes != [message.item_size] * message.number:
        raise BatchRefused(Refusal.NOT_PROVEN)
    return items


def check_taken(items: Sequence[bytes], *, said: MixedStatement, size: int) -> None:
    """Check that all pieces together are the batch that the mixer has signed.

    Raises:
        BatchRefused: NOT_PROVEN if not.
        ValueError: if an item is there twice.
    """
    if len(items) != said.count or ItemsDigest.of(items, size=size).value() != said.outputs:
        raise BatchRefused(Refusal.NOT_PROVEN)
    if len(set(items)) < len(items):
        raise ValueError("the same report twice: every one is sealed anew")


def pieces(count: int, *, size: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """First position and number of items of each piece, for ``count`` items of ``size`` bytes."""
    number = max(1, piece_bytes // size)
    for first in range(0, count, number):
        yield first, min(number, count - first)


def _declined(request: BatchRequest, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    return statements.refusal_statement(request=request.digest(), code=code, rejected=rejected)


def _answer(message: BatchMessage) -> dict[str, Any]:
    return {
        "version": SERVICE_VERSION,
        "token": message.request.context.token,
        "step": str(message.step),
    }


def _masks_text(said: MixedStatement) -> str:
    """Sums of masks, hexadecimal; never empty, since Flower cannot count the bytes of an empty value."""
    return f"0x{mark_bytes(*said.masks).hex()}"


def _read_masks(text: str) -> tuple[int, ...]:
    return read_marks(bytes.fromhex(text.removeprefix("0x")))


def _to_text(said: MixedStatement) -> str:
    values = {
        "request": said.request.hex(),
        "answered": said.answered,
        "rejected": positions_text(said.rejected),
        "count": said.count,
        "outputs": said.outputs.hex(),
        "masks": _masks_text(said),
        "signature": said.signature.hex(),
    }
    return json.dumps(values)


def _of_text(text: object) -> MixedStatement:
    """What :func:`_to_text` wrote.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        values = json.loads(str(text))
        answered, count = values.pop("answered"), values.pop("count")
        said = MixedStatement(
            request=bytes.fromhex(values.pop("request")),
            answered=answered,
            rejected=read_positions(values.pop("rejected"), envelopes=1 << 62),
            count=count,
            outputs=bytes.fromhex(values.pop("outputs")),
            masks=_read_masks(values.pop("masks")),
            signature=bytes.fromhex(values.pop("signature")),
        )
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("not the statement of a mixer") from error
    if values or any(type(number) is not int or abs(number) >= 1 << 63 for number in (answered, count)):
        raise ValueError("not the statement of a mixer")
    return said


def _mixers(data: bytes) -> tuple[ServicePublicKey, ...]:
    whole = 2 * KEY_BYTES
    if len(data) % whole:
        raise ValueError(f"a mixer's public key has {whole} bytes")
    return tuple(
        ServicePublicKey(
            sealing=data[start : start + KEY_BYTES], verifying=data[start + KEY_BYTES : start + whole]
        )
        for start in range(0, len(data), whole)
    )
