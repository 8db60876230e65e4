"""The scattering transform of images: moduli of wavelet coefficients, twice, blurred and sampled coarsely.

Bruna, Mallat 2013, "Invariant scattering convolution networks"; Oyallon, Mallat 2015, "Deep roto-translation
scattering for object classification". With complex Morlet wavelets ψ of scales 2^j, j < J, and L directions,
and a Gaussian φ of width 0.8·2^(J-1), the coefficients of an image x are x ∗ φ, |x ∗ ψ| ∗ φ and ||x ∗ ψ| ∗
ψ'| ∗ φ with ψ' coarser than ψ, each at every 2^J-th pixel. |x ∗ ψ| is kept at every 2^j-th pixel alone.
Wavelets, padding and numbers are those of Andreux et al. 2020, "Kymatio: scattering transforms in Python".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Ranged, whole_number

_WIDTH, _FREQUENCY = 0.8, 3 * math.pi / 4  # of the finest wavelet
_WRAPS = 2  # copies of the image to each side over which filters reach: the tails beyond are below float32


def some_at_a_time(function: Callable[[Tensor], Tensor], images: Tensor, *, at_once: int) -> Tensor:
    """What a function makes of images, some at a time."""
    return torch.cat([function(part) for part in torch.split(images, at_once)])


@dataclass(frozen=True, kw_only=True)
class Scattering(Ranged):
    """A scattering transform for images of one size; calling it gives their coefficients.

    Attributes:
        scales: J, scales of wavelets; a coefficient stands for 2**J by 2**J pixels.
        order: 2 for waves in the image and waves in their strengths, 1 for the former alone.
    """

    height: Count
    width: Count
    scales: Annotated[int, whole_number(at_most=8)] = 2
    directions: Annotated[int, whole_number(at_most=64)] = 8
    order: Annotated[int, whole_number(at_most=2)] = 2
    _padded: tuple[int, int] = field(init=False, repr=False, compare=False)
    _wavelets: dict[tuple[int, int], Tensor] = field(init=False, repr=False, compare=False)
    _blurs: dict[tuple[int, int], Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        coarse = 1 << self.scales
        for name in ("height", "width"):
            checks.whole(name, getattr(self, name), at_least=coarse)
        padded = ((self.height // coarse + 2) * coarse, (self.width // coarse + 2) * coarse)
        object.__setattr__(self, "_padded", padded)
        wavelets, blurs = {}, {}
        for scale in range(self.scales):
            full = torch.stack([self._wavelet(scale, turn) for turn in range(self.directions)])
            for resolution in range(scale + 1):
                wavelets[scale, resolution] = _sampled(full, 1 << resolution).float()
        gaussian = _WIDTH * 2 ** (self.scales - 1)
        for resolution in range(self.scales):
            for size in padded:
                blurs[size, resolution] = _blur(size, gaussian, resolution=resolution, coarse=coarse)
        object.__setattr__(self, "_wavelets", wavelets)
        object.__setattr__(self, "_blurs", blurs)

    @property
    def channels(self) -> int:
        """Coefficients of one place: 1 + J·L, and L²·J·(J-1)/2 of the second order."""
        return sum(self.orders)

    @property
    def orders(self) -> tuple[int, ...]:
        """How many channels there are of order 0, 1 and, if there are any, 2."""
        pairs = self.scales * (self.scales - 1) // 2 if self.order == 2 else 0
        sizes = (1, self.scales * self.directions, pairs * self.directions**2)
        return tuple(size for size in sizes if size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, rows, columns) of an image's coefficients."""
        return self.channels, self.height >> self.scales, self.width >> self.scales

    def __call__(self, images: Tensor) -> Tensor:
        """Coefficients (..., channels, rows, columns) float32 of images (..., height, width), floating.

        No gradient flows back. Channels come by order, then scale, then direction.
        """
        if images.shape[-2:] != (self.height, self.width) or not images.is_floating_point():
            raise ValueError(
                f"images must be floating point of shape (..., {self.height}, {self.width}), got "
                f"{images.dtype} {tuple(images.shape)}"
            )
        flat = images.detach().float().reshape(-1, self.height, self.width)
        # Complex values of the widest layer, so that it stays in the processor's cache.
        at_once = max(1, (1 << 18) // (self.directions * math.prod(self._padded)))
        found = (
            some_at_a_time(self._of, flat, at_once=at_once) if len(flat) else flat.new_zeros(0, *self.shape)
        )
        return found.reshape(*images.shape[:-2], *self.shape)

    def _of(self, images: Tensor) -> Tensor:
        padded = _mirrored(images, self._padded)
        spectra = torch.fft.fft2(padded)[:, None]
        zeroth, second = [self._blurred(padded[:, None], 0)], []
        first = []
        for scale in range(self.scales):
            moduli = self._moduli(spectra, scale, resolution=0)
            first.append(self._blurred(moduli, scale))
            if self.order == 1 or scale == self.scales - 1:
                continue
            inner = torch.fft.fft2(moduli)[:, :, None]
            later = [
                self._blurred(self._moduli(inner, coarser, resolution=scale), coarser)
                for coarser in range(scale + 1, self.scales)
            ]
            second.append(torch.cat(later, dim=2).flatten(1, 2))
        return torch.cat([*zeroth, *first, *second], dim=1)

    def _moduli(self, spectra: Tensor, scale: int, *, resolution: int) -> Tensor:
        """|x ∗ ψ| in all directions, a channel each, at every 2**(scale - resolution)-th pixel of x."""
        wavelets = self._wavelets[scale, resolution].to(spectra.device)
        waves: Tensor = torch.fft.ifft2(_every(spectra * wavelets, 1 << (scale - resolution)))
        return (waves.real.square() + waves.imag.square()).sqrt()

    def _blurred(self, maps: Tensor, resolution: int) -> Tensor:
        """φ_J of maps at every 2**resolution-th pixel, (..., rows, columns) at every 2**J-th."""
        down, across = (self._blurs[size, resolution].to(maps.device) for size in self._padded)
        return down @ maps @ across.T

    def _wavelet(self, scale: int, turn: int) -> Tensor:
        """Fourier transform of a wavelet of the ``turn``-th direction, of the padded size, float64: real."""
        angle = (self.directions - self.directions // 2 - 1 - turn) * math.pi / self.directions
        deviation, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
        options = {"deviation": deviation, "angle": angle, "slant": 4 / self.directions}
        wave = _gabor(self._padded, frequency=frequency, **options)
        bell = _gabor(self._padded, frequency=0.0, **options)
        wave = wave - bell * (wave.sum() / bell.sum())
        spectrum: Tensor = torch.fft.fft2(wave)
        return spectrum.real


def _gabor(
    size: tuple[int, int], *, deviation: float, angle: float, frequency: float, slant: float
) -> Tensor:
    """A wave under a Gaussian, around pixel (0, 0) of a torus, complex128."""
    total = torch.zeros(size, dtype=torch.complex128)
    steps = [torch.arange(each, dtype=torch.float64) for each in size]
    for over in range(-_WRAPS, _WRAPS + 1):
        for beside in range(-_WRAPS, _WRAPS + 1):
            y, x = torch.meshgrid(steps[0] + over * size[0], steps[1] + beside * size[1], indexing="ij")
            along = y * math.cos(angle) + x * math.sin(angle)
            across = x * math.cos(angle) - y * math.sin(angle)
            bell = torch.exp(-(along.square() + (slant * across).square()) / (2 * deviation**2))
            total += torch.polar(bell, frequency * along)
    return total * (slant / (2 * math.pi * deviation**2))


def _sampled(spectra: Tensor, step: int) -> Tensor:
    """Filters for every ``step``-th pixel of each row and column: what is too fast for those is dropped."""
    for axis in (-2, -1):
        size = spectra.shape[axis]
        kept = torch.ones(size, dtype=spectra.dtype)
        first = size // step // 2
        kept[first : first + size - size // step] = 0
        spectra = spectra * (kept[:, None] if axis == -2 else kept)
    return _every(spectra, step) * step**2


def _every(spectra: Tensor, step: int) -> Tensor:
    """Fourier transforms of every ``step``-th pixel of each row and column."""
    for axis in (-2, -1):
        first, *others = spectra.chunk(step, axis)
        spectra = sum(others, first) / step
    return spectra


def _blur(size: int, deviation: float, *, resolution: int, coarse: int) -> Tensor:
    """Matrix that blurs one axis: from every 2**resolution-th pixel to every ``coarse``-th, not padding."""
    offsets = torch.arange(size, dtype=torch.float64)
    bell = sum(
        torch.exp(-(offsets + wrap * size).square() / (2 * deviation**2))
        for wrap in range(-_WRAPS, _WRAPS + 1)
    )
    spectrum = torch.fft.fft(bell / (math.sqrt(2 * math.pi) * deviation)).real
    step = 1 << resolution
    kept = size // step
    spectrum[kept // 2 : kept // 2 + size - kept] = 0
    filtered: Tensor = torch.fft.ifft(spectrum.reshape(step, kept).sum(dim=0)).real
    places = torch.arange(coarse // step, kept - coarse // step, coarse // step)
    return filtered[(places[:, None] - torch.arange(kept)) % kept].float()


def _mirrored(images: Tensor, padded: tuple[int, int]) -> Tensor:
    """Images with mirrored borders, of the padded size; the outermost pixels are not repeated."""
    for axis, size in ((-1, padded[1]), (-2, padded[0])):
        last = images.shape[axis] - 1
        before = (size - images.shape[axis]) // 2
        places = torch.arange(-before, size - before, device=images.device).abs() % (2 * last)
        images = images.index_select(axis, torch.where(places > last, 2 * last - places, places))
    return images
