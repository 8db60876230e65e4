"""Arithmetic in two prime fields, compiled for this machine's processor.

Every function takes vectors of either field, as :mod:`~shuffle_plugins.secure_aggregation.prio3.field` has
them, all elements below the prime, and checks nothing. Both primes are 2**w - k·2**s + 1. So 2**w ≡ k·2**s -
1, and a product is reduced by folding what is above bit w back, three times, with shifts and additions.

One file on purpose: numba's cache notices changes of the file that a function is in, and of no other.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from shuffle_plugins.compressors.cpu_kernels import compiled

if numba.config.DISABLE_JIT:
    raise ImportError("Prio3 needs numba's compiler, which is switched off: unset NUMBA_DISABLE_JIT")

_Value = Any
_LIMB = ir.IntType(64)
_PAIR = types.UniTuple(types.uint64, 2)
_FACTOR_AND_SHIFT = {64: (1, 32), 128: (28, 64)}  # of k and s in the prime 2**w - k·2**s + 1


def _prime(width: int) -> int:
    factor, shift = _FACTOR_AND_SHIFT[width]
    return (1 << width) - (factor << shift) + 1


def _joined(builder: _Value, element: _Value, width: int, wide: ir.Type) -> _Value:
    if width == 64:
        return builder.zext(element, wide)
    low, high = (builder.zext(builder.extract_value(element, i), wide) for i in range(2))
    return builder.or_(low, builder.shl(high, ir.Constant(wide, 64)))


def _split(builder: _Value, integer: _Value, width: int) -> _Value:
    low = builder.trunc(integer, _LIMB)
    if width == 64:
        return low
    high = builder.trunc(builder.lshr(integer, ir.Constant(integer.type, 64)), _LIMB)
    return cgutils.pack_array(builder, [low, high])


def _once_reduced(builder: _Value, integer: _Value, width: int) -> _Value:
    prime = ir.Constant(integer.type, _prime(width))
    too_large = builder.icmp_unsigned(">=", integer, prime)
    return builder.select(too_large, builder.sub(integer, prime), integer)


def _reduced(builder: _Value, integer: _Value, width: int) -> _Value:
    """An integer below 2**(2·width), reduced.

    A fold replaces low + 2**width · high by low + high·(k·2**s - 1), which is as much modulo the prime. The
    first leaves less than 2**(width + 69 or 33), the second less than 2**(width + 11), the third less than
    twice the prime.
    """
    wide = integer.type
    factor, shift = _FACTOR_AND_SHIFT[width]
    for _ in range(3):
        low = builder.and_(integer, ir.Constant(wide, (1 << width) - 1))
        high = builder.lshr(integer, ir.Constant(wide, width))
        times = builder.shl(builder.mul(high, ir.Constant(wide, factor)), ir.Constant(wide, shift))
        integer = builder.sub(builder.add(low, times), high)
    return _once_reduced(builder, integer, width)


def _sum(builder: _Value, x: _Value, y: _Value, width: int, wide: ir.Type) -> _Value:
    total = builder.add(_joined(builder, x, width, wide), _joined(builder, y, width, wide))
    return _once_reduced(builder, total, width)


def _difference(builder: _Value, x: _Value, y: _Value, width: int, wide: ir.Type) -> _Value:
    left, right = _joined(builder, x, width, wide), _joined(builder, y, width, wide)
    borrow = builder.icmp_unsigned("<", left, right)
    prime, zero = ir.Constant(wide, _prime(width)), ir.Constant(wide, 0)
    return builder.sub(builder.add(left, builder.select(borrow, prime, zero)), right)


def _product(builder: _Value, x: _Value, y: _Value, width: int, wide: ir.Type) -> _Value:
    if width == 64:
        product = builder.mul(_joined(builder, x, width, wide), _joined(builder, y, width, wide))
        return _reduced(builder, product, width)
    product = ir.Constant(wide, 0)
    double = ir.IntType(128)
    for i in range(2):
        for j in range(2):
            left, right = (builder.zext(builder.extract_value(v, k), double) for v, k in ((x, i), (y, j)))
            part = builder.zext(builder.mul(left, right), wide)
            product = builder.add(product, builder.shl(part, ir.Constant(wide, 64 * (i + j))))
    return _reduced(builder, product, width)


def _operation(emit: Callable[..., _Value]) -> Any:
    """An operation on two elements of either field."""

    def operation(context: Any, x: Any, y: Any) -> Any:
        width = 128 if isinstance(x, types.UniTuple) else 64
        element = _PAIR if width == 128 else types.uint64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _split(builder, emit(builder, *arguments, width, ir.IntType(2 * width)), width)

        return element(element, element), generate

    return intrinsic(operation)


_add, _subtract, _multiply = _operation(_sum), _operation(_difference), _operation(_product)


def _get(vector, i):
    """Element i of a vector, in compiled code."""


def _set(vector, i, element):
    """Write element i of a vector, in compiled code."""


@overload(_get, inline="always")
def _compiled_get(vector, i):
    if vector.ndim == 1:
        return lambda vector, i: vector[i]
    return lambda vector, i: (vector[i, 0], vector[i, 1])


@overload(_set, inline="always")
def _compiled_set(vector, i, element):
    if vector.ndim == 1:

        def one(vector, i, element):
            vector[i] = element

        return one

    def two(vector, i, element):
        vector[i, 0] = element[0]
        vector[i, 1] = element[1]

    return two


@compiled
def add(x, y, out):
    """``out = x + y``."""
    for i in range(x.shape[0]):
        _set(out, i, _add(_get(x, i), _get(y, i)))


@compiled
def subtract(x, y, out):
    """``out = x - y``."""
    for i in range(x.shape[0]):
        _set(out, i, _subtract(_get(x, i), _get(y, i)))


@compiled
def multiply(x, y, out):
    """``out = x · y``, element by element."""
    for i in range(x.shape[0]):
        _set(out, i, _multiply(_get(x, i), _get(y, i)))


@compiled
def weigh_rows(rows, weights, out):
    """``out[j] = Σ_i weights[i] · rows[j·len(weights) + i]``."""
    length = weights.shape[0]
    for j in range(out.shape[0]):
        total = _multiply(_get(weights, 0), _get(rows, j * length))
        for i in range(1, length):
            total = _add(total, _multiply(_get(weights, i), _get(rows, j * length + i)))
        _set(out, j, total)


@compiled
def bit_check_wires(bits, randomness, one, length, wires):
    """The wires of the bit check of the draft's SumVec circuit.

    Call i = 0, 1, ... checks ``bits[i·chunk : (i+1)·chunk]``; bits beyond the last are 0. Wire 2j has at
    place 1 + i the bit times ``randomness[i]**(j+1)``, and wire 2j + 1 the bit minus ``one``. The wires, of
    ``length`` values each, stand after each other; place 0, and places after the last call, stay as they are.
    """
    calls = randomness.shape[0]
    chunk = wires.shape[0] // (2 * length)
    zero = _subtract(_get(one, 0), _get(one, 0))
    for i in range(calls):
        factor = _get(randomness, i)
        power = factor
        for j in range(chunk):
            bit = zero
            if i * chunk + j < bits.shape[0]:
                bit = _get(bits, i * chunk + j)
            place = 2 * j * length + 1 + i
            _set(wires, place, _multiply(power, bit))
            _set(wires, place + length, _subtract(bit, _get(one, 0)))
            power = _multiply(power, factor)


@compiled
def _coefficients(values, inverse_roots):
    """Values at the roots of unity to coefficients times their number, in bit-reversed order, in place."""
    n = values.shape[0]
    half, step = n // 2, 1
    while half:
        for start in range(0, n, 2 * half):
            for k in range(half):
                x, y = _get(values, start + k), _get(values, start + k + half)
                _set(values, start + k, _add(x, y))
                _set(values, start + k + half, _multiply(_subtract(x, y), _get(inverse_roots, k * step)))
        half, step = half // 2, 2 * step


@compiled
def _values(coefficients, roots):
    """Coefficients in bit-reversed order to values at the roots of unity, in place."""
    n = coefficients.shape[0]
    half, step = 1, n // 2
    while half < n:
        for start in range(0, n, 2 * half):
            for k in range(half):
                x = _get(coefficients, start + k)
                y = _multiply(_get(coefficients, start + k + half), _get(roots, k * step))
                _set(coefficients, start + k, _add(x, y))
                _set(coefficients, start + k + half, _subtract(x, y))
        half, step = 2 * half, step // 2


@compiled
def _odd_values(values, inverse_roots, twist, roots):
    """Values at the n-th roots of unity to values at the other 2n-th roots of unity, in place."""
    _coefficients(values, inverse_roots)
    for k in range(values.shape[0]):
        _set(values, k, _multiply(_get(values, k), _get(twist, k)))
    _values(values, roots)


@compiled
def sum_of_products(wires, inverse_roots, twist, roots, out):
    """The sum of the products of pairs of polynomials: wires 0 and 1, 2 and 3, and so on.

    A wire is given by its values at the n-th roots of unity, n the length of ``twist``; the sum is added
    to ``out``, by its values at the 2n-th.
    """
    n = twist.shape[0]
    for start in range(0, wires.shape[0], 2 * n):
        left, right = wires[start : start + n].copy(), wires[start + n : start + 2 * n].copy()
        for k in range(n):
            product = _multiply(_get(left, k), _get(right, k))
            _set(out, 2 * k, _add(_get(out, 2 * k), product))
        _odd_values(left, inverse_roots, twist, roots)
        _odd_values(right, inverse_roots, twist, roots)
        for k in range(n):
            product = _multiply(_get(left, k), _get(right, k))
            _set(out, 2 * k + 1, _add(_get(out, 2 * k + 1), product))
