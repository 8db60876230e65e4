"""Every bound this package knows, for one question: so many rounds of one kind, at one δ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shuffle_plugins.accounting import (
    Adversary,
    EpsilonInterval,
    Method,
    NamedBound,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.published.catalogue import PUBLISHED_BOUNDS

_FIXED = "stated for inputs fixed before the round; those of an epoch's batch follow from earlier batches"
_PUBLISHED_NAMES = frozenset(bound.name for bound in PUBLISHED_BOUNDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfRange:
    """A published bound that says nothing about the question.

    Attributes:
        name: of the bound.
        reason: why not.
    """

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All bounds on the ε of one question, for replace-one neighbours.

    Attributes:
        shuffle_round: the kind of round.
        num_steps: T, how many of them.
        interval: the accountant's certified interval.
        bounds: upper bounds from the tightest to the loosest, then lower bounds likewise.
        out_of_range: published bounds that do not apply, or are none for this question.
    """

    shuffle_round: ShuffleRound
    num_steps: int
    interval: EpsilonInterval
    bounds: tuple[NamedBound, ...]
    out_of_range: tuple[OutOfRange, ...]

    def shortened(self, published: int) -> Comparison:
        """Of the published bounds that apply only the tightest ones, that many; the package's own all."""
        theirs = [b for b in self.bounds if b.kind == "upper" and b.name in _PUBLISHED_NAMES]
        looser = {bound.name for bound in theirs[published:]}
        kept = tuple(bound for bound in self.bounds if bound.name not in looser)
        return replace(self, bounds=kept, out_of_range=())


def compare(
    *, shuffle_round: ShuffleRound, num_steps: int, delta: float, method: Method = "pld"
) -> Comparison:
    """Bound the ε of T rounds of one kind in every way there is.

    The published bounds are for every ε0-LDP randomizer, so they do not improve with a mechanism of its own
    blanket, and they are stated for a cohort of fixed size and for δ0 = 0.

    Args:
        shuffle_round: the kind of round.
        num_steps: T ≥ 1.
        delta: in (0, 1).
        method: how the certified interval is composed, ``"pld"`` or ``"rdp"``.

    Raises:
        ValueError: if an argument is out of range.
    """
    accountant = ShuffleAccountant(method=method)
    accountant.step(shuffle_round, num_steps=num_steps)
    interval = accountant.epsilon(delta)
    bounds = list(accountant.bounds(delta))
    out_of_range = []
    for published in PUBLISHED_BOUNDS:
        if not published.valid:
            out_of_range.append(OutOfRange(name=published.name, reason=published.note))
            continue
        if (
            shuffle_round.sampling is Sampling.EPOCH
            and shuffle_round.spans_batches
            and not published.adaptive
        ):
            out_of_range.append(OutOfRange(name=published.name, reason=_FIXED))
            continue
        try:
            population, cohort = _fixed_cohort(shuffle_round)
            value = published.epsilon(
                local_epsilon=shuffle_round.local_epsilon,
                population=population,
                cohort=cohort,
                num_steps=num_steps,
                delta=delta,
            )
        except ValueError as error:
            out_of_range.append(OutOfRange(name=published.name, reason=str(error)))
        else:
            bounds.append(
                NamedBound(name=published.name, kind="upper", epsilon=value, source=published.source)
            )
    uppers = sorted((bound for bound in bounds if bound.kind == "upper"), key=lambda bound: bound.epsilon)
    lowers = sorted((bound for bound in bounds if bound.kind == "lower"), key=lambda bound: -bound.epsilon)
    return Comparison(
        shuffle_round=shuffle_round,
        num_steps=num_steps,
        interval=interval,
        bounds=(*uppers, *lowers),
        out_of_range=tuple(out_of_range),
    )


def _fixed_cohort(shuffle_round: ShuffleRound) -> tuple[int, int]:
    """(n, k) as the published theorems see the round; n = k where sampling does not amplify."""
    if shuffle_round.sampling is Sampling.POISSON:
        raise ValueError("stated for a cohort of fixed size, not for Poisson sampling")
    if shuffle_round.sampling is Sampling.CHECK_IN:
        raise ValueError("stated for a cohort of fixed size, not for check-ins")
    if shuffle_round.local_delta > 0 or shuffle_round.effective_blanket().tail > 0:
        raise ValueError("stated for ε0-LDP reports; these are (ε0, δ0)-LDP")
    if shuffle_round.spans_batches:
        return shuffle_round.population, shuffle_round.population
    cohort = int(shuffle_round.cohort)
    amplifies = (
        shuffle_round.sampling is Sampling.WITHOUT_REPLACEMENT
        and shuffle_round.adversary is Adversary.MODEL_OBSERVER
    )
    return (shuffle_round.population if amplifies else cohort), cohort
