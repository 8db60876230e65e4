"""Probabilities as whole multiples of 2**-62, which every random choice is made with. Torch-free."""

from __future__ import annotations

PROBABILITY_BITS = 62
"""A choice of probability p compares 62 random bits with the threshold p·2**62, rounded towards less ε0.

Two bits below the 64 of a word: thresholds, and sums and differences of two, fit a signed word.
"""

WHOLE = 1 << PROBABILITY_BITS
"""The threshold of a certain event."""
