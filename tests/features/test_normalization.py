import pytest
import torch

from shuffle_plugins.features import Scattering, group_normalized


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_each_group_of_each_image_is_normal_by_itself():
    coefficients = drawn(1203, 6, 3, 2) * 5 + 2
    rows = group_normalized(coefficients, groups=3)
    groups = rows.view(1203, 3, 12) * 6
    torch.testing.assert_close(groups.mean(dim=2), torch.zeros(1203, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(groups.square().mean(dim=2), torch.ones(1203, 3), rtol=1e-3, atol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(1203), rtol=1e-3, atol=0)
    torch.testing.assert_close(rows[1100:1101], group_normalized(coefficients[1100:1101], groups=3))


def test_colours_are_channels():
    scattering = Scattering(height=8, width=8, directions=2)
    coefficients = scattering(drawn(5, 3, 8, 8))
    rows = group_normalized(coefficients, groups=27)
    assert rows.shape == (5, 3 * 9 * 4)
    torch.testing.assert_close(rows, group_normalized(coefficients.flatten(1, 2), groups=27))


def test_a_blank_image_and_half_precision():
    rows = group_normalized(torch.zeros(2, 4, 2, 2, dtype=torch.float16), groups=2)
    assert rows.dtype == torch.float16
    assert not rows.any()


@pytest.mark.parametrize(
    ("coefficients", "groups", "said"),
    [
        (torch.zeros(2, 6, 3, 2), 4, "divide"),
        (torch.zeros(2, 6, 3, 2), 0, "groups"),
        (torch.zeros(2, 6), 2, "shape"),
        (torch.zeros(2, 6, 3, 2, dtype=torch.int64), 2, "floating"),
    ],
)
def test_refuses_what_it_cannot_normalise(coefficients, groups, said):
    with pytest.raises(ValueError, match=said):
        group_normalized(coefficients, groups=groups)
