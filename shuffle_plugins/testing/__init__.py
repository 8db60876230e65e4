"""Conformance checks for mechanisms, ours and yours.

``check_mechanism`` runs them and returns a report. ``MechanismConformance`` is the same as a pytest class to
inherit from; only it needs pytest. How to write a mechanism is in ``docs/guides/extending.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shuffle_plugins.testing.conformance import CHECKS, check_mechanism
from shuffle_plugins.testing.report import CheckResult, ConformanceError, ConformanceReport, Status

if TYPE_CHECKING:
    from shuffle_plugins.testing.suite import MechanismConformance

__all__ = [
    "CHECKS",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "MechanismConformance",
    "Status",
    "check_mechanism",
]


def __getattr__(name: str) -> Any:
    if name == "MechanismConformance":
        from shuffle_plugins.testing.suite import MechanismConformance

        return MechanismConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
