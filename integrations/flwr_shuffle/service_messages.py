"""What server and service nodes send each other: who a node is, and that it refuses.

A *service node* is a SuperNode of another organisation that does one step of a round and is no client: a
mix node or an aggregator. A server finds it by a challenge, since anybody can state a public key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict, UserConfigValue

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler import (
    CHALLENGE_BYTES,
    KEY_BYTES,
    BatchRefused,
    BatchService,
    Refusal,
    Statement,
    statements,
)

SERVICE_KEY = "shuffle-mix"
"""Key of the one :class:`ConfigRecord` in each of these messages."""

ROLE = "shuffle-role"
"""The key in ``node_config`` that makes a node a service node; its value is a :class:`Role`."""

SERVICE_VERSION = 2
"""Version of the messages between a server and its service nodes."""

NO_HANDLER = re.compile(r"No \w+ function registered with name '(\w+)'")
"""How Flower says that an app has no function for a message."""

_REFUSAL = "refusal"
SIGNED: dict[str, type] = {"version": int, "token": bytes, "rejected": str, "signature": bytes}
"""Entries of every signed answer to a request of a round."""

_QUESTION: dict[str, type] = {"version": int, "challenge": bytes}
_ROLE: dict[str, type] = {"version": int, "public-key": bytes, "minimum": int, "signature": bytes}


class Role(StrEnum):
    """What a service node does; the value of :data:`ROLE` in its ``node_config``."""

    MIXER = "mixer"
    AGGREGATOR = "aggregator"

    @property
    def action(self) -> str:
        """Name of the query by which a node is asked whether it has this role."""
        return _ACTIONS[self]

    @property
    def query(self) -> str:
        """Type of the message that asks a node whether it has this role."""
        return f"query.{self.action}"

    @property
    def node(self) -> str:
        """What such a node is called in a log."""
        return _NODES[self]

    @property
    def registered_by(self) -> str:
        """Name of the function by which a client app takes this role."""
        return _REGISTERED_BY[self]

    @property
    def article(self) -> str:
        """The indefinite article of :attr:`node`."""
        return "an" if self.node[0] in "aeiou" else "a"


_ACTIONS = {Role.MIXER: "shuffle_role", Role.AGGREGATOR: "shuffle_aggregator_role"}
_NODES = {Role.MIXER: "mix node", Role.AGGREGATOR: "aggregator"}
_REGISTERED_BY = {Role.MIXER: "register_mix_node", Role.AGGREGATOR: "register_aggregator"}


class WrongVersionError(ValueError):
    """A message of server or service node is of another version; the text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRole:
    """What a service node says of itself.

    Attributes:
        public_key: key to which clients seal, 32 bytes. The server never passes it on to clients.
        minimum: fewest reports that the node gives out, or adds up.
        signature: made with the key that the server has pinned; it also covers the challenge and the node's
            id.
    """

    public_key: bytes
    minimum: int
    signature: bytes

    @classmethod
    def signed(cls, service: BatchService, *, challenge: bytes, run: str, node: int) -> Self:
        """The role of a service, signed in answer to a challenge, as one node of a run."""
        key, minimum = service.public_key.sealing, service.minimum
        said = statements.role_statement(
            role=service.role, challenge=challenge, run=run, node=node, sealing_key=key, minimum=minimum
        )
        return cls(public_key=key, minimum=minimum, signature=service.sign(said))

    def holds(self, *, role: Role, challenge: bytes, run: str, node: int, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this role, for this challenge and as this node."""
        said = statements.role_statement(
            role=role,
            challenge=challenge,
            run=run,
            node=node,
            sealing_key=self.public_key,
            minimum=self.minimum,
        )
        return said.holds(self.signature, verifying_key=verifying_key)

    def to_content(self) -> RecordDict:
        """The content of the reply to a role's query."""
        return service_content(
            {
                "version": SERVICE_VERSION,
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
        values = service_values(content, _ROLE)
        if len(values["public-key"]) != KEY_BYTES:
            raise ValueError(f"a key to seal to has {KEY_BYTES} bytes")
        return cls(
            public_key=values["public-key"],
            minimum=checks.whole("minimum", values["minimum"], at_least=2),
            signature=values["signature"],
        )


def role_of(node_config: Mapping[str, UserConfigValue]) -> Role | None:
    """What a node is by its own ``node_config``; None for a client."""
    value = node_config.get(ROLE)
    return Role(value) if isinstance(value, str) and value in set(Role) else None


def question_content(challenge: bytes) -> RecordDict:
    """The content of a message that asks for a role: a challenge that only the role's owner can answer."""
    return service_content({"version": SERVICE_VERSION, "challenge": challenge})


def read_question(content: RecordDict) -> bytes:
    """The challenge in what :func:`question_content` wrote.

    Raises:
        WrongVersionError: if it is of another version.
        ValueError: if it is anything else.
    """
    challenge: bytes = service_values(content, _QUESTION)["challenge"]
    if len(challenge) != CHALLENGE_BYTES:
        raise ValueError(f"a challenge has {CHALLENGE_BYTES} bytes")
    return challenge


def refusal_content(code: Refusal) -> RecordDict:
    """The content of the reply of a node that cannot sign: a code, and nothing else."""
    return service_content({_REFUSAL: str(code)})


def refusal_in(content: RecordDict) -> Refusal | None:
    """The code in what :func:`refusal_content` wrote; None if the content is something else.

    Raises:
        ValueError: if the code is unknown.
    """
    record = content.get(SERVICE_KEY)
    if not isinstance(record, ConfigRecord) or list(record) != [_REFUSAL]:
        return None
    return Refusal(str(record[_REFUSAL]))


def envelopes_text(number: int) -> str:
    """A number of envelopes, for a line of a log."""
    return f"{number:,} envelope{'' if number == 1 else 's'}"


def positions_text(rejected: Mapping[int, Refusal]) -> str:
    """The entry that says which envelopes of a request were dropped, and why."""
    return json.dumps(sorted((position, str(code)) for position, code in rejected.items()))


def read_positions(text: str, *, envelopes: int) -> dict[int, Refusal]:
    """Why a service node dropped envelopes, by their positions among so many.

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


def check_signed(said: Statement, signature: bytes, *, verifying_key: bytes) -> None:
    """Check that a service node has signed a statement.

    Raises:
        BatchRefused: NOT_PROVEN, if it has not.
    """
    if not said.holds(signature, verifying_key=verifying_key):
        raise BatchRefused(Refusal.NOT_PROVEN)


def all_bytes(values: list[Any]) -> list[bytes]:
    """The values of an entry that is a list of byte strings.

    Raises:
        ValueError: if one is anything else.
    """
    if not all(type(value) is bytes for value in values):
        raise ValueError("ciphertexts are bytes")
    return values


def service_content(values: dict[str, Any]) -> RecordDict:
    """The content of a message of these entries."""
    return RecordDict({SERVICE_KEY: ConfigRecord(values)})


def service_values(content: RecordDict, types: dict[str, type]) -> dict[str, Any]:
    """The entries of a message, each of its type.

    Raises:
        WrongVersionError: if it is of another version.
        ValueError: if it is anything else.
    """
    record = content.get(SERVICE_KEY)
    if list(content) != [SERVICE_KEY] or not isinstance(record, ConfigRecord):
        raise ValueError(f"the content is one ConfigRecord {SERVICE_KEY!r}")
    if (version := record.get("version")) != SERVICE_VERSION and type(version) is int:
        raise WrongVersionError(
            f"version {version} of mixing; this library knows version {SERVICE_VERSION}: install the same "
            "shuffle-plugins on the server and the mix node"
        )
    if record.keys() != types.keys() or any(type(record[key]) is not kind for key, kind in types.items()):
        raise ValueError(f"the record has the entries {sorted(types)}, no others, each of its type")
    return dict(record)


def signed_entries(token: bytes, *, rejected: Mapping[int, Refusal], signature: bytes) -> dict[str, Any]:
    """The entries :data:`SIGNED` of an answer to a request of a round."""
    return {
        "version": SERVICE_VERSION,
        "token": token,
        "rejected": positions_text(rejected),
        "signature": signature,
    }


def declined_entries(refused: BatchRefused, *, token: bytes, signature: bytes) -> dict[str, Any]:
    """The entries of a signed answer that there is nothing for a request."""
    entries = signed_entries(token, rejected=refused.rejected, signature=signature)
    return entries | {_REFUSAL: str(refused.code)}


def signed_values(
    content: RecordDict,
    types: dict[str, type],
    *,
    token: bytes,
    envelopes: int,
    declined: Callable[[Refusal, Mapping[int, Refusal]], Statement],
    verifying_key: bytes,
) -> dict[str, Any]:
    """The entries of a service node's answer to a request of a round, if it is no refusal.

    Args:
        content: of the reply.
        types: entries of an answer that is no refusal, whose signature the caller checks.
        token: of the round.
        envelopes: how many the request has.
        declined: what the node signs if it refuses, by the code and the envelopes that it dropped.
        verifying_key: the node's verifying key, as the server has pinned it.

    Raises:
        BatchRefused: with the node's own code and the envelopes it dropped; WRONG_ROUND for an answer to
            another round; NOT_PROVEN for a refusal that the node did not sign for this very request.
        ValueError: if it is anything else.
    """
    if refusal_in(content) is not None:
        raise BatchRefused(Refusal.NOT_PROVEN)
    refuses = _REFUSAL in content.get(SERVICE_KEY, {})
    values = service_values(content, SIGNED | {_REFUSAL: str} if refuses else types)
    if values["token"] != token:
        raise BatchRefused(Refusal.WRONG_ROUND)
    if refuses:
        code = Refusal(values[_REFUSAL])
        rejected = read_positions(values["rejected"], envelopes=envelopes)
        check_signed(declined(code, rejected), values["signature"], verifying_key=verifying_key)
        raise BatchRefused(code, rejected)
    return values
