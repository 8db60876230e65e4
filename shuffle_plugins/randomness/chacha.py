"""ChaCha20 in counter mode: the CPU's path, and the way to the GPU's."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shuffle_plugins.core import advised, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.devices import runs_kernels

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

BLOCK_BYTES = 64
COIN_BITS = 16
"""Bits of a coin: the part of a lazy draw that is always looked at."""

_KEY_BYTES = 32
_NONCES = 1 << 64
_BLOCKS_PER_CONTEXT = 1 << 32  # OpenSSL's counter has 32 bits
_ZEROS = bytes(1 << 16)  # encrypted, they are the keystream


@dataclass(frozen=True, slots=True, repr=False)
class Keystream:
    """The keystream of ChaCha20 (20 rounds) under a key and a nonce, readable from any position.

    It is the original cipher (Bernstein 2008): a 64-bit block counter from zero, then a 64-bit nonce, which
    are words 12 to 15 of the state of RFC 8439. A word is eight bytes of the stream, little-endian.

    A value, not a source: whoever reads a position twice gets the same words twice. Take one from
    :meth:`~shuffle_plugins.randomness.Randomness.keystream` for kernels that make their own words, and use
    each position once. It cannot be pickled and its ``repr`` hides the key, of 32 bytes. Other nonces, in
    [0, 2**64), give independent streams.
    """

    key: bytes
    nonce: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != _KEY_BYTES:
            raise ValueError("a key is 32 bytes")
        checks.whole("nonce", self.nonce, at_least=0, at_most=_NONCES - 1)

    @property
    def state(self) -> tuple[int, ...]:
        """The key's eight 32-bit words and the nonce's two, as signed integers: what a kernel takes."""
        return struct.unpack("<10i", self.key + self.nonce.to_bytes(8, "little"))

    @property
    def following(self) -> Keystream:
        """The stream of the next nonce."""
        return Keystream(self.key, (self.nonce + 1) % _NONCES)

    def words(self, start: int, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Words ``start`` to ``start + count``, int64 on ``device``; the same on every device."""
        if runs_kernels(device):
            from shuffle_plugins.randomness.triton_chacha import keystream_words

            return keystream_words(self.state, start, count, device=torch.device(device))
        return Cursor(self, start=start).words(count, device=device)

    def coins(self, start: int, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """16-bit numbers ``start`` to ``start + count`` of the stream, int16; ``start`` a multiple of 4.

        Coin i is bytes 2i and 2i + 1. The top 16 bits of a lazy draw are the coin plus 2**15.
        """
        if start % 4:
            raise ValueError(f"coins start at a multiple of 4, got {start!r}")
        words = self.words(start // 4, -(-count // 4), device=device)
        return words.view(torch.int16)[:count]

    def refinements(self, indices: Tensor) -> Tensor:
        """First word of block ``indices[i]`` of :attr:`following`, int64: the lower bits of a lazy draw.

        Needed for about one draw in 2**16, so blocks are made one by one, on the CPU.
        """
        following = self.following
        first = [following.encryptor(index).update(_ZEROS[:8]) for index in indices.tolist()]
        return torch.tensor(
            [int.from_bytes(word, "little", signed=True) for word in first],
            dtype=torch.int64,
            device=indices.device,
        )

    def encryptor(self, block: int) -> CipherContext:
        """OpenSSL's cipher at a block of the stream; it stops where the lower half of the counter ends."""
        counter = block.to_bytes(8, "little") + self.nonce.to_bytes(8, "little")
        with advised():  # only drawing needs it
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        return Cipher(algorithms.ChaCha20(self.key, counter), mode=None).encryptor()

    def __repr__(self) -> str:
        return "Keystream(key=<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream cannot be copied or pickled, as the copy would repeat its words")


class Cursor:
    """A position in a keystream that moves on as words are drawn, on whatever device."""

    def __init__(self, keystream: Keystream, *, start: int = 0) -> None:
        self._keystream = keystream
        self._position = start
        self._encryptor: CipherContext | None = None
        self._encryptor_bytes = 0

    def words(self, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """The next ``count`` words, int64 on ``device``; however they are cut, they are the same stream."""
        checks.whole("number of words", count, at_least=0)
        if count == 0:
            return torch.empty(0, dtype=torch.int64, device=device)
        if runs_kernels(device):
            drawn = self._keystream.words(self._position, count, device=device)
            self._encryptor = None
        else:
            drawn = self._encrypt(count)
            if device != "cpu":
                drawn = drawn.to(device)
        self._position += count
        return drawn

    def _encrypt(self, count: int) -> Tensor:
        size = 8 * count
        buffer = np.empty(size + BLOCK_BYTES, dtype=np.uint8)  # not zeroed, unlike a bytearray
        view = buffer.data
        start = 0
        while start < size:
            if self._encryptor is None or self._encryptor_bytes == 0:
                self._encryptor, self._encryptor_bytes = self._begin(8 * self._position + start)
            length = min(len(_ZEROS), size - start, self._encryptor_bytes)
            self._encryptor.update_into(_ZEROS[:length], view[start : start + length + BLOCK_BYTES])
            self._encryptor_bytes -= length
            start += length
        return torch.from_numpy(buffer[:size].view(np.int64))

    def _begin(self, position: int) -> tuple[CipherContext, int]:
        """An encryptor at a byte of the stream, and how far it goes: up to the carry of a 32-bit counter."""
        block, offset = divmod(position, BLOCK_BYTES)
        encryptor = self._keystream.encryptor(block)
        encryptor.update(_ZEROS[:offset])
        blocks = _BLOCKS_PER_CONTEXT - block % _BLOCKS_PER_CONTEXT
        return encryptor, blocks * BLOCK_BYTES - offset
