"""Rounds whose output is a sum of the cohort's integer vectors plus fair coins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution, Resolution
from shuffle_plugins.accounting.pairs.gaussian_cover import (
    DRAWN_REACH,
    GaussianCover,
    binomial_losses,
    gaussian_cover,
    gaussian_losses,
    has_binomial_instance,
    log_ratio,
    participation_losses,
)
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks

_MOST_PARTS = 512  # that the coins of one coordinate are drawn in, where they are drawn for everybody at once
_INSTANCE = "binomial instance"


@dataclass(frozen=True, kw_only=True, slots=True)
class SumRound(Round):
    """A round of a multi-message sum whose noise is fair coins.

    What is seen is Σ x_i + Bin(trials, ½) in every coordinate, x_i integer vectors. It is accounted through
    the Gaussian that covers the binomial (``gaussian_cover``).

    Attributes:
        population, cohort, sampling, adversary: as of :class:`Round`.
        sensitivity: bound on ‖x − x'‖₂ over the vectors a client may send, in steps of the lattice.
        attained: a distance of two such vectors that differ in one coordinate only, a whole number of steps,
            at most ``sensitivity``: it makes the lower bound. 0 if none is known. If ``norm`` is half the
            sensitivity the zero vector lies halfway between them, rounded; otherwise it is one of them.
        trials: fair coins added to each coordinate by honest clients of the round.
        dim: number of coordinates.
        participation: probability with which each of the cohort, by a secret coin of its own, adds its
            vector. The others add the zero vector; all add their coins, and nobody learns who did which. None
            if all add their vectors. It holds against everybody who sees the sum alone, the server included.
        norm: bound on ‖x‖₂ over the vectors a client may send, in steps of the lattice; with
            ``participation`` only. None takes ``sensitivity``, which no vector exceeds if zero is one.
        coin_distance: bound on the total variation between the coins really tossed for one coordinate and
            fair ones.
        coin_ratio: bound on abs(log(P/P')) between the mass P of a number of heads really tossed for one
            coordinate and the mass P' that fair coins have. It holds up to ``gaussian_cover.DRAWN_REACH``
            deviations of each client's coins, or of each of up to 512 parts of everybody's; beyond it P is
            zero. None if none is known; then a large ε has no certificate.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    cohort: int
    sensitivity: float
    trials: int
    dim: int
    attained: int = 0
    coin_distance: float = 0.0
    coin_ratio: float | None = None
    participation: float | None = None
    norm: float | None = None

    KIND: ClassVar[str] = "sum"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    STORED: ClassVar[tuple[str, ...]] = (
        "sensitivity",
        "attained",
        "coin_distance",
        "trials",
        "dim",
        "population",
        "cohort",
        "coin_ratio",
        "participation",
        "norm",
    )
    CHARGED_BY_RATIO: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Round.__post_init__(self)
        checks.whole("trials", self.trials, at_least=0)
        checks.dim(self.dim)
        checks.whole("attained", self.attained, at_least=0)
        object.__setattr__(self, "sensitivity", checks.number("sensitivity", self.sensitivity, above=0))
        if self.attained > self.sensitivity:
            raise ValueError("no two vectors are further apart than the sensitivity; lower attained")
        object.__setattr__(self, "coin_distance", checks.fraction("coin_distance", self.coin_distance))
        if self.coin_ratio is not None:
            object.__setattr__(self, "coin_ratio", checks.number("coin_ratio", self.coin_ratio, at_least=0))
        self._check_participation()
        self.cover()

    def _check_participation(self) -> None:
        share = checks.participation(self.participation)
        object.__setattr__(self, "participation", share)
        if self.norm is None:
            return
        length = checks.number("norm", self.norm, above=0)
        if not self.sensitivity / 2 <= length <= self.sensitivity:
            raise ValueError(
                f"norm must be between half the sensitivity and the sensitivity, {self.sensitivity:g}; "
                f"got {length!r}"
            )
        # Rounds that cost the same are equal, and are recorded alike.
        object.__setattr__(self, "norm", None if share is None else length)

    def opened(self) -> SumRound:
        """The round as one sees it who knows, beside the sum, whose vectors are in it."""
        return replace(self, participation=None, norm=None)

    def cover(self) -> GaussianCover:
        """The Gaussian that covers the noise of one coordinate."""
        return gaussian_cover(self.trials)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the covering Gaussian over the sensitivity."""
        return self.cover().deviation / self.sensitivity

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return "covering Gaussian"

    @property
    def description(self) -> str:
        """The noise over the sensitivity, which is twice the radius of a client's ball."""
        noise = f"a sum with coins whose deviation is {self.noise_multiplier:.6g} of its sensitivity"
        if self.participation is None:
            return noise
        return f"{noise}, to which each client adds its data with probability {self.participation:.6g}"

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages."""
        return "the sum of all vectors and coins, and nothing of what single clients add to it"

    @property
    def replacement_distance(self) -> float:
        """Total variation between the round and a function of the Gaussian mechanism, all coordinates."""
        return min(1.0, self.dim * (self.cover().distance + self.coin_distance))

    def replacement_ratio(self, log_tail: float) -> float:
        """As :meth:`Round.replacement_ratio`, to a function of the Gaussian mechanism."""
        ratio = self.coin_ratio if self.coin_distance else 0.0
        each = log_tail - math.log(2 * self.dim)  # half for the coins, half for their cover
        # Two tails of each client's coins (Hoeffding), or of each of the parts that many are drawn in.
        drawn_tail = math.log(2 * self.cohort * _MOST_PARTS) - DRAWN_REACH**2 / 2
        if ratio is None or (self.coin_distance and each < drawn_tail):
            return math.inf
        return self.dim * (log_ratio(self.trials, log_tail=each) + ratio)

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of the covering Gaussian, on a sample."""
        if self.participation is not None:
            return participation_losses(
                noise_multiplier=self.noise_multiplier,
                norm=1.0 if self.norm is None else self.norm / self.sensitivity,
                participation=self.participation,
                sampling_rate=self.sampling_rate,
                resolution=resolution,
            )
        return gaussian_losses(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, resolution=resolution
        )

    @property
    def lower_families(self) -> tuple[str, ...]:
        """One coordinate's count of heads, if two vectors are known that differ in it alone."""
        known = has_binomial_instance(trials=self.trials, shift=self.attained)
        return (_INSTANCE,) if known else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of one coordinate's count of heads."""
        centred = self.norm is not None and 2 * self.norm <= self.sensitivity
        return binomial_losses(
            trials=self.trials,
            shift=self.attained,
            sampling_rate=self.sampling_rate * (self.participation or 1.0),
            resolution=resolution,
            zero=self.attained // 2 if centred else 0,
        )
