"""Key pairs of mixers, analyzers and clients, and the files that hold them.

A private key is a PEM file (PKCS #8) that only its owner may read. A public key is 64 hexadecimal digits. A
mixer has two key pairs in one file, one to open envelopes and one to sign; its public key is both together.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, ShuffleError

KEY_BYTES = 32
"""Bytes of a public key of either kind."""

SealingKey = X25519PrivateKey
"""Private key that opens what was sealed to its public key: a mixer's or an analyzer's."""

SigningKey = Ed25519PrivateKey
"""Private key with which a client signs its envelopes, and a mixer what it says."""

SEAL_BYTES = KEY_BYTES + 16
"""Bytes by which what is sealed is longer than what is inside."""

SIGNER_BYTES = KEY_BYTES + 64
"""Bytes of a signer's public key and its signature, before a text that is signed and sealed."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)  # HPKE, RFC 9180, in base mode
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class ServicePublicKey:
    """The two public keys of a mixer or an aggregator, which clients and the server pin.

    Clients seal to the one, and the server checks signatures by the other.
    """

    sealing: bytes
    verifying: bytes

    def hex(self) -> str:
        """128 hexadecimal digits, first the sealing key."""
        return (self.sealing + self.verifying).hex()


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """The private keys of a mixer or an aggregator, to open what is sealed to it and to sign what it says."""

    sealing: SealingKey
    signing: SigningKey

    @classmethod
    def generate(cls) -> Self:
        """New keys, from the operating system's entropy."""
        return cls(sealing=SealingKey.generate(), signing=SigningKey.generate())

    @property
    def public(self) -> ServicePublicKey:
        """What clients and the server pin."""
        return ServicePublicKey(
            sealing=public_key_bytes(self.sealing), verifying=public_key_bytes(self.signing)
        )


def public_key_bytes(private_key: SealingKey | SigningKey) -> bytes:
    """The public key that belongs to a private one, 32 bytes."""
    return private_key.public_key().public_bytes_raw()


def check_key(public_key: object) -> None:
    """A ShuffleError unless it has the bytes of a public key."""
    if not isinstance(public_key, bytes) or len(public_key) != KEY_BYTES:
        raise ShuffleError(f"a public key has {KEY_BYTES} bytes")


def sealed_to(public_key: bytes, text: bytes, *, info: bytes) -> bytes:
    """The text in an envelope that the owner of a key alone can open, told the same ``info``."""
    try:
        return _SUITE.encrypt(text, X25519PublicKey.from_public_bytes(public_key), info=info)
    except ValueError as error:
        raise ShuffleError("a public key is no point to seal to") from error


def unsealed(ciphertext: bytes, private_key: SealingKey, *, info: bytes) -> bytes:
    """What :func:`sealed_to` sealed; BatchRefused (UNREADABLE) if it was altered or sealed otherwise."""
    try:
        return _SUITE.decrypt(ciphertext, private_key, info=info)
    except (InvalidTag, ValueError):
        raise BatchRefused(Refusal.UNREADABLE) from None


def signed_to(public_key: bytes, text: bytes, *, signing_key: SigningKey, info: bytes) -> bytes:
    """The text as :func:`sealed_to` seals it, behind a signature of it, of the key and of ``info``.

    All ``info`` of one label have one length, and no label begins another one.
    """
    signature = signing_key.sign(_signed(public_key, text, info))
    return sealed_to(public_key, public_key_bytes(signing_key) + signature + text, info=info)


def signed_by(
    ciphertext: bytes, private_key: SealingKey, *, enrolled: frozenset[bytes], info: bytes
) -> tuple[bytes, bytes]:
    """The signer's public key and the text of what :func:`signed_to` made.

    Raises:
        BatchRefused: UNREADABLE as of :func:`unsealed`; UNKNOWN_SIGNER if no enrolled client signed it.
    """
    named = unsealed(ciphertext, private_key, info=info)
    signer, signature, text = named[:KEY_BYTES], named[KEY_BYTES:SIGNER_BYTES], named[SIGNER_BYTES:]
    signed = _signed(public_key_bytes(private_key), text, info)
    if signer not in enrolled or not has_signed(signer, signature, signed):
        raise BatchRefused(Refusal.UNKNOWN_SIGNER)
    return signer, text


def _signed(public_key: bytes, text: bytes, info: bytes) -> bytes:
    return b"shuffle-plugins/5 signed" + public_key + info + text


def has_signed(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the owner of a key has signed the text."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def parse_public_key(text: object) -> bytes:
    """The 32 bytes of a public key written as 64 hexadecimal digits."""
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise ShuffleError("a public key is a string of 64 hexadecimal digits; quote it in a configuration")
    return bytes.fromhex(text)


def parse_mixer_public_key(text: object) -> ServicePublicKey:
    """The public key of a mixer or an aggregator, written as 128 hexadecimal digits."""
    try:
        return ServicePublicKey(*(parse_public_key(half) for half in (text[:64], text[64:])))  # type: ignore[index]
    except (TypeError, ShuffleError):
        raise ShuffleError(
            "the public key of a mixer or an aggregator is a string of 128 hexadecimal digits, as "
            "shuffle-plugins keys mixer, or keys aggregator, prints it; quote it in a configuration"
        ) from None


def parse_mix_cascade(text: object) -> tuple[ServicePublicKey, ...]:
    """Public keys of mixers in the order in which they work: a list, or one text with commas between."""
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else text
    found = [parse_mixer_public_key(part) for part in (parts if isinstance(parts, list | tuple) else [parts])]
    if not found or len(set(found)) < len(found):
        raise ShuffleError("the mixers of a cascade have a key each: there is none, or the same one twice")
    return tuple(found)


def write_private_key(path: Path | str, private_key: SealingKey | SigningKey | ServiceKey) -> None:
    """Write a private key to a new file that only its owner may read; a key is never overwritten."""
    parts: list[SealingKey | SigningKey] = (
        [private_key.sealing, private_key.signing] if isinstance(private_key, ServiceKey) else [private_key]
    )
    text = b"".join(part.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) for part in parts)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_signing_key(path: Path | str) -> SigningKey:
    """The client's private key in a file; a ShuffleError if others may read it, or it holds no such key."""
    key: SigningKey = _read(path, SigningKey, "a private signing key (Ed25519)")
    return key


def read_service_key(path: Path | str) -> ServiceKey:
    """The private keys of a mixer or an aggregator in a file."""
    key: ServiceKey = _read(path, ServiceKey, "a mixer's private keys (X25519, then Ed25519)")
    return key


def read_private_key(path: Path | str) -> SealingKey | SigningKey | ServiceKey:
    """The private key in a file, of any kind."""
    key: SealingKey | SigningKey | ServiceKey = _read(path, object, "a private key; see shuffle-plugins keys")
    return key


def read_enrolled(path: Path | str) -> frozenset[bytes]:
    """Public signing keys of the clients that may take part: one a line, ``#`` starts a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ShuffleError(f"the enrolment file {path} cannot be read: {error}") from error
    enrolled: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        try:
            key = parse_public_key(text)
        except ShuffleError as error:
            raise ShuffleError(f"line {number} of the enrolment file {path}: {error}") from None
        if key in enrolled:
            raise ShuffleError(f"line {number} of the enrolment file {path}: this key stands there already")
        enrolled.add(key)
    if not enrolled:
        raise ShuffleError(f"the enrolment file {path} names no client")
    return frozenset(enrolled)


def enrol_client(path: Path | str, public_key: bytes, *, note: str = "") -> None:
    """Add a client's public signing key, with a comment, to an enrolment file; a new one if there is none."""
    check_key(public_key)
    if len(note.splitlines()) > 1:
        raise ShuffleError("a note is one line")
    text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    named = any(line.partition("#")[0].strip() for line in text.splitlines())
    if named and public_key in read_enrolled(path):
        raise ShuffleError(f"this key is enrolled in {path} already")
    unended = text and not text.endswith("\n")
    comment = f"  # {note.strip()}" if note.strip() else ""
    with open(path, "a", encoding="utf-8") as file:
        file.write(("\n" if unended else "") + public_key.hex() + comment + "\n")


def revoke_client(path: Path | str, public_key: bytes) -> None:
    """Take a client's public signing key off an enrolment file, from the next round on."""
    if public_key not in read_enrolled(path):
        raise ShuffleError(f"this key is not enrolled in {path}")
    path = Path(path).resolve()  # of a link, the list that mixers read
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = "".join(line for line in lines if line.partition("#")[0].strip().lower() != public_key.hex())
    draft = Path(f"{path}.new")
    draft.write_text(kept, encoding="utf-8")
    shutil.copymode(path, draft)
    os.replace(draft, path)  # who reads it meanwhile finds the old list or the new one


def _read(path: Path | str, kind: Any, what: str) -> Any:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ShuffleError(f"the key file {path} is not a regular file")
            if os.name == "posix" and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ShuffleError(f"the key file {path} is open to others than its owner; chmod 600 {path}")
            text = file.read(10_000)  # two keys take 240
    except OSError as error:
        raise ShuffleError(f"the key file {path} cannot be read: {error.strerror}") from error
    first, end, second = text.partition(b"-----END PRIVATE KEY-----\n")
    keys: list[object] = []
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        keys = [load_pem_private_key(part, password=None) for part in (first + end, second) if part]
    match keys:
        case [X25519PrivateKey() as sealing, Ed25519PrivateKey() as signing]:
            keys = [ServiceKey(sealing=sealing, signing=signing)]
    if len(keys) != 1 or not isinstance(keys[0], kind):
        raise ShuffleError(f"the file {path} does not hold {what}")
    return keys[0]
