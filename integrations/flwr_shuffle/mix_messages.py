"""What server and mix node send each other: a question who the mix node is, and a round's envelopes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict, UserConfigValue

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    CHALLENGE_BYTES,
    KEY_BYTES,
    BatchRefused,
    MixedBatch,
    Mixer,
    Refusal,
    RoundContext,
    Statement,
    statements,
)

MIX_KEY = "shuffle-mix"
"""Key of the one :class:`ConfigRecord` in each of these messages."""

ROLE_QUERY = "query.role"
"""Type of the message that asks a node whether it is the mix node."""

MIX_QUERY = "query.mix"
"""Type of the message that asks the mix node to mix a round's envelopes."""

ROLE, MIXER = "shuffle-role", "mixer"
"""The key in ``node_config`` that makes a node the mix node, and its value there."""

MIXING_VERSION = 2
"""Version of the messages between server and mix node."""

_REFUSAL = "refusal"
_REQUEST: dict[str, type] = {
    "version": int,
    "run": str,
    "token": bytes,
    "fingerprint": bytes,
    "analyzer-key": bytes,
    "promised": int,
    "minimum": int,
    "size": int,
    "envelopes": list,
}
_ANSWER: dict[str, type] = {"version": int, "token": bytes, "rejected": str, "signature": bytes}
_BATCH: dict[str, type] = _ANSWER | {"answered": int, "reports": list}
_REFUSED: dict[str, type] = _ANSWER | {_REFUSAL: str}
_QUESTION: dict[str, type] = {"version": int, "challenge": bytes}
_ROLE: dict[str, type] = {"version": int, "public-key": bytes, "minimum": int, "signature": bytes}


class WrongVersionError(ValueError):
    """A message of server or mix node is of another version; the text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest:
    """A round's envelopes, on their way to the mixer.

    Attributes:
        context: the round.
        analyzer_key: public key to which clients sealed their reports, 32 bytes.
        minimum: fewest reports with which the server wants a batch, at least 2.
        size: bytes of an envelope of the round.
        envelopes: one per client that answered; at least one.
    """

    context: RoundContext
    analyzer_key: bytes
    minimum: int
    size: int
    envelopes: list[bytes]

    def digest(self) -> bytes:
        """Digest of the request, 32 bytes, which the mixer signs with its answer."""
        return statements.request_digest(
            context=self.context,
            analyzer_key=self.analyzer_key,
            minimum=self.minimum,
            size=self.size,
            envelopes=self.envelopes,
        )

    def to_content(self) -> RecordDict:
        """The content of a ``query.mix`` message."""
        return _content(
            {
                "version": MIXING_VERSION,
                "run": self.context.run,
                "token": self.context.token,
                "fingerprint": self.context.fingerprint,
                "analyzer-key": self.analyzer_key,
                "promised": self.context.minimum,
                "minimum": self.minimum,
                "size": self.size,
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
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            size=values["size"],
            envelopes=_ciphertexts(values["envelopes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRole:
    """What a mix node says of itself.

    Attributes:
        public_key: key to which clients seal, 32 bytes. The server never passes it on to clients.
        minimum: fewest reports that the mix node gives out.
        signature: made with the key that the server has pinned; it also covers the challenge and the node's
            id.
    """

    public_key: bytes
    minimum: int
    signature: bytes

    @classmethod
    def signed(cls, mixer: Mixer, *, challenge: bytes, run: str, node: int) -> Self:
        """The role of a mixer, signed in answer to a challenge, as one node of a run."""
        key, minimum = mixer.public_key.sealing, mixer.minimum
        said = statements.role_statement(
            challenge=challenge, run=run, node=node, sealing_key=key, minimum=minimum
        )
        return cls(public_key=key, minimum=minimum, signature=mixer.sign(said))

    def holds(self, *, challenge: bytes, run: str, node: int, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this role, for this challenge and as this node."""
        said = statements.role_statement(
            challenge=challenge, run=run, node=node, sealing_key=self.public_key, minimum=self.minimum
        )
        return said.holds(self.signature, verifying_key=verifying_key)

    def to_content(self) -> RecordDict:
        """The content of the reply to ``query.role``."""
        return _content(
            {
                "version": MIXING_VERSION,
                "public-key": self.public_key,
                "minimum": self.minimum,
                "signature": self.signature,
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read what :meth:`to_content` wrote.

        Raises:
            WrongVersionError: if it is of another version.
            ValueError: if it is anything else.
        """
        values = _values(content, _ROLE)
        if len(values["public-key"]) != KEY_BYTES:
            raise ValueError(f"a mixer's key to seal to has {KEY_BYTES} bytes")
        return cls(
            public_key=values["public-key"],
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            signature=values["signature"],
        )


def is_mix_node(node_config: Mapping[str, UserConfigValue]) -> bool:
    """Whether a node is the mix node, by its own ``node_config``."""
    return node_config.get(ROLE) == MIXER


def question_content(challenge: bytes) -> RecordDict:
    """The content of a ``query.role`` message: a challenge that only the mixer can answer."""
    return _content({"version": MIXING_VERSION, "challenge": challenge})


def read_question(content: RecordDict) -> bytes:
    """The challenge in what :func:`question_content` wrote.

    Raises:
        WrongVersionError: if it is of another version.
        ValueError: if it is anything else.
    """
    challenge: bytes = _values(content, _QUESTION)["challenge"]
    if len(challenge) != CHALLENGE_BYTES:
        raise ValueError(f"a challenge has {CHALLENGE_BYTES} bytes")
    return challenge


def batch_content(batch: MixedBatch, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.mix``: a batch, signed."""
    said = statements.batch_statement(
        request=request.digest(), answered=batch.answered, rejected=batch.rejected, reports=batch.reports
    )
    values = _answer(request, rejected=batch.rejected, signature=mixer.sign(said))
    return _content(values | {"answered": batch.answered, "reports": batch.reports})


def refused_content(refused: BatchRefused, *, request: MixRequest, mixer: Mixer) -> RecordDict:
    """The content of a mix node's reply to ``query.mix``: that there is no batch, signed."""
    said = statements.refusal_statement(
        request=request.digest(), code=refused.code, rejected=refused.rejected
    )
    values = _answer(request, rejected=refused.rejected, signature=mixer.sign(said))
    return _content(values | {_REFUSAL: str(refused.code)})


def read_answer(content: RecordDict, *, request: MixRequest, verifying_key: bytes) -> MixedBatch:
    """The batch in what :func:`batch_content` wrote in answer to a request.

    Args:
        content: content of the mix node's reply.
        request: the request that was sent to the mix node.
        verifying_key: the mixer's verifying key, as pinned by the server.

    Raises:
        BatchRefused: with the mixer's own code and the envelopes it dropped; WRONG_ROUND for an answer to
            another round; NOT_PROVEN if the mixer did not sign it, for this very request.
        ValueError: if it is anything else.
    """
    if refusal_in(content) is not None:
        raise BatchRefused(Refusal.NOT_PROVEN)
    refuses = _REFUSAL in content.get(MIX_KEY, {})
    values = _values(content, _REFUSED if refuses else _BATCH)
    if values["token"] != request.context.token:
        raise BatchRefused(Refusal.WRONG_ROUND)
    rejected = _read_positions(values["rejected"], envelopes=len(request.envelopes))
    if refuses:
        code = Refusal(values[_REFUSAL])
        said = statements.refusal_statement(request=request.digest(), code=code, rejected=rejected)
        _check(said, values["signature"], verifying_key=verifying_key)
        raise BatchRefused(code, rejected)
    reports, answered = _ciphertexts(values["reports"]), values["answered"]
    said = statements.batch_statement(
        request=request.digest(), answered=answered, rejected=rejected, reports=reports
    )
    _check(said, values["signature"], verifying_key=verifying_key)
    if answered + len(rejected) != len(request.envelopes) or not 1 <= len(reports) <= answered:
        raise ValueError("not as many good and bad envelopes as were sent, or more reports than good ones")
    if len(set(reports)) < len(reports):
        raise ValueError("the same report twice: every one is sealed anew")
    return MixedBatch(reports=reports, answered=answered, rejected=rejected)


def refusal_content(code: Refusal) -> RecordDict:
    """The content of the reply of a node that cannot sign: a code, and nothing else."""
    return _content({_REFUSAL: str(code)})


def refusal_in(content: RecordDict) -> Refusal | None:
    """The code in what :func:`refusal_content` wrote; None if the content is something else.

    Raises:
        ValueError: if the code is unknown.
    """
    record = content.get(MIX_KEY)
    if not isinstance(record, ConfigRecord) or list(record) != [_REFUSAL]:
        return None
    return Refusal(str(record[_REFUSAL]))


def _answer(request: MixRequest, *, rejected: Mapping[int, Refusal], signature: bytes) -> dict[str, Any]:
    return {
        "version": MIXING_VERSION,
        "token": request.context.token,
        "rejected": json.dumps(sorted((position, str(code)) for position, code in rejected.items())),
        "signature": signature,
    }


def _read_positions(text: str, *, envelopes: int) -> dict[int, Refusal]:
    """Why a mixer dropped envelopes, by their positions.

    Raises:
        ValueError: if the text is anything else, or a position is out of range or there twice.
    """
    try:
        pairs = json.loads(text)
    except RecursionError as error:
        raise ValueError("dropped envelopes are pairs of position and code") from error
    if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise ValueError("dropped envelopes are pairs of position and code")
    if any(type(position) is not int or not 0 <= position < envelopes for position, _ in pairs):
        raise ValueError("a dropped envelope that was not sent")
    rejected = {position: Refusal(code) for position, code in pairs}
    if len(rejected) < len(pairs):
        raise ValueError("an envelope that was dropped twice")
    return rejected


def _check(said: Statement, signature: bytes, *, verifying_key: bytes) -> None:
    if not said.holds(signature, verifying_key=verifying_key):
        raise BatchRefused(Refusal.NOT_PROVEN)


def _content(values: dict[str, Any]) -> RecordDict:
    return RecordDict({MIX_KEY: ConfigRecord(values)})


def _values(content: RecordDict, types: dict[str, type]) -> dict[str, Any]:
    record = content.get(MIX_KEY)
    if list(content) != [MIX_KEY] or not isinstance(record, ConfigRecord):
        raise ValueError(f"the content is one ConfigRecord {MIX_KEY!r}")
    if (version := record.get("version")) != MIXING_VERSION and type(version) is int:
        raise WrongVersionError(
            f"version {version} of mixing; this library knows version {MIXING_VERSION}: install the same "
            "shuffle-plugins on the server and the mix node"
        )
    if record.keys() != types.keys() or any(type(record[key]) is not kind for key, kind in types.items()):
        raise ValueError(f"the record has the entries {sorted(types)}, no others, each of its type")
    return dict(record)


def _ciphertexts(values: list[Any]) -> list[bytes]:
    if not all(type(value) is bytes for value in values):
        raise ValueError("ciphertexts are bytes")
    return values
