r"""Features of images by comparing each small patch with random patches of public pictures.

Coates, Lee, Ng 2011, "An analysis of single-layer networks in unsupervised feature learning"; Thiry, Arbel,
Belilovsky, Oyallon 2021, "The unreasonable effectiveness of patches in deep convolutional kernels methods".
Here patches come from pictures that nobody's data are in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks
from shuffle_plugins.features.rows import some_at_a_time

_FLOOR = 1e-3  # added to a patch's variance, so that the noise of a flat patch is not made large
_SAMPLED = 100_000  # public patches that are looked at
_SMALLEST, _LARGEST = 0.04, 0.5  # radii of discs, over a picture's longer side
_BEYOND = 0.2  # how far outside the picture a disc's middle may be, over that side


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchFeatures:
    r"""Compares every patch of an image with filters, and averages what is found over each part of the image.

    A patch x is a square of pixels with all their colours. Its mean is subtracted and it is divided by its
    standard deviation, both over all its values: :math:`p = (x - \bar x)/\sqrt{\mathrm{var}(x) + 0.001}`.
    With a filter w and its threshold t two numbers tell how well it agrees: :math:`\max(0, w·p - t)` and
    :math:`\max(0, -w·p - t)`. Each number is averaged over the patches in each cell of a grid of ``places``
    × ``places`` (torch's ``adaptive_avg_pool2d``).

    :meth:`fit` takes filters from **public** pictures, for example those of :func:`dead_leaves`. Filters
    are patches of those pictures; fitted to private images they would publish parts of them.

    Attributes:
        filters: w, (filters, colours, size, size) float32.
        thresholds: t, (filters,) float32.
        places: parts of an image in each direction.
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
            pictures: (pictures, colours, height, width), floating point in [0, 1]; at least one, better a few
                thousand. 100,000 patches are drawn from them.
            filters: how many, at least 1; an image then has 2·filters channels.
            size: pixels of a patch's side, from 2 to the pictures' shorter side.
            places: cells of the grid in each direction, from 1 to that side - size + 1.
            share: each threshold t is set so that ``|w·p| > t`` for about this share of the public patches;
                in (0, 1).
            seed: which patches are drawn; at least 0.
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

        Args:
            images: (images, colours, height, width), floating, in [0, 1], which is not checked; colours as of
                the public pictures. NaN in an image makes NaN in its features.

        Returns:
            (images, 2·filters, places, places) float32, at least 0: first the agreement with each filter,
                then with its negative. :class:`ChannelWhitening` makes rows of them.
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

    They are public, as nobody's data are in them: statistics of theirs cost no privacy. There are 60 discs in
    a picture. Radii have a density ∝ r⁻³ between 4 and 50 % of the longer side, and each disc and the ground
    have a colour that is uniform on [0, 1]. Lee, Mumford, Huang 2001, "Occlusion models for natural images";
    Baradad et al. 2021, "Learning to see by looking at noise".

    Returns:
        (count, colours, height, width) float32, in [0, 1]; the same seed gives the same pictures.
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
        radius = side / (_SMALLEST**-2 + uniform() * (_LARGEST**-2 - _SMALLEST**-2)).sqrt()
        down, across = ((1 + 2 * _BEYOND) * uniform() - _BEYOND for _ in range(2))
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
