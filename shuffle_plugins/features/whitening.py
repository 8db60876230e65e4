"""Channels of features made less correlated, by a matrix that comes from public pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks

_RIDGE = 1e-3  # added to each eigenvalue, over the average one, so that no channel is multiplied by thousands
_ROWS_AT_ONCE = 1000
_DISCS = 60
_SMALLEST, _LARGEST = 0.04, 0.5  # radii of discs, over a picture's longer side
_BEYOND = 0.2  # how far outside the picture a disc's middle may be, over that side


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelWhitening:
    r"""Multiplies the channels of features by a matrix, and scales each row to length 1; call it with rows.

    The noise of private training is as large in a direction in which all records are alike as in one that
    tells them apart. Whitening makes channels uncorrelated and equally strong, so that less of what is learnt
    is lost in that noise. With Σ the covariance of the channels over all places of some public pictures,
    divided by its average eigenvalue, the matrix is :math:`(Σ + 0.001·I)^{-strength/2}`.

    :meth:`fit` is for **public** rows, for example those of :func:`dead_leaves`. The matrix depends on every
    row that it is fitted to; fitted to private rows it would reveal them, and no accountant would know.

    Attributes:
        matrix: (channels, channels) float32, symmetric.
    """

    matrix: Tensor

    @classmethod
    def fit(cls, rows: Tensor, *, channels: int, strength: float = 0.5) -> ChannelWhitening:
        """The whitening of these public rows.

        Args:
            rows: (pictures, channels·places) floating point, as :func:`place_normalized` and
                :func:`group_normalized` give them; at least two pictures, and a few times as many pictures
                times places as channels.
            channels: how many channels there are at a place, those of all colours together.
            strength: 0 leaves the rows as they are, 1 whitens them wholly.

        Raises:
            ValueError: if the rows have another shape, or NaN or infinite values, or all are the same, or a
                number is out of range.
        """
        _check(rows, checks.whole("channels", channels))
        checks.number("strength", strength, at_least=0, at_most=1)
        if len(rows) < 2:
            raise ValueError("rows must be those of at least two pictures")
        centred = rows - rows.mean(dim=0, dtype=torch.float64)
        across = centred.view(len(rows), channels, -1).transpose(0, 1).flatten(1)
        covariance = across @ across.T
        if not bool(covariance.isfinite().all()) or not float(covariance.trace()) > 0:
            raise ValueError("rows must be finite, and not all the same")
        values, vectors = torch.linalg.eigh(covariance)
        scales = (values.clamp(min=0) / values.mean() + _RIDGE) ** (-strength / 2)
        return cls(matrix=((vectors * scales) @ vectors.T).float())

    def __call__(self, rows: Tensor) -> Tensor:
        """These rows with whitened channels, each of ℓ2 norm 1; a row of zeros stays.

        Every row is changed by itself and the matrix is public, so this spends no privacy.

        Args:
            rows: (images, channels·places) floating point.

        Returns:
            The same shape and floating type.

        Raises:
            ValueError: if the rows have another shape.
        """
        channels = len(self.matrix)
        _check(rows, channels)
        matrix, found = self.matrix.to(rows.device), torch.empty_like(rows)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE].float()
            mixed = matrix @ part.reshape(len(part), channels, -1)
            found[start : start + _ROWS_AT_ONCE] = functional.normalize(mixed.flatten(1))
        return found


def dead_leaves(count: int, *, height: int, width: int, colours: int = 1, seed: int = 0) -> Tensor:
    """Random pictures of discs that hide one another, whose edges have the statistics of photographs.

    They are public, as nobody's data are in them: statistics of theirs cost no privacy. There are 60 discs in
    a picture. Radii have a density ∝ r⁻³ between 4 and 50 % of the longer side, and each disc and the ground
    have a colour that is uniform on [0, 1]. Lee, Mumford, Huang 2001, "Occlusion models for natural images";
    Baradad et al. 2021, "Learning to see by looking at noise".

    Args:
        count: number of pictures.
        height: pixels of a column.
        width: pixels of a row.
        colours: colour channels.
        seed: the same seed gives the same pictures.

    Returns:
        (count, colours, height, width) float32, in [0, 1].

    Raises:
        ValueError: if a number is not a positive whole one.
    """
    for name, value in {"count": count, "height": height, "width": width, "colours": colours}.items():
        checks.whole(name, value)
    coins = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, 1, 1, generator=coins)

    side = max(height, width)
    pictures = uniform(colours).repeat(1, 1, height, width)
    rows, columns = torch.arange(float(height))[:, None], torch.arange(float(width))
    for _ in range(_DISCS):
        radius = side / (_SMALLEST**-2 + uniform() * (_LARGEST**-2 - _SMALLEST**-2)).sqrt()
        down, across = ((1 + 2 * _BEYOND) * uniform() - _BEYOND for _ in range(2))
        inside = (rows - height * down).square() + (columns - width * across).square() < radius.square()
        colour = uniform(colours)
        pictures = torch.where(inside[:, None], colour, pictures)
    return pictures


def _check(rows: Tensor, channels: int) -> None:
    """Refuse what are no rows of so many channels."""
    if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] % channels or not rows.shape[1]:
        raise ValueError(
            f"rows must be floating point of shape (images, {channels} channels·places), got {rows.dtype} "
            f"{tuple(rows.shape)}"
        )
