"""Shufflers: where the tie between a client and its report ends, and whom that needs to be trusted.

In memory (:class:`InMemoryShuffler`), or a :class:`Mixer` of another organisation, which takes sealed
envelopes. docs/guides/shuffling.md is the threat model. Importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shuffle_plugins.shuffler.base import Shuffler
from shuffle_plugins.shuffler.envelopes import RoundContext, envelope_size, open_reports, seal
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.mixer import MixedBatch, Mixer
from shuffle_plugins.shuffler.permutation import shuffled
from shuffle_plugins.shuffler.tokens import SpentTokens

if TYPE_CHECKING:
    from shuffle_plugins.shuffler.memory import InMemoryShuffler

_LAZY = {"InMemoryShuffler": "shuffler.memory"}

__all__ = [
    "BatchRefused",
    "InMemoryShuffler",
    "MixedBatch",
    "Mixer",
    "Refusal",
    "RoundContext",
    "ShuffleError",
    "Shuffler",
    "SpentTokens",
    "envelope_size",
    "open_reports",
    "seal",
    "shuffled",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shuffle_plugins.{_LAZY[name]}"), name)
