"""What rounds of the subsampled shuffle model cost. Neighbouring relation: replace-one, fixed population.

Describe a round with :class:`ShuffleRound`, record rounds in a :class:`ShuffleAccountant`, read an
:class:`EpsilonInterval`. The mathematics and its proofs are in ``docs/proofs/accounting.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuffle_plugins.accounting.accountant import (
        DeltaInterval,
        EpsilonInterval,
        Method,
        NamedBound,
        ShuffleAccountant,
    )
    from shuffle_plugins.accounting.calibrate import (
        calibrate_cohort,
        calibrate_local_epsilon,
        calibrate_num_steps,
    )
    from shuffle_plugins.accounting.pairs.blanket import Blanket
    from shuffle_plugins.accounting.rounds.coins import SumRound
    from shuffle_plugins.accounting.rounds.shuffle import (
        NEIGHBOURING_RELATION,
        Adversary,
        Sampling,
        ShuffleRound,
    )
    from shuffle_plugins.accounting.rounds.tags import Tag, TaggedRound

_LAZY = {
    "Adversary": "shuffle_plugins.accounting.rounds.shuffle",
    "Blanket": "shuffle_plugins.accounting.pairs.blanket",
    "DeltaInterval": "shuffle_plugins.accounting.accountant",
    "EpsilonInterval": "shuffle_plugins.accounting.accountant",
    "Method": "shuffle_plugins.accounting.accountant",
    "NEIGHBOURING_RELATION": "shuffle_plugins.accounting.rounds.shuffle",
    "NamedBound": "shuffle_plugins.accounting.accountant",
    "Sampling": "shuffle_plugins.accounting.rounds.shuffle",
    "ShuffleAccountant": "shuffle_plugins.accounting.accountant",
    "ShuffleRound": "shuffle_plugins.accounting.rounds.shuffle",
    "SumRound": "shuffle_plugins.accounting.rounds.coins",
    "Tag": "shuffle_plugins.accounting.rounds.tags",
    "TaggedRound": "shuffle_plugins.accounting.rounds.tags",
    "calibrate_cohort": "shuffle_plugins.accounting.calibrate",
    "calibrate_local_epsilon": "shuffle_plugins.accounting.calibrate",
    "calibrate_num_steps": "shuffle_plugins.accounting.calibrate",
}

__all__ = [
    "NEIGHBOURING_RELATION",
    "Adversary",
    "Blanket",
    "DeltaInterval",
    "EpsilonInterval",
    "Method",
    "NamedBound",
    "Sampling",
    "ShuffleAccountant",
    "ShuffleRound",
    "SumRound",
    "Tag",
    "TaggedRound",
    "calibrate_cohort",
    "calibrate_local_epsilon",
    "calibrate_num_steps",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
