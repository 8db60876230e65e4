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
"""A function from images (images, colours, height, width), floating point in [0, 1], to coefficients of shape
(images, channels, rows, columns) or (images, colours, channels, rows, columns). It must compute an image's
coefficients from that image alone; nothing checks this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFeatures:
    """Turns each image into a vector of fixed features with ℓ2 norm 1, for a linear model.

    By default these are scattering coefficients of order 1, which tell how strong waves are at each place,
    and how well patches agree with random patches. The channels of every kind of features are made less
    correlated and equally strong by what they do on public pictures (:class:`ChannelWhitening`), and all
    kinds have the same weight. ::

        features = ImageFeatures.fit(dead_leaves(3000, height=28, width=28))
        rows = features(images[:, None])  # images: (n, 28, 28), floating point in [0, 1]

    An image's row depends on that image and on public pictures only, so computing it spends no privacy.

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
                3,000 of :func:`dead_leaves`; at least as many as the kind with most channels has (128 by
                default; colours multiply those of scattering), better ten times as many. Fitted to private
                images, features would tell about them, and no accountant would know.
            kinds: functions that compute one kind of features each. By default ``Scattering(order=1)`` of
                the pictures' size and ``PatchFeatures.fit(pictures, filters=64)``.

        Raises:
            ValueError: if the pictures have other dimensions, are not floating point or not finite, too few,
                too small, or have no contrast, or if there are no kinds. The message may come from a kind
                or from ``ChannelWhitening``, which call the pictures' coefficients ``coefficients``.
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
            images: (images, colours, height, width), floating point in [0, 1], of the pictures' size. The
                range is not checked, and NaN in an image makes its row NaN.

        Returns:
            (images, features) float32 on the device of the images, each row of ℓ2 norm 1: the kinds after
            each other, colours·channels·rows·columns numbers of each; 1,985 by default for 28 × 28.

        Raises:
            ValueError: if the images do not have four dimensions or are not floating point, or a kind
                refuses their size or colours.
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
