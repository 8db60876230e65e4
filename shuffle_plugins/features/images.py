"""Several kinds of fixed features of an image side by side, as one row for a linear model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.features.patches import PatchFeatures, check_images
from shuffle_plugins.features.rows import ChannelWhitening, some_at_a_time
from shuffle_plugins.features.scattering import Scattering

_IMAGES_AT_ONCE = 500
_OUTSIDE = 0.01  # of [0, 1], for rounding and interpolation

FeatureKind = Callable[[Tensor], Tensor]
"""A function from images (images, colours, height, width), floating point in [0, 1], to coefficients of shape
(images, channels, rows, columns) or (images, colours, channels, rows, columns). It must compute an image's
coefficients from that image alone; ``fit`` tries this on two pictures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFeatures:
    """Turns each image into a vector of fixed features with ℓ2 norm 1, for a linear model.

    By default these are scattering coefficients of order 1 and how well patches agree with random patches,
    each made less correlated and equally strong by public pictures (:class:`ChannelWhitening`), with the same
    weight. An image's row depends on that image and on public pictures only, so computing it spends no
    privacy. ::

        features = ImageFeatures.fit(dead_leaves(3000, height=28, width=28))
        rows = features(images[:, None])  # images: (n, 28, 28), floating point in [0, 1]

    Attributes:
        kinds: functions that make coefficients of images, each a kind of features.
        whitenings: what makes rows of each kind's coefficients.
        shape: (colours, height, width) of the images.
    """

    kinds: tuple[FeatureKind, ...]
    whitenings: tuple[ChannelWhitening, ...]
    shape: tuple[int, ...]

    @classmethod
    def fit(cls, pictures: Tensor, *, kinds: Sequence[FeatureKind] | None = None) -> ImageFeatures:
        """Features for images of one size, whitened by public pictures of that size.

        Args:
            pictures: (pictures, colours, height, width), floating point in [0, 1]: **public** ones, such as
                3,000 of :func:`dead_leaves`; at least as many as the kind with most channels has (128 by
                default; colours multiply those of scattering), better ten times as many. Fitted to private
                images, features would tell about them, and no accountant would know.
            kinds: functions that compute one kind of features each. By default ``Scattering(order=1)`` of
                the pictures' size and ``PatchFeatures.fit(pictures, filters=64)``.

        Raises:
            ValueError: if the pictures are not such, or a kind's coefficients of a picture depend on the
                other pictures, as those of a layer with batch normalisation do.
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
        """Rows of the images' features; no gradient flows back to the images.

        Args:
            images: (images, colours, height, width), floating point in [0, 1], of the pictures' size and
                colours. NaN in an image makes its row NaN.

        Returns:
            (images, features) float32, each row of ℓ2 norm 1: the kinds after each other,
                colours·channels·rows·columns numbers of each; 1,985 by default for 28 × 28.
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

        return some_at_a_time(rows, images, at_once=_IMAGES_AT_ONCE) * share


def _coefficients(kind: FeatureKind, images: Tensor) -> Tensor:
    """What a kind makes of images, float32, without a gradient, some at a time."""
    with torch.no_grad():
        found = some_at_a_time(lambda part: kind(part).float(), images.detach(), at_once=_IMAGES_AT_ONCE)
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
