import itertools

import pytest
import torch
from torch.nn import functional

from shuffle_plugins.features import PatchFeatures, dead_leaves

LEAVES = dead_leaves(200, height=12, width=14, colours=2)


def fitted(**options) -> PatchFeatures:
    return PatchFeatures.fit(LEAVES, **{"filters": 6, "size": 4, "places": 3, **options})


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
    windows = LEAVES.unfold(2, 4, 1).unfold(3, 4, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 32).double()
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


def test_an_image_is_taken_by_itself_in_any_type_and_size():
    features = fitted()
    images = dead_leaves(301, height=20, width=31, colours=2, seed=2)
    found = features(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(features(images[300:]), found[300:])
    torch.testing.assert_close(features(images.double()), found)
    assert features(images[:0]).shape == (0, 12, 3, 3)
    assert not features(images.requires_grad_()).requires_grad


def test_one_seed_gives_one_set_of_filters_whatever_the_default_type():
    first = fitted()
    torch.set_default_dtype(torch.float64)
    try:
        again = fitted()
        assert again(LEAVES[:3]).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(first.filters, again.filters)
    assert torch.equal(first.thresholds, again.thresholds)
    assert not torch.equal(first.filters, fitted(seed=1).filters)
    assert float(fitted(share=0.1).thresholds.min()) > float(fitted(share=0.9).thresholds.max())


@pytest.mark.parametrize(
    ("pictures", "options", "match"),
    [
        ((255 * LEAVES).to(torch.uint8), {}, "floating"),
        (torch.full((9, 1, 12, 14), torch.nan), {}, "finite"),
        (torch.full((9, 1, 12, 14), 0.5), {}, "some contrast"),
        (LEAVES, {"size": 13}, "size"),
    ],
)
def test_refuses_pictures_and_options_that_make_no_filters(pictures, options, match):
    with pytest.raises(ValueError, match=match):
        PatchFeatures.fit(pictures, **{"filters": 6, "size": 4, **options})
