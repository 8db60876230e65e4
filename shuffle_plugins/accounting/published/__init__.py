"""Published bounds, kept as named functions for comparison with the project's own.

One module per paper. Every bound here is for **replace-one** neighbours unless its docstring says otherwise,
raises ``ValueError`` outside the range in which its theorem is stated, and says how loose it is.
:mod:`~shuffle_plugins.accounting.published.catalogue` puts them all to one question and says which are valid
for it. The accountant reports one of them, by its name and for a single round only, where its own answer of
the same pair carries the width of a grid.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
