"""ε0-LDP randomizers: their registry, their interface, and the mechanisms themselves.

Importing this package does not import torch; it is loaded when a mechanism is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shuffle_plugins.mechanisms.registry import available, blanket, get, register, summary

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms.base import LocalRandomizer, Mechanism, Norm
    from shuffle_plugins.mechanisms.categories.hadamard_response import HadamardResponse
    from shuffle_plugins.mechanisms.categories.k_rr import KRandomizedResponse
    from shuffle_plugins.mechanisms.categories.limited_hadamard import LimitedHadamard
    from shuffle_plugins.mechanisms.categories.local_hashing import LocalHashing
    from shuffle_plugins.mechanisms.categories.multilevel import LayeredReports, MultilevelHadamard
    from shuffle_plugins.mechanisms.categories.recoverable import KeyLaw, RecoverableResponse
    from shuffle_plugins.mechanisms.categories.subset_selection import SubsetSelection
    from shuffle_plugins.mechanisms.categories.unary_encoding import OptimalUnaryEncoding, Rappor
    from shuffle_plugins.mechanisms.directions.privunit import PrivUnit
    from shuffle_plugins.mechanisms.directions.privunit_g import PrivUnitG
    from shuffle_plugins.mechanisms.directions.projunit import ProjUnit
    from shuffle_plugins.mechanisms.frequency import FrequencyOracle
    from shuffle_plugins.mechanisms.noise.discrete_gaussian import DiscreteGaussian
    from shuffle_plugins.mechanisms.noise.discrete_laplace import DiscreteLaplace
    from shuffle_plugins.mechanisms.noise.gaussian import Gaussian
    from shuffle_plugins.mechanisms.noise.laplace import Laplace
    from shuffle_plugins.mechanisms.reports import Reports
    from shuffle_plugins.mechanisms.rows import Rows
    from shuffle_plugins.mechanisms.sampled.binary_rr import BinaryRandomizedResponse
    from shuffle_plugins.mechanisms.sampled.l1_hadamard import L1Hadamard
    from shuffle_plugins.mechanisms.sampled.l2_bit_planes import L2BitPlanes
    from shuffle_plugins.mechanisms.sampled.l2_block import L2Block
    from shuffle_plugins.mechanisms.sampled.linf_bit_planes import LInfBitPlanes
    from shuffle_plugins.mechanisms.sampled.linf_block import LInfBlock
    from shuffle_plugins.mechanisms.sampled.linf_coordinate import LInfCoordinate
    from shuffle_plugins.mechanisms.sampled.sampled_bits import SampledBits
    from shuffle_plugins.mechanisms.sampled.sqkr import SQKR
    from shuffle_plugins.mechanisms.user_level import UserLevelEstimate, UserLevelMean

_LAZY = {
    "LocalRandomizer": "base",
    "Mechanism": "base",
    "Norm": "base",
    "FrequencyOracle": "frequency",
    "BinaryRandomizedResponse": "sampled.binary_rr",
    "LInfCoordinate": "sampled.linf_coordinate",
    "PrivUnit": "directions.privunit",
    "L1Hadamard": "sampled.l1_hadamard",
    "LInfBitPlanes": "sampled.linf_bit_planes",
    "LInfBlock": "sampled.linf_block",
    "SampledBits": "sampled.sampled_bits",
    "L2BitPlanes": "sampled.l2_bit_planes",
    "DiscreteGaussian": "noise.discrete_gaussian",
    "DiscreteLaplace": "noise.discrete_laplace",
    "Gaussian": "noise.gaussian",
    "Laplace": "noise.laplace",
    "PrivUnitG": "directions.privunit_g",
    "ProjUnit": "directions.projunit",
    "SQKR": "sampled.sqkr",
    "L2Block": "sampled.l2_block",
    "UserLevelMean": "user_level",
    "UserLevelEstimate": "user_level",
    "Reports": "reports",
    "Rows": "rows",
    "KRandomizedResponse": "categories.k_rr",
    "HadamardResponse": "categories.hadamard_response",
    "SubsetSelection": "categories.subset_selection",
    "Rappor": "categories.unary_encoding",
    "OptimalUnaryEncoding": "categories.unary_encoding",
    "LocalHashing": "categories.local_hashing",
    "LimitedHadamard": "categories.limited_hadamard",
    "MultilevelHadamard": "categories.multilevel",
    "LayeredReports": "categories.multilevel",
    "RecoverableResponse": "categories.recoverable",
    "KeyLaw": "categories.recoverable",
}

__all__ = [
    "SQKR",
    "BinaryRandomizedResponse",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "FrequencyOracle",
    "Gaussian",
    "HadamardResponse",
    "KRandomizedResponse",
    "KeyLaw",
    "L1Hadamard",
    "L2BitPlanes",
    "L2Block",
    "LInfBitPlanes",
    "LInfBlock",
    "LInfCoordinate",
    "Laplace",
    "LayeredReports",
    "LimitedHadamard",
    "LocalHashing",
    "LocalRandomizer",
    "Mechanism",
    "MultilevelHadamard",
    "Norm",
    "OptimalUnaryEncoding",
    "PrivUnit",
    "PrivUnitG",
    "ProjUnit",
    "Rappor",
    "RecoverableResponse",
    "Reports",
    "Rows",
    "SampledBits",
    "SubsetSelection",
    "UserLevelEstimate",
    "UserLevelMean",
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
