"""All upper and lower bounds on the ε of T rounds of one kind: this package's own, and published ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.published.catalogue import PUBLISHED_BOUNDS, PublishedBound, compose_renyi
from shuffle_plugins.accounting.published.divergences import subsampled_rdp_bound
from shuffle_plugins.accounting.rounds.records import SampledRecordsRound
from shuffle_plugins.accounting.rounds.round import Round, ShuffleRound
from shuffle_plugins.accounting.terms import Adversary, EpsilonInterval, Method, NamedBound, Sampling

ALL_PUBLISHED = tuple(bound.name for bound in PUBLISHED_BOUNDS)
"""Names of all published bounds: computing them takes seconds where cohorts are sampled."""

FEW_PUBLISHED = ("stronger clones, numerical", "subsampled shuffle RDP, published")
"""Names of two to compare with at a glance: quick, one composing points and one Rényi divergences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfRange:
    """A published bound that does not apply to the question, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All bounds on the ε of one question: upper ones from the tightest to the loosest, then lower ones.

    ``out_of_range`` are published bounds that were asked for and do not apply, or are none for this question.
    """

    shuffle_round: ShuffleRound
    num_steps: int
    interval: EpsilonInterval
    bounds: tuple[NamedBound, ...]
    out_of_range: tuple[OutOfRange, ...]

    def beside(
        self, published: Collection[str], *, progress: Callable[[int, int], None] | None = None
    ) -> Comparison:
        """The same answer with published bounds added, by their names out of ``ALL_PUBLISHED``.

        ``progress`` is called after each with the number done and the number of all.
        """
        unknown = sorted(set(published) - set(ALL_PUBLISHED))
        if unknown:
            raise ValueError(f"no published bound is called {unknown[0]!r}; there are {list(ALL_PUBLISHED)}")
        bounds, out_of_range = list(self.bounds), list(self.out_of_range)
        known = {bound.name for bound in bounds} | {each.name for each in out_of_range}
        wanted = [bound for bound in PUBLISHED_BOUNDS if bound.name in published and bound.name not in known]
        for done, bound in enumerate(wanted, start=1):
            found = _published(bound, self.shuffle_round, num_steps=self.num_steps, delta=self.interval.delta)
            if isinstance(found, NamedBound):
                bounds.append(found)
            else:
                out_of_range.append(found)
            if progress is not None:
                progress(done, len(wanted))
        return replace(self, bounds=_ordered(bounds), out_of_range=tuple(out_of_range))


def compare(
    *,
    shuffle_round: ShuffleRound,
    num_steps: int,
    delta: float,
    method: Method = "pld",
    published: Collection[str] = ALL_PUBLISHED,
) -> Comparison:
    """Bound the ε of T rounds of one kind in every way there is, or with fewer published bounds.

    These are for every ε0-LDP randomizer, a cohort of fixed size and δ0 = 0.
    """
    accountant = ShuffleAccountant(method=method)
    accountant.step(shuffle_round, num_steps=num_steps)
    interval = accountant.epsilon(delta)
    own = Comparison(
        shuffle_round=shuffle_round,
        num_steps=num_steps,
        interval=interval,
        bounds=_ordered(accountant.bounds(delta)),
        out_of_range=(),
    )
    return own.beside(published)


def _ordered(bounds: Iterable[NamedBound]) -> tuple[NamedBound, ...]:
    uppers = sorted((bound for bound in bounds if bound.kind == "upper"), key=lambda bound: bound.epsilon)
    lowers = sorted((bound for bound in bounds if bound.kind == "lower"), key=lambda bound: -bound.epsilon)
    return (*uppers, *lowers)


def _published(
    bound: PublishedBound, shuffle_round: ShuffleRound, *, num_steps: int, delta: float
) -> NamedBound | OutOfRange:
    if not bound.valid:
        return OutOfRange(name=bound.name, reason=bound.note)
    try:
        population, cohort = _fixed_cohort(shuffle_round, adaptive=bound.adaptive)
        epsilon = bound.epsilon(
            local_epsilon=shuffle_round.local_epsilon,
            population=population,
            cohort=cohort,
            num_steps=num_steps,
            delta=delta,
        )
    except ValueError as error:
        return OutOfRange(name=bound.name, reason=str(error))
    return NamedBound(name=bound.name, kind="upper", epsilon=epsilon, source=bound.source)


def _fixed_cohort(shuffle_round: Round, *, adaptive: bool) -> tuple[int, int]:
    """(n, k) as the published theorems see the round; n = k where sampling does not amplify."""
    if isinstance(shuffle_round, SampledRecordsRound) or not isinstance(shuffle_round, ShuffleRound):
        raise ValueError("stated for clients with one record and one report each")
    epoch = shuffle_round.sampling is Sampling.EPOCH and shuffle_round.spans_batches
    if not adaptive and (epoch or not shuffle_round.channel_fixed):
        raise ValueError(
            "stated for one channel, fixed before the round (channel_fixed); an epoch's follows from batches"
        )
    if shuffle_round.sampling in (Sampling.POISSON, Sampling.CHECK_IN):
        raise ValueError(f"stated for a cohort of fixed size, not for {shuffle_round.sampling} sampling")
    if shuffle_round.local_delta > 0 or shuffle_round.effective_blanket.tail > 0:
        raise ValueError("stated for ε0-LDP reports; these are (ε0, δ0)-LDP")
    if shuffle_round.spans_batches:
        return shuffle_round.population, shuffle_round.population
    cohort = int(shuffle_round.cohort)
    amplifies = (
        shuffle_round.sampling is Sampling.WITHOUT_REPLACEMENT
        and shuffle_round.adversary is Adversary.MODEL_OBSERVER
    )
    return (shuffle_round.population if amplifies else cohort), cohort


class PublishedAccountant(ShuffleAccountant):
    """Books whose ε is what Theorem 1 of Girgis, Data and Diggavi 2021 says of them, for comparison only.

    At the paper's settings that is 4 to 8 times the one that a :class:`ShuffleAccountant` certifies. Lower
    ends, and δ at an ε, are those of a ``ShuffleAccountant``.
    """

    def __init__(self, *, method: Method = "rdp") -> None:
        super().__init__(method=method)

    def _check_joins(self, shuffle_round: Round) -> None:
        super()._check_joins(shuffle_round)
        try:
            _fixed_cohort(shuffle_round, adaptive=False)
        except ValueError as error:
            raise ValueError(
                f"Theorem 1 of Girgis et al. 2021 is not for this round ({error}): use another accountant"
            ) from error

    def _in_one_piece(self, delta: float) -> tuple[float, str]:
        name = "subsampled shuffle RDP, published"
        if not self._rounds:
            return 0.0, name
        kinds = [
            (r, *_fixed_cohort(r, adaptive=False), steps)
            for r, steps in self._counts.items()
            if isinstance(r, ShuffleRound)
        ]

        def curve(orders: Floats) -> Floats:
            of_one = partial(subsampled_rdp_bound, orders=orders)
            each = [
                steps * of_one(local_epsilon=r.local_epsilon, population=population, cohort=cohort)
                for r, population, cohort, steps in kinds
            ]
            total: Floats = np.sum(each, axis=0)
            return total

        _, population, cohort, _ = kinds[0]
        found = compose_renyi(
            curve=curve,
            local_epsilon=self._pure_epsilon(),
            population=population,
            cohort=cohort,
            num_steps=1,
            delta=delta,
            sampling=None,
        )
        return found, name
