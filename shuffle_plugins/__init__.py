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

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shuffle_plugins.core.extras import face

__version__ = "0.1.0"
_own, __dir__, __all__ = face(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A package or name of this one; for a host's name, an ImportError that says where it is."""
    try:
        return _own(name)
    except AttributeError:
        for host in ("opacus_shuffle", "flwr_shuffle"):
            spec = find_spec(host)
            if spec is not None and spec.origin is not None:
                names = Path(spec.origin).with_suffix(".pyi").read_text(encoding="utf-8")
                if f" as {name}\n" in names:
                    raise ImportError(f"{name} is in {host}: write from {host} import {name}") from None
        raise
