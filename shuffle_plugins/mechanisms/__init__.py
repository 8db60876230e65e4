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
    from shuffle_plugins.mechanisms.discrete_gaussian import DiscreteGaussian
    from shuffle_plugins.mechanisms.discrete_laplace import DiscreteLaplace
    from shuffle_plugins.mechanisms.frequency import FrequencyOracle
    from shuffle_plugins.mechanisms.gaussian import Gaussian
    from shuffle_plugins.mechanisms.hadamard_response import HadamardResponse
    from shuffle_plugins.mechanisms.k_rr import KRandomizedResponse
    from shuffle_plugins.mechanisms.l1_hadamard import L1Hadamard
    from shuffle_plugins.mechanisms.l2_bit_planes import L2BitPlanes
    from shuffle_plugins.mechanisms.l2_block import L2Block
    from shuffle_plugins.mechanisms.laplace import Laplace
    from shuffle_plugins.mechanisms.limited_hadamard import LimitedHadamard
    from shuffle_plugins.mechanisms.linf_bit_planes import LInfBitPlanes
    from shuffle_plugins.mechanisms.linf_block import LInfBlock
    from shuffle_plugins.mechanisms.linf_coordinate import LInfCoordinate
    from shuffle_plugins.mechanisms.local_hashing import LocalHashing
    from shuffle_plugins.mechanisms.multilevel import LayeredReports, MultilevelHadamard
    from shuffle_plugins.mechanisms.privunit import PrivUnit
    from shuffle_plugins.mechanisms.privunit_g import PrivUnitG
    from shuffle_plugins.mechanisms.projunit import ProjUnit
    from shuffle_plugins.mechanisms.recoverable import KeyLaw, RecoverableResponse
    from shuffle_plugins.mechanisms.reports import Reports
    from shuffle_plugins.mechanisms.rows import Rows
    from shuffle_plugins.mechanisms.sampled_bits import SampledBits
    from shuffle_plugins.mechanisms.sqkr import SQKR
    from shuffle_plugins.mechanisms.subset_selection import SubsetSelection
    from shuffle_plugins.mechanisms.unary_encoding import OptimalUnaryEncoding, Rappor
    from shuffle_plugins.mechanisms.user_level import UserLevelEstimate, UserLevelMean

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
    "L2BitPlanes": "l2_bit_planes",
    "DiscreteGaussian": "discrete_gaussian",
    "DiscreteLaplace": "discrete_laplace",
    "Gaussian": "gaussian",
    "Laplace": "laplace",
    "PrivUnitG": "privunit_g",
    "ProjUnit": "projunit",
    "SQKR": "sqkr",
    "L2Block": "l2_block",
    "UserLevelMean": "user_level",
    "UserLevelEstimate": "user_level",
    "Reports": "reports",
    "Rows": "rows",
    "KRandomizedResponse": "k_rr",
    "HadamardResponse": "hadamard_response",
    "SubsetSelection": "subset_selection",
    "Rappor": "unary_encoding",
    "OptimalUnaryEncoding": "unary_encoding",
    "LocalHashing": "local_hashing",
    "LimitedHadamard": "limited_hadamard",
    "MultilevelHadamard": "multilevel",
    "LayeredReports": "multilevel",
    "RecoverableResponse": "recoverable",
    "KeyLaw": "recoverable",
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
