"""Sources of random words that are written down beforehand, and e^ε that they never exceed."""

import decimal
from fractions import Fraction

import torch

from shuffle_plugins.randomness import Randomness


class GivenWords(Randomness):
    """Words from a list, in order."""

    def __init__(self, *words):
        self._left = torch.tensor(words, dtype=torch.int64)

    def words(self, count, *, device="cpu"):
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn.clone()


class Far(Randomness):
    """Zero words for some calls, then those of ``after``: draws far out in a tail."""

    def __init__(self, calls, after):
        self._left, self._after = calls, after

    def words(self, count, *, device="cpu"):
        self._left -= 1
        return torch.zeros(count, dtype=torch.int64) if self._left >= 0 else self._after(count)


def exponential(epsilon):
    """e^ε to 400 digits."""
    with decimal.localcontext(decimal.Context(prec=400)):
        return Fraction(decimal.Decimal(epsilon).exp())
