"""The distribution nearest to an estimate."""

from __future__ import annotations

import torch
from torch import Tensor


def onto_simplex(values: Tensor) -> Tensor:
    r"""Euclidean projection of each vector onto the probability simplex, in O(K log K).

    :math:`\max(v - τ, 0)` with the τ for which entries sum to 1 (Duchi, Shalev-Shwartz, Singer, Chandra 2008,
    Figure 1). The simplex is convex, so no distribution is further from the projection than from ``values``:
    projecting an estimate never raises its ℓ2 error.

    Args:
        values: floating (…, K), finite.

    Raises:
        ValueError: if values are no floating vectors with at least one entry, or not finite.
    """
    if values.dim() < 1 or values.shape[-1] < 1 or not values.is_floating_point():
        raise ValueError(f"a projection takes floating vectors, got {values.dtype} of {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError("an estimate has NaN or infinite entries; it cannot be projected")
    # Large common offsets would eat the digits of the cumulated sum.
    shifted = values.double() - values.double().amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64, device=values.device)
    thresholds = (ordered.cumsum(dim=-1) - 1) / ranks
    kept = (ordered > thresholds).sum(dim=-1, keepdim=True)
    projected = (shifted - thresholds.gather(-1, kept - 1)).clamp_(min=0.0)
    return (projected / projected.sum(dim=-1, keepdim=True)).to(values.dtype)
