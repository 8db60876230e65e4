import pytest
import torch

from shuffle_plugins.features import ChannelWhitening, ImageFeatures, PatchFeatures, Scattering, dead_leaves

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


def test_refuses_images_of_another_kind():
    features = ImageFeatures.fit(LEAVES)
    for images, match in (
        (IMAGES[:, 0], "images must be"),
        (IMAGES[:, :1], r"\(3, 12, 16\), got \(1, 12, 16\)"),
        (IMAGES[..., :11], r"\(3, 12, 16\), got \(3, 12, 11\)"),
        (255 * IMAGES, "divide bytes by 255"),
        ((255 * IMAGES).to(torch.uint8), "images.float\\(\\) / 255"),
    ):
        with pytest.raises(ValueError, match=match):
            features(images)


def test_a_module_is_a_kind_and_leaves_no_graph_behind():
    torch.manual_seed(0)
    module = torch.nn.Conv2d(3, 6, 3).double()
    features = ImageFeatures.fit(LEAVES, kinds=iter([lambda images: module(images.double())]))
    rows = features(IMAGES[:4])
    assert rows.dtype == torch.float32
    assert not rows.requires_grad
    assert features(torch.full((1, 3, 12, 16), torch.nan)).isnan().all()
