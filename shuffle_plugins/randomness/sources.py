"""Where every random bit comes from: one interface, a cryptographic source, a seeded one for experiments."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NoReturn

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS, Cursor, Keystream

Size = int | tuple[int, ...]

_NORMAL_BLOCK = 1 << 15  # pairs of normal values whose words lie together: all radii, then all angles
_FINE_BITS = 53  # magnitudes below 2**53 have fewer digits than float64
_COARSE_SHARE = 2.0 ** (_FINE_BITS - 63)  # the share of pairs with such a magnitude, which are drawn anew


class Randomness(ABC):
    """A stream of uniform 64-bit words, and the draws that mechanisms make from it.

    Discrete draws are exact: integers by rejection, Bernoulli by comparing with an integer threshold. They
    are the same on every device; normal values differ in the last digits.
    """

    @abstractmethod
    def words(self, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return ``count`` int64 values whose 64 bits are all uniform and independent."""

    def keystream(self) -> Keystream:
        """A keystream of its own for one call of a kernel that makes its words itself; costs four words."""
        return Keystream(self.words(4).numpy().tobytes())

    def integers(self, high: int, size: Size, *, device: torch.device | str = "cpu") -> Tensor:
        """Uniform int64 integers in [0, high), without modulo bias."""
        checks.whole("high", high, at_most=1 << 62)
        shape = _shape(size)
        count = math.prod(shape)
        accepted_below = (1 << 63) - (1 << 63) % high
        kept = torch.empty(0, dtype=torch.int64, device=device)
        while kept.numel() < count:
            drawn = self.words(count - kept.numel(), device=device).bitwise_and_((1 << 63) - 1)
            if accepted_below <= (1 << 63) - 1:
                drawn = drawn[drawn < accepted_below]
            kept = torch.cat([kept, drawn])
        return kept.remainder_(high).reshape(shape)

    def bernoulli(self, thresholds: Tensor) -> Tensor:
        """One bool per entry, true with probability exactly threshold/2**62, for int64 in [0, 2**62]."""
        if thresholds.dtype != torch.int64:
            raise ValueError(f"thresholds must be int64, got {thresholds.dtype}")
        if thresholds.numel():
            least, most = map(int, thresholds.aminmax())
            if least < 0 or most > 1 << PROBABILITY_BITS:
                found = least if least < 0 else most
                raise ValueError(f"thresholds must lie in [0, 2**{PROBABILITY_BITS}], got {found}")
        below = thresholds.reshape(-1)
        drawn = torch.empty(below.shape, dtype=torch.bool, device=below.device)
        step = 1 << 15 if below.device.type == "cpu" else max(1, len(below))
        for start in range(0, len(below), step):
            part = below[start : start + step]
            words = self.words(len(part), device=part.device).bitwise_and_((1 << PROBABILITY_BITS) - 1)
            torch.lt(words, part, out=drawn[start : start + step])
        return drawn.reshape(thresholds.shape)

    def uniform(self, size: Size, *, device: torch.device | str = "cpu") -> Tensor:
        """Float64 values on the midpoints of a grid of step 2**-52 in the open interval (0, 1)."""
        shape = _shape(size)
        drawn = (self.words(math.prod(shape), device=device) >> 12) & ((1 << 52) - 1)
        return drawn.to(torch.float64).add_(0.5).mul_(2.0**-52).reshape(shape)

    def normal(
        self, size: Size, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Standard normal values by the Box-Muller transform, without an end, float32 or float64.

        Computed in float64 and rounded to ``dtype`` once. A pair with a radius beyond 3.7, of probability
        2**-10, is drawn anew among such pairs, beyond 5.3 once more, and so on: noise with an end would tell
        records apart. Float32 does not show the angle's grid. A float64 value does: round what is released.
        """
        dtype = dtype or torch.float32
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"normal draws float32 or float64, got {dtype}")
        shape = _shape(size)
        count = math.prod(shape)
        half = (count + 1) // 2
        values = torch.empty(2 * half, dtype=dtype, device=device)
        coarse = torch.empty(half, dtype=torch.bool, device=device)
        for start, stop in _runs_of_blocks(half, device=values.device):
            words = self.words(2 * (stop - start), device=device)
            blocks = words.view(-1, 2, min(stop - start, _NORMAL_BLOCK))
            drawn = (part.flatten() for part in _box_muller(blocks[:, 0], blocks[:, 1], largest=1.0))
            values[start:stop], values[half + start : half + stop], coarse[start:stop] = drawn
        largest, left = 1.0, _places(coarse)
        while left.numel():
            largest *= _COARSE_SHARE
            radii, angles = self.words(2 * left.numel(), device=device).view(2, -1)
            first, second, coarse = _box_muller(radii, angles, largest=largest)
            values[left], values[half + left] = first.to(dtype), second.to(dtype)
            left = left[_places(coarse)]
        return values[:count].reshape(shape)

    def exponential(self, size: Size, *, device: torch.device | str = "cpu") -> Tensor:
        """Standard exponential values, float64: -log U, U uniform on (0, 1) and fine however small it is."""
        shape = _shape(size)
        words = self.words(math.prod(shape), device=device)
        values, coarse = _minus_log((words | 1).to(torch.float64), largest=1.0)
        largest, left = 1.0, _places(coarse)
        while left.numel():
            largest *= _COARSE_SHARE
            words = self.words(left.numel(), device=device)
            values[left], coarse = _minus_log((words | 1).to(torch.float64), largest=largest)
            left = left[_places(coarse)]
        return values.reshape(shape)

    def permutation(self, n: int, *, device: torch.device | str = "cpu") -> Tensor:
        """A uniform permutation of 0..n-1 as int64."""
        while True:  # ties, of probability below n²/2**65, are drawn anew: exactly uniform
            ordered, permutation = torch.sort(self.words(n, device=device))
            if not bool((ordered[1:] == ordered[:-1]).any()):
                return permutation


class SecureRandomness(Randomness):
    """Cryptographic randomness: ChaCha20 under a fresh key from the operating system.

    Two instances never share a stream: a forked process, a copy and an unpickled instance take a new key.
    Safe to use from several threads, and to fork while they draw.
    """

    def __init__(self) -> None:
        self._start_afresh()
        _SECURE.add(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._cursor = Cursor(Keystream(os.urandom(32)))
        self._process = os.getpid()

    def words(self, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return ``count`` int64 values of 64 uniform bits each."""
        if self._process != os.getpid():  # a fork that the interpreter did not see
            self._start_afresh()
        with self._lock:
            return self._cursor.words(count, device=device)

    def __reduce__(self) -> tuple[type[SecureRandomness], tuple[()]]:
        return SecureRandomness, ()


_SECURE: weakref.WeakSet[SecureRandomness] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: a new lock, as the old one may be held by a thread that was not copied, and a new key."""
    for source in _SECURE:
        source._start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def secure(randomness: Randomness | None) -> Randomness:
    """The source that was passed, or a fresh :class:`SecureRandomness` for None."""
    if randomness is None:
        return SecureRandomness()
    if not isinstance(randomness, Randomness):
        raise TypeError(f"randomness must be a Randomness, such as SeededRandomness(0), got {randomness!r}")
    return randomness


class SeededRandomness(Randomness):
    """DETERMINISTIC randomness for experiments and tests ONLY: it protects nobody.

    Whoever guesses the seed, any whole number, can undo every report. It cannot be copied or pickled: a copy
    would add the same noise twice.
    """

    def __init__(self, seed: int) -> None:
        checks.whole("seed", seed, at_least=-math.inf)
        self._lock = threading.Lock()
        self._cursor = Cursor(Keystream(hashlib.sha256(f"shuffle_plugins seeded {seed}".encode()).digest()))

    def words(self, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return ``count`` int64 values, determined by the seed and the draws before."""
        with self._lock:
            return self._cursor.words(count, device=device)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "seeded randomness cannot be copied or pickled, as the copy would repeat its stream; "
            "build another SeededRandomness with a seed of its own"
        )


def _shape(size: Size) -> tuple[int, ...]:
    shape = (size,) if isinstance(size, int) else tuple(size)
    for length in shape:
        checks.whole("size", length, at_least=0)
    return shape


def _places(mask: Tensor) -> Tensor:
    """Indices of the true entries; none on the meta device, which holds no entries."""
    return mask.nonzero().squeeze(1) if mask.device.type != "meta" else mask.new_empty(0, dtype=torch.int64)


def _minus_log(signed: Tensor, *, largest: float) -> tuple[Tensor, Tensor]:
    """-log U, U uniform on (0, ``largest``), and where U has fewer digits than float64, a share 2**-10.

    An odd 64-bit word, as float64, is 63 bits of U and a sign. Below 2**53 it is exact on every device.
    """
    magnitude = signed.abs()
    coarse = magnitude < 2.0**_FINE_BITS
    return magnitude.mul_(2.0**-63 * largest).log_().neg_(), coarse


def _runs_of_blocks(pairs: int, *, device: torch.device) -> Iterator[tuple[int, int]]:
    """Where runs of whole blocks begin and end, then the block that is not whole."""
    whole = pairs - pairs % _NORMAL_BLOCK
    # Off the CPU every operation is a launch; on the CPU one block fits its cache.
    step = _NORMAL_BLOCK * (1 if device.type == "cpu" else 256)
    for start in range(0, whole, step):
        yield start, min(start + step, whole)
    if whole < pairs:
        yield whole, pairs


def _box_muller(radii: Tensor, angles: Tensor, *, largest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Two normal values for each pair of words, float64, and which pairs are coarse.

    A word made odd is 63 bits and a sign. That of the radius gives exp(-radius²/2) and the sign of both
    values; the other is an angle within π/4 of an axis, which its own last bit chooses.
    """
    signed = (radii | 1).to(torch.float64)
    half_squares, coarse = _minus_log(signed, largest=largest)
    radius = half_squares.mul_(2).sqrt_().copysign_(signed)
    angle = (angles | 1).to(torch.float64).mul_(math.pi / 4 * 2.0**-63)
    near, far = angle.cos().mul_(radius), angle.sin_().mul_(radius)
    swapped = (angles & 1).to(torch.bool)
    return torch.where(swapped, far, near), torch.where(swapped, near, far), coarse
