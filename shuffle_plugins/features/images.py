"""Fixed features of images, as rows of length one for a linear model that is trained by clipped gradients.

Patches: Coates, Lee, Ng 2011, "An analysis of single-layer networks in unsupervised feature learning"; Thiry,
Arbel, Belilovsky, Oyallon 2021, "The unreasonable effectiveness of patches in deep convolutional kernels
methods". Here they come from pictures that nobody's data are in.

Scattering: Bruna, Mallat 2013, "Invariant scattering convolution networks"; Oyallon, Mallat 2015, "Deep
roto-translation scattering for object classification". With complex Morlet wavelets ψ of scales 2^j, j < J,
and L directions, and a Gaussian φ of width 0.8·2^(J-1), the coefficients of an image x are x ∗ φ, |x ∗ ψ| ∗ φ
and ||x ∗ ψ| ∗ ψ'| ∗ φ with ψ' coarser than ψ, each at every 2^J-th pixel. |x ∗ ψ| is kept at every 2^j-th
pixel alone. Wavelets, padding and numbers are those of Andreux et al. 2020, "Kymatio: scattering transforms
in Python".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Ranged, whole_number

_LEAST_VARIANCE = 1e-5  # as torch's group norm
# Added to a place's deviation, by order, so that an empty place of an image in [0, 1] stays near zero.
_FLOORS = (1e-5, 0.02, 0.003)
_LARGEST_VALUE = 1e15  # coefficient: sums of squares of larger ones, or of less than 1/this, leave float32


def place_normalized(coefficients: Tensor, *, orders: Sequence[int]) -> Tensor:
    """Every place's coefficients of each order with mean 0 and deviation about 1, and the row of length 1.

    A place is one pixel of the coefficients' grid; order 0, the blurred image, is normalised over all places.
    All of this is taken from one image alone, so it spends no privacy.

    Coefficients are those of images in [0, 1], (images, channels, rows, columns), or with colours, each
    normalised by itself, (images, colours, channels, rows, columns); ``orders`` as of
    :attr:`Scattering.orders`. Returns (images, numbers) of the same floating type, zeros for zeros.
    """
    _check_coefficients(coefficients)
    if len(orders) > len(_FLOORS) or sum(orders) != coefficients.shape[-3]:
        raise ValueError(
            f"orders must be at most {len(_FLOORS)} numbers that add up to the {coefficients.shape[-3]} "
            f"channels, got {tuple(orders)}"
        )

    def rows(part: Tensor) -> Tensor:
        split = torch.split(part.float(), list(orders), dim=-3)
        normal = [_standard(each, floor) for each, floor in zip(split, _FLOORS, strict=False)]
        return functional.normalize(torch.cat(normal, dim=-3).flatten(1)).to(part.dtype)

    return some_at_a_time(rows, coefficients, at_once=500)


def _standard(part: Tensor, floor: float) -> Tensor:
    """Without the mean, divided by the deviation: those of a place's channels, or of all places of one."""
    axes = (-3,) if part.shape[-3] > 1 else (-2, -1)
    centred = part - part.mean(dim=axes, keepdim=True)
    variance = centred.square().mean(dim=axes, keepdim=True)
    if part.shape[-3] > 1:
        return centred / (variance.sqrt() + floor)
    return centred / (variance + _LEAST_VARIANCE).sqrt()


def group_normalized(coefficients: Tensor, *, groups: int = 1) -> Tensor:
    """Every group of an image's channels with mean 0 and variance 1, and the whole row of length about 1.

    Group normalisation (Wu, He 2018) takes both from one image alone, so it spends no privacy. Coefficients
    are as of :func:`place_normalized`, colours further channels, split into ``groups`` of equal size.
    """
    _check_coefficients(coefficients)
    flat = coefficients.flatten(1, -3)
    if flat.shape[1] % checks.whole("groups", groups):
        raise ValueError(f"groups must divide the number of channels, {flat.shape[1]}, got {groups}")
    scale = 1 / math.sqrt(math.prod(flat.shape[1:]))

    def rows(part: Tensor) -> Tensor:
        normal = functional.group_norm(part.float(), groups, eps=_LEAST_VARIANCE)
        return normal.flatten(1).mul_(scale).to(part.dtype)

    return some_at_a_time(rows, flat, at_once=500)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelWhitening:
    """Makes coefficients rows of length 1, with channels that are less correlated and more equally strong.

    A channel's mean over public pictures is subtracted, and the channels are multiplied by
    (Σ + 0.001·I)^(-strength/2)·D⁻¹: D are the channels' standard deviations, and Σ is the covariance of
    channels, each divided by its deviation, of pictures scaled to length 1, over its average eigenvalue.
    Strength 1 is whitening (ZCA).

    :meth:`fit` is for **public** pictures, such as those of :func:`dead_leaves`: fitted to private images it
    would reveal them, and no accountant would know.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def fit(cls, coefficients: Tensor, *, strength: float = 0.5) -> ChannelWhitening:
        """The whitening of these public pictures' coefficients.

        Args:
            coefficients: as of :func:`place_normalized`, colours further channels; of many more pictures than
                channels.
            strength: from 0, which leaves the channels' correlations as they are, to 1.
        """
        _check_coefficients(coefficients)
        checks.number("strength", strength, at_least=0, at_most=1)
        flat = coefficients.detach().flatten(1, -3).double()
        if len(flat) < max(2, flat.shape[1]):
            raise ValueError(
                "coefficients must be those of several pictures, at least as many as there are channels, got "
                f"{len(flat)} of {flat.shape[1]} channels"
            )
        mean, deviation = (of(flat, dim=(0, 2, 3)) for of in (torch.mean, torch.std))
        largest = flat.abs().amax(dim=(0, 2, 3))
        # A channel whose deviation is less than this of its largest value varies by rounding only.
        least = (1e-6 * largest).clamp(min=1 / _LARGEST_VALUE)
        if not bool(((deviation > least) & (largest < _LARGEST_VALUE)).all()):  # NaN is neither
            raise ValueError(
                "coefficients must be finite and of ordinary size, and no channel the same everywhere"
            )
        scaled = ((flat - mean[:, None, None]) / deviation[:, None, None]).flatten(2)
        scaled = scaled / scaled.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        across = (scaled - scaled.mean(dim=0)).transpose(0, 1).flatten(1)
        covariance = across @ across.T
        if not float(covariance.trace()) > 1e-9 * len(flat):  # of which each picture gives at most 1
            raise ValueError("coefficients must be those of several pictures that differ")
        values, vectors = torch.linalg.eigh(covariance)
        # Added to each eigenvalue, over the average one, so that no channel is multiplied by thousands.
        gains = (values.clamp(min=0) / values.mean() + 1e-3) ** (-strength / 2)
        return cls(mean=mean.float(), matrix=((vectors * gains) @ vectors.T / deviation).float())

    def __call__(self, coefficients: Tensor) -> Tensor:
        """Coefficients as rows of ℓ2 norm 1, (images, numbers), of the same dtype; spends no privacy."""
        _check_coefficients(coefficients)
        flat = coefficients.flatten(1, -3)
        if flat.shape[1] != len(self.mean):
            raise ValueError(
                f"coefficients must have {len(self.mean)} channels, got {flat.shape[1]}: fit to pictures "
                "that went through the same scattering, of the same order"
            )
        mean, matrix = self.mean.to(flat.device)[:, None], self.matrix.to(flat.device)

        def rows(part: Tensor) -> Tensor:
            whitened = matrix @ (part.flatten(2).float() - mean)
            return functional.normalize(whitened.flatten(1)).to(part.dtype)

        return some_at_a_time(rows, flat, at_once=500)


def _check_coefficients(coefficients: Tensor) -> None:
    if coefficients.dim() not in (4, 5) or not coefficients.is_floating_point():
        raise ValueError(
            "coefficients must be floating point of shape (images, channels, rows, columns), or with colours "
            f"before the channels, got {coefficients.dtype} {tuple(coefficients.shape)}"
        )


_FLOOR = 1e-3  # added to a patch's variance, so that the noise of a flat patch is not made large
_SAMPLED = 100_000  # public patches that are looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchFeatures:
    """Compares every patch of an image with filters, and averages what is found over each part of the image.

    A patch x is a square of pixels with all their colours, p = (x - mean)/√(variance + 0.001). With a filter
    w and its threshold t two numbers tell how well it agrees: max(0, w·p - t) and max(0, -w·p - t). Each is
    averaged over the patches in each cell of a grid of ``places`` × ``places``.

    :meth:`fit` takes filters from **public** pictures, such as those of :func:`dead_leaves`: fitted to
    private images they would publish parts of them.

    Attributes:
        filters: w, (filters, colours, size, size) float32.
        thresholds: t, (filters,) float32.
    """

    filters: Tensor
    thresholds: Tensor
    places: int

    @classmethod
    def fit(
        cls,
        pictures: Tensor,
        *,
        filters: int = 128,
        size: int = 6,
        places: int = 3,
        share: float = 0.25,
        seed: int = 0,
    ) -> PatchFeatures:
        """Filters that are random patches of these public pictures, made less correlated (whitened).

        Let Σ be the covariance of the normalised patches p, divided by its average eigenvalue. A filter is
        (Σ + 0.1·I)^(-1/2) q, where q is (Σ + 0.1·I)^(-1/2) times a random patch, scaled to norm 1.

        Args:
            pictures: (pictures, colours, height, width), floating point in [0, 1]; better a few thousand.
            size: pixels of a patch's side, from 2 to the pictures' shorter side.
            places: cells of the grid in each direction, from 1 to that side - size + 1.
            share: each threshold t is set so that ``|w·p| > t`` for about this share of the public patches.
        """
        check_images("pictures", pictures)
        checks.whole("filters", filters)
        checks.whole("size", size, at_least=2, at_most=min(pictures.shape[-2:]))
        checks.whole("places", places, at_most=min(pictures.shape[-2:]) - size + 1)
        checks.number("share", share, above=0, below=1)
        checks.whole("seed", seed, at_least=0)
        if not len(pictures) or not bool(pictures.isfinite().all()):
            raise ValueError("pictures must be at least one, and finite")
        coins = torch.Generator().manual_seed(seed)
        windows = pictures.detach().cpu().unfold(2, size, 1).unfold(3, size, 1)
        drawn = [
            torch.randint(windows.shape[axis], (_SAMPLED,), generator=coins, dtype=torch.int64)
            for axis in (0, 2, 3)
        ]
        patches = windows[drawn[0], :, drawn[1], drawn[2]].flatten(1).double()
        patches = patches - patches.mean(dim=1, keepdim=True)
        variances = patches.square().mean(dim=1, keepdim=True)
        # Patches of less variance have nothing in them to compare with.
        patches = (patches / (variances + _FLOOR).sqrt())[variances[:, 0] > 1e-4]
        if len(patches) < filters:
            raise ValueError(
                f"pictures must have patches with some contrast, at least as many as filters, {filters}; of "
                f"{_SAMPLED} patches {len(patches)} have"
            )
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        # Added to each eigenvalue of the patches' covariance, over the average one.
        gains = (values.clamp(min=0) / values.mean() + 0.1) ** -0.5
        whitening = (vectors * gains) @ vectors.T
        chosen = patches[torch.randperm(len(patches), generator=coins)[:filters]] @ whitening
        found = functional.normalize(chosen) @ whitening
        found = found - found.mean(dim=1, keepdim=True)
        answers = (patches[: max(1000, _SAMPLED // 10)] @ found.T).abs()
        rank = max(1, round((1 - share) * len(answers)))
        return cls(
            filters=found.view(filters, pictures.shape[1], size, size).float(),
            thresholds=answers.kthvalue(rank, dim=0).values.float(),
            places=places,
        )

    @property
    def channels(self) -> int:
        """How many channels an image's features have: two for each filter."""
        return 2 * len(self.filters)

    def __call__(self, images: Tensor) -> Tensor:
        """The features of each image, from that image alone; no gradient flows back to it.

        Images are (images, colours, height, width), floating, in [0, 1]. Returns (images, 2·filters, places,
        places) float32, at least 0: first the agreement with each filter, then with its negative.
        """
        check_images("images", images)
        colours, size = self.filters.shape[1:3]
        least = size + self.places - 1
        if images.shape[1] != colours or min(images.shape[-2:]) < least:
            raise ValueError(
                f"images must have {colours} colours and at least {least} x {least} pixels, got "
                f"{tuple(images.shape)}"
            )
        images = images.detach()
        filters = self.filters.to(images.device)
        thresholds = self.thresholds.to(images.device)[:, None, None]
        # Of all filters' answers, few enough to stay in the processor's cache.
        at_once = max(1, (1 << 19) // (len(filters) * math.prod(images.shape[-2:])))

        def features(part: Tensor) -> Tensor:
            part = part.float().contiguous()
            mean, square = (
                functional.avg_pool2d(each.mean(dim=1, keepdim=True), size, stride=1)
                for each in (part, part.square())
            )
            scale = (square - mean.square()).clamp_(min=0).add_(_FLOOR).rsqrt_()
            answers = functional.conv2d(part, filters).mul_(scale)
            both = [(sign * answers).sub_(thresholds).clamp_(min=0) for sign in (1, -1)]
            return torch.cat([functional.adaptive_avg_pool2d(each, self.places) for each in both], dim=1)

        return some_at_a_time(features, images, at_once=at_once)


def dead_leaves(count: int, *, height: int, width: int, colours: int = 1, seed: int = 0) -> Tensor:
    """Random pictures of discs that hide one another, whose edges have the statistics of photographs.

    They are public, as nobody's data are in them. Radii of 60 discs have a density ∝ r⁻³ between 4 and 50 %
    of the longer side, and colours are uniform on [0, 1]. Lee, Mumford, Huang 2001, "Occlusion models for
    natural images"; Baradad et al. 2021, "Learning to see by looking at noise". Returns (count, colours,
    height, width) float32 in [0, 1].
    """
    for name, value in {"count": count, "height": height, "width": width, "colours": colours}.items():
        checks.whole(name, value)
    checks.whole("seed", seed, at_least=0)
    coins = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, 1, 1, generator=coins, dtype=torch.float32)

    side = max(height, width)
    pictures = uniform(colours).repeat(1, 1, height, width)
    rows, columns = (torch.arange(size, dtype=torch.float32) for size in (height, width))
    for _ in range(60):
        radius = side / (625 + uniform() * (4 - 625)).sqrt()  # from 1/25 to 1/2 of the side
        down, across = (1.4 * uniform() - 0.2 for _ in range(2))  # middles may be outside
        inside = (rows[:, None] - height * down).square() + (
            columns - width * across
        ).square() < radius.square()
        colour = uniform(colours)
        pictures = torch.where(inside[:, None], colour, pictures)
    return pictures


def check_images(name: str, images: Tensor) -> None:
    """Raise ValueError, with the argument's name, unless it is a floating-point tensor of four dimensions."""
    if not isinstance(images, Tensor):
        raise ValueError(f"{name} must be a torch tensor, got {type(images).__name__}")
    if images.dim() != 4 or not images.is_floating_point():
        hint = f"; write {name}[:, None] if there are no colours" if images.dim() == 3 else ""
        hint += f"; write {name}.float() / 255 for bytes" if images.dtype == torch.uint8 else ""
        raise ValueError(
            f"{name} must be floating point of shape (images, colours, height, width), got {images.dtype} "
            f"{tuple(images.shape)}{hint}"
        )


_OUTSIDE = 0.01  # of [0, 1], for rounding and interpolation

FeatureKind = Callable[[Tensor], Tensor]
"""A function from images (images, colours, height, width), floating point in [0, 1], to coefficients of shape
(images, channels, rows, columns) or (images, colours, channels, rows, columns). It must compute an image's
coefficients from that image alone; ``fit`` tries this on two pictures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFeatures:
    """Turns each image into a vector of fixed features with ℓ2 norm 1, for a linear model.

    By default these are scattering coefficients of order 1 and how well patches agree with random patches,
    each whitened by public pictures (:class:`ChannelWhitening`), with the same weight; computing a row spends
    no privacy. ::

        features = ImageFeatures.fit(dead_leaves(3000, height=28, width=28))
        rows = features(images[:, None])  # images: (n, 28, 28), floating point in [0, 1]
    """

    kinds: tuple[FeatureKind, ...]
    whitenings: tuple[ChannelWhitening, ...]
    shape: tuple[int, ...]

    @classmethod
    def fit(cls, pictures: Tensor, *, kinds: Sequence[FeatureKind] | None = None) -> ImageFeatures:
        """Features for images of one size, whitened by public pictures of that size.

        Args:
            pictures: (pictures, colours, height, width), floating point in [0, 1]: **public** ones, such as
                3,000 of :func:`dead_leaves`; at least as many as the kind with most channels has, better ten
                times as many. Fitted to private images, features would tell about them.
            kinds: functions that compute one kind of features each. By default ``Scattering(order=1)`` of
                the pictures' size and ``PatchFeatures.fit(pictures, filters=64)``.
        """
        check_images("pictures", pictures)
        _check_range("pictures", pictures)
        if not bool(pictures.isfinite().all()):
            raise ValueError("pictures must be finite")
        if callable(kinds):
            raise ValueError("kinds must be a list of functions: write kinds=[function]")
        if kinds is None:
            height, width = pictures.shape[-2:]
            waves = Scattering(height=height, width=width, order=1)
            # Of the default patches; enough where noise, and not what features can tell, is the limit.
            kinds = (waves, PatchFeatures.fit(pictures, filters=64))
        kinds = tuple(kinds)
        if not kinds:
            raise ValueError("kinds must be one or more")
        found = [_coefficients(kind, pictures) for kind in kinds]
        for kind, coefficients in zip(kinds, found, strict=True):
            _check_alone(kind, pictures[:2], coefficients[:2])
        return cls(
            kinds=kinds,
            whitenings=tuple(map(ChannelWhitening.fit, found)),
            shape=tuple(pictures.shape[1:]),
        )

    def __call__(self, images: Tensor) -> Tensor:
        """(images, features) float32, each row of ℓ2 norm 1; 1,985 features by default for 28 × 28.

        Images are as the pictures. No gradient flows back to them; NaN in an image makes its row NaN.
        """
        check_images("images", images)
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(
                f"images must have the pictures' (colours, height, width), {self.shape}, got "
                f"{tuple(images.shape[1:])}"
            )
        _check_range("images", images)
        share = 1 / math.sqrt(len(self.kinds))

        def rows(part: Tensor) -> Tensor:
            pairs = zip(self.kinds, self.whitenings, strict=True)
            return torch.cat([whitening(_coefficients(kind, part)) for kind, whitening in pairs], dim=1)

        return some_at_a_time(rows, images, at_once=500) * share


def _coefficients(kind: FeatureKind, images: Tensor) -> Tensor:
    """What a kind makes of images, float32, without a gradient, some at a time."""
    with torch.no_grad():
        found = some_at_a_time(lambda part: kind(part).float(), images.detach(), at_once=500)
    if len(found) != len(images):
        raise ValueError(f"each image must have its coefficients: a kind made {len(found)} of {len(images)}")
    return found


def _check_range(name: str, images: Tensor) -> None:
    """Refuse values that are clearly not in [0, 1]; rounding, and NaN, pass."""
    if images.numel() and bool(((images < -_OUTSIDE) | (images > 1 + _OUTSIDE)).any()):
        raise ValueError(f"{name} must be in [0, 1]: divide bytes by 255, and do not normalise")


def _check_alone(kind: FeatureKind, pictures: Tensor, together: Tensor) -> None:
    """Refuse a kind whose coefficients of an image depend on the images beside it, and so tell about them."""
    for i in range(len(pictures)):
        alone = _coefficients(kind, pictures[i : i + 1])
        if alone.shape[1:] != together.shape[1:] or not torch.allclose(
            alone[0], together[i], rtol=1e-3, atol=1e-4 * float(together.abs().max())
        ):
            raise ValueError(
                "kinds must compute an image's coefficients from that image alone, or its row tells about "
                "others: no batch normalisation in training mode, no dropout"
            )


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
