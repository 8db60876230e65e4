"""Sealed envelopes: a report that only the analyzer can read, in a cover that only the mixer can open.

    envelope = HPKE to the mixer of   flag (1) ‖ signer (32) ‖ signature (64) ‖ inner
    inner    = HPKE to the analyzer of the report

HPKE is RFC 9180 in base mode with X25519, HKDF-SHA256 and AES-128-GCM. The server, which holds the analyzer's
key and relays envelopes, sees random-looking bytes of one length; the mixer sees who signed and whether it is
a dummy, but no report. Both layers and the signature are bound to the round, so an envelope opens only in its
own round, and only if its client was told the same about the round as the mixer. A server could recognise
the report of a client that it tells another analyzer key or another rate than the rest; such an envelope does
not open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shuffle_plugins.shuffler.base import RoundContext
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, SealingKey, SigningKey, public_key_bytes

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_HPKE_BYTES = KEY_BYTES + 16
_SIGNATURE_BYTES = 64
_COVER_BYTES = 1 + KEY_BYTES + _SIGNATURE_BYTES
_REPORT, _DUMMY = b"\x01", b"\x00"

_TO_ANALYZER = b"shuffle-plugins/1 to the analyzer"
_TO_MIXER = b"shuffle-plugins/1 to the mixer"
_SIGNED = b"shuffle-plugins/1 signed"


@dataclass(frozen=True, slots=True)
class Opened:
    """What a mixer sees in an envelope whose signature holds.

    Attributes:
        signer: the client's public signing key.
        real: False for a dummy.
        inner: the report, sealed to the analyzer.
    """

    signer: bytes
    real: bool
    inner: bytes


def envelope_size(size: int) -> int:
    """Bytes of an envelope around a report of ``size`` bytes, or around a dummy."""
    return size + _HPKE_BYTES + _COVER_BYTES + _HPKE_BYTES


def seal(
    report: bytes | None,
    *,
    size: int,
    context: RoundContext,
    analyzer_key: bytes,
    mixer_key: bytes,
    signing_key: SigningKey,
) -> bytes:
    """Seal a report, or a dummy, in an envelope of ``envelope_size(size)`` bytes.

    Args:
        report: exactly ``size`` bytes; None for a dummy, which only the mixer can recognise, and drops.
        size: bytes of every report of the round.
        context: the round that the envelope belongs to.
        analyzer_key: public key of whoever reads the shuffled reports, as the server announced it.
        mixer_key: public key of the mixer, as pinned by the client; never one that the server sent.
        signing_key: the client's private signing key.

    Raises:
        ShuffleError: if the report is not of that size, or a key is malformed.
    """
    if report is not None and len(report) != size:
        raise ShuffleError(f"every report of the round has {size} bytes, got {len(report)}")
    for key in (analyzer_key, mixer_key):
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise ShuffleError(f"a public key has {KEY_BYTES} bytes")
    flag = _DUMMY if report is None else _REPORT
    binding = _binding(context, analyzer_key)
    try:
        inner = _SUITE.encrypt(
            bytes(size) if report is None else report,
            X25519PublicKey.from_public_bytes(analyzer_key),
            info=_TO_ANALYZER + context.digest(),
        )
        signature = signing_key.sign(_signed(binding, mixer_key, flag, inner))
        cover = flag + public_key_bytes(signing_key) + signature + inner
        return _SUITE.encrypt(cover, X25519PublicKey.from_public_bytes(mixer_key), info=_TO_MIXER + binding)
    except ValueError as error:
        raise ShuffleError("a public key of the analyzer or the mixer is no point to seal to") from error


class EnvelopeOpener:
    """Opens the outer layer of a round's envelopes.

    Args:
        context: the round, as the server told the mixer.
        analyzer_key: public key to which the reports inside are sealed.
        private_key: the mixer's private key.
        enrolled: public signing keys of the clients that may take part.
    """

    def __init__(
        self,
        *,
        context: RoundContext,
        analyzer_key: bytes,
        private_key: SealingKey,
        enrolled: frozenset[bytes],
    ) -> None:
        self._private_key = private_key
        self._mixer_key = public_key_bytes(private_key)
        self._enrolled = enrolled
        self._binding = _binding(context, analyzer_key)
        self._info = _TO_MIXER + self._binding

    def open(self, envelope: bytes) -> Opened:
        """Open one envelope.

        Raises:
            BatchRefused: UNREADABLE if it was altered or sealed to another key or for another round;
                UNKNOWN_SIGNER if no enrolled client signed it.
        """
        try:
            cover = _SUITE.decrypt(envelope, self._private_key, info=self._info)
        except (InvalidTag, ValueError):
            raise BatchRefused(Refusal.UNREADABLE) from None
        flag, signer = cover[:1], cover[1 : 1 + KEY_BYTES]
        signature, inner = cover[1 + KEY_BYTES : _COVER_BYTES], cover[_COVER_BYTES:]
        if flag not in (_REPORT, _DUMMY) or len(inner) < _HPKE_BYTES:
            raise BatchRefused(Refusal.UNREADABLE)
        if signer not in self._enrolled:
            raise BatchRefused(Refusal.UNKNOWN_SIGNER)
        try:
            key = Ed25519PublicKey.from_public_bytes(signer)
            key.verify(signature, _signed(self._binding, self._mixer_key, flag, inner))
        except (InvalidSignature, ValueError):
            raise BatchRefused(Refusal.UNKNOWN_SIGNER) from None
        return Opened(signer=signer, real=flag == _REPORT, inner=inner)


def open_reports(
    inner: Sequence[bytes], *, context: RoundContext, analyzer_private_key: SealingKey
) -> list[bytes]:
    """The reports inside what a mixer returned, in its order.

    A ciphertext that does not open is left out: the mixer cannot see whether a client sealed nonsense, and
    one such client must not stop a round. The caller can count the reports that are left.

    Args:
        inner: ciphertexts of a :class:`~shuffle_plugins.shuffler.mixer.MixedBatch`.
        context: the round that the reports belong to.
        analyzer_private_key: the key whose public part clients were told.
    """
    info = _TO_ANALYZER + context.digest()
    reports = []
    for ciphertext in inner:
        try:
            reports.append(_SUITE.decrypt(ciphertext, analyzer_private_key, info=info))
        except (InvalidTag, ValueError):
            continue
    return reports


def _binding(context: RoundContext, analyzer_key: bytes) -> bytes:
    return context.digest() + analyzer_key


def _signed(binding: bytes, mixer_key: bytes, flag: bytes, inner: bytes) -> bytes:
    return _SIGNED + binding + mixer_key + flag + inner
