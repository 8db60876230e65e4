"""XofTurboShake128: random bytes and field elements from a seed, a domain separation tag and a binder.

Source: draft-irtf-cfrg-vdaf-20, section 6.2.1; TurboSHAKE128 (RFC 9861) is pycryptodome's.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from shuffle_plugins.secure_aggregation.prio3.field import FieldVector, PrimeField

SEED_SIZE = 32
"""Bytes of a seed."""


class _Stream(Protocol):
    def read(self, length: int) -> bytes: ...


def _turboshake128() -> Any:
    try:
        from Crypto.Hash import TurboSHAKE128
    except ImportError as error:
        raise ImportError(
            "Prio3 needs pycryptodome 3.20 or later: pip install 'shuffle-plugins[secure-aggregation]'"
        ) from error
    return TurboSHAKE128


def _stream(seed: bytes, tag: bytes, binder: bytes) -> _Stream:
    stream = _turboshake128().new(domain=1)
    stream.update(len(tag).to_bytes(2, "little") + tag + len(seed).to_bytes(1, "little") + seed)
    stream.update(binder)
    result: _Stream = stream
    return result


def derive_seed(seed: bytes, *, tag: bytes, binder: bytes) -> bytes:
    """A new seed of :data:`SEED_SIZE` bytes."""
    return _stream(seed, tag, binder).read(SEED_SIZE)


def expand_into_vector(
    field: PrimeField, seed: bytes, *, tag: bytes, binder: bytes, length: int
) -> FieldVector:
    """``length`` uniform field elements; random words that are not below the prime are skipped."""
    stream = _stream(seed, tag, binder)
    vector = field.zeros(0)
    while missing := length - len(vector):
        words = np.frombuffer(stream.read(missing * field.encoded_size), dtype="<u8").astype(np.uint64)
        drawn = words.reshape(-1, field.limbs) if field.limbs > 1 else words
        valid = field.valid(drawn)
        drawn = drawn if valid.all() else drawn[valid]
        vector = np.concatenate([vector, drawn]) if len(vector) else drawn
    return vector
