"""What a server and a mix node say to each other: who mixes, and the envelopes of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from shuffle_plugins.shuffler.base import check_minimum
from shuffle_plugins.shuffler.envelopes import RoundContext
from shuffle_plugins.shuffler.errors import Refusal
from shuffle_plugins.shuffler.keys import KEY_BYTES
from shuffle_plugins.shuffler.mixer import MixedBatch

MIX_KEY = "shuffle-mix"
"""Key of the one :class:`ConfigRecord` in each of these messages."""

ROLE_QUERY = "query.role"
MIX_QUERY = "query.mix"
PROTOCOL_VERSION = 2

_REFUSAL = "refusal"
_REQUEST: dict[str, type] = {
    "version": int,
    "run": str,
    "token": bytes,
    "fingerprint": bytes,
    "analyzer-key": bytes,
    "promised": int,
    "minimum": int,
    "envelopes": list,
}
_BATCH: dict[str, type] = {"token": bytes, "answered": int, "reports": list}
_ROLE: dict[str, type] = {"version": int, "public-key": bytes, "minimum": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest:
    """A round's envelopes, on their way to the mixer.

    Attributes:
        context: the round.
        analyzer_key: public key to which clients sealed their reports, 32 bytes.
        minimum: fewest reports the server wants to be told, at least 2.
        envelopes: one per client that answered; at least one.
    """

    context: RoundContext
    analyzer_key: bytes
    minimum: int
    envelopes: list[bytes]

    def to_content(self) -> RecordDict:
        """The content of a ``query.mix`` message."""
        return _content(
            {
                "version": PROTOCOL_VERSION,
                "run": self.context.run,
                "token": self.context.token,
                "fingerprint": self.context.fingerprint,
                "analyzer-key": self.analyzer_key,
                "promised": self.context.minimum,
                "minimum": self.minimum,
                "envelopes": self.envelopes,
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        values = _values(content, _REQUEST)
        if values["version"] != PROTOCOL_VERSION:
            raise ValueError(f"version {values['version']} of mixing; this library knows {PROTOCOL_VERSION}")
        if len(values["analyzer-key"]) != KEY_BYTES:
            raise ValueError(f"an analyzer's key has {KEY_BYTES} bytes")
        return cls(
            context=RoundContext(
                run=values["run"],
                token=values["token"],
                fingerprint=values["fingerprint"],
                minimum=values["promised"],
            ),
            analyzer_key=values["analyzer-key"],
            minimum=check_minimum(values["minimum"]),
            envelopes=_ciphertexts(values["envelopes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRole:
    """What a mix node says of itself.

    Attributes:
        public_key: the one that clients pin, 32 bytes. The server shows it; it never passes it on.
        minimum: fewest reports that it gives out.
    """

    public_key: bytes
    minimum: int

    def to_content(self) -> RecordDict:
        """The content of the reply to ``query.role``."""
        return _content({"version": PROTOCOL_VERSION, "public-key": self.public_key, "minimum": self.minimum})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            ValueError: if it is anything else, or of another version.
        """
        values = _values(content, _ROLE)
        if values["version"] != PROTOCOL_VERSION or len(values["public-key"]) != KEY_BYTES:
            raise ValueError("a mix node of another version")
        return cls(public_key=values["public-key"], minimum=check_minimum(values["minimum"]))


def batch_content(batch: MixedBatch, *, token: bytes) -> RecordDict:
    """The content of a mix node's reply to ``query.mix``."""
    return _content({"token": token, "answered": batch.answered, "reports": batch.reports})


def read_batch(content: RecordDict) -> tuple[MixedBatch, bytes]:
    """The batch and the token in what :func:`batch_content` wrote.

    Raises:
        ValueError: if it is anything else.
    """
    values = _values(content, _BATCH)
    batch = MixedBatch(reports=_ciphertexts(values["reports"]), answered=values["answered"])
    if not 1 <= len(batch.reports) <= batch.answered:
        raise ValueError("no reports, or more reports than clients that answered")
    if len(set(batch.reports)) < len(batch.reports):
        raise ValueError("the same report twice: every one is sealed anew")
    return batch, values["token"]


def refusal_content(code: Refusal) -> RecordDict:
    """The content of a reply that refuses; it follows from the code alone."""
    return _content({_REFUSAL: str(code)})


def refusal_in(content: RecordDict) -> Refusal | None:
    """The code in what :func:`refusal_content` wrote; None if it does not refuse.

    Raises:
        ValueError: if it refuses for a reason unknown here.
    """
    record = content.get(MIX_KEY)
    if not isinstance(record, ConfigRecord) or list(record) != [_REFUSAL]:
        return None
    return Refusal(str(record[_REFUSAL]))


def _content(values: dict[str, Any]) -> RecordDict:
    return RecordDict({MIX_KEY: ConfigRecord(values)})


def _values(content: RecordDict, types: dict[str, type]) -> dict[str, Any]:
    record = content.get(MIX_KEY)
    if list(content) != [MIX_KEY] or not isinstance(record, ConfigRecord):
        raise ValueError(f"the content is one ConfigRecord {MIX_KEY!r}")
    if record.keys() != types.keys() or any(type(record[key]) is not kind for key, kind in types.items()):
        raise ValueError(f"the record has the entries {sorted(types)}, no others, each of its type")
    return dict(record)


def _ciphertexts(values: list[Any]) -> list[bytes]:
    if not all(type(value) is bytes for value in values):
        raise ValueError("ciphertexts are bytes")
    return values
