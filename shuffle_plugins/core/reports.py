"""What clients send: compact tensors, one entry per client, with an exact wire form."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.packing import (
    MAX_BITS,
    compact_dtype,
    pack_each,
    pack_records,
    unpack_each,
    unpack_records,
)

_MAGIC = b"SHRP"
WIRE_VERSION = 1
_PREFIX = struct.Struct("<4sHB")
_SIZES = struct.Struct("<QQB")
_FIELD = struct.Struct("<BBI")
_CHECKSUM = struct.Struct("<I")
_CHUNK_BYTES = 1 << 24
_INTEGER, _FLOAT = 0, 1
_FLOATS = (32, 64)


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """The form of one part of every report: integers in [0, 2**bits), or floats of 32 or 64 bits."""

    bits: int  # of one value on the wire
    width: int = 1  # values per report
    floating: bool = False


@dataclass(frozen=True, slots=True)
class ReportLayout:
    """The form of a mechanism's reports, known before any is made: what a reader must know to read them."""

    mechanism: str
    dim: int  # length of a client's vector, or the number of categories
    fields: tuple[FieldLayout, ...]  # the parts of a report, in their order

    @property
    def bits(self) -> int:
        """Bits of one report on the wire, without the header."""
        return sum(field.bits * field.width for field in self.fields)

    @property
    def report_bytes(self) -> int:
        """Length of :meth:`Reports.to_bytes` of one report, whatever it says."""
        integers, floats = self.packed_bytes(1)
        return self.header_bytes + integers + floats

    @property
    def header_bytes(self) -> int:
        """Bytes that :meth:`Reports.to_bytes` adds to the packed reports, whatever their number."""
        name = len(self.mechanism.encode())
        return _PREFIX.size + name + _SIZES.size + _FIELD.size * len(self.fields) + _CHECKSUM.size

    def packed_bytes(self, count: int) -> tuple[int, int]:
        """Bytes that the integers, and the floats, of ``count`` reports take together."""
        bits = {False: 0, True: 0}
        for field in self.fields:
            bits[field.floating] += field.bits * field.width * count
        return (bits[False] + 7) // 8, bits[True] // 8

    def header(self, count: int) -> bytes:
        """What the bytes of ``count`` reports begin with."""
        name = self.mechanism.encode()
        parts = [_PREFIX.pack(_MAGIC, WIRE_VERSION, len(name)), name]
        parts.append(_SIZES.pack(self.dim, count, len(self.fields)))
        for field in self.fields:
            parts.append(_FIELD.pack(_FLOAT if field.floating else _INTEGER, field.bits, field.width))
        return b"".join(parts)

    def reports(self, *values: Tensor) -> Reports:
        """Reports of this layout, of a tensor for each field, (clients,) or (clients, …)."""
        fields = []
        for layout, value in zip(self.fields, values, strict=True):
            if not layout.floating:
                value = value.reshape((len(value),) if layout.width == 1 else (len(value), layout.width))
            field = Field(value.byte() if value.dtype == torch.bool else value, layout.bits)
            small = value if layout.floating else value.to(compact_dtype(layout.bits))
            fields.append(field._holding(small))
        reports = Reports(mechanism=self.mechanism, dim=self.dim, fields=tuple(fields))
        self.check(reports)
        return reports

    def check(self, reports: Reports, *below: int) -> None:
        """Check that reports have this layout and, where limits are given, that their integers are below."""
        if reports.layout != self:
            raise ValueError(f"these are reports of {_words(reports.layout)}, not of {_words(self)}")
        for layout, field, limit in zip(self.fields, reports.fields, below, strict=bool(below)):
            values = field.values
            if values.dim() == 2 and layout.width == 1:
                raise ValueError(f"a report of {self.mechanism} has one number here, got a list of one")
            if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < limit):
                raise ValueError(
                    f"a report of {self.mechanism} holds a number outside [0, {limit}): it was altered or "
                    "forged; drop it"
                )

    def read(self, reports: Reports, *below: int) -> tuple[Tensor, ...]:
        """The integers of reports, checked: int64 (reports,) or (reports, width), a tensor for each field."""
        self.check(reports, *below)
        return tuple(field.values.to(torch.int64) for field in reports.fields)


def _words(layout: ReportLayout) -> str:
    parts = [
        f"{field.width} x {field.bits}-bit {'floats' if field.floating else 'integers'}"
        for field in layout.fields
    ]
    return f"{layout.mechanism!r} in dimension {layout.dim} ({', '.join(parts)})"


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One part of every report: (clients,) or (clients, width), and the bits of one value on the wire."""

    values: Tensor
    bits: int

    def __post_init__(self) -> None:
        if self.values.dim() not in (1, 2):
            raise ValueError(f"a field is (clients,) or (clients, width), got {tuple(self.values.shape)}")
        if self.values.is_floating_point():
            if {32: torch.float32, 64: torch.float64}.get(self.bits) != self.values.dtype:
                raise ValueError(f"a field of {self.values.dtype} cannot be sent in {self.bits} bits")
            return
        if self.values.dtype == torch.bool or self.values.is_complex():
            raise ValueError(f"a field holds integers or floats, got {self.values.dtype}")
        if not 0 <= self.bits <= MAX_BITS:
            raise ValueError(f"an integer field takes 0 to {MAX_BITS} bits, got {self.bits}")
        if self.values.numel() and not (
            int(self.values.min()) >= 0 and int(self.values.max()) < 1 << self.bits
        ):
            raise ValueError(f"a value does not fit in {self.bits} bits")

    @property
    def width(self) -> int:
        """How many values of this field one report has."""
        return 1 if self.values.dim() == 1 else self.values.shape[1]

    @property
    def layout(self) -> FieldLayout:
        """The field's form, without its values."""
        return FieldLayout(self.bits, self.width, self.values.is_floating_point())

    def _holding(self, values: Tensor) -> Field:
        """This field with other values of its kind, known to fit: the check is most of what a slice costs."""
        field = object.__new__(Field)
        object.__setattr__(field, "values", values)
        object.__setattr__(field, "bits", self.bits)
        return field


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """Reports of several clients to one mechanism. Their order carries no meaning."""

    mechanism: str
    dim: int
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("reports need at least one field")
        if len({field.values.shape[0] for field in self.fields}) != 1:
            raise ValueError("the fields of reports differ in length")

    def __len__(self) -> int:
        return int(self.fields[0].values.shape[0])

    @property
    def layout(self) -> ReportLayout:
        """Mechanism, dimension and the form of the fields: everything but the values."""
        return ReportLayout(self.mechanism, self.dim, tuple(field.layout for field in self.fields))

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire, without the header."""
        return self.layout.bits

    def to(self, device: torch.device | str) -> Reports:
        """The same reports on another device."""
        return self._with([field.values.to(device) for field in self.fields])

    def narrow(self, start: int, stop: int) -> Reports:
        """The reports from index ``start`` up to, and without, ``stop``; values are not copied."""
        return self._with([field.values[start:stop] for field in self.fields])

    def split(self) -> list[Reports]:
        """Every report by itself, in their order."""
        return [self.narrow(i, i + 1) for i in range(len(self))]

    def permute(self, permutation: Tensor) -> Reports:
        """The same reports in another order: a permutation of their indices, int64 (reports,)."""
        indices = torch.arange(len(self), device=permutation.device)
        if permutation.dim() != 1 or not torch.equal(permutation.sort().values, indices):
            raise ValueError(f"not a permutation of {len(self)} reports")
        return self._with([field.values[permutation.to(field.values.device)] for field in self.fields])

    @classmethod
    def concat(cls, parts: Sequence[Reports]) -> Reports:
        """All reports of several batches to the same mechanism."""
        if not parts:
            raise ValueError("nothing to concatenate")
        first = parts[0]
        if len({part._tensors() for part in parts}) != 1:
            raise ValueError("reports of different mechanisms, dimensions or layouts cannot be mixed")
        columns = zip(*(part.fields for part in parts), strict=True)
        return first._with([torch.cat([field.values for field in column]) for column in columns])

    def to_bytes(self) -> bytes:
        """Versioned header, the packed reports, a checksum.

        Integers take exactly their bits, padded to a whole byte once; floats are little-endian.
        """
        integers, floats = self._columns()
        parts = [self.layout.header(len(self))]
        if integers:
            parts.append(pack_records(integers).numpy().tobytes())
        body = b"".join(parts + [array.tobytes() for array in floats])
        return body + _CHECKSUM.pack(zlib.crc32(body))

    def each_to_bytes(self) -> list[bytes]:
        """Every report by itself, as :meth:`to_bytes` of that one alone would write it, but all in one go."""
        integers, floats = self._columns()
        header = self.layout.header(1)
        columns = [pack_each(integers).numpy()] if integers else []
        columns += [array.view(np.uint8) for array in floats]
        size = len(header) + sum(column.shape[1] for column in columns)
        step = max(1, _CHUNK_BYTES // size)
        messages = []
        for start in range(0, len(self), step):
            parts = [column[start : start + step] for column in columns]
            table = np.empty((parts[0].shape[0], size), dtype=np.uint8)
            table[:, : len(header)] = np.frombuffer(header, dtype=np.uint8)
            np.concatenate(parts, axis=1, out=table[:, len(header) :])
            bodies = (row.tobytes() for row in table)
            messages += [body + _CHECKSUM.pack(zlib.crc32(body)) for body in bodies]
        return messages

    def _columns(self) -> tuple[list[tuple[Tensor, int]], list[np.ndarray]]:
        """The integer fields (reports, width) with their bits, and the others as little-endian arrays."""
        integers = []
        floats = []
        for field in self.fields:
            values = field.values.detach().cpu().reshape(len(self), field.width)
            if values.is_floating_point():
                floats.append(np.ascontiguousarray(values.numpy(), dtype=f"<f{field.bits // 8}"))
            else:
                integers.append((values, field.bits))
        return integers, floats

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Rebuild what :meth:`to_bytes` wrote. The checksum finds accidents, not forgeries."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ValueError(f"reports come as bytes, got {type(data).__name__}")
        try:
            return cls._parse(memoryview(data))
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError("not the bytes of reports: truncated or malformed") from error

    @classmethod
    def from_each(cls, messages: Sequence[bytes]) -> Reports:
        """One batch of messages of one report each, in their order: the inverse of :meth:`each_to_bytes`."""
        if not messages:
            raise ValueError("nothing to read")
        first = cls.from_bytes(messages[0])
        if len(first) != 1:
            raise ValueError(f"not the bytes of one report: there are {len(first)}")
        header, size = first.layout.header(1), len(messages[0])
        body = size - _CHECKSUM.size
        for data in messages:
            if len(data) != size or data[: len(header)] != header:
                raise ValueError("reports of different mechanisms, dimensions or layouts cannot be mixed")
            if zlib.crc32(memoryview(data)[:body]) != _CHECKSUM.unpack_from(data, body)[0]:
                raise ValueError("the bytes of the reports are corrupted: the checksum does not match")
        step = max(1, _CHUNK_BYTES // size)
        parts = [
            first._parse_table(b"".join(messages[start : start + step]), len(header), size)
            for start in range(0, len(messages), step)
        ]
        return first._with([torch.cat(column) for column in zip(*parts, strict=True)])

    def _parse_table(self, joined: bytes, at: int, size: int) -> list[Tensor]:
        """The fields of joined messages of this layout, ``at`` bytes of header and ``size`` in all each."""
        table = np.frombuffer(joined, dtype=np.uint8).reshape(-1, size)
        integers = [(field.bits, field.width) for field in self.layout.fields if not field.floating]
        packed, _ = self.layout.packed_bytes(1)
        rows = torch.from_numpy(table[:, at : at + packed].copy())
        unpacked = iter(unpack_each(rows, integers) if integers else ())
        at += packed
        columns = []
        for field in self.fields:
            if not field.values.is_floating_point():
                values = next(unpacked)
            else:
                stop = at + field.bits // 8 * field.width
                array = np.ascontiguousarray(table[:, at:stop]).view(f"<f{field.bits // 8}")
                values = torch.from_numpy(array.astype(f"=f{field.bits // 8}"))
                at = stop
            columns.append(values if field.values.dim() == 2 else values.squeeze(1))
        return columns

    @classmethod
    def _parse(cls, data: memoryview) -> Self:
        magic, version, name_length = _PREFIX.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("not the bytes of reports")
        if version != WIRE_VERSION:
            raise ValueError(f"reports of wire version {version}; this library reads version {WIRE_VERSION}")
        end = len(data) - _CHECKSUM.size
        if end < 0 or zlib.crc32(data[:end]) != _CHECKSUM.unpack_from(data, end)[0]:
            raise ValueError("the bytes of the reports are corrupted: the checksum does not match")
        at = _PREFIX.size
        name = bytes(data[at : at + name_length]).decode()
        at += name_length
        dim, count, num_fields = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        entries = [_FIELD.unpack_from(data, at + i * _FIELD.size) for i in range(num_fields)]
        at += num_fields * _FIELD.size
        if any(bits * width == 0 and width != 1 for _, bits, width in entries) or (
            count and not any(bits for _, bits, _ in entries)
        ):
            raise ValueError("not the bytes of reports: a part of a report has no size")
        if any(kind != _INTEGER and not (kind == _FLOAT and bits in _FLOATS) for kind, bits, _ in entries):
            raise ValueError("not the bytes of reports: unknown kind of field")
        if any(kind == _INTEGER and bits > MAX_BITS for kind, bits, _ in entries):
            raise ValueError(f"not the bytes of reports: an integer of more than {MAX_BITS} bits")
        layout = ReportLayout(
            name, dim, tuple(FieldLayout(bits, width, kind == _FLOAT) for kind, bits, width in entries)
        )
        packed, float_bytes = layout.packed_bytes(count)
        if at + packed + float_bytes != end:
            raise ValueError("the bytes of the reports are corrupted: the length does not match the header")
        stream = np.frombuffer(data[at : at + packed], dtype=np.uint8).copy()
        integers = [(field.bits, field.width) for field in layout.fields if not field.floating]
        unpacked = iter(unpack_records(torch.from_numpy(stream), integers, count) if integers else ())
        at += packed
        fields = []
        for field in layout.fields:
            if not field.floating:
                values = next(unpacked)
                values = values if field.width != 1 else values.squeeze(1)
            else:
                size = field.bits // 8 * field.width * count
                array = np.frombuffer(data[at : at + size], dtype=f"<f{field.bits // 8}")
                values = torch.from_numpy(array.reshape(count, field.width).astype(f"=f{field.bits // 8}"))
                at += size
            fields.append(Field(values, field.bits))
        return cls(mechanism=name, dim=dim, fields=tuple(fields))

    def _tensors(self) -> tuple[object, ...]:
        """The layout, with the shapes and dtypes of the tensors."""
        shape = tuple((field.bits, field.values.shape[1:], field.values.dtype) for field in self.fields)
        return self.mechanism, self.dim, shape

    def _with(self, values: Sequence[Tensor]) -> Reports:
        fields = tuple(field._holding(value) for value, field in zip(values, self.fields, strict=True))
        return Reports(mechanism=self.mechanism, dim=self.dim, fields=fields)
