"""Privacy loss laws of rounds of every kind, cached: what an accountant composes."""

from __future__ import annotations

from functools import lru_cache, reduce

from shuffle_plugins.accounting.losses import coins as sum_losses
from shuffle_plugins.accounting.losses import laplace as laplace_losses
from shuffle_plugins.accounting.losses import tags as tagged_losses
from shuffle_plugins.accounting.losses.distribution import (
    Kind,
    PrivacyLossDistribution,
    Resolution,
    pair_losses,
    tighter,
)
from shuffle_plugins.accounting.pairs.counts import CountPair, lower_mixtures, upper_mixtures
from shuffle_plugins.accounting.rounds.coins import SumRound
from shuffle_plugins.accounting.rounds.laplace import LaplaceRound
from shuffle_plugins.accounting.rounds.shuffle import ShuffleRound
from shuffle_plugins.accounting.rounds.tags import TaggedRound

Round = ShuffleRound | SumRound | LaplaceRound | TaggedRound
"""What an accountant records: hashable, for the neighbouring relation replace-one at fixed population."""


@lru_cache(maxsize=8192)
def upper_law(recorded: Round, resolution: Resolution) -> PrivacyLossDistribution:
    """The law of the round's dominating pair, bounded from above."""
    if isinstance(recorded, SumRound):
        return sum_losses.upper_law(recorded, resolution)
    if isinstance(recorded, TaggedRound):
        tags, counts = zip(*recorded.shuffles(), strict=True)
        return tagged_losses.upper_law(
            [upper_law(tag, resolution) for tag in tags],
            counts,
            sampling_rate=recorded.sampling_rate,
            resolution=resolution,
        )
    if isinstance(recorded, LaplaceRound):
        return laplace_losses.upper_law(recorded, resolution)
    return reduce(tighter, _pair_laws(recorded, resolution, "upper"))


@lru_cache(maxsize=8192)
def upper_pair_from_below(recorded: Round, resolution: Resolution) -> PrivacyLossDistribution | None:
    """The same pair bounded from below, which tells the numerical error; None if it is not made of counts."""
    if not isinstance(recorded, ShuffleRound) or not all(
        isinstance(pair, CountPair) for pair in _pairs(recorded)
    ):
        return None
    return reduce(tighter, _pair_laws(recorded, resolution, "lower"))


def _pair_laws(recorded: ShuffleRound, resolution: Resolution, kind: Kind) -> list[PrivacyLossDistribution]:
    return [pair_losses(m, kind=kind, resolution=resolution) for m in upper_mixtures(recorded)]


def _pairs(recorded: ShuffleRound) -> list[object]:
    return [pair for mixture in upper_mixtures(recorded) for pair in mixture.pairs]


@lru_cache(maxsize=8192)
def has_two_counts(recorded: Round) -> bool:
    """Whether the round's outcomes are so few that one round alone can be resolved very finely."""
    if not isinstance(recorded, ShuffleRound):
        return not isinstance(recorded, TaggedRound)
    return all(isinstance(pair, CountPair) and pair.passive in (0.0, 1.0) for pair in _pairs(recorded))


@lru_cache(maxsize=8192)
def lower_law(recorded: Round, resolution: Resolution, family: str) -> PrivacyLossDistribution:
    """The law of one of the round's instances."""
    if isinstance(recorded, SumRound):
        return sum_losses.instance_law(recorded, resolution)
    if isinstance(recorded, TaggedRound):
        tags, counts = zip(*recorded.shuffles(), strict=True)
        return tagged_losses.instance_law(
            [lower_law(tag, resolution, lower_families(tag)[0]) for tag in tags],
            counts,
            sampling_rate=recorded.sampling_rate,
            resolution=resolution,
        )
    if isinstance(recorded, LaplaceRound):
        return laplace_losses.instance_law(recorded, resolution)
    return pair_losses(lower_mixtures(recorded)[family], kind="lower", resolution=resolution)


@lru_cache(maxsize=8192)
def reversed_lower_law(recorded: Round, resolution: Resolution, family: str) -> PrivacyLossDistribution:
    """The law of that instance with its two datasets exchanged."""
    return lower_law(recorded, resolution, family).reversed()


@lru_cache(maxsize=8192)
def lower_families(recorded: Round) -> tuple[str, ...]:
    """Names of the round's lower bounds, the most telling first."""
    if isinstance(recorded, SumRound):
        return (sum_losses.INSTANCE,) if sum_losses.has_instance(recorded) else ()
    if isinstance(recorded, TaggedRound):
        return (tagged_losses.INSTANCE,) if recorded.opposite else ()
    if isinstance(recorded, LaplaceRound):
        return (laplace_losses.INSTANCE,) if laplace_losses.has_instance(recorded) else ()
    mixtures = lower_mixtures(recorded)
    return tuple(sorted(mixtures, key=lambda name: -mixtures[name].information))


def from_state(state: tuple[object, ...]) -> Round:
    """Rebuild a round of any kind from its ``state()``.

    Raises:
        ValueError: if the tuple is not one that a round's ``state`` writes.
    """
    if isinstance(state, (tuple, list)) and len(state) > 0:
        for kind in (SumRound, LaplaceRound, TaggedRound):
            if state[0] == kind.MARK:
                return kind.from_state(tuple(state))
    return ShuffleRound.from_state(state)  # type: ignore[arg-type]
