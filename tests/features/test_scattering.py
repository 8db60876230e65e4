import math

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


def wavelet(u: np.ndarray, v: np.ndarray, *, scale: int, angle: float, directions: int) -> np.ndarray:
    """As published, before its mean is taken away; u counts rows and v columns."""
    slant, width = 4 / directions, 0.8 * 2**scale
    along = u * math.cos(angle) + v * math.sin(angle)
    across = v * math.cos(angle) - u * math.sin(angle)
    bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
    return np.stack([bell * np.exp(1j * 3 * math.pi / 4 / 2**scale * along), bell])


def convolved(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Pixel by pixel, on a torus that is large enough."""
    found = np.zeros(image.shape, dtype=complex)
    reach = kernel.shape[0] // 2
    for (u, v), value in np.ndenumerate(kernel):
        found += value * np.roll(image, (u - reach, v - reach), axis=(0, 1))
    return found


def test_is_what_the_published_formula_says():
    """Where a modulus is subsampled before the last blur, a few of its high frequencies fold over."""
    directions, size, reach = 4, 16, 12
    y, x = np.mgrid[:size, :size]
    image = (np.sin(0.9 * x + 0.4 * y) + np.cos(0.5 * x - 0.8 * y)) / 3
    padded = np.pad(image, 4, mode="reflect")
    u, v = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    blur = np.exp(-(u**2 + v**2) / (2 * 1.6**2)) / (2 * math.pi * 1.6**2)

    def moduli(image: np.ndarray, *, scale: int, turn: int) -> np.ndarray:
        angle = (directions // 2 - 1 - turn) * math.pi / directions
        gabor, bell = wavelet(u, v, scale=scale, angle=angle, directions=directions)
        return abs(convolved(image, gabor - bell * gabor.sum() / bell.sum()))

    fine, coarse = moduli(padded, scale=0, turn=2), moduli(padded, scale=1, turn=1)
    maps = {0: padded, 3: fine, 6: coarse, 9 + 2 * 4 + 1: moduli(fine, scale=1, turn=1)}
    found = Scattering(height=size, width=size, directions=directions)(torch.from_numpy(image)).numpy()
    for channel, each in maps.items():
        expected = convolved(each, blur).real[4:-4:4, 4:-4:4]
        assert abs(found[channel] - expected).max() < (1e-6 if channel < 5 else 0.1 * abs(expected).max())


def test_moves_with_the_image_and_turns_with_it():
    scattering = Scattering(height=32, width=32)
    drawn = torch.zeros(32, 32)
    drawn[12:16, 11:19] = torch.rand(4, 8, generator=torch.Generator().manual_seed(0))
    before = scattering(drawn)
    moved = scattering(drawn.roll((4, -4), (0, 1)))
    inner = slice(2, 6)
    torch.testing.assert_close(moved[:, 3:7, 1:5], before[:, inner, inner], rtol=1e-3, atol=2e-5)

    quarter = torch.arange(8).roll(4)
    turned = scattering(drawn.rot90())
    for part in (slice(1, 9), slice(9, 17)):
        totals, turned_totals = (each[part].sum(dim=(1, 2)) for each in (before, turned))
        torch.testing.assert_close(turned_totals, totals[quarter], rtol=0.05, atol=1e-3)


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
