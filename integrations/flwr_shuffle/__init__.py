"""Flower under the shuffle model: clients randomise, somebody shuffles, a certified budget holds.

In the client app put :class:`ShuffleMod` first among the mods; in the server app wrap your strategy in
:class:`ShuffleStrategy`. Every ε is for replace-one neighbours and says against whom it holds.
"""

from flwr_shuffle.cohort_view import CohortMismatch
from flwr_shuffle.grid import AnonymousReply, ShuffleGrid
from flwr_shuffle.in_process import InProcessGrid
from flwr_shuffle.limits import ClientRefusal
from flwr_shuffle.mix_node import register_mix_node
from flwr_shuffle.mix_stage import MixNodeStage
from flwr_shuffle.mod import ShuffleMod
from flwr_shuffle.sampling import ClientSampling, FixedSize, Poisson, SelfSampling
from flwr_shuffle.stages import Anonymous, InMemoryStage, ShuffleStage
from flwr_shuffle.strategy import ShuffleStrategy
from shuffle_plugins.ledger import ClientLimits
from shuffle_plugins.mechanisms.spec import MechanismSpec

__all__ = [
    "Anonymous",
    "AnonymousReply",
    "ClientLimits",
    "ClientRefusal",
    "ClientSampling",
    "CohortMismatch",
    "FixedSize",
    "InMemoryStage",
    "InProcessGrid",
    "MechanismSpec",
    "MixNodeStage",
    "Poisson",
    "SelfSampling",
    "ShuffleGrid",
    "ShuffleMod",
    "ShuffleStage",
    "ShuffleStrategy",
    "register_mix_node",
]
