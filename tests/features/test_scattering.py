import numpy as np
import pytest
import torch

from shuffle_plugins.features import Scattering

SMALL = {"height": 12, "width": 16, "directions": 4}
# Of kymatio's filter bank and scattering2d (BSD-3; commit 11552ed), with NumPy's FFT under them. Its π is
# 3.1415 where a wavelet is scaled, hence the tolerance.
KYMATIO = {
    (0, 0, 0): 0.485672,
    (1, 1, 2): 0.136394,
    (2, 2, 3): 0.060738,
    (5, 0, 1): 0.103784,
    (8, 1, 0): 0.201002,
    (9, 1, 1): 0.013881,
    (14, 2, 2): 0.006452,
    (24, 0, 3): 0.002715,
}


def picture(height: int = 12, width: int = 16) -> torch.Tensor:
    y, x = np.mgrid[:height, :width]
    return torch.from_numpy((np.sin(0.9 * x + 0.4 * y) + np.cos(0.25 * x * y) + (x > 6)) / 3)


def test_has_the_numbers_of_kymatio():
    found = Scattering(**SMALL)(picture())
    assert found.shape == (25, 3, 4)
    for place, value in KYMATIO.items():
        assert float(found[place]) == pytest.approx(value, rel=1e-4, abs=2e-6)


def test_a_flat_image_has_no_waves_and_brightness_is_a_factor():
    scattering = Scattering(**SMALL)
    flat = scattering(torch.full((12, 16), 0.7))
    torch.testing.assert_close(flat[0], torch.full((3, 4), 0.7), rtol=1e-5, atol=0)
    assert flat[1:].abs().max() < 1e-6
    torch.testing.assert_close(scattering(3 * picture()), 3 * scattering(picture()))


@pytest.mark.parametrize(("scales", "order", "channels"), [(1, 2, 5), (2, 1, 9), (3, 2, 61)])
def test_shapes(scales, order, channels):
    scattering = Scattering(height=9, width=17, scales=scales, directions=4, order=order)
    assert scattering.shape == (channels, 9 >> scales, 17 >> scales)
    images = torch.rand(2, 3, 9, 17, generator=torch.Generator().manual_seed(1))
    found = scattering(images)
    assert found.shape == (2, 3, *scattering.shape)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[1, 2], scattering(images[1, 2]))
    assert scattering(images[:0]).shape == (0, 3, *scattering.shape)
