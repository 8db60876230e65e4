"""Conformance checks for mechanisms, ours and yours.

``check_mechanism`` runs them and returns a report. ``MechanismConformance`` is the same as a pytest class to
inherit from; only it needs pytest. How to write a mechanism is in ``docs/guides/extending.md``.
"""

from shuffle_plugins.core.extras import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
