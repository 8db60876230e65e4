"""Random words and draws of a seed, and the public transforms under the mechanisms."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from answers import Questions, digest, tensor
from mechanism_questions import rows

from shuffle_plugins.compressors import KashinFrame, Rotation, hadamard_coefficients, hadamard_transform
from shuffle_plugins.compressors.frames import public_random_bytes, public_signs
from shuffle_plugins.compressors.hadamard import hadamard_scatter
from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.core import pack_bits
from shuffle_plugins.core.packing import pack_each, pack_records, unpack_bits
from shuffle_plugins.randomness import Keystream, SeededRandomness

KEY = bytes(range(32))
COUNT = 2000


def draws(seed: int) -> dict[str, Any]:
    source = SeededRandomness(seed)
    thresholds = torch.arange(COUNT) * ((1 << 62) // COUNT)
    return {
        "words": tensor(source.words(COUNT)),
        "integers": tensor(source.integers(1000, COUNT)),
        "bernoulli": tensor(source.bernoulli(thresholds)),
        "uniform": tensor(source.uniform(COUNT)),
        "normal32": tensor(source.normal((40, 51))),
        "normal64": tensor(source.normal(COUNT, dtype=torch.float64)),
        "exponential": tensor(source.exponential(COUNT)),
        "permutation": tensor(source.permutation(COUNT)),
        "keystream": tensor(source.keystream().words(0, 10)),
        "after": tensor(source.words(3)),
    }


def keystream(nonce: int) -> dict[str, Any]:
    stream = Keystream(KEY, nonce)
    return {
        "first": tensor(stream.words(0, 100)),
        "far": tensor(stream.words((1 << 36) + 3, 20)),
        "coins": tensor(stream.coins(8, 100)),
        "refinements": tensor(stream.refinements(torch.tensor([0, 1, 77, 1 << 20]))),
        "following": tensor(stream.following.words(0, 8)),
    }


def hadamard(dtype: torch.dtype) -> dict[str, Any]:
    x = rows(9, 64, scale=1.0, dtype=dtype)
    indices = (torch.arange(9 * 3) * 29 % 64).reshape(9, 3)
    coefficients = hadamard_coefficients(x, indices)
    return {
        "transform": tensor(hadamard_transform(x)),
        "normalized": tensor(hadamard_transform(x, normalized=True)),
        "coefficients": tensor(coefficients),
        "scattered": tensor(hadamard_scatter(indices, coefficients, dim=64)),
    }


def rotation(dim: int) -> dict[str, Any]:
    turned = Rotation(dim=dim, seed=3)
    x = rows(9, dim, scale=1.0, dtype=torch.float64)
    applied = turned.represent(x)
    return {"size": turned.size, "applied": tensor(applied), "inverse": tensor(turned.reconstruct(applied))}


def kashin(dim: int) -> dict[str, Any]:
    frame = KashinFrame(dim=dim, seed=3)
    x = rows(9, dim, scale=1.0, dtype=torch.float64)
    found = frame.represent(x)
    return {
        "size": frame.size,
        "level": frame.level,
        "positions": tensor(frame.positions),
        "represented": tensor(found),
        "reconstructed": tensor(frame.reconstruct(found)),
    }


def quantized() -> dict[str, Any]:
    x = rows(9, 50, scale=64.0, dtype=torch.float64)
    return {
        "stochastic": tensor(stochastic_round(x, randomness=SeededRandomness(2)).double()),
    }


def packed(bits: int) -> dict[str, Any]:
    values = (torch.arange(101) * 2_654_435_761) % (1 << bits)
    wide = values.reshape(-1, 1)
    data = pack_bits(values, bits)
    assert torch.equal(unpack_bits(data, bits, 101).long(), values)
    return {
        "bits": tensor(data),
        "records": tensor(pack_records([(wide, bits), (wide % 2, 1)])),
        "each": tensor(pack_each([(wide, bits), (wide % 2, 1)])),
    }


def public() -> dict[str, Any]:
    return {
        "bytes": digest(public_random_bytes("golden", seed=5, count=100)),
        "signs": tensor(public_signs("golden", seed=5, count=100).double()),
    }


QUESTIONS = Questions()
for _number in (0, 1 << 70):
    QUESTIONS.add(f"seed[{_number}]", partial(draws, _number))
for _number in (0, (1 << 64) - 2):
    QUESTIONS.add(f"keystream[{_number}]", partial(keystream, _number))
for _dtype in (torch.float32, torch.float64):
    QUESTIONS.add(f"hadamard[{_dtype}]", partial(hadamard, _dtype))
for _dim in (1, 50):
    QUESTIONS.add(f"rotation[{_dim}]", partial(rotation, _dim))
    QUESTIONS.add(f"kashin[{_dim}]", partial(kashin, _dim))
for _bits in (1, 11, 31):
    QUESTIONS.add(f"packing[{_bits}]", partial(packed, _bits))
QUESTIONS.add("quantization", quantized)
QUESTIONS.add("public", public)
