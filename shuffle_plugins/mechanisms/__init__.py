"""ε0-LDP randomizers: their registry, their interface, and the mechanisms themselves.

Importing this package does not import torch; it is loaded when a mechanism is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shuffle_plugins.mechanisms.registry import available, blanket, get, register, summary

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms.base import LocalRandomizer, Mechanism, Norm
    from shuffle_plugins.mechanisms.binary_rr import BinaryRandomizedResponse
    from shuffle_plugins.mechanisms.frequency import FrequencyOracle
    from shuffle_plugins.mechanisms.l1_hadamard import L1Hadamard
    from shuffle_plugins.mechanisms.linf_bit_planes import LInfBitPlanes
    from shuffle_plugins.mechanisms.linf_block import LInfBlock
    from shuffle_plugins.mechanisms.linf_coordinate import LInfCoordinate
    from shuffle_plugins.mechanisms.privunit import PrivUnit
    from shuffle_plugins.mechanisms.reports import Reports
    from shuffle_plugins.mechanisms.rows import Rows
    from shuffle_plugins.mechanisms.sampled_bits import SampledBits

_LAZY = {
    "LocalRandomizer": "base",
    "Mechanism": "base",
    "Norm": "base",
    "FrequencyOracle": "frequency",
    "BinaryRandomizedResponse": "binary_rr",
    "LInfCoordinate": "linf_coordinate",
    "PrivUnit": "privunit",
    "L1Hadamard": "l1_hadamard",
    "LInfBitPlanes": "linf_bit_planes",
    "LInfBlock": "linf_block",
    "SampledBits": "sampled_bits",
    "Reports": "reports",
    "Rows": "rows",
}

__all__ = [
    "BinaryRandomizedResponse",
    "FrequencyOracle",
    "L1Hadamard",
    "LInfBitPlanes",
    "LInfBlock",
    "LInfCoordinate",
    "LocalRandomizer",
    "Mechanism",
    "Norm",
    "PrivUnit",
    "Reports",
    "Rows",
    "SampledBits",
    "available",
    "blanket",
    "get",
    "register",
    "summary",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
