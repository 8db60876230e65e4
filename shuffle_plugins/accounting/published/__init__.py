"""Published bounds, kept as named functions for comparison with the project's own.

One module per paper. Every bound here is for **replace-one** neighbours unless its docstring says otherwise,
raises ``ValueError`` outside the range in which its theorem is stated, and says how loose it is.
:mod:`~shuffle_plugins.accounting.published.catalogue` puts them all to one question and says which are valid
for it. None of them is what the accountant reports.
"""
