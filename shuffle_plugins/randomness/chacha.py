"""ChaCha20 in counter mode: the CPU's path, the way to the GPU's, and on which devices that is taken."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shuffle_plugins.core import checks
from shuffle_plugins.core.extras import advised, how_to_install
from shuffle_plugins.core.lazy_torch import Tensor, torch


def runs_kernels(device: torch.device | str) -> bool:
    """Whether the Triton kernels work on a device: a CUDA device, with Triton, that passes its self-test.

    A device on which Triton is missing or cannot compile is told once, by a warning. One that makes other
    words than the CPU is a RuntimeError: its randomness would protect nobody.
    """
    if device == "cpu" or (device := torch.device(device)).type != "cuda":
        return False
    return _passes_self_test(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _passes_self_test(index: int) -> bool:
    if importlib.util.find_spec("triton") is None:
        return _falls_back(f"Triton is not installed: {how_to_install('gpu')}")
    from shuffle_plugins.randomness.triton_chacha import keystream_words

    # Words of ChaCha20 under the key 0, 1, …, 31 and the nonce 2**63 + 1, from the end of a block on, across
    # the carry of the counter's lower half, and their SHA-256.
    state = (*struct.unpack("<8i", bytes(range(32))), 1, -(1 << 31))
    expected = "a7a45a9acc6b8e328405cf3c34ea53f2eacc1be658712e57aaf3f4365aa63993"
    device = torch.device("cuda", index)
    try:
        drawn = keystream_words(state, 8 * (1 << 32) - 11, 67, device=device).cpu()
    except Exception as error:
        return _falls_back(f"Triton kernels do not run on cuda:{index} ({error!r})")
    if hashlib.sha256(drawn.numpy().tobytes()).hexdigest() != expected:
        raise RuntimeError(
            f"cuda:{index} fails the self-test of its keystream: nothing was drawn. Use the CPU, and report "
            "the versions of torch, Triton and the driver"
        )
    return True


def _falls_back(reason: str) -> bool:
    warnings.warn(f"{reason}; random words come from the CPU instead, which is slow", stacklevel=4)
    return False


PROBABILITY_BITS = 62
"""A choice of probability p compares 62 random bits with the threshold p·2**62, rounded towards less ε0.

Two bits below the 64 of a word: thresholds, and sums and differences of two, fit a signed word.
"""

WHOLE = 1 << PROBABILITY_BITS
"""The threshold of a certain event."""


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

BLOCK_BYTES = 64
COIN_BITS = 16
"""Bits of a coin: the part of a lazy draw that is always looked at."""

_BLOCKS_PER_CONTEXT = 1 << 32  # OpenSSL's counter has 32 bits
_ZEROS = bytes(1 << 16)  # encrypted, they are the keystream


@dataclass(frozen=True, slots=True, repr=False)
class Keystream:
    """The keystream of ChaCha20 (20 rounds) under a key and a nonce, readable from any position.

    The original cipher (Bernstein 2008): a 64-bit block counter from zero, then a 64-bit nonce, which are
    words 12 to 15 of the state of RFC 8439. A word is eight bytes, little-endian. Use each position once. The
    key has 32 bytes; ``repr`` hides it.
    """

    key: bytes
    nonce: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != 32:
            raise ValueError("a key is 32 bytes")
        checks.whole("nonce", self.nonce, at_least=0, at_most=(1 << 64) - 1)

    @property
    def state(self) -> tuple[int, ...]:
        """The key's eight 32-bit words and the nonce's two, as signed integers: what a kernel takes."""
        return struct.unpack("<10i", self.key + self.nonce.to_bytes(8, "little"))

    @property
    def following(self) -> Keystream:
        """The stream of the next nonce."""
        return Keystream(self.key, (self.nonce + 1) % (1 << 64))

    def words(self, start: int, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Words ``start`` to ``start + count``, int64 on ``device``; the same on every device."""
        if runs_kernels(device):
            from shuffle_plugins.randomness.triton_chacha import keystream_words

            return keystream_words(self.state, start, count, device=torch.device(device))
        return Cursor(self, start=start).words(count, device=device)

    def coins(self, start: int, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """16-bit numbers ``start`` to ``start + count`` of the stream, int16; ``start`` a multiple of 4.

        The top 16 bits of a lazy draw are the coin plus 2**15.
        """
        if start % 4:
            raise ValueError(f"coins start at a multiple of 4, got {start!r}")
        words = self.words(start // 4, -(-count // 4), device=device)
        return words.view(torch.int16)[:count]

    def refinements(self, indices: Tensor) -> Tensor:
        """First word of block ``indices[i]`` of :attr:`following`, int64: the lower bits of a lazy draw."""
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
        cipher, chacha20 = _openssl()
        return cipher(chacha20(self.key, counter), mode=None).encryptor()

    def __repr__(self) -> str:
        return "Keystream(key=<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream cannot be copied or pickled, as the copy would repeat its words")


@cache
def _openssl() -> tuple[type[Cipher[None]], type[algorithms.ChaCha20]]:
    with advised():  # only drawing needs it
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    return Cipher, algorithms.ChaCha20


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
