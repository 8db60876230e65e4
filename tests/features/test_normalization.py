import torch

from shuffle_plugins.features import Scattering, group_normalized, place_normalized


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


def test_each_order_of_each_place_is_normal_by_itself():
    coefficients = drawn(1003, 2, 7, 3, 2)
    rows = place_normalized(coefficients, orders=(1, 4, 2))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(1003))
    found = rows.view(coefficients.shape)
    assert found[:, :, 1:5].mean(dim=2).abs().max() < 1e-5
    assert found[:, :, 5:].mean(dim=2).abs().max() < 1e-5
    assert found[:, :, 0].mean(dim=(2, 3)).abs().max() < 1e-5
    image = coefficients[1001, 1, 1:5, 2, 1]
    expected = (image - image.mean()) / (image.std(correction=0) + 0.02)
    shown = found[1001, 1, 1:5, 2, 1]
    torch.testing.assert_close(shown / shown.norm(), expected / expected.norm())


def test_empty_places_say_nothing():
    scattering = Scattering(height=8, width=8, directions=2)
    rows = place_normalized(scattering(torch.full((2, 8, 8), 0.3)), orders=scattering.orders)
    assert rows.abs().max() < 1
    assert not place_normalized(torch.zeros(2, 5, 2, 2), orders=(1, 4)).any()
