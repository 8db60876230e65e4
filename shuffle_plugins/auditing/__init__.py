"""Empirical audits: attacks on simulated rounds that prove lower bounds on ε.

``audit_local`` attacks single reports and checks ε0; ``audit_round`` attacks shuffled, sampled and composed
rounds and checks what the accountant certifies;
``audit_sum`` attacks sums of several messages per client. What an audit shows, and what it cannot, is in
``docs/guides/audit.md``.
"""

from shuffle_plugins.auditing.attacks import (
    DEFAULT_ATTACKS,
    Aggregate,
    Attack,
    Frequencies,
    LikelihoodRatio,
    Projection,
    ReportLaw,
    Score,
    Target,
)
from shuffle_plugins.auditing.audit import AuditResult, audit_local, audit_round
from shuffle_plugins.auditing.neighbours import Neighbours, extreme_neighbours
from shuffle_plugins.auditing.simulation import Dataset, LabelledReports, ReleasedRounds
from shuffle_plugins.auditing.sums import audit_sum
from shuffle_plugins.core.confidence import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    epsilon_lower_bound,
)

__all__ = [
    "DEFAULT_ATTACKS",
    "Aggregate",
    "Attack",
    "AuditResult",
    "Dataset",
    "Frequencies",
    "LabelledReports",
    "LikelihoodRatio",
    "Neighbours",
    "Projection",
    "ReleasedRounds",
    "ReportLaw",
    "Score",
    "Target",
    "audit_local",
    "audit_round",
    "audit_sum",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "epsilon_lower_bound",
    "extreme_neighbours",
]
