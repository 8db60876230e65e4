"""Published bounds, to compare the package's own with.

Every bound is for **replace-one** neighbours and in nats unless its docstring says otherwise, raises
``ValueError`` outside the range in which its theorem is stated, and says how loose it is.
:mod:`~shuffle_plugins.accounting.published.catalogue` samples and composes them, puts them all to one
question and says which are valid for it.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
