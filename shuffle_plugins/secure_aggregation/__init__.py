"""Sums that no single party sees, with range proofs in :mod:`~shuffle_plugins.secure_aggregation.prio3`.

Each client splits its counts between a server and *aggregators*, processes of other organisations:
docs/guides/shuffling.md says who learns what, docs/guides/range-proofs.md what is proven.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
