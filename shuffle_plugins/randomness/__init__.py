"""Where random bits come from: the operating system, or a seed, stretched by ChaCha20 on any device."""

from shuffle_plugins.randomness.chacha import COIN_BITS, Cursor, Keystream
from shuffle_plugins.randomness.sources import (
    PROBABILITY_BITS,
    Randomness,
    SecureRandomness,
    SeededRandomness,
    Size,
    secure,
)

__all__ = [
    "COIN_BITS",
    "PROBABILITY_BITS",
    "Cursor",
    "Keystream",
    "Randomness",
    "SecureRandomness",
    "SeededRandomness",
    "Size",
    "secure",
]
