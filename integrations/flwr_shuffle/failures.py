"""How many clients' apps failed, told by reports that look like all others."""

from __future__ import annotations

import hashlib
import logging
import math

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.mechanisms import Norm

_log = logging.getLogger("flwr")

_FEWEST_NUMBERS = 1000  # of a vector; of a shorter one a mark would take away more than 0.1 %
_SURE = 6.0  # deviations; chance alone goes so far with probability below exp(-18), by Hoeffding's inequality
_KEPT = 0.9  # weight of the rounds before, so that about ten rounds count
_INSIDE = 1 - 2.0**-20  # of the radius, so that rounding leaves the mark within the clipping norm


def mark_of(token: bytes, *, dim: int, radius: float, norm: Norm) -> Tensor:
    """What a client whose app failed reports in place of its update: (dim,), in the ball, alike for all.

    Its signs are a hash of the round's token, so no training goes that way but by chance: the mean of a round
    goes as far along it as clients failed. As a vector of the ball it is covered by ε0 as any update is.
    Vectors of fewer than 1,000 numbers, and those of an l1 ball, where signs alone are lost in the noise,
    have a mark of zeros, which tells nothing.
    """
    if dim < _FEWEST_NUMBERS or norm is Norm.L1:
        return torch.zeros(dim)
    drawn = hashlib.shake_256(b"flwr_shuffle mark\n" + token).digest(-(-dim // 8))
    height = _INSIDE * radius / (math.sqrt(dim) if norm is Norm.L2 else 1)
    signs = np.unpackbits(np.frombuffer(drawn, np.uint8), count=dim).astype(np.float32)
    signs *= 2 * height
    signs -= height
    return torch.from_numpy(signs)


class Failures:
    """Reads from the means of a run's rounds which share of the reports are marks."""

    def __init__(self) -> None:
        self._along = self._most = self._variance = 0.0

    def read(self, mean: Tensor, mark: Tensor) -> tuple[Tensor, float | None]:
        """The mean without the mark, and the share of marks in the last ten rounds or so, with its noise.

        The share is None if the mark tells nothing. What is left of the mean has no part along the mark, and
        is d/(d - 1) times as long, so that it is unbiased over the signs of the mark. The log warns of a
        share that noise does not explain: the signs are independent of what other clients report, so their
        mean goes along the mark by chance alone.

        Args:
            mean: of a round's updates, (dim,).
            mark: :func:`mark_of` the round.
        """
        if not mark.any():
            return mean, None
        mark = mark.to(torch.float64)
        most = float(mark @ mark)
        along = float(mean.double() @ mark)
        rest = mean.double() - mark * (along / most)
        self._along = _KEPT * self._along + along
        self._most = _KEPT * self._most + most
        self._variance = _KEPT**2 * self._variance + float(rest @ rest) * most / len(mark)
        share, deviation = self._along / self._most, math.sqrt(self._variance) / self._most
        if share > _SURE * deviation:
            _log.warning(
                "aggregate_train: about %.0f %% (± %.0f %%) of the reports of the last rounds are of clients "
                "whose app failed: it raised an error, or returned numbers that are not finite, or not all "
                "arrays that are trained (trained=… says which). Their own logs say why",
                100 * share,
                100 * deviation,
            )
        return (rest * (len(mark) / (len(mark) - 1))).to(mean.dtype), share
