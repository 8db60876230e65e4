"""Several kinds of fixed features of an image side by side, as one row for a linear model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.features.patches import PatchFeatures, check_images
from shuffle_plugins.features.scattering import Scattering
from shuffle_plugins.features.whitening import ChannelWhitening

_FILTERS = 64  # of the default patches; enough where noise, and not what features can tell, is the limit
_IMAGES_AT_ONCE = 500

Kind = Callable[[Tensor], Tensor]
"""From images (images, colours, height, width), floating point in [0, 1], makes coefficients: (images,
channels, rows, columns), or with colours, (images, colours, channels, rows, columns)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFeatures:
    """Makes each image one row of fixed features, of length 1, for a linear model.

    By default these are scattering coefficients of order 1, which tell how strong waves are at each place,
    and how well patches agree with random patches. Every kind of features is whitened by public pictures
    (:class:`ChannelWhitening`), and all kinds have the same weight. ::

        features = ImageFeatures.fit(dead_leaves(3000, height=28, width=28))
        rows = features(images[:, None])  # images: (n, 28, 28), floating point in [0, 1]

    Each image is changed by itself, so this spends no privacy.

    Attributes:
        kinds: functions that make coefficients of images, each a kind of features.
        whitenings: what makes rows of each kind's coefficients.
    """

    kinds: tuple[Kind, ...]
    whitenings: tuple[ChannelWhitening, ...]

    @classmethod
    def fit(cls, pictures: Tensor, *, kinds: Sequence[Kind] | None = None) -> ImageFeatures:
        """Features for images of one size, whitened by public pictures of that size.

        Args:
            pictures: (pictures, colours, height, width), floating point in [0, 1]: **public** ones, such as
                3,000 of :func:`dead_leaves`; more than any kind has channels. Fitted to private images,
                features would tell about them, and no accountant would know.
            kinds: kinds of features, each computed from one image alone. By default ``Scattering(order=1)``
                of the pictures' size and ``PatchFeatures.fit(pictures, filters=64)``.

        Raises:
            ValueError: if the pictures have other dimensions, are not floating point, too few, too small, or
                have no contrast; or if there are no kinds.
        """
        check_images("pictures", pictures)
        if kinds is None:
            height, width = pictures.shape[-2:]
            waves = Scattering(height=height, width=width, order=1)
            kinds = (waves, PatchFeatures.fit(pictures, filters=_FILTERS))
        if not kinds:
            raise ValueError("kinds must be one or more")
        whitenings = tuple(
            ChannelWhitening.fit(torch.cat([kind(part) for part in torch.split(pictures, _IMAGES_AT_ONCE)]))
            for kind in kinds
        )
        return cls(kinds=tuple(kinds), whitenings=whitenings)

    def __call__(self, images: Tensor) -> Tensor:
        """Rows of the images' features; no gradient flows back to the images.

        Args:
            images: (images, colours, height, width), floating point in [0, 1], of the pictures' size.

        Returns:
            (images, features) float32, on the device of the images: the kinds after each other.

        Raises:
            ValueError: if the images have another size or other colours, or are not floating point.
        """
        check_images("images", images)
        share = 1 / math.sqrt(len(self.kinds))
        parts = [
            torch.cat(
                [whitening(kind(part)) for kind, whitening in zip(self.kinds, self.whitenings, strict=True)],
                dim=1,
            )
            * share
            for part in torch.split(images.detach(), _IMAGES_AT_ONCE)
        ]
        return torch.cat(parts)
