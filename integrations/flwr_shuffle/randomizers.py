"""What clients may be told to do with an update: randomise it, or send their share of a sum."""

from __future__ import annotations

from shuffle_plugins.mechanisms.private_sum import PrivateSum as Randomizer
from shuffle_plugins.mechanisms.spec import Spec as Spec
from shuffle_plugins.mechanisms.spec import spec_from_json as spec_from_json

__all__ = ["Randomizer", "Spec", "spec_from_json"]
