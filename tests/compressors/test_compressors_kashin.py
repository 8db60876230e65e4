import math

import pytest
import torch

from shuffle_plugins.compressors import frames
from shuffle_plugins.compressors.frames import KashinFrame
from shuffle_plugins.core import Rows


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def hard_rows(frame):
    """Dense, heavy-tailed and sparse rows, and rows along sums of the frame's own vectors."""
    dim = frame.dim
    dense = torch.randn(6, dim, generator=generator(1), dtype=torch.float64)
    sparse = torch.zeros(3, dim, dtype=torch.float64)
    sparse[0, 0] = 1
    sparse[1, : min(dim, 5)] = -1
    sparse[2] = 1
    sums = torch.zeros(5, frame.size, dtype=torch.float64)
    for row, count in enumerate((1, 2, 8, 32, 128)):
        chosen = torch.randperm(frame.size, generator=generator(row))[:count]
        sums[row, chosen] = torch.randn(chosen.numel(), generator=generator(row), dtype=torch.float64)
    return torch.cat([dense, dense**7, sparse, frame.reconstruct(sums)])


def levels(frame, x, coefficients):
    return coefficients.abs().amax(dim=1) * math.sqrt(frame.size) / x.norm(dim=1)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 17, 64, 65, 300, 1000, 1024, 4097])
def test_every_row_is_represented_exactly_and_within_the_level(dim):
    for seed in (1, 2):
        frame = KashinFrame(dim=dim, seed=seed)
        x = hard_rows(frame)
        found = frame.represent(x)
        assert found.shape == (len(x), frame.size)
        assert float(levels(frame, x, found).max()) <= frame.level * (1 + 1e-12)
        torch.testing.assert_close(
            frame.reconstruct(found) / x.norm(dim=1, keepdim=True),
            x / x.norm(dim=1, keepdim=True),
            rtol=0,
            atol=1e-13,
        )


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 6, 8, 12, 24])
def test_in_small_dimensions_few_rows_are_unlucky_and_those_are_scaled(dim):
    rows = missed = 0
    for seed in range(60):
        frame = KashinFrame(dim=dim, seed=seed)
        x = torch.cat([torch.eye(dim, dtype=torch.float64), hard_rows(frame)])
        found = frame.represent(x)
        assert float(levels(frame, x, found).max()) <= frame.level * (1 + 1e-12)
        back = frame.reconstruct(found)
        share = (back * x).sum(dim=1) / x.square().sum(dim=1)
        assert float((back - share.unsqueeze(1) * x).norm(dim=1).div(x.norm(dim=1)).max()) < 1e-12
        rows += len(x)
        missed += int((share < 1 - 1e-9).sum())
    assert missed <= (0.03 * rows if dim > 4 else 0)


@pytest.mark.parametrize("dim", [3, 100])
def test_the_frame_is_tight(dim):
    frame = KashinFrame(dim=dim, seed=5)
    columns = frame.reconstruct(torch.eye(frame.size, dtype=torch.float64))
    torch.testing.assert_close(columns.T @ columns, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        columns.norm(dim=1), torch.full((frame.size,), math.sqrt(dim / frame.size), dtype=torch.float64)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_keep_the_bound(dtype):
    frame = KashinFrame(dim=200, seed=1)
    x = torch.randn(40, 200, generator=generator()).to(dtype)
    found = frame.represent(x)
    assert found.dtype == torch.float32
    assert float(levels(frame, x.double(), found.double()).max()) <= frame.level * (1 + 1e-6)
    torch.testing.assert_close(frame.reconstruct(found), x.float(), rtol=0, atol=1e-5)


def test_rows_of_any_size_and_zero_rows():
    frame = KashinFrame(dim=50, seed=1)
    x = torch.randn(4, 50, generator=generator())
    for scale in (1e-30, 1e30):
        given = x * scale
        torch.testing.assert_close(frame.reconstruct(frame.represent(given)) / scale, x, rtol=1e-4, atol=1e-5)
    x[1] = 0
    assert not frame.represent(x)[1].any()
    assert frame.represent(x[:0]).shape == (0, 128)


def test_a_row_does_not_depend_on_the_others():
    frame = KashinFrame(dim=3000, seed=1)
    x = hard_rows(frame)
    whole = frame.represent(x)
    assert torch.equal(frame.represent(x[3:4]), whole[3:4])
    torch.testing.assert_close(frame.represent(Rows([x[:, :7], x[:, 7:]])), whole, rtol=1e-6, atol=1e-6)
    indices = torch.randint(frame.size, (len(x), 3), generator=generator())
    assert torch.equal(frame.coefficients(x, indices), whole.gather(1, indices))


def test_a_row_that_cannot_reach_the_level_is_scaled_and_nothing_else():
    frame = KashinFrame(dim=1024, seed=1, level=1.1, max_iterations=20)
    x = torch.cat([hard_rows(frame), torch.zeros(1, 1024, dtype=torch.float64)])
    found = frame.represent(x)
    assert float(levels(frame, x[:-1], found[:-1]).max()) <= 1.1 * (1 + 1e-12)
    back = frame.reconstruct(found)
    share = (back * x).sum(dim=1)[:-1] / x.square().sum(dim=1)[:-1]
    torch.testing.assert_close(
        back[:-1], share.unsqueeze(1) * x[:-1], rtol=0, atol=1e-9 * float(x.abs().max())
    )
    assert float(share[:12].max()) < 0.9
    assert float(share.min()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_and_torch_find_the_same_representations(monkeypatch, dtype, threads):
    if frames.cpu_kernels() is None:
        pytest.skip("numba does not run here")
    frame = KashinFrame(dim=5000, seed=3)
    x = torch.randn(70, 6000, generator=torch.Generator().manual_seed(1), dtype=dtype)[:, :5000]
    x[0] = 0
    x[1] = torch.eye(5000, dtype=dtype)[17] * -4
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        compiled = frame.represent(x)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(frames, "cpu_kernels", lambda: None)
    assert torch.equal(compiled, frame.represent(x))
