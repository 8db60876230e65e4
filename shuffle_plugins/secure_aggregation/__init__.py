"""Sums that no single party sees: each client splits its counts between a server and *aggregators*.

An aggregator is another organisation's process. It is sent 32-byte seeds, expands them, and gives the server
one sum of their expansions, which cancels what the clients subtracted. So the server learns the total and
nothing else, and an aggregator learns nothing. docs/guides/shuffling.md is the threat model. Range proofs,
by which aggregators check what a client shares, are in :mod:`~shuffle_plugins.secure_aggregation.prio3`
(docs/guides/range-proofs.md).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
