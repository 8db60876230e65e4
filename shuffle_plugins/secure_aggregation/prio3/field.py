"""The prime fields of Prio3, Field64 and Field128, and vectors over them.

A vector of n elements is a ``uint64`` array: of shape (n,) over :data:`FIELD64`, and of shape (n, 2), low
limb first, over :data:`FIELD128`. Source: draft-irtf-cfrg-vdaf-20, section 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

FieldVector = NDArray[np.uint64]


@cache
def kernels() -> Any:
    """The compiled kernels, loaded when a field is first used: numba takes long, and most sums need none."""
    return import_module("shuffle_plugins.secure_aggregation.prio3.field_kernels")


@dataclass(frozen=True)
class PrimeField:
    """A prime field with many roots of unity of order a power of two; an element has 1 or 2 64-bit limbs."""

    name: str
    modulus: int
    limbs: int
    _generator: int = field(default=7, repr=False)  # of the multiplicative group, for both primes

    @property
    def encoded_size(self) -> int:
        """Bytes of an element."""
        return 8 * self.limbs

    def zeros(self, count: int) -> FieldVector:
        """A vector of ``count`` zeros."""
        return np.zeros(count if self.limbs == 1 else (count, self.limbs), dtype=np.uint64)

    def from_integers(self, integers: Sequence[int]) -> FieldVector:
        """A vector of any Python integers, each taken modulo the prime."""
        size = self.encoded_size
        return self._from_bytes(b"".join((x % self.modulus).to_bytes(size, "little") for x in integers))

    def to_integers(self, vector: FieldVector) -> list[int]:
        """The elements as Python integers from 0 to modulus - 1."""
        words = vector.reshape(-1, self.limbs).tolist()
        return [sum(word << 64 * i for i, word in enumerate(element)) for element in words]

    def from_words(self, words: NDArray[Any]) -> FieldVector:
        """A vector of non-negative integers below 2**63, of any shape, in row-major order."""
        out = self.zeros(words.size)
        out.reshape(-1, self.limbs)[:, 0] = words.reshape(-1)
        return out

    def to_words(self, vector: FieldVector) -> NDArray[np.int64]:
        """The elements as 64-bit integers."""
        words = vector.reshape(-1, self.limbs)
        if words[:, 1:].any() or (words[:, 0] >> 63).any():
            raise ValueError("an element does not fit into 63 bits")
        return words[:, 0].astype(np.int64)

    def encode(self, vector: FieldVector) -> bytes:
        """Its elements, each little-endian in ``encoded_size`` bytes."""
        return vector.astype("<u8", copy=False).tobytes()

    def decode(self, encoded: bytes, *, count: int) -> FieldVector:
        """The vector of ``count`` elements that :meth:`encode` encoded."""
        if len(encoded) != count * self.encoded_size:
            raise ValueError(
                f"{count} elements of {self.name} take {count * self.encoded_size} bytes, not {len(encoded)}"
            )
        vector = self._from_bytes(encoded)
        if not self.valid(vector).all():
            raise ValueError(f"an encoded element is not below the prime of {self.name}")
        return vector

    def valid(self, vector: FieldVector) -> NDArray[np.bool_]:
        """Which elements are below the prime."""
        if self.limbs == 1:
            below: NDArray[np.bool_] = vector < np.uint64(self.modulus)
            return below
        low, high = (np.uint64(self.modulus >> 64 * i & (1 << 64) - 1) for i in range(2))
        below = (vector[:, 1] < high) | ((vector[:, 1] == high) & (vector[:, 0] < low))
        return below

    def _from_bytes(self, encoded: bytes) -> FieldVector:
        words = np.frombuffer(encoded, dtype="<u8").astype(np.uint64)  # a copy, which may be written to
        return words if self.limbs == 1 else words.reshape(-1, self.limbs)

    def add(self, x: FieldVector, y: FieldVector) -> FieldVector:
        """x + y, element by element."""
        return _each(kernels().add, x, y)

    def subtract(self, x: FieldVector, y: FieldVector) -> FieldVector:
        """x - y, element by element."""
        return _each(kernels().subtract, x, y)

    def multiply(self, x: FieldVector, y: FieldVector) -> FieldVector:
        """x · y, element by element."""
        return _each(kernels().multiply, x, y)

    def weigh_rows(self, rows: FieldVector, weights: FieldVector) -> FieldVector:
        """Of each row of ``len(weights)`` elements, the weighted sum."""
        count, rest = divmod(len(rows), len(weights))
        if rest:
            raise ValueError(f"{len(rows)} elements are not rows of {len(weights)}")
        out = self.zeros(count)
        kernels().weigh_rows(rows, weights, out)
        return out

    def total(self, vector: FieldVector) -> int:
        """The sum of its elements."""
        limbs = vector.reshape(-1, self.limbs)
        halves = (limbs & 0xFFFFFFFF).sum(0, dtype=np.uint64), (limbs >> 32).sum(0, dtype=np.uint64)
        sums = [int(low) + (int(high) << 32) for low, high in zip(*halves, strict=True)]
        return sum(word << 64 * i for i, word in enumerate(sums)) % self.modulus

    def root(self, order: int) -> int:
        """The draft's root of unity of an order that is a power of two."""
        return pow(self._generator, (self.modulus - 1) // order, self.modulus)

    def inverse(self, x: int) -> int:
        """The number whose product with x is 1 in the field; x is not 0."""
        return pow(x, -1, self.modulus)

    def sum_of_products(self, wires: FieldVector, length: int) -> FieldVector:
        """The values, at 2·length roots of unity, of the sum of the products of wires 0 and 1, 2 and 3, …

        Each wire is a polynomial, given by its ``length`` values at the roots of unity of that order.
        """
        out = self.zeros(2 * length)
        kernels().sum_of_products(wires, *_doubling(self, length), out)
        return out

    def evaluation_weights(self, point: int, length: int) -> FieldVector:
        """What to weigh the values of a polynomial at the roots of unity with for its value at ``point``."""
        prime = self.modulus
        above = (pow(point, length, prime) - 1) % prime
        if not above:
            raise ValueError("the point at which a proof is tested is a root of unity")
        root, roots, products = self.root(length), [1], [1]
        for _ in range(length - 1):
            roots.append(roots[-1] * root % prime)
        gaps = [(point - x) % prime for x in roots]
        for gap in gaps:
            products.append(products[-1] * gap % prime)
        inverse, weights = self.inverse(products[-1]), [0] * length
        scale = above * self.inverse(length) % prime
        for i in range(length - 1, -1, -1):
            weights[i] = scale * roots[i] * inverse * products[i] % prime
            inverse = inverse * gaps[i] % prime
        return self.from_integers(weights)


FIELD64 = PrimeField("Field64", 2**64 - 2**32 + 1, 1)
"""The integers modulo 2**64 - 2**32 + 1."""

FIELD128 = PrimeField("Field128", 2**128 - 28 * 2**64 + 1, 2)
"""The integers modulo 2**128 - 28·2**64 + 1."""


def _each(kernel: Any, x: FieldVector, y: FieldVector) -> FieldVector:
    if x.shape != y.shape:
        raise ValueError(f"vectors of shapes {x.shape} and {y.shape} do not go together")
    out = np.empty_like(x)
    kernel(x, y, out)
    return out


@lru_cache(maxsize=64)
def _doubling(of: PrimeField, length: int) -> tuple[FieldVector, FieldVector, FieldVector]:
    """(inverse roots, twist, roots), with which the kernels go from n values of a polynomial to 2n."""
    prime, bits = of.modulus, length.bit_length() - 1
    root, between = of.root(length), of.root(2 * length)
    scale = of.inverse(length)
    reversed_ = [int(f"{k:0{bits}b}"[::-1], 2) if bits else 0 for k in range(length)]
    tables = (
        [pow(root, -k, prime) for k in range(max(1, length // 2))],
        [pow(between, k, prime) * scale for k in reversed_],
        [pow(root, k, prime) for k in range(max(1, length // 2))],
    )
    inverse_roots, twist, roots = (of.from_integers(table) for table in tables)
    return inverse_roots, twist, roots
