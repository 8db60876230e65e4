"""Checks of reports on the wire: their exact size, their way there and back, and what forged ones can do."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from shuffle_plugins.core import Field, Reports
from shuffle_plugins.mechanisms import LocalRandomizer
from shuffle_plugins.testing.case import Broken, Case, Measured

_CLIENTS = 37
_FLIPS = 80  # forged reports, each with two bits flipped
_CHECKSUM = 4  # bytes at the end of the wire form
_LOUDEST = 1000.0  # a forged report may move the sum by so many times a report's size


def takes_its_bits_on_the_wire(case: Case) -> Measured:
    """Reports take ``bits_per_report`` bits each, to the bit."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_CLIENTS), randomness=case.source())
    declared = mechanism.bits_per_report
    packed = len(reports.to_bytes()) - reports.header_bytes
    if reports.bits_per_report != declared or packed != (_CLIENTS * declared + 7) // 8:
        raise Broken(
            "reports do not take bits_per_report bits",
            declared=declared,
            found=reports.bits_per_report,
            bytes_for_37=packed,
        )
    return {"bits": declared}


def survives_the_wire(case: Case) -> Measured:
    """Bytes give back the same reports, with the same sum, under the mechanism's own name and dimension."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_CLIENTS), randomness=case.source())
    if (reports.mechanism, reports.dim) != (mechanism.name, mechanism.dim) or len(reports) != _CLIENTS:
        raise Broken("reports must carry the mechanism's name and dim, one report per client")
    data = reports.to_bytes()
    back = Reports.from_bytes(data)
    if back.to_bytes() != data:
        raise Broken("bytes do not give back the same reports")
    if not torch.equal(mechanism.sum(back), mechanism.sum(reports)):
        raise Broken("the sum changes on the way over the wire")
    return {}


def refuses_foreign_reports(case: Case) -> Measured:
    """Reports of another mechanism, dimension or layout are a ValueError."""
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_CLIENTS), randomness=case.source())
    foreign = {
        "another mechanism": replace(reports, mechanism="another"),
        "another dimension": replace(reports, dim=mechanism.dim + 1),
        "one field more": replace(reports, fields=(*reports.fields, Field(torch.zeros(_CLIENTS).long(), 3))),
    }
    if len(reports.fields) > 1:
        foreign["one field less"] = replace(reports, fields=reports.fields[:-1])
    for kind, given in foreign.items():
        try:
            mechanism.sum(given)
        except ValueError:
            continue
        raise Broken(f"sum() took reports of {kind}; it must raise ValueError")
    return {}


def bounds_forged_reports(case: Case) -> Measured:
    """A forged report is a ValueError, or moves the sum by a finite and bounded amount.

    Tried: bits flipped at random anywhere in the bytes, the checksum made to fit; fields at their largest
    value, of floats where integers belong, too wide, NaN and infinite. Bounded is what stays within 1000
    times the radius plus the standard deviation of a report.
    """
    mechanism = case.mechanism
    reports = mechanism.randomize(case.inside(_CLIENTS), randomness=case.source())
    honest = mechanism.sum(reports).double()
    radius = mechanism.radius if isinstance(mechanism, LocalRandomizer) else 1.0
    limit = _LOUDEST * (radius + math.sqrt(max(mechanism.worst_variance, 0.0)))
    influence = 0.0
    for kind, forged, altered in _forgeries(case, reports):
        try:
            total = mechanism.sum(forged).double()
        except ValueError:
            continue
        if total.shape != honest.shape or not bool(total.isfinite().all()):
            raise Broken(f"a forged report ({kind}) makes the sum NaN, infinite or of another shape")
        moved = float((total - honest).norm()) / altered
        if moved > limit:
            raise Broken(f"a forged report ({kind}) moves the sum without bound", moved=moved, limit=limit)
        influence = max(influence, moved)
    return {"largest influence": influence}


def _forgeries(case: Case, reports: Reports) -> Iterator[tuple[str, Reports, int]]:
    """Kind, forged reports, and how many clients' reports differ."""
    yield from _flipped(case, reports)
    for place, field in enumerate(reports.fields):
        for kind, values, bits in _bad_values(field):
            try:
                forged = Field(values, bits)
            except ValueError:
                continue
            fields = (*reports.fields[:place], forged, *reports.fields[place + 1 :])
            yield f"field {place}: {kind}", replace(reports, fields=fields), len(reports)


def _bad_values(field: Field) -> Iterator[tuple[str, Tensor, int]]:
    values = field.values
    yield "twice as wide", torch.stack([values.reshape(len(values), -1)] * 2, dim=2).flatten(1), field.bits
    if values.is_floating_point():
        for bad in (math.nan, math.inf, torch.finfo(values.dtype).max):
            yield f"{bad}", torch.full_like(values, bad), field.bits
        return
    yield "all ones", torch.full_like(values, (1 << field.bits) - 1), field.bits
    yield "one bit more", torch.full_like(values, 1 << field.bits, dtype=torch.int64), field.bits + 1
    yield "floats", values.float(), 32


def _flipped(case: Case, reports: Reports) -> Iterator[tuple[str, Reports, int]]:
    data = reports.to_bytes()
    generator = case.generator(4)
    places = torch.randint(8 * (len(data) - _CHECKSUM), (_FLIPS, 2), generator=generator).tolist()
    for pair in places:
        altered = bytearray(data[:-_CHECKSUM])
        for place in pair:
            altered[place // 8] ^= 1 << place % 8
        altered += struct.pack("<I", zlib.crc32(altered))
        try:
            forged = Reports.from_bytes(bytes(altered))
        except ValueError:
            continue
        yield f"bits {pair} flipped", forged, 2
