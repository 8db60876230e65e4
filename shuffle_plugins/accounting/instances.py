"""Histories of real mechanisms and datasets, composed: what they attain bounds ε and δ from below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from shuffle_plugins.accounting.composition.growing import GrowingHistory
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses.distribution import COARSE, PrivacyLossDistribution, Resolution
from shuffle_plugins.accounting.rounds.round import (
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
        self._looked_at: list[Round] = []
        self._leading: frozenset[str] | None = frozenset()

    def attained(
        self,
        history: tuple[Sequence[Round], Sequence[int]],
        ask: Callable[[LossComposition], float],
        *,
        resolution: Resolution,
        every_family: bool = False,
    ) -> Iterator[tuple[str, float]]:
        """What each composed instance answers, by its name; nothing where no grid is fine and wide enough.

        Args:
            history: rounds in their order, and how often each is run.
            ask: what to compute of a composed distribution.
            resolution: how finely losses are resolved on their grid.
            every_family: compose each family that all rounds have, too, not only the one that leaks most.
        """
        names = self._leading_names(history[0])
        if not names:
            return
        found: list[Iterator[tuple[str, Callable[[], LossComposition]]]] = []
        if resolution is COARSE:
            found.append(self._growing(history, names))
        if resolution is not COARSE or every_family:
            found.append(self._at_once(history, resolution, every_family))
        for name, compose in chain.from_iterable(found):
            with suppress(ArithmeticError):
                yield name, ask(compose())

    def _leading_names(self, rounds: Sequence[Round]) -> frozenset[str] | None:
        """Names of the families that leak most of each round; None if a round has no instance."""
        known = self._looked_at
        if rounds[: len(known)] != known:
            known, self._leading = [], frozenset()
        for each in rounds[len(known) :]:
            families = lower_families(each)
            if self._leading is not None:
                self._leading = self._leading | {families[0]} if families else None
        self._looked_at = list(rounds)
        return self._leading

    def _growing(
        self, history: tuple[Sequence[Round], Sequence[int]], names: frozenset[str]
    ) -> Iterator[tuple[str, Callable[[], LossComposition]]]:
        """For each round the family that leaks most, in both directions.

        A record's meaning may differ from round to round, so families mix freely; the direction may not.
        """
        name = ", ".join(sorted(names))
        yield name, partial(self._forwards.composition, *history)
        if not self._forwards.symmetric:
            yield name, partial(self._backwards.composition, *history)

    def _at_once(
        self, history: tuple[Sequence[Round], Sequence[int]], resolution: Resolution, every_family: bool
    ) -> Iterator[tuple[str, Callable[[], LossComposition]]]:
        """The same of short histories, and one family for all rounds."""
        counts: dict[Round, int] = {}
        for each, taken in zip(*history, strict=True):
            counts[each] = counts.get(each, 0) + taken
        families = {r: lower_families(r) for r in counts}
        steps = list(counts.values())
        leading = {r: names[0] for r, names in families.items()}
        picks = [] if resolution is COARSE else [leading]
        if every_family:
            shared = set.intersection(*(set(names) for names in families.values()))
            picks += [
                dict.fromkeys(counts, name) for name in sorted(shared) if {name} != set(leading.values())
            ]
        for pick in picks:
            name = ", ".join(sorted(set(pick.values())))
            try:
                laws = [lower_losses(r, family, resolution) for r, family in pick.items()]
            except ArithmeticError:  # no outcome that floats can hold
                continue
            yield name, partial(LossComposition, laws, steps)
            if not all(law.symmetric for law in laws):
                with suppress(ArithmeticError):
                    others = [reversed_lower_losses(r, family, resolution) for r, family in pick.items()]
                    yield name, partial(LossComposition, others, steps)


def _leaking_most(each: Round) -> PrivacyLossDistribution:
    return lower_losses(each, lower_families(each)[0], COARSE)


def _leaking_most_reversed(each: Round) -> PrivacyLossDistribution:
    return reversed_lower_losses(each, lower_families(each)[0], COARSE)
