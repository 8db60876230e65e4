"""Published bounds, kept as named functions for comparison with the project's own.

One module per paper. Every bound here is for **replace-one** neighbours, raises ``ValueError`` outside the
range in which its theorem is stated, and says in its docstring how loose it is. None of them is what the
accountant reports.
"""
