"""Randomised signs drawn lazily: 16 bits for every draw, the other 46 only where those do not decide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.randomness import COIN_BITS, PROBABILITY_BITS, Keystream

MARGIN = 2.0**-5
"""Float32 errs by less than this in the expected coin; within it, integers decide."""

_LOWER_BITS = PROBABILITY_BITS - COIN_BITS
_HALF = 1 << (PROBABILITY_BITS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignRule:
    """How a value v in [-1, 1] becomes a sign: plus exactly if a uniform 62-bit draw is below a threshold.

    The threshold is that of ``random_signs`` (``mechanisms/signs/randomized_response.py``): an integer in
    [low, 2**62 - low] for every v, linear in v up to rounding in float64. Draw i of a keystream has coin
    i, plus 2**15, as its upper 16 bits and the lower 46 bits of refinement i as the rest
    (:meth:`~shuffle_plugins.randomness.chacha.Keystream.coins`,
    :meth:`~shuffle_plugins.randomness.chacha.Keystream.refinements`).

    Args:
        low: threshold for the value -1, the lowest of all values.

    Raises:
        ValueError: unless ``low`` is a whole number in [1, 2**61].
    """

    low: int

    def __post_init__(self) -> None:
        checks.whole("low_threshold", self.low, at_most=_HALF)

    @property
    def gain(self) -> float:
        """Expected threshold of v = 1 less that of v = 0, in units of a coin."""
        return (_HALF - self.low) / (1 << _LOWER_BITS)

    def thresholds(self, values: Tensor) -> Tensor:
        """Probability of a plus sign as a multiple of 2**-62, int64, for values in [-1, 1]."""
        from_nearer_end = (1 - values.double().abs()).mul_(float(_HALF - self.low)).round_().to(torch.int64)
        return torch.where(
            values < 0, self.low + from_nearer_end, (1 << PROBABILITY_BITS) - self.low - from_nearer_end
        )

    def draw(self, values: Tensor, *, draw: Keystream, first: int = 0) -> Tensor:
        """Bool, true for plus, for each of a flat float32 tensor of values in [-1, 1].

        Args:
            values: value i takes draw ``first + i``.
            draw: source of the draws.
            first: index of the first draw, a multiple of 4.
        """
        coins = draw.coins(first, values.numel(), device=values.device)
        excess = (values * self.gain).sub_(coins).sub_(0.5)
        plus = excess >= 0
        undecided = _indices(excess.abs_() < 0.5 + MARGIN)
        if undecided.numel():
            upper = coins[undecided].to(torch.int64).add_(1 << (COIN_BITS - 1)) << _LOWER_BITS
            lower = draw.refinements(undecided + first) & ((1 << _LOWER_BITS) - 1)
            plus[undecided] = upper + lower < self.thresholds(values[undecided])
        return plus


def _indices(flags: Tensor) -> Tensor:
    """Where a vector of flags is set; numpy looks eight flags at a time, torch at each."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.nonzero().squeeze(1)
