"""What clients may be told to do with an update: randomise it, or send their share of a sum."""

from __future__ import annotations

from typing import Any

from shuffle_plugins.mechanisms.base import LocalRandomizer
from shuffle_plugins.mechanisms.spec import MechanismSpec
from shuffle_plugins.protocols.sum_reports import SumReports
from shuffle_plugins.protocols.sum_spec import SumSpec

Spec = MechanismSpec | SumSpec
"""As server and client agree on it."""

Randomizer = LocalRandomizer | SumReports[Any]
"""As a spec builds it for a model."""


def spec_from_json(text: str) -> Spec:
    """Read what ``to_json`` of either spec wrote.

    Raises:
        ValueError: if it is neither's.
    """
    return SumSpec.from_json(text) if SumSpec.is_json(text) else MechanismSpec.from_json(text)
