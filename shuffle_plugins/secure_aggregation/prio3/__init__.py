"""Prio3 of draft-irtf-cfrg-vdaf-20: sums of secret-shared vectors with a proof that each is within bounds.

docs/guides/range-proofs.md says what that shows, what it does not, and what it costs.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
