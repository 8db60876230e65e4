"""Randomizers of vectors that send the signs of a few coordinates or coefficients.

Mechanisms: ``binary_rr``, ``linf_coordinate``, ``sampled_bits``, ``linf_bit_planes``, ``linf_block``
(coordinates), ``l1_hadamard``, ``l2_bit_planes``, ``sqkr``, ``l2_block`` (coefficients).

They share: a flipped sign (``randomized_response``, ``signs``), one ε0 over several (``sign_budgets``),
patterns of signs sent as one (``hypercube_cap``, ``sign_patterns``, ``sign_blocks``), which coordinates
(``coordinate_blocks``, ``public_indices``), bit planes (``bit_planes``), representations of an l2 ball
(``spreading``, ``spread_randomizer``, ``coefficient_levels``). ``…_parameters`` need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
