"""Where every random bit comes from: one interface, a cryptographic source, a seeded one for experiments."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from abc import ABC, abstractmethod

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

PROBABILITY_BITS = 62
"""Bernoulli thresholds are integers in [0, 2**PROBABILITY_BITS]."""

Size = int | tuple[int, ...]

_ZEROS = bytes(1 << 16)
_BLOCK_BYTES = 16


class Randomness(ABC):
    """A stream of uniform 64-bit words, and the draws that mechanisms make from it.

    Every draw is a pure function of the words, and discrete draws are exact: integers by rejection, Bernoulli
    by comparing with an integer threshold. Words are drawn on the CPU; results move to ``device``.
    """

    @abstractmethod
    def words(self, count: int) -> Tensor:
        """Return ``count`` int64 values whose 64 bits are all uniform and independent."""

    def integers(self, high: int, size: Size, *, device: torch.device | str = "cpu") -> Tensor:
        """Uniform int64 integers in [0, high), without modulo bias.

        Raises:
            ValueError: unless 1 <= high <= 2**62.
        """
        if not 1 <= high <= 1 << 62:
            raise ValueError(f"high must be in [1, 2**62], got {high}")
        shape = _shape(size)
        count = math.prod(shape)
        accepted_below = (1 << 63) - (1 << 63) % high
        kept = torch.empty(0, dtype=torch.int64)
        while kept.numel() < count:
            drawn = self.words(count - kept.numel()).bitwise_and_((1 << 63) - 1)
            if accepted_below <= (1 << 63) - 1:
                drawn = drawn[drawn < accepted_below]
            kept = torch.cat([kept, drawn])
        return kept.remainder_(high).reshape(shape).to(device)

    def bernoulli(self, thresholds: Tensor) -> Tensor:
        """Draw one bool per entry, true with probability exactly ``threshold / 2**62``.

        Args:
            thresholds: int64 tensor of any shape, entries in [0, 2**62].

        Raises:
            ValueError: if the dtype is not int64 or an entry is out of range.
        """
        if thresholds.dtype != torch.int64:
            raise ValueError(f"thresholds must be int64, got {thresholds.dtype}")
        if thresholds.numel() and not (
            int(thresholds.min()) >= 0 and int(thresholds.max()) <= 1 << PROBABILITY_BITS
        ):
            raise ValueError(f"thresholds must lie in [0, 2**{PROBABILITY_BITS}]")
        drawn = self.words(thresholds.numel()).bitwise_and_((1 << PROBABILITY_BITS) - 1)
        return drawn.reshape(thresholds.shape).to(thresholds.device) < thresholds

    def uniform(self, size: Size, *, device: torch.device | str = "cpu") -> Tensor:
        """Float64 values on the midpoints of a grid of step 2**-52 in the open interval (0, 1)."""
        shape = _shape(size)
        drawn = self.words(math.prod(shape))
        return _open_unit(drawn, bits=52, shift=12).reshape(shape).to(device)

    def normal(
        self, size: Size, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Standard normal values by the Box-Muller transform.

        Float32 takes 40 bits for the radius and 24 for the angle (values up to 7.5), float64 takes 52 and 52
        (up to 8.6).

        Raises:
            ValueError: if ``dtype`` is neither float32 nor float64.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"normal draws float32 or float64, got {dtype}")
        shape = _shape(size)
        count = math.prod(shape)
        half = (count + 1) // 2
        if dtype == torch.float32:
            drawn = self.words(half)
            radius = ((drawn >> 24) & ((1 << 40) - 1)).to(torch.float32).add_(0.5).mul_(2.0**-40)
            angle = (drawn & ((1 << 24) - 1)).to(torch.float32).mul_(2 * math.pi * 2.0**-24)
        else:
            drawn = self.words(2 * half)
            radius = _open_unit(drawn[:half], bits=52, shift=12)
            angle = _open_unit(drawn[half:], bits=52, shift=12).mul_(2 * math.pi)
        radius.log_().mul_(-2).sqrt_()
        values = torch.empty(2 * half, dtype=dtype)
        torch.cos(angle, out=values[:half]).mul_(radius)
        torch.sin(angle, out=values[half:]).mul_(radius)
        return values[:count].reshape(shape).to(device)

    def permutation(self, n: int, *, device: torch.device | str = "cpu") -> Tensor:
        """A uniform permutation of 0..n-1 as int64.

        Sorts n random words. Ties, of probability below n²/2**65, are redrawn, so the order is exactly
        uniform.
        """
        while True:
            ordered, permutation = torch.sort(self.words(n))
            if not bool((ordered[1:] == ordered[:-1]).any()):
                return permutation.to(device)


class _Keystream:
    """AES-256 in counter mode over zeros: 64-bit words from a 256-bit key."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()

    def words(self, count: int) -> Tensor:
        if count == 0:
            return torch.empty(0, dtype=torch.int64)
        size = 8 * count
        buffer = bytearray(size + _BLOCK_BYTES)
        view = memoryview(buffer)
        for start in range(0, size, len(_ZEROS)):
            length = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:length], view[start : start + length + _BLOCK_BYTES])
        return torch.frombuffer(buffer, dtype=torch.int64, count=count)


class SecureRandomness(Randomness):
    """Cryptographic randomness: AES-256-CTR under a fresh key from the operating system.

    The default wherever randomness protects people. Two instances never share a stream: a forked process, a
    copy and an unpickled instance take a new key. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rekey()

    def _rekey(self) -> None:
        self._keystream = _Keystream(os.urandom(32))
        self._process = os.getpid()

    def words(self, count: int) -> Tensor:
        """Return ``count`` int64 values of 64 uniform bits each."""
        with self._lock:
            if self._process != os.getpid():
                self._rekey()
            return self._keystream.words(count)

    def __reduce__(self) -> tuple[type[SecureRandomness], tuple[()]]:
        return SecureRandomness, ()


class SeededRandomness(Randomness):
    """DETERMINISTIC randomness for experiments and tests ONLY: it protects nobody.

    Who knows or guesses the seed can undo every report. It is the only way to make this library
    deterministic; the same seed gives the same stream on every machine.

    Args:
        seed: any whole number.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
        self._keystream = _Keystream(hashlib.sha256(f"shuffle_plugins seeded {seed}".encode()).digest())

    def words(self, count: int) -> Tensor:
        """Return ``count`` int64 values, determined by the seed and the draws before."""
        return self._keystream.words(count)


def _shape(size: Size) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


def _open_unit(words: Tensor, *, bits: int, shift: int) -> Tensor:
    kept = (words >> shift) & ((1 << bits) - 1)
    return kept.to(torch.float64).add_(0.5).mul_(2.0**-bits)
