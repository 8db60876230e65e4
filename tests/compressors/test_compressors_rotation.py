import hashlib
import math

import numpy as np
import pytest
import torch

from shuffle_plugins.compressors.frames import Rotation, public_random_bytes, public_signs
from shuffle_plugins.compressors.hadamard import hadamard_signs
from shuffle_plugins.core import Rows

DIMS = (1, 2, 3, 16, 100, 1000)


def batch(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", DIMS)
def test_is_the_matrix_it_says(dim):
    rotation = Rotation(dim=dim, seed=3)
    index = torch.arange(rotation.size)
    matrix = hadamard_signs(index[:, None], index[:dim]).double() * rotation.signs / math.sqrt(rotation.size)
    x = batch(4, dim)
    torch.testing.assert_close(rotation.represent(x), x @ matrix.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", DIMS)
def test_keeps_lengths_and_is_undone(dim, dtype):
    rotation = Rotation(dim=dim, seed=-5)
    x = batch(6, dim).to(dtype)
    turned = rotation.represent(x)
    assert turned.shape == (6, rotation.size)
    assert turned.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(rotation.reconstruct(turned), x, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(rotation.reconstruct(turned[2]), x[2], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_coefficients_are_entries_of_apply(dtype):
    rotation = Rotation(dim=100, seed=1)
    x = batch(5, 100).to(dtype)
    indices = torch.randint(rotation.size, (5, 4), generator=torch.Generator().manual_seed(1))
    wide = rotation.represent(x.double() if dtype == torch.float64 else x.float())
    assert torch.equal(rotation.coefficients(x, indices), wide.gather(1, indices))
    assert torch.equal(rotation.coefficients(Rows([x[:, :33], x[:, 33:]]), indices), wide.gather(1, indices))


def test_is_determined_by_its_seed_on_every_machine():
    assert Rotation(dim=20, seed=8) == Rotation(dim=20, seed=8)
    assert hash(Rotation(dim=20, seed=8)) == hash(Rotation(dim=20, seed=8))
    assert Rotation(dim=20, seed=8) != Rotation(dim=20, seed=9)
    assert not torch.equal(Rotation(dim=64, seed=8).signs, Rotation(dim=64, seed=9).signs)
    data = hashlib.shake_256(b"shuffle_plugins public rotation 8").digest(3)
    expected = 1 - 2 * np.unpackbits(np.frombuffer(data, dtype=np.uint8))[:20].astype(np.int8)
    assert Rotation(dim=20, seed=8).signs.tolist() == expected.tolist()


def test_public_bits_differ_by_purpose_and_are_fair():
    assert public_random_bytes("a", seed=1, count=8) != public_random_bytes("b", seed=1, count=8)
    assert public_random_bytes("a", seed=1, count=8) == public_random_bytes("a", seed=1, count=16)[:8]
    signs = public_signs("a", seed=1, count=100_000).double()
    assert signs.abs().eq(1).all()
    assert abs(float(signs.mean())) < 4 / math.sqrt(100_000)
    assert public_signs("a", seed=1, count=0).shape == (0,)
    for seed in (1.0, True, None):
        with pytest.raises(ValueError, match="public seed"):
            public_random_bytes("a", seed=seed, count=1)
