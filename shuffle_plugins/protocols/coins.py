"""Sums whose noise is fair coins, tossed by all clients: P_1D, P_vec and histograms."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import PrivacyTarget, SumRound
from shuffle_plugins.accounting.pairs.noise import (
    FEWEST_COMPARED,
    FEWEST_TRIALS,
    LONG_ROUNDOFF,
    MOST_TRIALS,
    covering_deviation,
    gaussian_cover,
    log_ratio,
)
from shuffle_plugins.accounting.rounds.sums import checked_coefficients
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.checks import Count, Dim, Radius
from shuffle_plugins.core.lazy_torch import Tensor
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.draws import DISTANCE, MOST_COINS, drawn_range, heads
from shuffle_plugins.protocols.lattices import MOST_LEVELS, Categories, FixedPoint, Interval, Lattice, OneHot
from shuffle_plugins.protocols.sums import (
    CountSum,
    HistogramProtocol,
    LatticeSum,
    TargetUnreachable,
    WantedNoise,
)
from shuffle_plugins.randomness.sources import Randomness, secure

_DISTANCE_SHARE = 0.01  # of δ, that may be spent on the distance of coins from the Gaussian
_KNOWN = 1 << 20  # coins whose closeness to a Gaussian says how close others are


@dataclass(frozen=True, kw_only=True)
class CoinSum(LatticeSum[SumRound], CountSum[SumRound]):
    """Each client rounds its datum to a lattice and adds ``coins`` fair coins to every coordinate.

    Its messages are span + coins labelled bits per coordinate, of which x̂_j − lowest + heads are ones.
    Shuffled, they tell one count per coordinate; so a client's report is its counts. Cheu, Joseph, Mao, Peng
    2022, Algorithm 1, at p = ½, which gives the most noise per message (``docs/proofs/sums.md``).
    """

    in_secret: ClassVar[bool] = True

    coins: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort * self.coins > MOST_COINS:
            raise ValueError(
                f"{self.coins:,} coins from each of {self.cohort:,} clients are more than can be drawn, "
                f"{MOST_COINS:,}: ask for less noise, a larger ε or δ, or a larger overhead"
            )
        _ = self.round()

    @override
    @classmethod
    def _of_noise(cls, wanted: WantedNoise, *, overhead: float = 0.02, **data: Any) -> dict[str, Any]:
        noise_multiplier, cohort, honest, target = wanted
        held = {name: value for name, value in data.items() if name != "coefficients"}
        # Of a window, if what is seen is windows of sums.
        coefficients = checked_coefficients("coefficients", data.get("coefficients", (1,)))

        def lattice(levels: int) -> Lattice:
            found: Lattice = cls.lattice_type(levels=levels, **held)
            return found

        counts = lattice(1).size * len(coefficients)
        levels, coins = _fewest_coins(
            noise_multiplier / 2 * math.hypot(*coefficients),
            repeated=sum(coefficients),
            lattice=lattice,
            cohort=cohort,
            honest=honest,
            overhead=checks.number("overhead", overhead, above=0, at_most=1),
            # Where no target is known, a distance of all coordinates that is little even in 10^5 rounds.
            trials=_close_trials(1e-13 / counts) if target is None else _enough_trials(target, counts=counts),
            steady=target is None,
        )
        return {"levels": levels, "coins": coins, **data}

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> SumRound:
        return SumRound(
            sensitivity=self.lattice.sensitivity,
            attained=self.lattice.attained,
            trials=(who["cohort"] if honest is None else honest) * self.coins,
            coin_distance=DISTANCE,
            coin_ratio=DISTANCE,
            dim=self.lattice.size,
            participation=participation,
            norm=None if participation is None else self.lattice.norm_bound,
            **who,
        )

    @property
    @override
    def noise_variance(self) -> float:
        return self.cohort * self.coins / 4 * self.lattice.step**2

    @property
    @override
    def size(self) -> int:
        return self.lattice.size

    @property
    @override
    def messages_per_coordinate(self) -> int:
        return self.lattice.span + self.coins

    @property
    @override
    def counts(self) -> CountRange:
        low, high = drawn_range(self.coins)
        return CountRange(self.lattice.size, low, high + self.messages_per_coordinate - self.coins)

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        values = self.lattice.encode(x, randomness=randomness)
        coins = heads(self.coins, values.numel(), randomness=randomness).reshape(values.shape)
        return self.layout.reports(values - self.lattice.lowest + coins.to(values.device))

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        total = self.lattice.encoded_sum(x, randomness=secure(randomness))
        return total - (len(x) if isinstance(x, Tensor) else x.num_rows) * self.lattice.lowest

    @override
    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor:
        return heads(self.cohort * self.coins, self.lattice.size, randomness=randomness)

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        return self.lattice.in_units(numbers.double() - reports * (self.coins / 2 - self.lattice.lowest))


@dataclass(frozen=True, kw_only=True)
class ScalarSum(CoinSum):
    """The sum of clients' numbers in [0, upper], (clients, 1); others are brought inside.

    Cheu, Joseph, Mao, Peng 2022, Algorithm 1. See :class:`CoinSum`.
    """

    name: ClassVar[str] = "scalar-sum"
    lattice_type: ClassVar[type[Any]] = Interval

    upper: Radius = 1.0


@dataclass(frozen=True, kw_only=True)
class VectorSum(CoinSum, PrivateSum):
    """The sum of clients' vectors, with the noise of the Gaussian mechanism and no trusted aggregator.

    Cheu, Joseph, Mao, Peng 2022, Algorithm 2: Algorithm 1 in every coordinate, under its label. Vectors
    longer than ``radius``, in ℓ2, are scaled onto the ball.
    """

    name: ClassVar[str] = "vector-sum"
    norm: ClassVar[Norm] = Norm.L2
    lattice_type: ClassVar[type[Any]] = FixedPoint

    dim: Dim
    radius: Radius = 1.0


@dataclass(frozen=True, kw_only=True)
class HistogramSum(HistogramProtocol[SumRound], CoinSum):
    """How many clients hold each category, with the Gaussian mechanism's noise and no trusted aggregator.

    P_1D (Cheu, Joseph, Mao, Peng 2022, Algorithm 1) in every category at once: a client sends ``levels`` ones
    under its own category's label and ``coins`` fair coins under every label. Nothing is rounded, and
    replacing a client moves two counts by one: a sensitivity of exactly √2. Data are int64 (clients,), −1
    for a client that holds none, and estimates in clients.
    """

    name: ClassVar[str] = "histogram-sum"
    lattice_type: ClassVar[type[Any]] = OneHot

    categories: Categories

    @property
    def influence(self) -> float:
        """How much one client can add to a count at most, whatever possible messages it sends, in clients."""
        return self.messages_per_coordinate / self.levels

    @override
    def exceeding(self, least: float) -> float:
        trials = self.cohort * self.coins
        fewer = math.ceil(trials / 2 + least * self.levels) - 1
        return float(special.bdtrc(fewer, trials, 0.5)) if 0 <= fewer < trials else float(fewer < 0)

    @override
    def _reach(self, error: float, *, reports: int) -> float:
        # The exact quantile of everybody's coins in one category, rounded up by a coin or two.
        trials = max(self.cohort, reports) * self.coins
        below = math.floor(float(special.bdtrik(error / 2, trials, 0.5))) - 1
        return (trials / 2 - max(below, 0)) / self.levels


def _enough_trials(target: PrivacyTarget, *, counts: int) -> int:
    """Coins that are close enough to their Gaussian for a target.

    Their distance in total variation, certified down to a limit only, is charged 1 + e^ε times to δ for each
    step and count. If that is more than a hundredth of δ, the ratio of likelihoods is charged to ε
    instead, a thousandth of it, and a thousandth of δ to tails.
    """
    log_factor, coordinates = float(np.logaddexp(0.0, target.epsilon)), target.num_steps * counts
    factor = math.exp(min(log_factor, 700.0)) * coordinates
    if factor * (DISTANCE + LONG_ROUNDOFF) <= _DISTANCE_SHARE * target.delta:
        return _close_trials(_DISTANCE_SHARE * target.delta / factor)
    log_tail = math.log(1e-3 * target.delta / 2) - log_factor - math.log(coordinates)
    ratio = 2 * coordinates * log_ratio(_KNOWN, log_tail=log_tail)
    return max(_scaled(ratio / (1e-3 * target.epsilon)), FEWEST_COMPARED)


def _close_trials(distance: float) -> int:
    """About the fewest coins in that total variation of their Gaussian, or the closest that are certified."""
    return _scaled(gaussian_cover(_KNOWN).distance / distance)


def _scaled(factor: float) -> int:
    """Coins so many times closer to their Gaussian than ``_KNOWN``: both measures fall with their square."""
    return math.ceil(min(_KNOWN * math.sqrt(factor), 1 << 32))  # more are cut into parts, and come no closer


def _fewest_coins(
    ratio: float,
    *,
    repeated: int = 1,
    lattice: Callable[[int], Lattice],
    cohort: int,
    honest: int,
    overhead: float,
    trials: int,
    steady: bool,
) -> tuple[int, int]:
    """Levels and about the fewest coins that have at most the overhead more variance than the noise.

    ``ratio`` is the covering Gaussian's deviation over the sensitivity, ``trials`` the fewest honest coins.
    Where ``steady``, more noise never gets fewer coins, nor a Gaussian that deviates by less over the
    sensitivity; lattices of few levels then take more coins. A rounded datum is ``repeated`` in what is seen.
    """

    def enough(coins: int) -> bool:
        deviation = covering_deviation(honest * coins)

        def fine(levels: int) -> bool:
            # With one level more there is the next smaller noise that these coins give. So if those are
            # within the overhead, all noises are that lie between the two.
            given = deviation / lattice(levels + steady).sensitivity
            return spent(levels, coins) <= (1 + overhead) * (given * lattice(levels).diameter) ** 2

        coarsest = lattice(1 + bisect_left(range(1, MOST_LEVELS), True, key=fine))
        return deviation >= ratio * coarsest.sensitivity

    def spent(levels: int, coins: int) -> float:
        # The coins of dishonest clients are not counted on, so their share is no overhead of the lattice.
        return honest * coins / 4 + cohort * lattice(levels).rounding_variance * repeated**2

    fewest, most = -(-max(trials, FEWEST_TRIALS) // honest), MOST_TRIALS // honest
    coins = fewest + bisect_left(range(fewest, most), True, key=enough)
    while coins <= most:
        deviation = covering_deviation(honest * coins)
        # As many levels as these coins can hide.
        levels = bisect_left(
            range(1, MOST_LEVELS + 1), True, key=lambda g: deviation < ratio * lattice(g).sensitivity
        )
        if levels == MOST_LEVELS or (
            levels and spent(levels, coins) <= (1 + overhead) * (ratio * lattice(levels).diameter) ** 2
        ):
            return levels, coins
        coins += 1 + coins // 256
    raise TargetUnreachable(
        f"a noise multiplier of {2 * ratio:.3g} needs more coins than can be accounted for, within an "
        f"overhead of {overhead:g}: ask for less noise, a larger δ or a larger overhead"
    )
