"""Flower under the shuffle model: clients randomise, somebody shuffles, a certified budget holds.

In the client app put :class:`ShuffleMod` first among the mods; in the server app wrap your strategy in
:class:`ShuffleStrategy`. Every ε is for replace-one neighbours and says against whom it holds.

Names are loaded when they are first used: a client process needs little of the server's side.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_shuffle.client.limits import ClientRefusal
    from flwr_shuffle.client.mod import ShuffleMod
    from flwr_shuffle.clipping import AdaptiveClipping
    from flwr_shuffle.evaluation import PrivateEvaluation
    from flwr_shuffle.in_process import InProcessGrid
    from flwr_shuffle.server.cohort_view import CohortMismatch
    from flwr_shuffle.server.sampling import ClientSampling, FixedSize, Poisson, SelfSampling
    from flwr_shuffle.server.strategy import ClientsRefused, ShuffleStrategy
    from flwr_shuffle.stages.base import Anonymous, InMemoryStage, ShuffleStage
    from flwr_shuffle.stages.grid import AnonymousReply, ShuffleGrid
    from flwr_shuffle.stages.mix_node import register_mix_node
    from flwr_shuffle.stages.mix_stage import MixNodeStage
    from flwr_shuffle.stages.summing import SummingStage
    from shuffle_plugins.ledger.client import ClientLimits
    from shuffle_plugins.mechanisms.spec import MechanismSpec

_LAZY = {
    "AdaptiveClipping": "flwr_shuffle.clipping",
    "Anonymous": "flwr_shuffle.stages.base",
    "AnonymousReply": "flwr_shuffle.stages.grid",
    "ClientLimits": "shuffle_plugins.ledger.client",
    "ClientRefusal": "flwr_shuffle.client.limits",
    "ClientSampling": "flwr_shuffle.server.sampling",
    "CohortMismatch": "flwr_shuffle.server.cohort_view",
    "FixedSize": "flwr_shuffle.server.sampling",
    "InMemoryStage": "flwr_shuffle.stages.base",
    "InProcessGrid": "flwr_shuffle.in_process",
    "MechanismSpec": "shuffle_plugins.mechanisms.spec",
    "MixNodeStage": "flwr_shuffle.stages.mix_stage",
    "ClientsRefused": "flwr_shuffle.server.strategy",
    "Poisson": "flwr_shuffle.server.sampling",
    "PrivateEvaluation": "flwr_shuffle.evaluation",
    "SelfSampling": "flwr_shuffle.server.sampling",
    "ShuffleGrid": "flwr_shuffle.stages.grid",
    "ShuffleMod": "flwr_shuffle.client.mod",
    "ShuffleStage": "flwr_shuffle.stages.base",
    "ShuffleStrategy": "flwr_shuffle.server.strategy",
    "SummingStage": "flwr_shuffle.stages.summing",
    "register_mix_node": "flwr_shuffle.stages.mix_node",
}

__all__ = [
    "AdaptiveClipping",
    "Anonymous",
    "AnonymousReply",
    "ClientLimits",
    "ClientRefusal",
    "ClientSampling",
    "ClientsRefused",
    "CohortMismatch",
    "FixedSize",
    "InMemoryStage",
    "InProcessGrid",
    "MechanismSpec",
    "MixNodeStage",
    "Poisson",
    "PrivateEvaluation",
    "SelfSampling",
    "ShuffleGrid",
    "ShuffleMod",
    "ShuffleStage",
    "ShuffleStrategy",
    "SummingStage",
    "register_mix_node",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
