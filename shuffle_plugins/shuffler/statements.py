"""What a mixer, or another service, signs, so that a server can tell it from others that know its public key.

A statement contains all that its reader relies on, and the question that it answers, so that an answer cannot
be passed off as the answer to another question. Different statements have different bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from shuffle_plugins.shuffler.errors import Refusal
from shuffle_plugins.shuffler.keys import SigningKey, has_signed

CHALLENGE_BYTES = 32
"""Bytes of the random challenge to which a mixer answers who it is."""

_REFUSED = b"shuffle-plugins/4 refused batch"


@dataclass(frozen=True, slots=True)
class Statement:
    """Bytes that a mixer can sign; made by the functions of this module.

    Attributes:
        digest: 32 bytes, different for different statements.
    """

    digest: bytes

    def signed(self, key: SigningKey) -> bytes:
        """The statement's signature with a key, 64 bytes (Ed25519)."""
        return key.sign(self.digest)

    def holds(self, signature: bytes, *, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this statement."""
        return has_signed(verifying_key, signature, self.digest)


def role_statement(
    *, role: str, challenge: bytes, run: str, node: int, sealing_key: bytes, minimum: int
) -> Statement:
    """A service's statement of who it is, and as which node of the run.

    Args:
        role: what it does, such as ``"mixer"``.
        challenge: :data:`CHALLENGE_BYTES` random bytes of who asks, used for one question.
        run: name of the run.
        node: the service's own id in the run; so no other node can pass the answer off as its own.
        sealing_key: public key to which clients seal.
        minimum: fewest reports that it gives out.
    """
    kind = f"shuffle-plugins/4 {role} role".encode()
    name = run.encode("utf-8", "surrogatepass")
    return statement(kind, challenge, name, encoded_number(node), sealing_key, encoded_number(minimum))


def refusal_statement(*, request: bytes, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    """A mixer's statement that it gives back nothing for a request, and why."""
    return statement(_REFUSED, request, str(code).encode(), *positions(rejected))


def positions(rejected: Mapping[int, Refusal]) -> list[bytes]:
    """Parts of a statement that say which envelopes were dropped, and why."""
    pairs = [encoded_number(position) + str(code).encode() for position, code in sorted(rejected.items())]
    return [encoded_number(len(pairs)), *pairs]


def encoded_number(value: int) -> bytes:
    """The part of a statement that is a whole number."""
    return value.to_bytes(16, "big", signed=True)


def statement(kind: bytes, *parts: bytes) -> Statement:
    """The digest of the parts, each with its length before it, so that different lists have other bytes."""
    digest = hashlib.sha256()
    for part in (kind, *parts):
        digest.update(encoded_number(len(part)) + part)
    return Statement(digest.digest())
