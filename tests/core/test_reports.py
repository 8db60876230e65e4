import struct
import zlib

import pytest
import torch

from shuffle_plugins.core.reports import Field, Reports

INDEX = Field(torch.tensor([5, 0, 1023, 77, 4]), 10)
SIGN = Field(torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8), 1)
VECTOR = Field(torch.linspace(-1, 1, 15).reshape(5, 3), 32)
DOUBLE = Field(torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(5, 1), 64)
WIDE = Field(torch.tensor([[0, (1 << 62) - 1]] * 5), 62)


def reports(*fields):
    return Reports(mechanism="some-mechanism", dim=1024, fields=fields)


def same(a, b):
    return (a.mechanism, a.dim, len(a)) == (b.mechanism, b.dim, len(b)) and all(
        f.bits == g.bits and torch.equal(f.values.to(g.values.dtype), g.values)
        for f, g in zip(a.fields, b.fields, strict=True)
    )


@pytest.mark.parametrize(
    "fields", [(SIGN,), (INDEX, SIGN), (VECTOR,), (INDEX, VECTOR, SIGN, DOUBLE), (WIDE,)]
)
def test_round_trip_and_exact_size(fields):
    sent = reports(*fields)
    data = sent.to_bytes()
    back = Reports.from_bytes(data)
    assert same(sent, back)
    assert back.to_bytes() == data
    assert len(data) == sent.layout.header_bytes + (sent.bits_per_report * 5 + 7) // 8


def test_every_flipped_bit_is_noticed():
    data = reports(INDEX, SIGN, VECTOR).to_bytes()
    for at in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[at] ^= 1 << bit
            with pytest.raises(ValueError, match="reports"):
                Reports.from_bytes(bytes(altered))


def test_truncated_and_extended_bytes_are_refused():
    data = reports(INDEX, SIGN).to_bytes()
    for length in range(len(data)):
        with pytest.raises(ValueError, match="reports"):
            Reports.from_bytes(data[:length])
    with pytest.raises(ValueError, match="reports"):
        Reports.from_bytes(data + b"\0")


def test_a_lying_header_is_refused_even_with_a_right_checksum():
    body = bytearray(reports(SIGN).to_bytes()[:-4])
    count_at = 7 + len("some-mechanism") + 8
    body[count_at : count_at + 8] = struct.pack("<Q", 1 << 60)
    with pytest.raises(ValueError, match="length does not match"):
        Reports.from_bytes(bytes(body) + struct.pack("<I", zlib.crc32(body)))


def test_permute_moves_whole_reports():
    order = torch.tensor([3, 1, 4, 0, 2])
    moved = reports(INDEX, SIGN).permute(order)
    assert torch.equal(moved.fields[0].values, INDEX.values[order])
    assert torch.equal(moved.fields[1].values, SIGN.values[order])


def test_concat():
    whole = reports(INDEX, SIGN)
    assert same(Reports.concat([whole.narrow(0, 2), whole.narrow(2, 2), whole.narrow(2, 5)]), whole)
    with pytest.raises(ValueError, match="cannot be mixed"):
        Reports.concat([whole, reports(SIGN)])
    with pytest.raises(ValueError, match="nothing"):
        Reports.concat([])


LAYOUTS = [
    (SIGN,),
    (INDEX,),
    (INDEX, SIGN),
    (VECTOR,),
    (INDEX, VECTOR, SIGN, DOUBLE),
    (WIDE,),
    (WIDE, INDEX),
    (Field(torch.zeros(5, dtype=torch.int64), 0), SIGN),
]


@pytest.mark.parametrize("fields", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_each_report_by_itself_is_its_own_message(fields, chunk, monkeypatch):
    monkeypatch.setattr("shuffle_plugins.core.reports._CHUNK_BYTES", chunk)
    sent = reports(*fields)
    messages = sent.each_to_bytes()
    assert messages == [sent.narrow(i, i + 1).to_bytes() for i in range(5)]
    back = Reports.from_each(messages)
    assert same(sent, back)
    assert [f.values.dtype for f in back.fields] == [
        f.values.dtype for f in Reports.from_bytes(sent.to_bytes()).fields
    ]
    assert same(sent.narrow(3, 5), Reports.from_each(messages[3:]))


def test_messages_that_are_not_one_report_each_of_one_kind_are_refused():
    messages = reports(INDEX, SIGN).each_to_bytes()
    for at in range(len(messages[2])):
        altered = bytearray(messages[2])
        altered[at] ^= 4
        with pytest.raises(ValueError, match="reports"):
            Reports.from_each([*messages[:2], bytes(altered), *messages[3:]])
    with pytest.raises(ValueError, match="one report"):
        Reports.from_each([reports(INDEX, SIGN).to_bytes()])
    with pytest.raises(ValueError, match="mixed"):
        Reports.from_each([*messages, messages[0] + b"\0"])
    with pytest.raises(ValueError, match="mixed"):
        Reports.from_each([*messages, reports(INDEX).each_to_bytes()[0]])
