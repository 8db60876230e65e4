"""Features of images: patches, normalised places and channels, whitening, and kinds side by side."""

import itertools

import pytest
import torch
from torch.nn import functional

from shuffle_plugins.features import (
    ChannelWhitening,
    ImageFeatures,
    PatchFeatures,
    Scattering,
    dead_leaves,
    group_normalized,
    place_normalized,
)

LEAVES = dead_leaves(300, height=12, width=16, colours=3)
IMAGES = dead_leaves(1001, height=12, width=16, colours=3, seed=1)


def test_kinds_stand_side_by_side_each_whitened_and_of_equal_weight():
    waves, patches = Scattering(height=12, width=16, directions=2), PatchFeatures.fit(LEAVES, filters=5)
    rows = ImageFeatures.fit(LEAVES, kinds=[waves, patches])(IMAGES)
    expected = [ChannelWhitening.fit(kind(LEAVES))(kind(IMAGES)) for kind in (waves, patches)]
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, torch.cat(expected, dim=1) / 2**0.5)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(1001))


def test_the_default_is_waves_and_patches_and_takes_an_image_by_itself():
    features = ImageFeatures.fit(LEAVES)
    rows = features(IMAGES)
    assert rows.shape == (1001, 3 * 17 * 3 * 4 + 2 * 64 * 9)
    torch.testing.assert_close(features(IMAGES[1000:]), rows[1000:], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(features(IMAGES[:3].double()), rows[:3], rtol=1e-4, atol=1e-5)
    assert features(IMAGES[:0]).shape == (0, rows.shape[1])
    assert not features(IMAGES[:2].clone().requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("pictures", "options", "match"),
    [
        ((255 * LEAVES).to(torch.uint8), {}, "floating"),
        (LEAVES[:20], {}, "got 20 of"),
        (LEAVES, {"kinds": [torch.nn.BatchNorm2d(3)]}, "from that image alone"),
        (255 * LEAVES, {}, "divide bytes by 255"),
        (LEAVES * torch.nan, {}, "finite"),
        (torch.full((300, 1, 12, 16), 0.5), {}, "contrast"),
    ],
)
def test_refuses_pictures_that_features_cannot_be_fitted_to(pictures, options, match):
    with pytest.raises(ValueError, match=match):
        ImageFeatures.fit(pictures, **options)


def test_a_module_is_a_kind_and_leaves_no_graph_behind():
    torch.manual_seed(0)
    module = torch.nn.Conv2d(3, 6, 3).double()
    features = ImageFeatures.fit(LEAVES, kinds=iter([lambda images: module(images.double())]))
    rows = features(IMAGES[:4])
    assert rows.dtype == torch.float32
    assert not rows.requires_grad
    assert features(torch.full((1, 3, 12, 16), torch.nan)).isnan().all()


PAIRS = dead_leaves(200, height=12, width=14, colours=2)


def fitted(**options) -> PatchFeatures:
    return PatchFeatures.fit(PAIRS, **{"filters": 6, "size": 4, "places": 3, **options})


def test_every_patch_is_compared_with_every_filter():
    features = fitted()
    image = dead_leaves(1, height=12, width=14, colours=2, seed=3)[0]
    found = features(image[None])[0]
    assert found.shape == (features.channels, 3, 3) == (12, 3, 3)
    agreed = torch.zeros(12, 9, 11, dtype=torch.float64)
    for row, column in itertools.product(range(9), range(11)):
        patch = image[:, row : row + 4, column : column + 4].double()
        patch = (patch - patch.mean()) / (patch.var(correction=0) + 0.001).sqrt()
        for filter_, threshold in enumerate(features.thresholds.double()):
            answer = (features.filters[filter_] * patch).sum()
            agreed[filter_, row, column] = (answer - threshold).clamp(min=0)
            agreed[6 + filter_, row, column] = (-answer - threshold).clamp(min=0)
    # PyTorch's parts of 11 columns: those from floor(11 i / 3) to ceil(11 (i + 1) / 3)
    for i, j in itertools.product(range(3), range(3)):
        part = agreed[:, 3 * i : 3 * i + 3, (11 * j) // 3 : -(-11 * (j + 1) // 3)]
        torch.testing.assert_close(found[:, i, j].double(), part.mean(dim=(1, 2)), rtol=1e-4, atol=1e-5)


def test_filters_are_whitened_patches_of_the_public_pictures():
    features = fitted(filters=40)
    windows = PAIRS.unfold(2, 4, 1).unfold(3, 4, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 32).double()
    windows = windows - windows.mean(dim=1, keepdim=True)
    variances = windows.square().mean(dim=1, keepdim=True)
    windows = (windows / (variances + 0.001).sqrt())[variances[:, 0] > 1e-4]
    covariance = windows.T @ windows / len(windows)
    scaled = 32 * covariance / covariance.trace() + 0.1 * torch.eye(32)
    values, vectors = torch.linalg.eigh(scaled)
    whitening = (vectors * values**-0.5) @ vectors.T
    directions = functional.normalize(windows @ whitening)
    filters = features.filters.flatten(1).double()
    assert float(filters.sum(dim=1).abs().max()) < 1e-5
    unwhitened = functional.normalize(filters @ torch.linalg.inv(whitening))
    nearest = (unwhitened @ directions.T).amax(dim=1)
    assert float(nearest.min()) > 0.995  # each filter is one of the patches, up to which were sampled
    exceeded = ((windows @ filters.T).abs() > features.thresholds.double()).double().mean(dim=0)
    assert float((exceeded - 0.25).abs().max()) < 0.03


def test_brightness_and_contrast_change_little_and_flat_images_say_nothing():
    features, images = fitted(), dead_leaves(20, height=12, width=14, colours=2, seed=1)
    found, dimmed, brighter = (features(each) for each in (images, 0.5 * images, 0.5 * images + 0.3))
    torch.testing.assert_close(brighter, dimmed, rtol=0, atol=1e-3)
    assert float((found - dimmed).abs().mean()) < 0.15 * float(found.mean())
    assert not bool(features(torch.full((2, 2, 12, 14), 0.7)).any())


def test_one_seed_gives_one_set_of_filters_whatever_the_default_type():
    first = fitted()
    torch.set_default_dtype(torch.float64)
    try:
        again = fitted()
        assert again(PAIRS[:3]).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(first.filters, again.filters)
    assert torch.equal(first.thresholds, again.thresholds)
    assert not torch.equal(first.filters, fitted(seed=1).filters)
    assert float(fitted(share=0.1).thresholds.min()) > float(fitted(share=0.9).thresholds.max())


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


def unlike(*, images: int = 600, seed: int = 0) -> torch.Tensor:
    """Coefficients of 3 channels of unlike means and sizes, two of them correlated, at 6 x 6 places."""
    mix = torch.tensor([[30.0, 0, 0], [2, 1, 0], [0, 0, 0.1]])
    normal = torch.randn(images, 3, 36, generator=torch.Generator().manual_seed(seed))
    return (mix @ normal + torch.tensor([[100.0], [-3], [0]])).view(images, 3, 6, 6)


def test_what_is_fitted_is_what_the_formula_says():
    coefficients = unlike()
    whitening = ChannelWhitening.fit(coefficients, strength=0.5)
    mean = coefficients.mean(dim=(0, 2, 3))
    deviation = coefficients.transpose(0, 1).flatten(1).std(dim=1)
    torch.testing.assert_close(whitening.mean, mean)
    scaled = ((coefficients - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)).double().flatten(2)
    scaled = scaled / scaled.square().sum(dim=(1, 2), keepdim=True).sqrt()
    covariance = torch.cov((scaled - scaled.mean(dim=0)).transpose(0, 1).flatten(1))
    fitted = whitening.matrix.double() * deviation
    expected = 3 * covariance / covariance.trace() + 1e-3 * torch.eye(3)
    torch.testing.assert_close(torch.linalg.matrix_power(fitted, -4), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_image_is_changed_by_itself_and_has_length_one(dtype):
    whitening = ChannelWhitening.fit(unlike())
    coefficients = unlike(images=1003).to(dtype)
    rows = whitening(coefficients)
    assert (rows.dtype, rows.shape) == (dtype, (1003, 108))
    torch.testing.assert_close(rows.float().norm(dim=1), torch.ones(1003), rtol=0, atol=1e-3)
    torch.testing.assert_close(whitening(coefficients[1001:]), rows[1001:])
    direct = whitening.matrix @ (coefficients[0].float().flatten(1) - whitening.mean[:, None])
    torch.testing.assert_close(rows[0].float(), (direct / direct.norm()).flatten(), rtol=0, atol=1e-3)


def test_colours_are_channels():
    scattering = Scattering(height=8, width=8, directions=2)
    coefficients = scattering(dead_leaves(300, height=8, width=8, colours=3))
    whitening = ChannelWhitening.fit(coefficients)
    rows = whitening(coefficients)
    assert rows.shape == (300, 3 * 9 * 4)
    torch.testing.assert_close(rows, whitening(coefficients.flatten(1, 2)))


def test_dead_leaves_are_discs_of_any_colours_and_the_same_in_every_call():
    leaves = dead_leaves(300, height=16, width=24, colours=2)
    assert leaves.shape == (300, 2, 16, 24)
    assert 0 <= float(leaves.min()) < 0.05 < 0.95 < float(leaves.max()) <= 1
    assert float(leaves.mean()) == pytest.approx(0.5, abs=0.03)
    beside = torch.stack([leaves[..., 1:].flatten(), leaves[..., :-1].flatten()])
    assert 0.6 < float(torch.corrcoef(beside)[0, 1]) < 0.99
    assert torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2))
    assert not torch.equal(leaves, dead_leaves(300, height=16, width=24, colours=2, seed=1))
    with pytest.raises(ValueError, match="seed"):
        dead_leaves(3, height=8, width=8, seed=-1)
