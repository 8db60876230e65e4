"""Shuffle-model differential privacy for tools people already use.

``shuffle_plugins.accounting`` says what a round costs, ``shuffle_plugins.mechanisms`` randomises a client's
update. Hosts (Opacus, Flower) live in packages of their own and depend on this one, never the reverse.
"""

__version__ = "0.1.0"
