"""Rounds whose output is a sum of the cohort's integer vectors plus fair coins: what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from shuffle_plugins.accounting.pairs.fair_coins import DRAWN_REACH
from shuffle_plugins.accounting.pairs.gaussian_cover import GaussianCover, gaussian_cover, log_ratio
from shuffle_plugins.accounting.rounds.known_cohort import KnownCohort, check_whole
from shuffle_plugins.accounting.terms import Adversary, Sampling

_MOST_PARTS = 512
_SCHEMES = (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL, Sampling.SINGLE_PASS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SumRound(KnownCohort):
    """One kind of round of a multi-message sum; hashable, so results are cached by it.

    What is seen is Σ x_i + Bin(trials, ½) in every coordinate, x_i integer vectors. It is accounted through
    the Gaussian that covers the binomial (``gaussian_cover``).

    Attributes:
        sensitivity: bound on ‖x − x'‖₂ over the vectors a client may send, in steps of the lattice.
        attained: a distance of two such vectors that differ in one coordinate only, a whole number of steps,
            at most ``sensitivity``: it makes the lower bound. 0 if none is known.
        trials: fair coins added to each coordinate by honest clients of the round.
        dim: number of coordinates.
        population: n, the public and fixed number of clients.
        cohort: k, how many take part; ``population`` under full participation, the smallest batch under a
            single pass, of which one step is one whole pass.
        coin_distance: bound on the total variation between the coins really tossed for one coordinate and
            fair ones.
        coin_ratio: bound on |log(P/P')| between the mass P of a number of heads really tossed for one
            coordinate and the mass P' that fair coins have. It holds up to ``fair_coins.DRAWN_REACH``
            deviations of each client's coins, or of each of up to 512 parts of everybody's; beyond it P is
            zero. None if none is known; then a large ε has no certificate.
        sampling: without replacement, full, or single pass.
        adversary: against whom the round is measured; a server that sees who took part gains what sampling
            hides.

    Neighbouring relation: replace-one at fixed population.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    sensitivity: float
    trials: int
    dim: int
    population: int
    cohort: int
    attained: int = 0
    coin_distance: float = 0.0
    coin_ratio: float | None = None
    sampling: Sampling = Sampling.FULL
    adversary: Adversary = Adversary.MODEL_OBSERVER

    MARK: ClassVar[str] = "sum"
    local_epsilon: ClassVar[float] = math.inf
    own_delta: ClassVar[float] = 0.0
    pair_name: ClassVar[str] = "covering Gaussian"

    def __post_init__(self) -> None:
        self._check_cohort(*_SCHEMES, reason="the coins of a sum are shared out among")
        check_whole("trials", self.trials, low=0)
        check_whole("dim", self.dim, low=1)
        check_whole("attained", self.attained, low=0)
        if isinstance(self.sensitivity, bool) or not isinstance(self.sensitivity, (int, float)):
            raise ValueError(f"sensitivity must be a number, got {self.sensitivity!r}")
        if not 0 < self.sensitivity < math.inf:
            raise ValueError(f"sensitivity must be positive and finite, got {self.sensitivity!r}")
        if self.attained > self.sensitivity:
            raise ValueError("no two vectors are further apart than the sensitivity; lower attained")
        if isinstance(self.coin_distance, bool) or not isinstance(self.coin_distance, (int, float)):
            raise ValueError(f"coin_distance must be a number, got {self.coin_distance!r}")
        if not 0 <= self.coin_distance <= 1:
            raise ValueError(f"coin_distance must be in [0, 1], got {self.coin_distance!r}")
        object.__setattr__(self, "coin_distance", float(self.coin_distance))
        if self.coin_ratio is not None:
            ratio = self.coin_ratio
            if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio < math.inf:
                raise ValueError(f"coin_ratio must be a finite number, at least 0, got {ratio!r}")
            object.__setattr__(self, "coin_ratio", float(ratio))
        object.__setattr__(self, "sensitivity", float(self.sensitivity))
        self.cover()

    def cover(self) -> GaussianCover:
        """The Gaussian that covers the noise of one coordinate."""
        return gaussian_cover(self.trials)

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the covering Gaussian over the sensitivity."""
        return self.cover().deviation / self.sensitivity

    @property
    def replacement_distance(self) -> float:
        """Total variation between the round and a function of the Gaussian mechanism, all coordinates."""
        return min(1.0, self.dim * (self.cover().distance + self.coin_distance))

    def replacement_ratio(self, log_tail: float) -> float:
        """η such that the round and a function of the Gaussian mechanism are within e^η of each other.

        Every outcome's probability under one is at most e^η times that under the other, except for outcomes
        that have at most probability exp(``log_tail``) together. Infinite if no such η is known.
        """
        ratio = self.coin_ratio if self.coin_distance else 0.0
        each = log_tail - math.log(2 * self.dim)  # half for the coins, half for their cover
        # Two tails of each client's coins (Hoeffding), or of each of the parts that many are drawn in.
        drawn_tail = math.log(2 * self.cohort * _MOST_PARTS) - DRAWN_REACH**2 / 2
        if ratio is None or (self.coin_distance and each < drawn_tail):
            return math.inf
        return self.dim * (log_ratio(self.trials, log_tail=each) + ratio)

    def state(self) -> tuple[Any, ...]:
        """The round as a plain tuple of str, int and float, for checkpoints."""
        return (
            self.MARK,
            self.sampling.value,
            self.adversary.value,
            self.sensitivity,
            self.attained,
            self.coin_distance,
            self.trials,
            self.dim,
            self.population,
            self.cohort,
            *(() if self.coin_ratio is None else (self.coin_ratio,)),
        )

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """Rebuild a round from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        try:
            mark, sampling, adversary, sensitivity, attained, coin_distance, *sizes = state
            trials, dim, population, cohort, *ratio = sizes
            (coin_ratio,) = ratio or [None]
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the state of a SumRound: {state!r}") from error
        if mark != cls.MARK:
            raise ValueError(f"not the state of a SumRound: {state!r}")
        return cls(
            sampling=Sampling(sampling),
            adversary=Adversary(adversary),
            sensitivity=sensitivity,
            attained=attained,
            coin_distance=coin_distance,
            coin_ratio=coin_ratio,
            trials=trials,
            dim=dim,
            population=population,
            cohort=cohort,
        )
