"""Shuffle-model differential privacy for tools people already use.

``import shuffle_plugins as sp`` loads nothing yet: packages and names are loaded when they are first used.

* ``sp.mechanisms`` randomise what a client holds: ``sp.get("privunit", ...)`` builds one, ``sp.available()``
  lists them. ``sp.protocols`` are sums and histograms of several messages per client.
* ``sp.accounting`` says what rounds cost: record a ``ShuffleRound`` in a ``ShuffleAccountant`` and read an
  ``EpsilonInterval``. It needs no torch.
* ``sp.planning`` finds what to run, ``sp.auditing`` attacks it, ``sp.optim`` minimises convex losses with it,
  ``sp.bandits`` finds the best of many actions.
* ``sp.shuffler`` removes who sent what, ``sp.ledger`` keeps budgets on disk.
* ``sp.testing`` checks mechanisms, yours too.

Hosts (``opacus_shuffle``, ``flwr_shuffle``) are packages of their own. They depend on this one, never the
reverse.
"""

from shuffle_plugins.core.extras import face

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = face(__name__, __file__, hosts=("opacus_shuffle", "flwr_shuffle"))
