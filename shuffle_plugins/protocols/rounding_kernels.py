"""Rows clipped, rounded at random and added up, and random bits counted, compiled for this processor.

The inner loops are snippets of LLVM code on vectors of 16 numbers; numba compiles the loops around them, some
seconds once per machine, and its cache keeps the code. Functions here check nothing,
:mod:`~shuffle_plugins.protocols.lattices` does, and says what they compute.

One file on purpose: numba's cache notices changes of the file that a function is in, and of no other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shuffle_plugins.compressors.cpu_kernels import compiled, in_parts

__all__ = ["add_ones", "in_parts", "round_rows"]

_Value = Any
_LANES, _TILE = 16, 512
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_DOUBLES = ir.VectorType(_DOUBLE, _LANES)
_ROUNDS = 10  # double rounds of ChaCha20
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)


def _vector(kind: ir.Type) -> ir.VectorType:
    return ir.VectorType(kind, _LANES)


def _all(kind: ir.Type, value: int) -> ir.Constant:
    return ir.Constant(_vector(kind), [value] * _LANES)


def _everywhere(builder: Any, value: _Value) -> _Value:
    first = builder.insert_element(
        ir.Constant(_vector(value.type), ir.Undefined), value, ir.Constant(_INT32, 0)
    )
    return builder.shuffle_vector(first, first, _all(_INT32, 0))


def _at(builder: Any, address: _Value, kind: ir.Type, size: int, index: _Value | int = 0) -> _Value:
    """A pointer to ``kind``, ``index`` times ``size`` bytes from an address."""
    if isinstance(index, int):
        index = ir.Constant(_INT64, index)
    place = builder.add(address, builder.mul(index, ir.Constant(_INT64, size)))
    return builder.inttoptr(place, kind.as_pointer())


def _load(builder: Any, pointer: _Value, align: int) -> _Value:
    value = builder.load(pointer)
    value.align = align
    return value


def _call(builder: Any, name: str, kind: ir.Type, *arguments: _Value) -> _Value:
    signature = ir.FunctionType(kind, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


@intrinsic  # type: ignore[untyped-decorator]
def _coins(context: Any, state: Any, block: Any, out: Any) -> Any:
    """Sixteen blocks of ChaCha20 from ``block`` on, a multiple of 16: word w of block b at 16·w + b.

    ``state`` is the address of the key's eight words and the nonce's two.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, first, target = arguments
        vector = _vector(_INT32)
        key = [_everywhere(builder, _load(builder, _at(builder, given, _INT32, 4, i), 4)) for i in range(10)]
        low = builder.add(
            _everywhere(builder, builder.trunc(first, _INT32)), ir.Constant(vector, list(range(_LANES)))
        )
        high = _everywhere(builder, builder.trunc(builder.lshr(first, ir.Constant(_INT64, 32)), _INT32))
        start = [_all(_INT32, constant) for constant in _CONSTANTS] + key[:8] + [low, high] + key[8:]
        cells = [cgutils.alloca_once_value(builder, word) for word in start]

        def rotated(value: _Value, bits: int) -> _Value:
            return _call(builder, "llvm.fshl.v16i32", vector, value, value, _all(_INT32, bits))

        def quarter(x: list[_Value], a: int, b: int, c: int, d: int) -> None:
            for left, right, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[left] = builder.add(x[left], x[right])
                x[turned] = rotated(builder.xor(x[turned], x[left]), bits)

        with cgutils.for_range(builder, ir.Constant(_INT64, _ROUNDS)):
            words = [builder.load(cell) for cell in cells]
            for i in range(4):
                quarter(words, i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                quarter(words, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
            for cell, word in zip(cells, words, strict=True):
                builder.store(word, cell)
        for i, (cell, word) in enumerate(zip(cells, start, strict=True)):
            done = builder.add(builder.load(cell), word)
            builder.store(done, _at(builder, target, vector, 64, i)).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _entry(one: Any) -> tuple[ir.Type, int]:
    """The type of an entry and its bytes, for the type of a one of its kind."""
    return (_FLOAT, 4) if one == types.float32 else (_DOUBLE, 8)


def _values(builder: Any, address: _Value, index: _Value, one: Any) -> _Value:
    """Sixteen entries of the kind of ``one`` as float64."""
    kind, size = _entry(one)
    place = builder.mul(index, ir.Constant(_INT64, _LANES))
    read = _load(
        builder, builder.bitcast(_at(builder, address, kind, size, place), _vector(kind).as_pointer()), size
    )
    return builder.fpext(read, _DOUBLES) if kind is _FLOAT else read


@intrinsic  # type: ignore[untyped-decorator]
def _square(context: Any, x: Any, sums: Any, one: Any) -> Any:
    """Add the squares of a tile of entries of the kind of ``one`` to sixteen float64 sums."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, sums, _ = arguments
        place = _at(builder, sums, _DOUBLES, 0)
        total = cgutils.alloca_once_value(builder, _load(builder, place, 8))
        with cgutils.for_range(builder, ir.Constant(_INT64, _TILE // _LANES)) as loop:
            value = _values(builder, given, loop.index, one)
            builder.store(builder.fadd(builder.load(total), builder.fmul(value, value)), total)
        builder.store(builder.load(total), place).align = 8
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, one), generate


@intrinsic  # type: ignore[untyped-decorator]
def _round(context: Any, x: Any, words: Any, totals: Any, sums: Any, scale: Any, one: Any, zero: Any) -> Any:
    """Add a tile's rounded entries to its totals, and their squares to sixteen float64 sums.

    Entries are of the kind of ``one``, totals of the kind of ``zero``.

    An entry's value in units of 2**-16 is cut to a whole number, its coin added, and the lower 16 bits cut
    off. Squares of narrow entries are added up in 32 bits: no 32 of them pass 2**31, as their roots less 1
    are those of a vector no longer than 2**15. Returns whether somewhere the lower bits were all ones, so
    that digits beyond decide on a carry.
    """
    whole = _INT32 if zero == types.int32 else _INT64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, coins, totals, sums, scale, _, _ = arguments
        vector, size = _vector(whole), whole.width // 8
        factors = _everywhere(builder, scale)
        mask, sixteen = _all(whole, 0xFFFF), _all(whole, 16)
        place = _at(builder, sums, _DOUBLES, 0)
        narrow = whole is _INT32
        squares = cgutils.alloca_once_value(builder, _all(whole, 0) if narrow else _load(builder, place, 8))
        carries = cgutils.alloca_once_value(builder, _all(whole, 0))
        with cgutils.for_range(builder, ir.Constant(_INT64, _LANES)) as loop:
            word = _load(builder, _at(builder, coins, _vector(_INT32), 64, loop.index), 4)
            for half in range(2):
                if half:
                    coin = builder.lshr(word, _all(_INT32, 16))
                else:
                    coin = builder.and_(word, _all(_INT32, 0xFFFF))
                if whole is _INT64:
                    coin = builder.zext(coin, vector)
                group = builder.add(
                    builder.mul(loop.index, ir.Constant(_INT64, 2)), ir.Constant(_INT64, half)
                )
                value = builder.fmul(_values(builder, given, group, one), factors)
                cut = builder.fptosi(_call(builder, "llvm.floor.v16f64", _DOUBLES, value), vector)
                tossed = builder.add(cut, coin)
                ones = builder.icmp_signed("==", builder.and_(tossed, mask), mask)
                builder.store(builder.or_(builder.load(carries), builder.zext(ones, vector)), carries)
                rounded = builder.ashr(tossed, sixteen)
                target = _at(builder, totals, vector, _LANES * size, group)
                added = builder.add(_load(builder, target, size), rounded)
                builder.store(added, target).align = size
                before = builder.load(squares)
                if narrow:
                    after = builder.add(before, builder.mul(rounded, rounded))
                else:
                    root = builder.sitofp(rounded, _DOUBLES)
                    after = builder.fadd(before, builder.fmul(root, root))
                builder.store(after, squares)
        sums_after = builder.load(squares)
        if narrow:
            sums_after = builder.fadd(_load(builder, place, 8), builder.sitofp(sums_after, _DOUBLES))
        builder.store(sums_after, place).align = 8
        found = _call(builder, f"llvm.vector.reduce.or.v16i{whole.width}", whole, builder.load(carries))
        return builder.zext(found, _INT64) if whole is _INT32 else found

    addresses = (types.int64,) * 4
    return types.int64(*addresses, types.float64, one, zero), generate


@intrinsic  # type: ignore[untyped-decorator]
def _read(context: Any, x: Any, index: Any, one: Any) -> Any:
    """One entry of the kind of ``one`` as float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, size = _entry(one)
        value = _load(builder, _at(builder, arguments[0], kind, size, arguments[1]), size)
        return builder.fpext(value, _DOUBLE) if kind is _FLOAT else value

    return types.float64(types.int64, types.int64, one), generate


@intrinsic  # type: ignore[untyped-decorator]
def _copy(context: Any, source: Any, target: Any, size: Any) -> Any:
    """Copy bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        given, wanted = (_at(builder, address, byte, 1) for address in arguments[:2])
        cgutils.raw_memcpy(builder, wanted, given, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def _carried(x: _Value, one: _Value, width: _Value, scale: _Value, words: _Value, totals: _Value) -> _Value:
    """Carry where the first digit does not tell; by how much this changes the sum of squares."""
    more = 0.0
    for i in range(width):
        cell, shift = (i >> 5) * _LANES + (i & 15), (i & 16)
        value = _read(x, i, one) * scale
        cut = np.floor(value)
        whole = np.int64(cut)
        tossed = whole + np.int64((words[0, cell] >> shift) & 0xFFFF)
        if tossed & 0xFFFF == 0xFFFF:
            draw = np.int64((words[1, cell] >> shift) & 0xFFFF) << 30
            draw |= np.int64((words[2, cell] >> shift) & 0xFFFF) << 14
            draw |= np.int64((words[3, cell] >> shift) & 0xFFFF) >> 2
            if draw + np.int64((value - cut) * 2.0**46) >= 1 << 46:
                totals[i] += 1
                more += 2.0 * np.float64(tossed >> 16) + 1.0
    return more


@compiled
def _square_rows(
    table: _Value, one: _Value, item: _Value, first: _Value, last: _Value, tail: _Value, sums: _Value
) -> None:
    """Sums of squares of rows, sixteen for each."""
    sums[: last - first] = 0.0
    for r in range(first, last):
        into = sums[r - first].ctypes.data
        for b in range(len(table)):
            width = table[b, 2]
            for start in range(0, width, _TILE):
                x = table[b, 0] + (r * table[b, 1] + start) * item
                if width - start < _TILE:
                    tail[:] = 0.0
                    _copy(x, tail.ctypes.data, (width - start) * item)
                    x = tail.ctypes.data
                _square(x, into, one)


@compiled
def round_rows(
    table: _Value,
    one: _Value,
    item: _Value,
    first: _Value,
    last: _Value,
    position: _Value,
    group: _Value,
    radius: _Value,
    factor: _Value,
    states: _Value,
    totals: _Value,
    out: _Value,
    apart: _Value,
    scales: _Value,
    lengths: _Value,
) -> None:
    """Round rows first..last; one that is not finite counts as zeros.

    Args:
        table: int64 (blocks, 3): address, distance of rows in entries, and width of each block of columns.
        one: 1 in the type of an entry, float32 or float64.
        item: bytes of an entry.
        first: first row.
        last: row after the last.
        position: what is added to a row's number to find its draws.
        group: rows that are worked on together, and hopefully stay in a cache between both passes.
        radius: radius of the ball.
        factor: lattice steps per unit of a row inside it.
        states: uint32 (4, 10): key and nonce of each digit of the draws.
        totals: zeros (512,) to work with; int64 where an entry times 2**16 does not fit 32 bits, else int32.
        out: int64 (1, dim), to which the rounded rows are added; or (rows, dim), which they fill.
        apart: whether it is the latter.
        scales: float64 (rows,): filled with what a row was multiplied by.
        lengths: float64 (rows,): filled with the squared norms of rounded rows.
    """
    words = np.empty((4, _LANES * _LANES), dtype=np.uint32)
    tail = np.zeros(_TILE, dtype=np.float64)
    sums = np.zeros((group, _LANES), dtype=np.float64)
    states_at, words_at, totals_at = states.ctypes.data, words.ctypes.data, totals.ctypes.data
    tiles = 0
    for b in range(len(table)):
        tiles += (table[b, 2] + _TILE - 1) // _TILE
    for start in range(first, last, group):
        stop = min(start + group, last)
        _square_rows(table, one, item, start, stop, tail, sums)
        for r in range(start, stop):
            norm = np.sqrt(sums[r - start].sum())
            scales[r] = factor * (radius / max(norm, radius)) if np.isfinite(norm) else 0.0
        sums[:] = 0.0
        tile, column = 0, 0
        for b in range(len(table)):
            for left in range(0, table[b, 2], _TILE):
                width = min(_TILE, table[b, 2] - left)
                for r in range(start, stop):
                    x = table[b, 0] + (r * table[b, 1] + left) * item
                    if width < _TILE or scales[r] == 0.0:
                        tail[:] = 0.0
                        if scales[r] > 0.0:
                            _copy(x, tail.ctypes.data, width * item)
                        x = tail.ctypes.data
                    block = ((position + r) * tiles + tile) * _LANES
                    scale = scales[r] * 65536.0
                    _coins(states_at, block, words_at)
                    sums_at = sums.ctypes.data + (r - start) * _LANES * 8
                    if _round(x, words_at, totals_at, sums_at, scale, one, totals[0]):
                        for digit in range(1, 4):
                            _coins(states_at + digit * 40, block, words_at + digit * 1024)
                        sums[r - start, 0] += _carried(x, one, width, scale, words, totals)
                    if apart or r == stop - 1:
                        row = r if apart else 0
                        for i in range(width):
                            out[row, column + i] += totals[i]
                        totals[:] = 0
                tile += 1
                column += width
        for r in range(start, stop):
            lengths[r] = sums[r - start].sum()


@compiled
def add_ones(values: Any, scale: Any, half: Any, words: Any, ones: Any) -> None:
    """Add to ``ones`` how many words, (bits, rows, columns), are below ½ and ``half`` times a scaled value.

    The last 62 bits of a word count, and as many of the threshold; scaled values are cut to [-1, 1].
    """
    for bit in range(words.shape[0]):
        for i in range(words.shape[1]):
            factor = scale[i, 0]
            for j in range(words.shape[2]):
                edge = np.int64(min(max(values[i, j] * factor, -1.0), 1.0) * half)
                ones[i, j] += (words[bit, i, j] & ((1 << 62) - 1)) < edge + (1 << 61)
