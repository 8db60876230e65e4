import numpy as np
import pytest
import torch

from shuffle_plugins.core.packing import (
    compact_dtype,
    pack_bits,
    pack_records,
    pack_rows,
    unpack_records,
    unpack_rows,
)


def values(bits, *shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed + bits).integers(0, 1 << bits, size=shape))


def as_text(row, bits):
    return "".join(f"{int(value):0{bits}b}" for value in row) if bits else ""


def to_bytes(text):
    text = text + "0" * (-len(text) % 8)
    return bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))


@pytest.mark.parametrize("bits", range(63))
def test_every_width_is_the_binary_text(bits):
    for count in (0, 1, 2, 7, 8, 9, 100):
        given = values(bits, count)
        packed = pack_bits(given, bits)
        assert packed.dtype == torch.uint8
        assert packed.numpy().tobytes() == to_bytes(as_text(given, bits))
        back = unpack_rows(packed.unsqueeze(0), bits, count)[0]
        assert back.dtype == compact_dtype(bits)
        assert torch.equal(back.long(), given)


@pytest.mark.parametrize("bits", [1, 2, 5, 8, 11, 31, 32, 62])
def test_rows_take_whole_bytes_of_their_own(bits):
    for width in (1, 3, 8, 21):
        given = values(bits, 6, width)
        packed = pack_rows(given, bits)
        assert packed.numpy().tobytes() == b"".join(to_bytes(as_text(row, bits)) for row in given)
        packed[:, -1] |= (1 << (-width * bits % 8)) - 1
        assert torch.equal(unpack_rows(packed, bits, width).long(), given)


def test_long_rows_are_packed_in_parts():
    for bits in (3, 13):
        given = values(bits, 2, 8 * (1 << 18) + 5)
        packed = pack_rows(given, bits)
        assert torch.equal(unpack_rows(packed, bits, given.shape[1]).long(), given)
        at = 8 * (1 << 17)
        assert (
            packed[1, at // 8 * bits :][:9].numpy().tobytes()
            == to_bytes(as_text(given[1, at : at + 60], bits))[:9]
        )


def test_records_are_the_binary_text():
    source = np.random.default_rng(5)
    for _ in range(150):
        records = int(source.integers(0, 20))
        layout = [
            (int(source.integers(0, 63)), int(source.integers(1, 12))) for _ in range(source.integers(1, 4))
        ]
        fields = [(torch.from_numpy(source.integers(0, 1 << b, size=(records, w))), b) for b, w in layout]
        packed = pack_records(fields)
        text = "".join(as_text(part[i], bits) for i in range(records) for part, bits in fields)
        assert packed.numpy().tobytes() == to_bytes(text)
        back = unpack_records(packed, layout, records)
        assert all(torch.equal(a.long(), b) for a, (b, _) in zip(back, fields, strict=True))
