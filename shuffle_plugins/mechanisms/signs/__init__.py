"""Randomizers of vectors that send the signs of a few coordinates or coefficients.

Mechanisms of coordinates: ``binary_rr``, ``linf_coordinate``, ``sampled_bits``, ``linf_bit_planes``,
``linf_block``. Mechanisms of the coefficients of a public representation: ``l1_hadamard``, ``l2_bit_planes``,
``l2_block``, ``sqkr``; the last three are built on ``coefficients``.

What they share:

- ``randomized_response``: one sign, flipped at random;
- ``sign_patterns``: several signs sent as one pattern; ``sign_blocks``: a block of coordinates as a pattern;
- ``bit_planes``: numbers sent bit by bit, a few of them sampled;
- ``coordinate_blocks``, ``public_indices``: which coordinates a client reports on;
- ``representations``: rotations and Kashin frames, which make all coefficients of a vector small.
"""

from shuffle_plugins.core import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
