"""What a mixer signs, so that a server can tell it from others that know its public key.

A statement holds all that its reader must not be deceived about, and the question that it answers, so the
answer to one question is worth nothing as an answer to another. Different statements have different bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shuffle_plugins.shuffler.base import RoundContext
from shuffle_plugins.shuffler.errors import Refusal
from shuffle_plugins.shuffler.keys import SigningKey

CHALLENGE_BYTES = 32
"""Bytes of the random challenge to which a mixer answers who it is."""

_ROLE = b"shuffle-plugins/2 mixer role"
_REQUEST = b"shuffle-plugins/2 mixer request"
_BATCH = b"shuffle-plugins/2 mixed batch"
_REFUSED = b"shuffle-plugins/2 refused batch"


@dataclass(frozen=True, slots=True)
class Statement:
    """Bytes that a mixer can sign; made by the functions of this module.

    Attributes:
        digest: 32 bytes that differ wherever two statements do.
    """

    digest: bytes

    def signed(self, key: SigningKey) -> bytes:
        """The signature, 64 bytes (Ed25519)."""
        return key.sign(self.digest)

    def holds(self, signature: bytes, *, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this statement."""
        try:
            Ed25519PublicKey.from_public_bytes(verifying_key).verify(signature, self.digest)
        except (InvalidSignature, ValueError):
            return False
        return True


def role_statement(*, challenge: bytes, run: str, node: int, sealing_key: bytes, minimum: int) -> Statement:
    """A mixer says that it is the one asked, and which node of the run it is.

    Args:
        challenge: random bytes of whoever asks, :data:`CHALLENGE_BYTES` of them, used for one question.
        run: name of the run.
        node: the mixer's own id in it; another node cannot pass the answer on as its own.
        sealing_key: public key to which clients seal.
        minimum: fewest reports that the mixer gives out.
    """
    return _statement(
        _ROLE, challenge, run.encode("utf-8", "surrogatepass"), _number(node), sealing_key, _number(minimum)
    )


def request_digest(
    *, context: RoundContext, analyzer_key: bytes, minimum: int, size: int, envelopes: Sequence[bytes]
) -> bytes:
    """32 bytes that differ wherever two requests to mix do, the order of their envelopes included."""
    inputs = _statement(_REQUEST, *envelopes)
    return _statement(
        _REQUEST, context.digest(), analyzer_key, _number(minimum), _number(size), inputs.digest
    ).digest


def batch_statement(
    *, request: bytes, answered: int, rejected: Mapping[int, Refusal], reports: Sequence[bytes]
) -> Statement:
    """A mixer says what it made of a request, given by :func:`request_digest`."""
    return _statement(_BATCH, request, _number(answered), *_positions(rejected), *reports)


def refusal_statement(*, request: bytes, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    """A mixer says that it gives nothing out for a request, and why."""
    return _statement(_REFUSED, request, str(code).encode(), *_positions(rejected))


def _positions(rejected: Mapping[int, Refusal]) -> list[bytes]:
    pairs = [_number(position) + str(code).encode() for position, code in sorted(rejected.items())]
    return [_number(len(pairs)), *pairs]


def _number(value: int) -> bytes:
    return value.to_bytes(16, "big", signed=True)


def _statement(kind: bytes, *parts: bytes) -> Statement:
    """Every part with its length before it, so that no two lists of parts are the same bytes."""
    digest = hashlib.sha256()
    for part in (kind, *parts):
        digest.update(_number(len(part)) + part)
    return Statement(digest.digest())
