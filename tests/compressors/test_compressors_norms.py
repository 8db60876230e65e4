import pytest
import torch

from shuffle_plugins.compressors import hadamard as norms
from shuffle_plugins.core import Rows


@pytest.fixture(params=["compiled", "torch"])
def l1_norms(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(norms, "cpu_kernels", lambda: None)
    elif norms.cpu_kernels() is None:
        pytest.skip("numba is not installed")
    return norms.l1_norms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 1000])
def test_norms_are_sums_of_absolute_entries(l1_norms, dtype, dim):
    x = torch.randn(40, 2 * dim, generator=torch.Generator().manual_seed(dim)).to(dtype)[:, ::2]
    found = l1_norms(Rows([x[:, : dim // 2], x[:, dim // 2 :]]))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), x.double().abs().sum(dim=1), rtol=1e-5, atol=0)


def test_what_is_not_finite_passes_through(l1_norms):
    x = torch.ones(3, 70)
    x[1, 69], x[2, 3] = torch.nan, -torch.inf
    assert l1_norms(Rows(x)).tolist()[::2] == [70.0, torch.inf]
    assert l1_norms(Rows(x))[1].isnan()
