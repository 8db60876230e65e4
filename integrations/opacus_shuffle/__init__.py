"""Opacus under the subsampled shuffle model: change one import, read a certified ε.

Importing this package registers the accountants ``"subsampled_shuffle_rdp"`` and ``"subsampled_shuffle_pld"``
with Opacus, and makes its ``BatchMemoryManager`` split our loaders in our way. Every ε is for replace-one
neighbours at fixed population.
"""

from opacus_shuffle.accountants import (
    SubsampledShuffleAccountant,
    SubsampledShufflePLDAccountant,
    SubsampledShuffleRDPAccountant,
    register_accountants,
)
from opacus_shuffle.deliveries import Delivery
from opacus_shuffle.engine import PrivacyEngine
from opacus_shuffle.errors import CohortMismatch, PrivacyBudgetExceeded, ShufflePrivacyError
from opacus_shuffle.loaders import CohortLoader, announce_physical_batches
from opacus_shuffle.optimizer import AccountingHook, DistributedShuffleDPOptimizer, ShuffleDPOptimizer
from opacus_shuffle.samplers import CohortSampler, EpochSampler, FixedSizeSampler, PoissonSampler
from opacus_shuffle.summation import AdaptiveClipping
from opacus_shuffle.training_plan import TrainingPlan

register_accountants()
announce_physical_batches()

__all__ = [
    "AccountingHook",
    "AdaptiveClipping",
    "CohortLoader",
    "CohortMismatch",
    "CohortSampler",
    "Delivery",
    "DistributedShuffleDPOptimizer",
    "EpochSampler",
    "FixedSizeSampler",
    "PoissonSampler",
    "PrivacyBudgetExceeded",
    "PrivacyEngine",
    "ShuffleDPOptimizer",
    "ShufflePrivacyError",
    "SubsampledShuffleAccountant",
    "SubsampledShufflePLDAccountant",
    "SubsampledShuffleRDPAccountant",
    "TrainingPlan",
    "register_accountants",
]
