"""The projection onto the simplex, against its definition."""

import pytest
import torch

from shuffle_plugins.protocols.sums import onto_simplex


def by_bisection(values):
    low, high = float(values.min()) - 1, float(values.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((values - middle).clamp(min=0).sum()) > 1 else (low, middle)
    return (values - high).clamp(min=0)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("size", [1, 2, 5, 300])
def test_it_is_the_nearest_distribution(scale, size):
    torch.manual_seed(size)
    values = scale * torch.randn(20, size, dtype=torch.float64)
    projected = onto_simplex(values)
    assert bool((projected >= 0).all())
    assert torch.allclose(projected.sum(dim=1), torch.ones(20, dtype=torch.float64))
    for row, found in zip(values, projected, strict=True):
        assert torch.allclose(found, by_bisection(row), atol=1e-8 * max(1.0, scale))
    anywhere = torch.distributions.Dirichlet(torch.ones(size, dtype=torch.float64)).sample((20,))
    assert bool(((projected - anywhere).norm(dim=1) <= (values - anywhere).norm(dim=1) + 1e-12).all())
    assert torch.allclose(onto_simplex(projected), projected, atol=1e-12)
