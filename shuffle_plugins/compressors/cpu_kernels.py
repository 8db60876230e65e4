"""Hadamard transforms compiled for this machine's processor.

Compilers vectorise loops over small distances badly, so the innermost butterflies are snippets of LLVM code
on whole vector registers; numba compiles the loops around them. Functions here check nothing,
:mod:`~shuffle_plugins.compressors.hadamard` does.

One file on purpose: numba's cache notices changes of the file that a function is in, and of no other.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

if numba.config.DISABLE_JIT:
    raise ImportError("numba's compiler is switched off")

_FEATURES = binding.get_host_cpu_features()
_VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32  # a machine with shorter registers uses several

_HAS_FMA = bool(_FEATURES.get("fma") or _FEATURES.get("neon") or _FEATURES.get("asimd"))
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_Value = Any
_Result = TypeVar("_Result")

_LANES_32, _LANES_64 = _VECTOR_BYTES // 4, _VECTOR_BYTES // 8
_LANE_BITS_32, _LANE_BITS_64 = _LANES_32.bit_length() - 1, _LANES_64.bit_length() - 1
_IN_L1, _IN_L2 = 12, 17  # log2 of the entries of a block that stays in the first and the second cache
_WORTH_A_THREAD = 1 << 19  # entries; a thread costs more than fewer


def _emitted(typed: Callable[..., Any]) -> Any:
    return intrinsic(typed)


def _float_type(pointer: _Value) -> tuple[ir.Type, int]:
    size = pointer.dtype.bitwidth // 8
    return (ir.FloatType() if size == 4 else ir.DoubleType()), size


def _pointers(
    builder: ir.IRBuilder, base: _Value, stride: _Value, count: int, vector: ir.VectorType
) -> list[_Value]:
    return [
        builder.bitcast(builder.gep(base, [builder.mul(stride, ir.Constant(_INT64, k))]), vector.as_pointer())
        for k in range(count)
    ]


def _load(builder: ir.IRBuilder, pointer: _Value, element_bytes: int) -> _Value:
    value = builder.load(pointer)
    value.align = element_bytes
    return value


def _across(builder: ir.IRBuilder, vectors: list[_Value]) -> list[_Value]:
    """Butterflies between vectors, the farthest first."""
    half = len(vectors) // 2
    while half:
        for k in range(len(vectors)):
            if not k & half:
                low, high = vectors[k], vectors[k + half]
                vectors[k], vectors[k + half] = builder.fadd(low, high), builder.fsub(low, high)
        half //= 2
    return vectors


def _within(builder: ir.IRBuilder, vector: _Value, lanes: int, element: ir.Type) -> _Value:
    """Butterflies inside one vector, farthest first; a fused multiply-add by ±1 rounds once, as they do."""
    kind = vector.type
    half = lanes // 2
    while half:
        order = ir.Constant(ir.VectorType(_INT32, lanes), [lane ^ half for lane in range(lanes)])
        partner = builder.shuffle_vector(vector, vector, order)
        signs = ir.Constant(
            kind, [ir.Constant(element, -1.0 if lane & half else 1.0) for lane in range(lanes)]
        )
        if _HAS_FMA:
            fused = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(kind, [kind] * 3),
                f"llvm.fma.v{lanes}f{8 * _VECTOR_BYTES // lanes}",
            )
            vector = builder.call(fused, [vector, signs, partner])
        else:
            vector = builder.fadd(builder.fmul(vector, signs), partner)
        half //= 2
    return vector


def _snippet(bits: int, *, whole: bool) -> _Value:
    """Butterflies between 2**bits vectors, from one row to another or the same, a distance in elements apart.

    With ``whole`` they are neighbours, transformed inside too, and multiplied by the last argument.
    """

    @_emitted
    def snippet(context: Any, source: Any, target: Any, number: Any) -> Any:
        element, size = _float_type(source)
        lanes = _VECTOR_BYTES // size
        vector = ir.VectorType(element, lanes)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given, wanted, number = arguments
            stride = ir.Constant(_INT64, lanes) if whole else number
            places = _pointers(builder, given, stride, 1 << bits, vector)
            values = _across(builder, [_load(builder, place, size) for place in places])
            if whole:
                first = ir.Constant(_INT32, 0)
                factors = builder.insert_element(ir.Constant(vector, ir.Undefined), number, first)
                everywhere = ir.Constant(ir.VectorType(_INT32, lanes), [0] * lanes)
                factors = builder.shuffle_vector(factors, factors, everywhere)
                values = [builder.fmul(_within(builder, value, lanes, element), factors) for value in values]
            places = _pointers(builder, wanted, stride, 1 << bits, vector)
            for value, place in zip(values, places, strict=True):
                builder.store(value, place).align = size
            return context.get_dummy_value()

        return types.void(source, target, source.dtype if whole else types.int64), generate

    return snippet


_across_1, _across_2, _across_3, _across_4 = (_snippet(bits, whole=False) for bits in range(1, 5))
_whole_0, _whole_1, _whole_2, _whole_3, _whole_4 = (_snippet(bits, whole=True) for bits in range(5))


@_emitted
def _advance(context: Any, pointer: Any, elements: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


@_emitted
def _at(context: Any, address: Any, number: Any) -> Any:
    """A pointer to numbers of the type of ``number`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(number)))

    return types.CPointer(number)(types.int64, number), generate


_SIGN, _INDEX = np.int8(1), np.int64(1)  # for :func:`_at`


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """A function of numbers, addresses and numpy arrays, compiled on first use and kept in numba's cache."""
    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep a cache
        return numba.njit(nogil=True, **options)(function)


@compiled
def _butterflies(given, row, block_bits, bits, blocks, lanes):
    """``bits`` levels of butterflies, the farthest first, in each of so many blocks of 2**block_bits."""
    stride = 1 << (block_bits - bits)
    for block in range(blocks):
        start = block << block_bits
        for i in range(start, start + stride, lanes):
            source, target = _advance(given, i), _advance(row, i)
            if bits == 4:
                _across_4(source, target, stride)
            elif bits == 3:
                _across_3(source, target, stride)
            elif bits == 2:
                _across_2(source, target, stride)
            else:
                _across_1(source, target, stride)


@compiled
def _far(given, row, size_bits, down_to, lanes):
    """Butterflies of a row until blocks of 2**down_to are left; where these are now."""
    left = size_bits
    while left > down_to:
        bits = min(3, left - down_to)
        _butterflies(given, row, left, bits, 1 << (size_bits - left), lanes)
        left -= bits
        given = row
    return given


@compiled
def _near(given, row, size_bits, lane_bits, scale):
    """The whole transform of a row that fits the first cache."""
    fused = lane_bits + 4
    left = size_bits
    while left > fused:
        bits = left - fused
        if bits > 4:
            bits = 3
        _butterflies(given, row, left, bits, 1 << (size_bits - left), 1 << lane_bits)
        left -= bits
        given = row
    vectors = left - lane_bits
    for i in range(0, 1 << size_bits, 1 << left):
        source, target = _advance(given, i), _advance(row, i)
        if vectors == 4:
            _whole_4(source, target, scale)
        elif vectors == 3:
            _whole_3(source, target, scale)
        elif vectors == 2:
            _whole_2(source, target, scale)
        elif vectors == 1:
            _whole_1(source, target, scale)
        else:
            _whole_0(source, target, scale)


@compiled
def _transform(given, row, size_bits, lane_bits, scale):
    """The transform of one row into another or itself, outer blocks first, each finished while in a cache."""
    middle = min(size_bits, _IN_L2)
    inner = min(size_bits, _IN_L1)
    far = _far(given, row, size_bits, middle, 1 << lane_bits)
    for i in range(0, 1 << size_bits, 1 << middle):
        block = _advance(row, i)
        near = _far(_advance(far, i), block, middle, inner, 1 << lane_bits)
        for j in range(0, 1 << middle, 1 << inner):
            _near(_advance(near, j), _advance(block, j), inner, lane_bits, scale)


@compiled
def _copy(given, signs, signed, row, width):
    source = numba.carray(given, width)
    target = numba.carray(row, width)
    if signed:
        factors = numba.carray(signs, width)
        for i in range(width):
            target[i] = source[i] * target.dtype.type(factors[i])
    else:
        for i in range(width):
            target[i] = source[i]


@compiled
def _clear(row, start, stop):
    data = numba.carray(row, stop)
    for i in range(start, stop):
        data[i] = 0


@compiled
def _coefficient(row, size, index):
    """One entry of the transform of a row, which it overwrites: halving the row in the transform's order."""
    data = numba.carray(row, size)
    one = data.dtype.type(1)
    half = size
    while half >= 8:
        part = half >> 3
        a = -one if index & (part << 2) else one
        b = -one if index & (part << 1) else one
        c = -one if index & part else one
        for i in range(part):
            even = (data[i] + a * data[i + 4 * part]) + b * (data[i + 2 * part] + a * data[i + 6 * part])
            odd = (data[i + part] + a * data[i + 5 * part]) + b * (
                data[i + 3 * part] + a * data[i + 7 * part]
            )
            data[i] = even + c * odd
        half = part
    while half > 1:
        half >>= 1
        a = -one if index & half else one
        for i in range(half):
            data[i] = data[i] + a * data[i + half]
    return data[0]


@compiled
def _transform_rows(source, stride, dim, signs, out, size_bits, rows, lane_bits, scale):
    """Transforms of rows of the type of ``scale``; ``out`` may be ``source`` where rows are not padded."""
    prepared = signs != 0 or dim != 1 << size_bits
    first, target = _at(source, scale), _at(out, scale)
    for r in range(rows):
        given, row = _advance(first, r * stride), _advance(target, r << size_bits)
        if prepared:
            _copy(given, _at(signs, _SIGN), signs != 0, row, dim)
            _clear(row, dim, 1 << size_bits)
            given = row
        _transform(given, row, size_bits, lane_bits, scale)


@compiled
def _coefficient_rows(
    blocks, num_blocks, signs, scratch, size_bits, first, last, lane_bits, one, indices, count, out
):
    table = numba.carray(_at(blocks, _INDEX), (num_blocks, 3))
    chosen = numba.carray(_at(indices, _INDEX), (last, count))
    found = numba.carray(_at(out, one), (last, count))
    row = _at(scratch, one)
    data = numba.carray(row, 1 << size_bits)
    factors = _at(signs, _SIGN)
    for r in range(first, last):
        start = 0
        for block in range(num_blocks):
            given = _advance(_at(table[block, 0], one), r * table[block, 1])
            _copy(given, _advance(factors, start), signs != 0, _advance(row, start), table[block, 2])
            start += table[block, 2]
        _clear(row, start, 1 << size_bits)
        if count == 1:
            found[r, 0] = _coefficient(row, 1 << size_bits, chosen[r, 0])
        else:
            _transform(row, row, size_bits, lane_bits, one)
            for i in range(count):
                found[r, i] = data[chosen[r, i]]


@compiled
def _clipped_rest(row, rest, size, moved, share, inner, enough):
    """Add ``share`` times ``rest`` to a row where it was moved; then how far each entry is from the box."""
    data, far = numba.carray(row, size), numba.carray(rest, size)
    outside = numba.int32(0)
    if moved:
        for i in range(size):
            data[i] = data[i] + share * far[i]
    for i in range(size):
        value = data[i]
        far[i] = min(max(value, -inner), inner) - value
        outside |= numba.int32(abs(value) > enough)
    return outside != 0


@compiled
def _box_rows(
    source, stride, norms, places, signs, dim, out, rest, size_bits, rows, lane_bits, numbers, steps, missed
):
    scale, share, inner, enough = numbers
    size = 1 << size_bits
    positions = numba.carray(_at(places, _INDEX), dim)
    factors = numba.carray(_at(signs, _SIGN), dim)
    first, target, spare = _at(source, scale), _at(out, scale), _at(rest, scale)
    lengths, far = numba.carray(_at(norms, scale), rows), numba.carray(spare, size)
    flags = numba.carray(_at(missed, _SIGN), rows)
    for r in range(rows):
        given, row = _advance(first, r * stride), _advance(target, r << size_bits)
        entries, wanted = numba.carray(given, dim), numba.carray(row, size)
        length = lengths[r]
        wanted[:] = 0
        for i in range(dim):
            wanted[positions[i]] = entries[i] / length * wanted.dtype.type(factors[i])
        _transform(row, row, size_bits, lane_bits, scale)
        outside = _clipped_rest(row, spare, size, False, share, inner, enough)
        for _ in range(steps):
            if not outside:
                break
            _transform(spare, spare, size_bits, lane_bits, scale)
            for i in range(dim):
                far[positions[i]] = 0
            _transform(spare, spare, size_bits, lane_bits, scale)
            outside = _clipped_rest(row, spare, size, True, share, inner, enough)
        flags[r] = outside


@partial(compiled, fastmath={"reassoc"})
def add_absolute_sums(block, out):
    """Add sums of absolute entries of rows to ``out``; any order lets many be added at a time."""
    for i in range(block.shape[0]):
        total = out[i]
        for j in range(block.shape[1]):
            total += abs(block[i, j])
        out[i] = total


def handles(x: Tensor, size: int) -> bool:
    """Whether rows of this dtype and device, padded to ``size``, can be given to the functions below."""
    return x.is_cpu and (
        size >= _LANES_32 if x.dtype is torch.float32 else x.dtype is torch.float64 and size >= _LANES_64
    )


def _kind(dtype: torch.dtype) -> tuple[Callable[[float], Any], int, int]:
    """Of float32 or float64: a number in the type that kernels work in, log2 of its lanes, and its bytes."""
    if dtype is torch.float32:
        return np.float32, _LANE_BITS_32, 4
    return float, _LANE_BITS_64, 8


def transform_rows(
    source: Tensor, out: Tensor, dim: int, stride: int, size: int, signs: Tensor | None, scale: float
) -> None:
    """Fill ``out`` with the transforms of rows, times signs and zero-padded, scaled.

    Args:
        source: float32 or float64 on the CPU: rows of ``dim`` neighbours, ``stride`` entries apart.
        out: contiguous rows of ``size``, of the same dtype; it may be ``source`` where nothing is padded.
        signs: +1 and -1, (dim,) contiguous int8.
    """
    size_bits = size.bit_length() - 1
    factors = 0 if signs is None else signs.data_ptr()
    kind, lane_bits, item = _kind(out.dtype)
    factor = kind(scale)

    def part(first: int, last: int) -> None:
        start, into = source.data_ptr() + first * stride * item, out.data_ptr() + first * size * item
        _transform_rows(start, stride, dim, factors, into, size_bits, last - first, lane_bits, factor)

    in_parts(part, rows=out.numel() >> size_bits, size=size)


def coefficient_rows(blocks: Sequence[Tensor], out: Tensor, *, indices: Tensor, signs: Tensor | None) -> None:
    """Fill ``out`` (rows, count) with chosen entries of the transforms of rows, times signs and zero-padded.

    ``blocks`` are the columns of the rows in order; all tensors but these are contiguous.
    """
    rows, count = indices.shape
    dim = sum(block.shape[1] for block in blocks)
    size_bits = (dim - 1).bit_length()
    kind, lane_bits, _ = _kind(out.dtype)
    factors = 0 if signs is None else signs.data_ptr()
    table = torch.tensor([[block.data_ptr(), block.stride(0), block.shape[1]] for block in blocks])

    def part(first: int, last: int) -> None:
        scratch = torch.empty(1 << size_bits, dtype=out.dtype)
        row = scratch.data_ptr()
        _coefficient_rows(
            *(table.data_ptr(), len(blocks), factors, row, size_bits, first, last, lane_bits, kind(1)),
            *(indices.data_ptr(), count, out.data_ptr()),
        )

    in_parts(part, rows=rows, size=dim)


def box_rows(
    source: Tensor,
    out: Tensor,
    *,
    norms: Tensor,
    positions: Tensor,
    signs: Tensor,
    share: float,
    inner: float,
    enough: float,
    steps: int,
) -> Tensor:
    """Fill ``out`` with representations of rows over their norms, moved into a box; which stayed outside.

    Args:
        positions: int64 (dim,), where the entries of a row stand before the transform.
        share: the part taken of each of at most ``steps`` steps to the nearest point of the box, in (0, 2).
        inner, enough: half the side of the box that is aimed at, and of the one that is wanted.
    """
    size_bits = out.shape[1].bit_length() - 1
    missed = torch.empty(len(out), dtype=torch.int8)
    kind, lane_bits, item = _kind(out.dtype)
    (dim, stride), size = (source.shape[1], source.stride(0)), out.shape[1]
    numbers = tuple(map(kind, (size**-0.5, share, inner, enough)))

    def part(first: int, last: int) -> None:
        rest = torch.empty(size, dtype=out.dtype)
        given, lengths = source.data_ptr() + first * stride * item, norms.data_ptr() + first * item
        wanted, flags = out.data_ptr() + first * size * item, missed.data_ptr() + first
        _box_rows(
            *(given, stride, lengths, positions.data_ptr(), signs.data_ptr(), dim, wanted, rest.data_ptr()),
            *(size_bits, last - first, lane_bits, numbers, steps, flags),
        )

    in_parts(part, rows=len(out), size=2 * steps * size)
    return missed


def in_parts(action: Callable[[int, int], _Result], *, rows: int, size: int) -> list[_Result]:
    """Call on ranges of rows, in as many threads as torch uses where that pays; none outlives the call."""
    threads = min(torch.get_num_threads(), rows, rows * size // _WORTH_A_THREAD)
    if threads <= 1:
        return [action(0, rows)]
    bounds = [rows * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, bounds[:-1], bounds[1:]))
