"""Random words and draws of a seed, and the public transforms under the mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from reports_answers import Questions, digest, vector, whole
from reports_mechanisms import rows

from shuffle_plugins.compressors import (
    KashinFrame,
    Rotation,
    hadamard_coefficients,
    hadamard_scatter,
    hadamard_transform,
    public_random_bytes,
    public_signs,
    stochastic_round,
)
from shuffle_plugins.compressors.quantization import dithered_round, dithered_value, public_dither
from shuffle_plugins.core import pack_bits
from shuffle_plugins.core.packing import pack_each, pack_records, unpack_bits
from shuffle_plugins.randomness import Keystream, SeededRandomness

KEY = bytes(range(32))
COUNT = 2000


def draws(seed: int) -> dict[str, Any]:
    source = SeededRandomness(seed)
    thresholds = torch.arange(COUNT) * ((1 << 62) // COUNT)
    return {
        "words": whole(source.words(COUNT)),
        "integers": whole(source.integers(1000, COUNT)),
        "bernoulli": whole(source.bernoulli(thresholds)),
        "uniform": vector(source.uniform(COUNT)),
        "normal32": vector(source.normal((40, 51))),
        "normal64": vector(source.normal(COUNT, dtype=torch.float64)),
        "exponential": vector(source.exponential(COUNT)),
        "permutation": whole(source.permutation(COUNT)),
        "keystream": whole(source.keystream().words(0, 10)),
        "after": whole(source.words(3)),
    }


def keystream(nonce: int) -> dict[str, Any]:
    stream = Keystream(KEY, nonce)
    return {
        "first": whole(stream.words(0, 100)),
        "far": whole(stream.words((1 << 36) + 3, 20)),
        "coins": whole(stream.coins(8, 100)),
        "refinements": whole(stream.refinements(torch.tensor([0, 1, 77, 1 << 20]))),
        "following": whole(stream.following.words(0, 8)),
    }


def hadamard(dtype: torch.dtype) -> dict[str, Any]:
    x = rows(9, 64, scale=1.0, dtype=dtype)
    indices = (torch.arange(9 * 3) * 29 % 64).reshape(9, 3)
    coefficients = hadamard_coefficients(x, indices)
    return {
        "transform": vector(hadamard_transform(x)),
        "normalized": vector(hadamard_transform(x, normalized=True)),
        "coefficients": vector(coefficients),
        "scattered": vector(hadamard_scatter(indices, coefficients, dim=64)),
    }


def rotation(dim: int) -> dict[str, Any]:
    turned = Rotation(dim=dim, seed=3)
    x = rows(9, dim, scale=1.0, dtype=torch.float64)
    applied = turned.represent(x)
    return {"size": turned.size, "applied": vector(applied), "inverse": vector(turned.reconstruct(applied))}


def kashin(dim: int) -> dict[str, Any]:
    frame = KashinFrame(dim=dim, seed=3)
    x = rows(9, dim, scale=1.0, dtype=torch.float64)
    found = frame.represent(x)
    return {
        "size": frame.size,
        "level": frame.level,
        "positions": whole(frame.positions),
        "represented": vector(found),
        "reconstructed": vector(frame.reconstruct(found)),
    }


def quantized() -> dict[str, Any]:
    x = rows(9, 50, scale=64.0, dtype=torch.float64)
    dither = public_dither((9, 50), seed=4)
    rounded = dithered_round(x, dither=dither)
    return {
        "stochastic": vector(stochastic_round(x, randomness=SeededRandomness(2)).double()),
        "dither": vector(dither),
        "dithered": vector(rounded.double()),
        "back": vector(dithered_value(rounded, dither=dither)),
    }


def packed(bits: int) -> dict[str, Any]:
    values = (torch.arange(101) * 2_654_435_761) % (1 << bits)
    wide = values.reshape(-1, 1)
    data = pack_bits(values, bits)
    assert torch.equal(unpack_bits(data, bits, 101).long(), values)
    return {
        "bits": whole(data),
        "records": whole(pack_records([(wide, bits), (wide % 2, 1)])),
        "each": whole(pack_each([(wide, bits), (wide % 2, 1)])),
    }


def public() -> dict[str, Any]:
    return {
        "bytes": digest(public_random_bytes("golden", seed=5, count=100)),
        "signs": vector(public_signs("golden", seed=5, count=100).double()),
    }


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {}
    for number in (0, 1, -5, 1 << 70):
        asked[f"seed[{number}]"] = partial(draws, number)
    for number in (0, 1, (1 << 64) - 2):
        asked[f"keystream[{number}]"] = partial(keystream, number)
    for dtype in (torch.float32, torch.float64):
        asked[f"hadamard[{dtype}]"] = partial(hadamard, dtype)
    for dim in (1, 7, 50):
        asked[f"rotation[{dim}]"] = partial(rotation, dim)
        asked[f"kashin[{dim}]"] = partial(kashin, dim)
    for bits in (1, 3, 8, 11, 31):
        asked[f"packing[{bits}]"] = partial(packed, bits)
    asked |= {"quantization": quantized, "public": public}
    return asked
