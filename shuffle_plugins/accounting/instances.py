"""Histories of real mechanisms and datasets, composed: what they attain bounds ε and δ from below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from shuffle_plugins.accounting.composition.growing import GrowingHistory
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses.distribution import COARSE, PrivacyLossDistribution, Resolution
from shuffle_plugins.accounting.rounds.base import (
    Round,
    lower_families,
    lower_losses,
    reversed_lower_losses,
)


class Instances:
    """The instances of one history, kept composed while it grows."""

    def __init__(self) -> None:
        self._forwards = GrowingHistory(_leaking_most)
        self._backwards = GrowingHistory(_leaking_most_reversed)

    def attained(
        self,
        history: tuple[Sequence[Round], Sequence[int]],
        ask: Callable[[LossComposition], float],
        *,
        counts: Mapping[Round, int],
        resolution: Resolution,
        every_family: bool = False,
    ) -> Iterator[tuple[str, float]]:
        """What each composed instance answers, by its name; nothing where no grid is fine and wide enough.

        Args:
            history: rounds in their order, and how often each is run.
            ask: what to compute of a composed distribution.
            counts: steps of each distinct round.
            resolution: how finely losses are resolved on their grid.
            every_family: compose each family that all rounds have, too, not only the one that leaks most.
        """
        for name, compose in self._compositions(history, counts, resolution, every_family):
            with suppress(ArithmeticError):
                yield name, ask(compose())

    def _compositions(
        self,
        history: tuple[Sequence[Round], Sequence[int]],
        counts: Mapping[Round, int],
        resolution: Resolution,
        every_family: bool,
    ) -> Iterator[tuple[str, Callable[[], LossComposition]]]:
        """Instances to compose: for each round the family that leaks most, in both directions.

        A record's meaning may differ from round to round, so families mix freely; the direction may not.
        """
        families = {r: lower_families(r) for r in counts}
        if not families or not all(families.values()):
            return
        steps = list(counts.values())
        picks = [{r: names[0] for r, names in families.items()}]
        if every_family:
            shared = set.intersection(*(set(names) for names in families.values()))
            picks += [
                dict.fromkeys(counts, name) for name in sorted(shared) if {name} != set(picks[0].values())
            ]
        for pick in picks:
            name = ", ".join(sorted(set(pick.values())))
            if resolution is COARSE and pick is picks[0]:
                yield name, partial(self._forwards.composition, *history)
                if not self._forwards.symmetric:
                    yield name, partial(self._backwards.composition, *history)
                continue
            try:
                laws = [lower_losses(r, family, resolution) for r, family in pick.items()]
            except ArithmeticError:  # no outcome that floats can hold
                continue
            yield name, partial(LossComposition, laws, steps)
            if not all(law.symmetric for law in laws):
                yield name, partial(LossComposition, [law.reversed() for law in laws], steps)


def _leaking_most(each: Round) -> PrivacyLossDistribution:
    return lower_losses(each, lower_families(each)[0], COARSE)


def _leaking_most_reversed(each: Round) -> PrivacyLossDistribution:
    return reversed_lower_losses(each, lower_families(each)[0], COARSE)
