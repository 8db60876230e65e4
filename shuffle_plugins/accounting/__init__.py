"""What rounds of the subsampled shuffle model cost. Neighbouring relation: replace-one, fixed population.

Describe a round with :class:`ShuffleRound`, record rounds in a :class:`ShuffleAccountant`, read an
:class:`EpsilonInterval`. The mathematics and its proofs are in ``docs/proofs/accounting.md``.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
