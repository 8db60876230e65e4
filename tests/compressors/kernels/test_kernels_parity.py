# ruff: noqa: E402
"""Triton kernels against the torch paths, bit for bit: on a GPU, or in Triton's interpreter.

Without a GPU, test_kernels_interpreter.py runs this file in a process of its own.
"""

import dataclasses
import importlib.util
import itertools
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a GPU or Triton's interpreter", allow_module_level=True)

from shuffle_plugins.compressors import seeds
from shuffle_plugins.compressors.hadamard import hadamard_transform, padded_transform
from shuffle_plugins.compressors.kernels import triton_kernels
from shuffle_plugins.compressors.kernels.signs import (
    decode_signs,
    encode_signs_torch,
    gather_signs,
    pack_signs,
    unpack_signs,
)
from shuffle_plugins.compressors.kernels.triton_kernels import (
    decode_signs_triton,
    encode_signs_triton,
    expand_triton,
    gather_signs_triton,
    pack_signs_triton,
    sum_triton,
    transform_rows_triton,
    unpack_signs_triton,
)
from shuffle_plugins.compressors.quantization import SignThresholds
from shuffle_plugins.core import Rows
from shuffle_plugins.randomness import Keystream, SeededRandomness, runs_kernels
from shuffle_plugins.randomness.triton_chacha import keystream_words

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
KEY = bytes(range(32))
gpu = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")

if INTERPRETED:  # without what the interpreter does over and over for nothing: more than half of its work
    from triton.runtime import interpreter

    prepared = set()
    call_first = interpreter.InterpretedFunction.__call__

    def call(self, *args, **kwargs):
        """Only a module's first call makes Triton's language interpreted for it: that stays."""
        if self.fn.__module__ in prepared:
            return self.rewrite()(*args, **kwargs)
        prepared.add(self.fn.__module__)
        return call_first(self, *args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    # Whether a sum overflows is computed, and asserted only when debugging.
    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options


def batch(clients, dim, *, seed=0, dtype=torch.float32):
    return SeededRandomness(seed).normal((clients, dim), dtype=torch.float64).to(dtype)


def transformed(x, *, normalized=False):
    size = x.shape[-1]
    scale = size**-0.5 if normalized else 1.0
    return transform_rows_triton(x.reshape(-1, size), size=size, scale=scale).view(x.shape)


def diagonal(dim):
    return SeededRandomness(7).integers(2, dim).mul_(2).sub_(1).to(torch.int8)


@pytest.mark.parametrize(
    ("start", "count"), [(0, 0), (0, 3), (7, 1), (5, 70), (3, 1_100), (8 * (1 << 32) - 11, 67)]
)
def test_words(start, count):
    keystream = Keystream(KEY, nonce=(1 << 63) + 5)
    drawn = keystream_words(keystream.state, start, count, device=DEVICE)
    assert drawn.cpu().tolist() == keystream.words(start, count).tolist()


SIZES = (1, 2, 8, 64, 1024, 4096, 1 << 15, 1 << 16)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TRANSFORMS = (  # the interpreter, which is slow, meets every size and every dtype, and not all of both
    [(size, DTYPES[place % 4], place % 8 in (0, 2, 5, 7)) for place, size in enumerate(SIZES)]
    + [(64, DTYPES[1], True), (64, DTYPES[2], False), (64, DTYPES[3], False)]
    if INTERPRETED
    else list(itertools.product(SIZES, DTYPES, (False, True)))
)


@pytest.mark.parametrize(("size", "dtype", "normalized"), TRANSFORMS)
def test_transform(size, dtype, normalized):
    x = batch(max(1, min(70, 8_192 // size)), size, dtype=dtype)
    result = transformed(x.to(DEVICE), normalized=normalized).cpu()
    expected = hadamard_transform(x, normalized=normalized)
    assert result.dtype == dtype
    if INTERPRETED and dtype == torch.bfloat16:  # the interpreter truncates to bfloat16, hardware rounds
        assert torch.allclose(result.float(), expected.float(), rtol=2**-7, atol=0)
    else:
        assert torch.equal(result, expected)


def test_transform_in_three_passes(monkeypatch):

    monkeypatch.setattr(triton_kernels, "LARGEST_TILE", 1 << 4)
    monkeypatch.setattr(triton_kernels, "_TILE", 1 << 4)
    monkeypatch.setattr(triton_kernels, "_LONGEST_COLUMN", 1 << 3)
    x = batch(1, 1 << 9)
    assert torch.equal(transformed(x.to(DEVICE)).cpu(), hadamard_transform(x))


def test_transform_of_strided_and_stacked_rows():
    x = batch(24, 16)
    for given in (x.T.contiguous().T, x[::2], x.view(2, 3, 4, 16), x[:0], x[0], x[None, :0]):
        assert torch.equal(transformed(given.to(DEVICE)).cpu(), hadamard_transform(given))


def test_transform_in_place_with_padding_and_signs():
    x = batch(5, 11).to(DEVICE)
    expected = padded_transform(x.cpu(), signs=diagonal(11), normalized=True)
    out = torch.empty(5, 16, device=DEVICE)
    assert transform_rows_triton(x, size=16, signs=diagonal(11).to(DEVICE), scale=0.25, out=out) is out
    assert torch.equal(out.cpu(), expected)
    transform_rows_triton(out, size=16, out=out)
    assert torch.equal(out.cpu(), hadamard_transform(expected))


def encode_both(rows, *, dim, scale=1.3, low=1 << 58, rotate=True):
    given = {
        "signs": diagonal(dim) if rotate else None,
        "scale": scale,
        "rule": SignThresholds(low=low),
        "draw": SeededRandomness(1).keystream(),
    }
    on_device = Rows([block.to(DEVICE) for block in rows.blocks])
    return encode_signs_triton(on_device, **given).cpu(), encode_signs_torch(rows, **given)


@pytest.mark.parametrize(
    ("clients", "dim"), [(3, 1), (5, 2), (130, 8), (70, 64), (5, 1000), (2, 4096), (1, 5000)]
)
def test_encoded_signs(clients, dim):
    result, expected = encode_both(Rows(batch(clients, dim)), dim=dim)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_encoded_signs_of_other_dtypes(dtype):
    result, expected = encode_both(Rows(batch(3, 100, dtype=dtype)), dim=100, rotate=False)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("low", [1, (1 << 61) - 12345, 1 << 61])
def test_encoded_signs_at_extreme_thresholds(low):
    result, expected = encode_both(Rows(batch(3, 50)), dim=50, low=low)
    assert torch.equal(result, expected)


def test_encoded_signs_of_blocks_of_columns(monkeypatch):
    monkeypatch.setattr(triton_kernels, "_SCRATCH_VALUES", 1 << 8)
    x = batch(3, 100)
    result, expected = encode_both(Rows([x[:, :30], x[:, 30:]]), dim=100)
    assert torch.equal(result, expected)
    assert torch.equal(encode_both(Rows(x), dim=100)[0], expected)


def test_encoded_signs_of_rows_too_long_for_a_program(monkeypatch):

    monkeypatch.setattr(triton_kernels, "LARGEST_TILE", 1 << 6)
    monkeypatch.setattr(triton_kernels, "_TILE", 1 << 6)
    monkeypatch.setattr(triton_kernels, "_LONGEST_COLUMN", 1 << 2)
    monkeypatch.setattr(triton_kernels, "_SCRATCH_VALUES", 1 << 8)
    result, expected = encode_both(Rows(batch(1, 200)), dim=200)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("low", [1, (1 << 61) - (1 << 40)])
def test_encoded_signs_that_integers_decide(low, monkeypatch):
    """A wide margin sends many more draws through the integers, and changes no sign."""
    monkeypatch.setattr(triton_kernels, "MARGIN", 20.0)
    result, expected = encode_both(Rows(batch(60, 64)), dim=64, low=low)
    assert torch.equal(result, expected)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_encoded_signs_of_what_is_not_a_number():
    x = torch.full((1, 64), 3e38)
    x[0, ::2] = -3e38
    x[0, 0] = float("inf")
    result, expected = encode_both(Rows(x), dim=64)
    assert torch.equal(result, expected)


@pytest.mark.parametrize(("clients", "dim", "count"), [(1, 1, 1), (40, 9, 3), (5_000, 7, 1)])
def test_gathered_signs(clients, dim, count):
    x, indices = batch(clients, dim), SeededRandomness(2).integers(dim, (clients, count))
    given = {"scale": 1.3, "draw": SeededRandomness(1).keystream()}
    rule = SignThresholds(low=1 << 58)
    result = gather_signs_triton(x.to(DEVICE), indices.to(DEVICE), rule=rule, **given).cpu()
    assert torch.equal(result, gather_signs(x, indices, low_threshold=rule.low, **given))


@pytest.mark.parametrize("columns", [1, 31, 33, 100, 5_000])
@pytest.mark.parametrize("rows", [0, 1, 600])
def test_bits(rows, columns):
    rows = min(rows, 20_000 // columns)
    bits = SeededRandomness(1).integers(2, (rows, columns)).to(torch.uint8)
    packed = pack_signs_triton(bits.to(DEVICE))
    assert torch.equal(packed.cpu(), pack_signs(bits))
    assert torch.equal(unpack_signs_triton(packed, columns=columns).cpu(), bits)
    assert torch.equal(decode_signs_triton(packed, columns=columns).cpu(), bits.sum(dim=0, dtype=torch.int64))
    assert torch.equal(unpack_signs(packed.cpu(), columns=columns), bits)
    assert torch.equal(decode_signs(packed.cpu(), columns=columns), bits.sum(dim=0, dtype=torch.int64))


MANY = 259 if torch.cuda.is_available() else 9  # the interpreter takes half a minute for so many


@pytest.mark.parametrize(("count", "dim"), [(0, 5), (3, 1), (MANY, 100), (2, 1_100)])
def test_vectors_of_seeds(count, dim):
    drawn = seeds.draw_seeds(count, randomness=SeededRandomness(1)).to(DEVICE)
    cells = seeds.cells_on(DEVICE)
    assert torch.equal(
        expand_triton(drawn, cells=cells, dim=dim).cpu(), seeds.expand_all(drawn.cpu(), dim=dim)
    )
    assert torch.equal(
        sum_triton(drawn, cells=cells, dim=dim).cpu(), seeds.sum_expanded(drawn.cpu(), dim=dim)
    )


@gpu
def test_a_gpu_draws_what_the_cpu_draws():
    assert runs_kernels("cuda")
    whole = SeededRandomness(5)
    mixed = SeededRandomness(5)
    for device, count in (("cuda", 13), ("cpu", 1), ("cuda", 40_000), ("cpu", 70_000), ("cuda", 1)):
        assert torch.equal(mixed.words(count, device=device).cpu(), whole.words(count))
    one, other = SeededRandomness(6), SeededRandomness(6)
    assert torch.equal(one.integers(1000, 50_000, device="cuda").cpu(), other.integers(1000, 50_000))
    thresholds = SeededRandomness(8).integers(1 << 62, 50_000)
    assert torch.equal(one.bernoulli(thresholds.cuda()).cpu(), other.bernoulli(thresholds))
    assert torch.equal(one.uniform(50_000, device="cuda").cpu(), other.uniform(50_000))
    assert torch.equal(one.permutation(50_000, device="cuda").cpu(), other.permutation(50_000))
    normal = one.normal(50_000, dtype=torch.float64, device="cuda").cpu()
    assert torch.allclose(normal, other.normal(50_000, dtype=torch.float64), rtol=1e-14, atol=0)
