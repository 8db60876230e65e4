"""ε0-LDP randomizers: their registry, their interface, and the mechanisms themselves.

Importing this package does not import torch; it is loaded when a mechanism is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shuffle_plugins.mechanisms.registry import available, blanket, get, register, summary

if TYPE_CHECKING:
    from shuffle_plugins.core.reports import Reports
    from shuffle_plugins.core.rows import Rows
    from shuffle_plugins.mechanisms.base import LocalRandomizer, Mechanism, Norm
    from shuffle_plugins.mechanisms.categories.hadamard_response import HadamardResponse
    from shuffle_plugins.mechanisms.categories.k_rr import KRandomizedResponse
    from shuffle_plugins.mechanisms.categories.limited_hadamard import LimitedHadamard
    from shuffle_plugins.mechanisms.categories.local_hashing import LocalHashing
    from shuffle_plugins.mechanisms.categories.multilevel import LayeredReports, MultilevelHadamard
    from shuffle_plugins.mechanisms.categories.recoverable import KeyLaw, RecoverableResponse
    from shuffle_plugins.mechanisms.categories.subset_selection import SubsetSelection
    from shuffle_plugins.mechanisms.categories.unary_encoding import OptimalUnaryEncoding, Rappor
    from shuffle_plugins.mechanisms.frequency import FrequencyOracle
    from shuffle_plugins.mechanisms.noise.discrete_gaussian import DiscreteGaussian
    from shuffle_plugins.mechanisms.noise.discrete_laplace import DiscreteLaplace
    from shuffle_plugins.mechanisms.noise.gaussian import Gaussian
    from shuffle_plugins.mechanisms.noise.laplace import Laplace
    from shuffle_plugins.mechanisms.privunit.privunit import PrivUnit
    from shuffle_plugins.mechanisms.privunit.privunit_g import PrivUnitG
    from shuffle_plugins.mechanisms.privunit.projunit import ProjUnit
    from shuffle_plugins.mechanisms.signs.binary_rr import BinaryRandomizedResponse
    from shuffle_plugins.mechanisms.signs.l1_hadamard import L1Hadamard
    from shuffle_plugins.mechanisms.signs.l2_bit_planes import L2BitPlanes
    from shuffle_plugins.mechanisms.signs.l2_block import L2Block
    from shuffle_plugins.mechanisms.signs.linf_bit_planes import LInfBitPlanes
    from shuffle_plugins.mechanisms.signs.linf_block import LInfBlock
    from shuffle_plugins.mechanisms.signs.linf_coordinate import LInfCoordinate
    from shuffle_plugins.mechanisms.signs.sampled_bits import SampledBits
    from shuffle_plugins.mechanisms.signs.sqkr import SQKR
    from shuffle_plugins.mechanisms.spec import MechanismSpec
    from shuffle_plugins.mechanisms.user_level import UserLevelEstimate, UserLevelMean, estimate_mean

_LAZY = {
    "LocalRandomizer": "mechanisms.base",
    "Mechanism": "mechanisms.base",
    "Norm": "mechanisms.base",
    "HadamardResponse": "mechanisms.categories.hadamard_response",
    "KRandomizedResponse": "mechanisms.categories.k_rr",
    "LimitedHadamard": "mechanisms.categories.limited_hadamard",
    "LocalHashing": "mechanisms.categories.local_hashing",
    "LayeredReports": "mechanisms.categories.multilevel",
    "MultilevelHadamard": "mechanisms.categories.multilevel",
    "KeyLaw": "mechanisms.categories.recoverable",
    "RecoverableResponse": "mechanisms.categories.recoverable",
    "SubsetSelection": "mechanisms.categories.subset_selection",
    "OptimalUnaryEncoding": "mechanisms.categories.unary_encoding",
    "Rappor": "mechanisms.categories.unary_encoding",
    "PrivUnit": "mechanisms.privunit.privunit",
    "PrivUnitG": "mechanisms.privunit.privunit_g",
    "ProjUnit": "mechanisms.privunit.projunit",
    "FrequencyOracle": "mechanisms.frequency",
    "DiscreteGaussian": "mechanisms.noise.discrete_gaussian",
    "DiscreteLaplace": "mechanisms.noise.discrete_laplace",
    "Gaussian": "mechanisms.noise.gaussian",
    "Laplace": "mechanisms.noise.laplace",
    "Reports": "core.reports",
    "BinaryRandomizedResponse": "mechanisms.signs.binary_rr",
    "L1Hadamard": "mechanisms.signs.l1_hadamard",
    "L2BitPlanes": "mechanisms.signs.l2_bit_planes",
    "L2Block": "mechanisms.signs.l2_block",
    "LInfBitPlanes": "mechanisms.signs.linf_bit_planes",
    "LInfBlock": "mechanisms.signs.linf_block",
    "LInfCoordinate": "mechanisms.signs.linf_coordinate",
    "SampledBits": "mechanisms.signs.sampled_bits",
    "SQKR": "mechanisms.signs.sqkr",
    "MechanismSpec": "mechanisms.spec",
    "UserLevelEstimate": "mechanisms.user_level",
    "UserLevelMean": "mechanisms.user_level",
    "estimate_mean": "mechanisms.user_level",
    "Rows": "core.rows",
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
    "MechanismSpec",
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
    "estimate_mean",
    "get",
    "register",
    "summary",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shuffle_plugins.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
