"""Empirical audits: attacks on simulated rounds that prove lower bounds on ε.

``audit_local`` attacks single reports and checks ε0; ``audit_round`` attacks shuffled, sampled and composed
rounds and checks what the accountant certifies;
``audit_sum`` attacks sums of several messages per client. What an audit shows, and what it cannot, is in
``docs/guides/audit.md``.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
