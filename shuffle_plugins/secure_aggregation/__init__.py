"""Sums that no single party sees: each client splits its counts between a server and *aggregators*.

An aggregator is a process of another organisation. Each client sends it a random seed of 32 bytes, subtracts
the seed's expansion (a long pseudorandom vector) from its counts, and sends the rest to the server. The
aggregator gives the server the sum of all expansions. The server adds it to what the clients sent: the
expansions cancel, and the total of the counts remains. So the server learns the total and nothing else, and
an aggregator learns nothing, unless the server and all aggregators work together.

docs/guides/shuffling.md is the threat model. Range proofs, by which the server and the aggregators check that
a client's counts are within bounds, are in :mod:`~shuffle_plugins.secure_aggregation.prio3`
(docs/guides/range-proofs.md).
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
