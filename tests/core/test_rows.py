import pytest
import torch

from shuffle_plugins.core.rows import Rows


@pytest.fixture
def matrix():
    return torch.randn(9, 40, generator=torch.Generator().manual_seed(1))


def blocks_of(matrix):
    return Rows([matrix[:, :3], matrix[:, 3:3], matrix[:, 3:30].clone(), matrix[:, 30:]])


def test_blocks_act_as_one_matrix(matrix):
    rows = blocks_of(matrix)
    columns = torch.tensor([0, 2, 3, 29, 30, 39, 5, 5, 31])
    weights = torch.linspace(-1, 2, 9)
    vector = torch.linspace(0, 1, 40)
    assert (rows.num_rows, rows.dim, rows.dtype) == (9, 40, torch.float32)
    torch.testing.assert_close(rows.l1_norm(), matrix.abs().sum(1))
    torch.testing.assert_close(rows.l2_norm(), matrix.norm(dim=1))
    torch.testing.assert_close(rows.linf_norm(), matrix.abs().amax(1))
    torch.testing.assert_close(rows.gather(columns), matrix[torch.arange(9), columns])
    torch.testing.assert_close(rows.weighted_sum(weights), weights @ matrix)
    torch.testing.assert_close(rows.dot(vector), matrix @ vector)
    torch.testing.assert_close(rows.gram(), matrix @ matrix.T)
    torch.testing.assert_close(rows.dense(), matrix)
    torch.testing.assert_close(rows.narrow(2, 5).dense(), matrix[2:5])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("norm", ["l1_norm", "l2_norm", "linf_norm"])
def test_norms_show_what_is_not_finite(matrix, bad, norm):
    matrix[4, 17] = bad
    rows = blocks_of(matrix)
    assert getattr(rows, norm)().isfinite().tolist() == [i != 4 for i in range(9)]
    assert not rows.is_finite()


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-10, 1e10, 1e30, 1e37])
def test_l2_norm_neither_overflows_nor_vanishes(scale):
    rows = Rows([torch.full((2, 30), scale), torch.full((2, 70), -scale)])
    expected = torch.full((2, 100), scale).double().norm(dim=1)
    torch.testing.assert_close(rows.l2_norm().double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    rows = Rows(torch.full((3, 70_000), 0.5, dtype=dtype))
    torch.testing.assert_close(rows.l2_norm(), torch.full((3,), 0.5 * 70_000**0.5))
    assert rows.weighted_sum(torch.ones(3)).dtype == rows.gram().dtype == torch.float32
