"""Words from a key: ChaCha20 as a function of position, the same on the CPU and on a GPU."""

from shuffle_plugins.keystream.chacha import COIN_BITS, Cursor, Keystream

__all__ = ["COIN_BITS", "Cursor", "Keystream"]
