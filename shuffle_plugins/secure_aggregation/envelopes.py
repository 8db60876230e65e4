"""Sealed seeds: what one client sends to one aggregator, signed, and bound to the client's share.

    envelope = HPKE to the aggregator of   signer (32) ‖ signature (64) ‖ seed (32)

HPKE is RFC 9180 in base mode with X25519, HKDF-SHA256 and AES-128-GCM, as for a mixer's envelopes. The server
relays the envelope and sees random-looking bytes. The envelope is bound to the terms of the round, and to a
digest of the share that the same client sent to the server. The server passes the digest on beside the
envelope. So a seed is added up only together with the share that it belongs to, and only if the client and
the aggregator were told the same about the round.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shuffle_plugins.secure_aggregation.expansion import SEED_BYTES
from shuffle_plugins.secure_aggregation.terms import SumTerms
from shuffle_plugins.shuffler import KEY_BYTES, BatchRefused, Refusal, SealingKey, ShuffleError, SigningKey
from shuffle_plugins.shuffler.keys import public_key_bytes

COMMITMENT_BYTES = 32
"""Bytes of a share's digest."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_HPKE_BYTES = KEY_BYTES + 16
_SIGNATURE_BYTES = 64
_COVER_BYTES = KEY_BYTES + _SIGNATURE_BYTES
_TO_AGGREGATOR = b"shuffle-plugins/1 to the aggregator"
_SIGNED = b"shuffle-plugins/1 signed seed"
_COMMITTED = b"shuffle-plugins/1 share"


def sealed_seed_size(size: int = SEED_BYTES) -> int:
    """Bytes of an envelope around a secret of ``size`` bytes."""
    return _HPKE_BYTES + _COVER_BYTES + size


def commitment(share: bytes) -> bytes:
    """The digest of a share, 32 bytes, to which the client's envelopes are bound."""
    return hashlib.sha256(_COMMITTED + share).digest()


def seal_seed(
    seed: bytes, *, terms: SumTerms, share: bytes, aggregator_key: bytes, signing_key: SigningKey
) -> bytes:
    """Seal a client's seed for one aggregator.

    Args:
        seed: 32 bytes; other lengths are for protocols that send more than a seed, all clients alike.
        terms: the round, as the server told the client.
        share: the bytes that the same client sends to the server.
        aggregator_key: the aggregator's public key, as pinned by the client; never one that the server sent.
        signing_key: the client's private signing key.

    Raises:
        ShuffleError: if the key is not one of the terms' aggregators, or is not a valid X25519 key.
    """
    if aggregator_key not in terms.aggregators:
        raise ShuffleError("a seed is sealed to one of the aggregators that the terms name")
    binding = _binding(terms, commitment(share))
    signature = signing_key.sign(_signed(binding, aggregator_key, seed))
    try:
        return _SUITE.encrypt(
            public_key_bytes(signing_key) + signature + seed,
            X25519PublicKey.from_public_bytes(aggregator_key),
            info=_TO_AGGREGATOR + binding,
        )
    except ValueError as error:
        raise ShuffleError("a public key of an aggregator is no point to seal to") from error


class SeedOpener:
    """Opens a round's envelopes for one aggregator.

    Args:
        terms: the round, as the server told the aggregator.
        private_key: the aggregator's private key.
        enrolled: public signing keys of the clients that may take part.
    """

    def __init__(self, *, terms: SumTerms, private_key: SealingKey, enrolled: frozenset[bytes]) -> None:
        self._terms = terms
        self._private_key = private_key
        self._key = public_key_bytes(private_key)
        self._enrolled = enrolled
        self._digest = terms.digest()

    def open(self, envelope: bytes, *, commitment: bytes) -> tuple[bytes, bytes]:
        """Open one envelope.

        Args:
            envelope: as the server relayed it.
            commitment: the digest of the share that the server got with it.

        Returns:
            The client's public signing key, and the seed.

        Raises:
            BatchRefused: UNREADABLE if it was altered, sealed to another key or for another round, or belongs
                to another share; UNKNOWN_SIGNER if no enrolled client signed it.
        """
        binding = self._digest + commitment
        try:
            cover = _SUITE.decrypt(envelope, self._private_key, info=_TO_AGGREGATOR + binding)
        except (InvalidTag, ValueError):
            raise BatchRefused(Refusal.UNREADABLE) from None
        signer, signature, seed = cover[:KEY_BYTES], cover[KEY_BYTES:_COVER_BYTES], cover[_COVER_BYTES:]
        if signer not in self._enrolled:
            raise BatchRefused(Refusal.UNKNOWN_SIGNER)
        try:
            Ed25519PublicKey.from_public_bytes(signer).verify(signature, _signed(binding, self._key, seed))
        except (InvalidSignature, ValueError):
            raise BatchRefused(Refusal.UNKNOWN_SIGNER) from None
        return signer, seed


def _binding(terms: SumTerms, committed: bytes) -> bytes:
    return terms.digest() + committed


def _signed(binding: bytes, aggregator_key: bytes, seed: bytes) -> bytes:
    return _SIGNED + binding + aggregator_key + seed
