import math
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard as scipy_hadamard

from shuffle_plugins.compressors import hadamard as module
from shuffle_plugins.compressors.frames import public_signs
from shuffle_plugins.compressors.hadamard import (
    hadamard_coefficients,
    hadamard_scatter,
    hadamard_signs,
    hadamard_transform,
    l1_norms,
    padded_dim,
    padded_transform,
)
from shuffle_plugins.core import Rows

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 1 << 13, 1 << 14, 1 << 16, 1 << 18)


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(module, "cpu_kernels", lambda: None)
    else:
        assert module.cpu_kernels() is not None
    return request.param


def batch(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_butterflies(x, *, signs=None, normalized=False):
    """The butterflies in the stated order, in numpy."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if signs is not None:
        wide = wide * signs
    size = padded_dim(x.shape[-1])
    rows = np.zeros((*x.shape[:-1], size), dtype=wide.numpy().dtype)
    rows[..., : x.shape[-1]] = wide.numpy()

    done = rows.reshape(-1, size)
    distance = size // 2
    while distance:
        pairs = done.reshape(-1, 2, distance)
        done = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        distance //= 2
    done = done.reshape(rows.shape)
    if normalized:
        done = done * done.dtype.type(size**-0.5)
    return torch.from_numpy(done).to(x.dtype)


@pytest.mark.parametrize("size", [1, 2, 4, 16, 64, 256])
def test_is_the_product_with_the_matrix(size, path):
    x = batch(5, size, dtype=torch.float64)
    matrix = torch.from_numpy(scipy_hadamard(size)).double()
    torch.testing.assert_close(hadamard_transform(x), x @ matrix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        hadamard_transform(x, normalized=True), x @ matrix / math.sqrt(size), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_path_returns_the_same_bits(size, dtype, path):
    x = batch(2, size, dtype=dtype) / (size if dtype == torch.float16 else 1)
    assert torch.equal(hadamard_transform(x), by_butterflies(x))
    assert torch.equal(hadamard_transform(x, normalized=True), by_butterflies(x, normalized=True))


@pytest.mark.parametrize("dim", [1, 3, 15, 17, 100, 1000, 13706])
def test_padding_and_signs(dim, path):
    x = batch(3, dim)
    signs = public_signs("test", seed=dim, count=dim)
    for dtype in DTYPES:
        given = (x / dim).to(dtype)
        assert torch.equal(padded_transform(given, signs=signs), by_butterflies(given, signs=signs))
    assert torch.equal(padded_transform(x, normalized=True), by_butterflies(x, normalized=True))


def test_shapes_and_strides(path):
    x = batch(2, 3, 64)
    whole = hadamard_transform(x)
    assert whole.shape == x.shape
    assert torch.equal(hadamard_transform(x[1, 2]), whole[1, 2])
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    assert torch.equal(hadamard_transform(turned), whole)
    assert torch.equal(padded_transform(x[..., :50]), hadamard_transform(x * (torch.arange(64) < 50)))
    assert hadamard_transform(torch.zeros(0, 8)).shape == (0, 8)
    assert padded_transform(torch.zeros(0, 5)).shape == (0, 8)
    assert torch.equal(x, batch(2, 3, 64))


def test_in_place_and_into(path):
    x = batch(7, 512)
    expected = hadamard_transform(x)
    out = torch.empty_like(x)
    assert hadamard_transform(x, out=out) is out
    assert torch.equal(out, expected)
    assert hadamard_transform(x, out=x) is x
    assert torch.equal(x, expected)
    half = x.half()
    assert hadamard_transform(half, normalized=True, out=half) is half


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("dim", [1, 2, 3, 9, 100, 5000])
def test_coefficients_are_entries_of_the_transform(dim, count, dtype, path):
    x = batch(4, dim, dtype=dtype)
    signs = public_signs("test", seed=dim, count=dim)
    size = padded_dim(dim)
    indices = torch.randint(size, (4, count), generator=torch.Generator().manual_seed(dim))
    wide = x.double() if dtype == torch.float64 else x.float()
    expected = by_butterflies(wide, signs=signs).gather(1, indices)
    found = hadamard_coefficients(x, indices, signs=signs)
    assert found.dtype == wide.dtype
    assert torch.equal(found, expected)
    assert torch.equal(hadamard_coefficients(x, indices), by_butterflies(wide).gather(1, indices))
    cuts = sorted({0, dim // 3, dim // 2, dim})
    blocks = [x[:, a:b] for a, b in pairwise(cuts)]
    assert torch.equal(hadamard_coefficients(Rows(blocks), indices, signs=signs), expected)


def test_signs_are_the_matrix():
    for dtype in (torch.int64, torch.int32, torch.uint8):
        index = torch.arange(64, dtype=dtype)
        found = hadamard_signs(index[:, None], index)
        assert found.dtype == torch.int8
        assert torch.equal(found, torch.from_numpy(scipy_hadamard(64)).to(torch.int8))
    far = torch.tensor([(1 << 52) + (1 << 33) + 1])
    assert hadamard_signs(far, far).tolist() == [-1]


@pytest.mark.parametrize("dim", [1, 5, 16, 100])
def test_scatter_is_a_sum_of_columns(dim):
    size = padded_dim(dim)
    generator = torch.Generator().manual_seed(dim)
    indices = torch.randint(size, (50, 2), generator=generator)
    values = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    columns = hadamard_signs(torch.arange(dim)[:, None], indices.reshape(-1)).double()
    expected = columns @ values.reshape(-1)
    found = hadamard_scatter(indices, values, dim=dim)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert hadamard_scatter(indices[:0], values[:0], dim=dim).tolist() == [0.0] * dim
    assert hadamard_scatter(indices.to(torch.uint8), values.float(), dim=dim).dtype == torch.float32


def test_large_batches_are_shared_among_threads():
    x = batch(600, 1 << 11)
    indices = torch.arange(600).unsqueeze(1)
    alone = hadamard_transform(x), hadamard_coefficients(x, indices), padded_transform(x[:, 1:])
    before = threading.active_count()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        shared = hadamard_transform(x), hadamard_coefficients(x, indices), padded_transform(x[:, 1:])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
    assert threading.active_count() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 1000])
def test_norms_are_sums_of_absolute_entries(path, dtype, dim):
    x = torch.randn(40, 2 * dim, generator=torch.Generator().manual_seed(dim)).to(dtype)[:, ::2]
    found = l1_norms(Rows([x[:, : dim // 2], x[:, dim // 2 :]]))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), x.double().abs().sum(dim=1), rtol=1e-5, atol=0)


def test_what_is_not_finite_passes_through(path):
    x = torch.ones(3, 70)
    x[1, 69], x[2, 3] = torch.nan, -torch.inf
    assert l1_norms(Rows(x)).tolist()[::2] == [70.0, torch.inf]
    assert l1_norms(Rows(x))[1].isnan()
