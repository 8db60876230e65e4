"""Rounds whose output is a sum of the cohort's vectors plus noise that all of them add."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from scipy.special import ndtr
from typing_extensions import override

from shuffle_plugins.accounting.composition.sampled import sampled_composition, sampled_instance
from shuffle_plugins.accounting.losses import (
    PrivacyLossDistribution,
    Resolution,
    discounted,
    finite_losses,
    hull_outcomes,
    joined,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats
from shuffle_plugins.accounting.pairs.bits import has_leaning_instance, leaning_instance
from shuffle_plugins.accounting.pairs.noise import (
    DRAWN_REACH,
    GaussianCover,
    ScoreCover,
    binomial_losses,
    gaussian_cover,
    gaussian_losses,
    gaussian_profile,
    has_binomial_instance,
    log_ratio,
    participation_losses,
    poisson_masses,
    poisson_profile,
    profile_reach,
    score_cover,
    shared_laplace_loss,
)
from shuffle_plugins.accounting.rounds.round import Round, lower_losses
from shuffle_plugins.accounting.terms import NeighbouringRelation, Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import (
    Chance,
    Count,
    Dim,
    Flag,
    Fraction,
    NotNegative,
    Positive,
    in_range,
    one_of,
    whole_number,
)

_MOST_LISTED_LOSSES = 1 << 11
_ROUNDOFF = 1e-12
_LARGEST_DECOY_LOSS = 600.0  # e to this power, times a mass, is a float


@dataclass(frozen=True, kw_only=True)
class _CoveredSum(Round):
    """A sum that is accounted through a Gaussian that covers its noise.

    Attributes:
        participation: probability with which each of the cohort, by a secret coin of its own, adds its vector
            and not zero; all add their noise. None if all add their vectors. It holds against everybody who
            sees the sum alone, the server included.
    """

    cohort: int
    dim: Dim
    participation: Chance | None = None

    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    pair_name = "covering Gaussian"

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """Standard deviation of the covering Gaussian over the sensitivity."""

    @property
    def _relative_norm(self) -> float:
        return 1.0

    @override
    def opened(self) -> Round:
        return replace(self, participation=None)

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        noise, rate = self.noise_multiplier, self.sampling_rate
        if self.participation is None:
            return gaussian_losses(noise_multiplier=noise, sampling_rate=rate, resolution=resolution)
        return participation_losses(
            noise_multiplier=noise,
            norm=self._relative_norm,
            participation=self.participation,
            sampling_rate=rate,
            resolution=resolution,
        )


@dataclass(frozen=True, kw_only=True)
class SumRound(_CoveredSum):
    """A round of a multi-message sum whose noise is fair coins.

    What is seen is Σ x_i + Bin(trials, ½) in every coordinate, x_i integer vectors. It is accounted through
    the Gaussian that covers the binomial (``gaussian_cover``).

    Attributes:
        sensitivity: bound on ‖x − x'‖₂ over the vectors a client may send, in steps of the lattice.
        attained: steps between two such vectors that differ in one coordinate only: it makes the lower bound.
            0 if none are known. If ``norm`` is half the sensitivity the zero vector lies halfway between
            them, rounded; otherwise it is one of them.
        trials: fair coins added to each coordinate by honest clients of the round.
        norm: bound on ‖x‖₂ in the same steps, with ``participation`` only. None takes ``sensitivity``, which
            no vector exceeds if zero is one.
        coin_distance: bound on the total variation between the coins tossed for one coordinate and fair ones.
        coin_ratio: bound on abs(log(P/P')) between the mass P of a number of heads really tossed for one
            coordinate and the mass P' of fair coins, up to ``DRAWN_REACH`` deviations of each client's coins,
            or of each of up to 512 parts of everybody's; beyond P is zero. None if none is known; then a
            large ε has no certificate.
    """

    sensitivity: Positive
    trials: Annotated[int, whole_number(at_least=0)]
    attained: Annotated[int, whole_number(at_least=0)] = 0
    coin_distance: Fraction = 0.0
    coin_ratio: NotNegative | None = None
    norm: Positive | None = None

    KIND: ClassVar[str] = "sum"
    CHARGED_BY_RATIO: ClassVar[bool] = True
    seen = "the sum of all vectors and coins, and nothing of what single clients add to it"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attained > self.sensitivity:
            raise ValueError("no two vectors are further apart than the sensitivity; lower attained")
        if self.norm is not None:
            checks.number("norm", self.norm, at_least=self.sensitivity / 2, at_most=self.sensitivity)
            if self.participation is None:  # rounds that cost the same are equal, and are recorded alike
                object.__setattr__(self, "norm", None)
        self.cover()

    @override
    def opened(self) -> SumRound:
        return replace(self, participation=None, norm=None)

    def cover(self) -> GaussianCover:
        """What covers the noise of one coordinate."""
        return gaussian_cover(self.trials)

    @property
    @override
    def noise_multiplier(self) -> float:
        return self.cover().deviation / self.sensitivity

    @property
    @override
    def _relative_norm(self) -> float:
        return 1.0 if self.norm is None else self.norm / self.sensitivity

    @property
    @override
    def description(self) -> str:
        noise = f"{self._what} with coins whose deviation is {self.noise_multiplier:.6g} of its sensitivity"
        if self.participation is None:
            return noise
        return f"{noise}, to which each client adds its data with probability {self.participation:.6g}"

    @property
    def _what(self) -> str:
        return "a sum"

    @property
    def _counts(self) -> int:
        """Counts with coins of their own that a client's data move."""
        return self.dim

    @property
    @override
    def replacement_distance(self) -> float:
        return min(1.0, self._counts * (self.cover().distance + self.coin_distance))

    @override
    def replacement_ratio(self, log_tail: float) -> float:
        ratio = self.coin_ratio if self.coin_distance else 0.0
        each = log_tail - math.log(2 * self._counts)  # half for the coins, half for their cover
        # Two tails of each client's coins (Hoeffding), or of each of the 512 parts that many are drawn in.
        drawn_tail = math.log(2 * self.cohort * 512) - DRAWN_REACH**2 / 2
        if ratio is None or (self.coin_distance and each < drawn_tail):
            return math.inf
        return self._counts * (log_ratio(self.trials, log_tail=each) + ratio)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        known = has_binomial_instance(trials=self.trials, shift=self.attained)
        return ("binomial instance",) if known else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """One coordinate's count of heads, of two vectors that differ in it alone."""
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        centred = self.norm is not None and 2 * self.norm <= self.sensitivity
        return binomial_losses(
            trials=self.trials,
            shift=self.attained,
            sampling_rate=self.sampling_rate * (self.participation or 1.0),
            resolution=resolution,
            zero=self.attained // 2 if centred else 0,
        )


LARGEST_COEFFICIENT = 1 << 16  # sums stay whole numbers


def checked_coefficients(name: str, value: object) -> tuple[int, ...]:
    """Return c_0, …, c_{b−1}; ValueError if they are none."""
    found = tuple(value) if isinstance(value, (tuple, list)) else ()
    whole = all(type(each) is int and 0 <= each <= LARGEST_COEFFICIENT for each in found)
    if not found or not whole or not (found[0] and found[-1]):
        raise ValueError(
            f"{name} must be whole numbers in [0, 2**16], the first and the last positive, got {value!r}"
        )
    return found


Coefficients = Annotated[tuple[int, ...], checked_coefficients]
"""c_0, …, c_{b−1}: the weights of the present round's sum and of those before it in a window."""


@dataclass(frozen=True, kw_only=True)
class WindowRound(SumRound):
    """One client's participation in a series of windows of sums, of which no single sum is seen.

    What is seen in round t is Σ_j c_j·D_{t−j} + Bin(trials, ½) in every coordinate, D_s the sum of the
    integer vectors of round s. Who takes part at most once in any b = len(c) rounds in a row moves b windows,
    the j-th of them by c_j times its vector: one Gaussian mechanism of sensitivity ‖c‖₂·``sensitivity``, and
    b counts in each coordinate to be covered (``docs/proofs/sums.md``, "Windows"). One step of an accountant
    is a *participation*, not a round, and as costly before those who see the windows alone as before the
    server, which knows who took part. Both ends of its ε are of all b windows, before one who knows that; a
    series that ends with fewer costs no more.

    Attributes:
        coefficients: c_0, …, c_{b−1}, whole numbers.
        trials: the fewest that any of the windows has.
    """

    coefficients: Coefficients

    KIND: ClassVar[str] = "window"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/sums.md"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (Sampling.FULL,)
    seen = "sums over windows of rounds with coins, and neither a single round's sum nor what clients add"

    @property
    def separation(self) -> int:
        """b: a client takes part at most once in so many rounds in a row."""
        return len(self.coefficients)

    def participations(self, indexes: Iterable[int]) -> tuple[WindowRound, ...]:
        """What a client's participations at these indexes of a series cost, each a step of an accountant.

        Of those less than b apart, which share windows, the coefficients add up: all of them are one longer
        window, for a client whose every vector is the same. With secret participation they are refused, as
        several coins move what they share.
        """
        found: list[list[int]] = []
        begun = 0
        for index in sorted(checks.whole("an index", each, at_least=0) for each in indexes):
            if not found or index - begun >= len(found[-1]):
                begun = index
                found.append([])
            elif self.participation is not None:
                raise ValueError(
                    f"no bound is known for a client that is asked in secret twice within {self.separation} "
                    f"rounds, up to {index}: keep its participations apart"
                )
            shared, place = found[-1], index - begun
            shared += [0] * (place + self.separation - len(shared))
            for j, each in enumerate(self.coefficients):
                shared[place + j] += each
        return tuple(replace(self, coefficients=tuple(each)) for each in found)

    @property
    def _length(self) -> float:
        return math.sqrt(sum(each * each for each in self.coefficients))

    @property
    @override
    def noise_multiplier(self) -> float:
        return super().noise_multiplier / self._length

    @property
    @override
    def _counts(self) -> int:
        return self.dim * self.separation

    @property
    @override
    def secrecy(self) -> str:
        return (
            "who takes part need not be secret, and sampling earns nothing; each client takes part at most "
            f"once in any {self.separation} rounds in a row"
        )

    @property
    @override
    def _what(self) -> str:
        return f"a participation in windows of {self.separation} rounds' sums"

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """One coordinate's counts in all windows; with secret participation, of a record and zero."""
        centred = self.norm is not None and 2 * self.norm <= self.sensitivity
        moved = self.attained // 2 if centred else self.attained
        times = Counter(each * moved for each in self.coefficients if each)
        laws = [
            binomial_losses(trials=self.trials, shift=shift, sampling_rate=1.0, resolution=resolution)
            for shift in times
        ]
        return sampled_instance(
            laws,
            list(times.values()),
            sampling_rate=self.participation or 1.0,
            resolution=resolution,
            exchanged=exchanged,
        )


@dataclass(frozen=True, kw_only=True)
class PoissonBinomialRound(_CoveredSum):
    """A round of the Poisson binomial mechanism (Chen, Özgür, Kairouz 2022), in an ℓ2 ball.

    For each coordinate j a client with value v_j in [−1, 1] adds ``bits`` bits, each a one with probability
    (1 + τ·v_j)/2, τ = 1 − 2·``flip``. What is seen is the number of ones of all clients, in each coordinate.
    It is accounted through a Gaussian that covers the counts (``score_cover``), whose mean moves with the ℓ2
    norm of what v does: a client cannot be extreme in all coordinates at once.

    Attributes:
        bits: of one client in one coordinate.
        flip: q, the least probability of a one, in (0, ½).
        distance: bound on ‖v − v'‖₂ over two clients' values.
        honest: clients of the cohort counted on to follow the protocol; all of them if None.
        participation: as of :class:`SumRound`; the others' bits are of v = 0.
        attained: values of a v such that v, −v and 0 may all be sent, as (abs(v_j), how many coordinates),
            rounded down, coordinates of value 0 left out: it makes the lower bound. None if none is known.
    """

    bits: Count
    flip: Annotated[float, in_range(above=0, below=0.5)]
    distance: Positive
    honest: int | None = None
    attained: tuple[tuple[float, int], ...] | None = None

    KIND: ClassVar[str] = "poisson-binomial"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/counts.md"
    seen = "the number of ones in each coordinate, over all clients, and nobody's own bits"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attained is not None:
            pairs = tuple((float(value), checks.whole("attained", count)) for value, count in self.attained)
            object.__setattr__(self, "attained", pairs)
            length = 2 * math.sqrt(math.fsum(count * value**2 for value, count in pairs))
            within = all(0 < value <= 1 for value, _ in pairs) and sum(n for _, n in pairs) <= self.dim
            if not pairs or not within or length > self.distance:
                raise ValueError(
                    "attained must be values in (0, 1] of at most dim coordinates, of a v for which v and −v "
                    f"are no further apart than distance={self.distance:g}; got {pairs}"
                )
        self.cover()

    def cover(self) -> ScoreCover:
        """The Gaussian that covers one bit's share in the count of a coordinate."""
        return score_cover(crowd=self._crowd, own=self.bits, flip=self.flip)

    @property
    @override
    def noise_multiplier(self) -> float:
        return 1 / (self.cover().shift * self.bits * self.distance)

    @property
    @override
    def local_epsilon(self) -> float:
        return self.dim * self.bits * (math.log1p(-self.flip) - math.log(self.flip))

    @property
    @override
    def description(self) -> str:
        noise = f"counts of bits, as noise of {self.noise_multiplier:.6g} of the sensitivity"
        if self.participation is None:
            return noise
        return f"{noise}, with each client's data in it with probability {self.participation:.6g}"

    @property
    @override
    def replacement_distance(self) -> float:
        return min(1.0, self.dim * self.cover().distance)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        known = self.attained is not None and has_leaning_instance(others=self._crowd, own=self.bits)
        return ("opposite vectors instance",) if known else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """A client that holds v or −v while all others hold −v; with secret participation v or 0, and 0."""
        pairs = self.attained or ()
        half = (1 - 2 * self.flip) / 2
        laws = [
            leaning_instance(
                bias=half * value,
                others=self._crowd,
                own=self.bits,
                opposite=self.participation is None,
                resolution=resolution,
            )
            for value, _ in pairs
        ]
        found = sampled_instance(
            laws,
            [count for _, count in pairs],
            sampling_rate=self.sampling_rate * (self.participation or 1.0),
            resolution=resolution,
            exchanged=exchanged,
        )
        return discounted(found, min(1.0, 4 * TAIL * self.dim))

    @property
    def _crowd(self) -> int:
        """Bits of the others in a count."""
        return ((self.cohort if self.honest is None else self.honest) - 1) * self.bits


def _laplace_profile(*, rate: float, shift: int) -> tuple[Floats, Floats]:
    """Losses from 0 up, and δ there rounded up: of the discrete Laplace against itself ``shift`` steps away.

    Of two sums g steps apart the log-likelihood ratio at k is a·(|k − g| − |k|), a the noise's rate. At the
    losses a·(g − 2j) that occur the profile is P(k ≤ j) − e^{a(g−2j)}·P(k ≤ j − g) = 1 − e^{−aj}; between
    them it is linear in E = e^ε. Sums that are closer cost less at every ε, as the noise is log-concave.

    Of many losses 2,048 are listed: between points of a profile its chord is above it.
    """
    places = shift // 2 + 1
    j = np.unique(np.linspace(0, places - 1, min(places, _MOST_LISTED_LOSSES)).astype(np.int64))[::-1]
    losses: Floats = np.asarray(rate * (shift - 2 * j), dtype=np.float64)
    values: Floats = -np.expm1(-rate * j.astype(np.float64))
    if shift % 2:
        # No loss is 0: there the chord between the losses ±a counts.
        centre = values[0] + math.exp(-rate * (places - 1)) * math.tanh(rate / 2)
        kept = slice(0 if places <= _MOST_LISTED_LOSSES else 1, None)
        losses, values = np.append(0.0, losses[kept]), np.append(centre, values[kept])
    return losses * (1 + _ROUNDOFF), values * (1 + _ROUNDOFF)


@dataclass(frozen=True, kw_only=True)
class LaplaceRound(Round):
    r"""A round of sums with discrete Laplace noise, of which every client may have added a share.

    What is seen is, up to total variation ``distance``, a function of Σ x_i + k, with P[k_j] ∝
    :math:`e^{-ε_0|k_j|/sensitivity}` independently in every coordinate and x_i vectors of whole numbers
    (``docs/proofs/sums.md``, "Shares of discrete Laplace noise").

    Attributes:
        noise_epsilon: ε0 of the noise alone.
        sensitivity: largest \|x − x'\|₁ of two vectors that a client may hold.
        attained: a difference in one coordinate of two such vectors that does occur, in each of
            ``coordinates`` at once if they move ``evenly``: it makes the lower bound. 0 if none does.
        distance: bound on the total variation between the round and a function of that sum.
        coordinates: in how many two vectors differ, at most.
        evenly: whether each of them moves by sensitivity/coordinates at most.
        shape: how much of the noise is there, in (0, 1]: clients that added a share, over those whose
            shares add up to the noise.
    """

    cohort: int
    noise_epsilon: Annotated[float, in_range(above=0, at_most=checks.MAX_LOCAL_EPSILON)]
    sensitivity: Count
    attained: int = 0
    distance: Fraction = 0.0
    coordinates: Count = 1
    evenly: Flag = False
    shape: Annotated[float, in_range(above=0, at_most=1)] = 1.0

    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    KIND: ClassVar[str] = "laplace"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/sums.md"
    pair_name = "discrete Laplace"
    seen = "the sum with its noise, and nothing of what single clients add to it"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evenly and self.sensitivity % self.coordinates:
            raise ValueError("a sensitivity that moves evenly is a multiple of the number of coordinates")
        checks.whole("attained", self.attained, at_least=0, at_most=self._each)

    @property
    def _rate(self) -> float:
        return self.noise_epsilon / self.sensitivity

    @property
    def _each(self) -> int:
        return self.sensitivity // self.coordinates if self.evenly else self.sensitivity

    @property
    def _times(self) -> int:
        return self.coordinates if self.evenly else 1

    @property
    def pure_epsilon(self) -> float:
        """ε at δ = 0 of the sum itself, without ``distance`` and without sampling; exact, rounded up."""
        return self._times * self._largest_loss

    @property
    def _largest_loss(self) -> float:
        """Of one coordinate if they move evenly, otherwise of all together."""
        if self.shape == 1:
            return self._rate * self._each
        parts = (
            1 if self.evenly else self.coordinates
        )  # of a concave function's argument, which are worst equal
        shift = -(-self._each // parts)
        return parts * shared_laplace_loss(rate=self._rate, shape=self.shape, shift=shift)

    @property
    @override
    def description(self) -> str:
        noise = f"a sum with discrete Laplace noise of {self.noise_epsilon:.6g} nats"
        return noise if self.shape == 1 else f"{noise}, of which {self.shape:.4g} is there"

    @property
    @override
    def replacement_distance(self) -> float:
        return self.distance

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        if self.shape == 1:
            profile = _laplace_profile(rate=self._rate, shift=self._each)
        else:  # randomized response of the same largest loss dominates
            profile = _laplace_profile(rate=self._largest_loss, shift=1)
        rate = self.sampling_rate
        if self._times == 1:
            return profile_losses(*profile, resolution=resolution, sampling_rate=rate)
        alone = profile_losses(*profile, resolution=resolution)
        return sampled_composition([alone], [self._times], sampling_rate=rate, resolution=resolution)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        # 1 << 24: what can be listed
        known = self.shape == 1 and 0 < self.attained <= 1 << 24
        return ("discrete Laplace instance",) if known else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """Everybody else holds x', and the client x (P, if it takes part) or x', ``attained`` apart."""
        if exchanged and self._times == 1:
            return lower_losses(self, family, resolution).reversed()
        fall, rate = -self._rate, self.sampling_rate
        outside = 1 / (1 + math.exp(fall))
        inside = -math.expm1(fall) * outside * np.exp(fall * np.arange(1, self.attained))
        moved = np.concatenate([[outside], inside, [outside * math.exp(fall * self.attained)]])
        moved *= (
            1 - 1e-11
        )  # more than sums mod q can move: their range leaves out noise of probability 2**-40
        q = moved[::-1]
        p = moved if self._times > 1 else (1 - rate) * q + rate * moved
        alone = finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
        if self._times == 1:
            return alone
        return sampled_instance(
            [alone], [self._times], sampling_rate=rate, resolution=resolution, exchanged=exchanged
        )


@dataclass(frozen=True, kw_only=True)
class DecoyRound(Round):
    """A round of shuffled categories among which clients have hidden decoys (``docs/proofs/tags.md``).

    What is seen is, up to total variation ``distance``, a function of how often each category was sent: by
    the clients who hold it, and as a decoy, a Poisson number of mean ``decoys``, independently in each.
    Replacing a client moves two of these counts by one, and its ε is that of these two.

    Attributes:
        decoys: of each category, expected of the clients who follow the protocol together.
    """

    cohort: int
    decoys: Positive
    distance: Fraction = 0.0

    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    KIND: ClassVar[str] = "decoys"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/tags.md"
    pair_name = "two Poisson counts"
    seen = "all messages without senders and in random order"

    @property
    @override
    def description(self) -> str:
        return f"shuffled categories with {self.decoys:.6g} decoys of each"

    @property
    @override
    def replacement_distance(self) -> float:
        return self.distance

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        # Losses are log(a/b), of deviation √(2/decoys); the profile ends where b = 0 is all that is left.
        deviation = math.sqrt(2 / self.decoys)
        largest = min(14 * deviation + 40 / self.decoys, 3.0 + math.log1p(self.decoys), _LARGEST_DECOY_LOSS)
        points = min(math.ceil(2 * resolution.cells * largest / deviation) + 2, 4_000)
        losses = np.linspace(0.0, largest, points)
        deltas = poisson_profile(losses, mean=self.decoys)
        return profile_losses(losses, deltas, resolution=resolution, sampling_rate=self.sampling_rate)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        return ("two counts instance",) if self.decoys <= 1 << 12 else ()  # what can be listed

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """Everybody else holds x', and the client x (P, if it takes part) or x'."""
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        _, masses, _ = poisson_masses(self.decoys)
        still, moved = np.append(masses, 0.0), np.append(0.0, masses)
        away, stays = np.outer(moved, still).ravel(), np.outer(still, moved).ravel()
        listed = away + stays > 1e-25  # of all others together some 1e-20 at most
        p, q = self.sampling_rate * away + (1 - self.sampling_rate) * stays, stays
        found = finite_losses(
            None, p[listed], q[listed], missing=0.0, kind="lower", resolution=resolution, symmetric=False
        )
        return discounted(found, self.distance)


@dataclass(frozen=True, kw_only=True)
class CentralGaussianRound(Round):
    """A round of DP-SGD or DP-FedAvg with a trusted server, which releases Σ x_i + N(0, σ²·I).

    Nobody but the server sees a client's vector: it is no shuffled round, and is here so that both can be
    compared and be in one table. Under replace-one, and without sampling, the ends of ε meet but for the
    grid; so they do under Poisson sampling with add-or-remove-one.

    Attributes:
        cohort: k, or the expected number of clients under Poisson sampling.
        noise_multiplier: σ over the sensitivity of the sum, which is how far apart the sums of neighbours can
            be. With vectors clipped to the norm C that is C for ``"add-or-remove-one"`` and 2C for
            ``"replace-one"``: there a noise of 4·C has the multiplier 2.
        neighbouring_relation: ``"replace-one"`` or ``"add-or-remove-one"``. k of n drawn without replacement
            is accounted for the first alone, as the cohort's size is public.
    """

    cohort: float
    noise_multiplier: Positive
    neighbouring_relation: Annotated[NeighbouringRelation, one_of(NeighbouringRelation)] = (
        NeighbouringRelation.REPLACE_ONE
    )

    KIND: ClassVar[str] = "central-gaussian"
    SOURCE: ClassVar[str] = "Balle, Wang 2018, Theorem 8; Balle, Barthe, Gaboardi 2018, Theorem 11"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.POISSON)
    pair_name = "Gaussian"
    seen = "the noisy sum; the server sees every vector, and is trusted"

    @override
    def _check_cohort(self) -> None:
        if self.sampling is Sampling.POISSON:
            checks.number("cohort", self.cohort, above=0, at_most=self.population)
        else:
            if type(self.cohort) is float and self.cohort.is_integer():
                object.__setattr__(self, "cohort", int(self.cohort))
            super()._check_cohort()
        if self._adds_or_removes and self.sampling is Sampling.WITHOUT_REPLACEMENT:
            raise ValueError(
                "k of n without replacement has replace-one neighbours: with a client more or less the "
                "cohort's law is another; use neighbouring_relation='replace-one', or sampling='poisson'"
            )

    @property
    def _adds_or_removes(self) -> bool:
        return self.neighbouring_relation is NeighbouringRelation.ADD_OR_REMOVE_ONE

    @property
    @override
    def sampling_rate(self) -> float:
        hidden = self.sampling is not Sampling.FULL and not self.sees_cohort
        return self.cohort / self.population if hidden else 1.0

    @property
    @override
    def description(self) -> str:
        return f"a sum with Gaussian noise of {self.noise_multiplier:.6g} of its sensitivity, trusted server"

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        noise, rate = self.noise_multiplier, self.sampling_rate
        if rate == 1 or self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return gaussian_losses(noise_multiplier=noise, sampling_rate=rate, resolution=resolution)
        if self._adds_or_removes:
            return _removal_losses(noise_multiplier=noise, sampling_rate=rate, resolution=resolution)
        # Who is not drawn leaves the zero vector, half as far away as the record that takes its place.
        return participation_losses(
            noise_multiplier=noise, norm=0.5, participation=rate, sampling_rate=1.0, resolution=resolution
        )

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        return (
            ("Gaussian instance",) if self.noise_multiplier >= 0.05 else ()
        )  # with less nobody is protected

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """In one dimension, of a record at the norm C; the others hold zero, or the client's other record."""
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        mu, rate = 1 / self.noise_multiplier, self.sampling_rate
        opposite = self.sampling is Sampling.POISSON and not self._adds_or_removes
        ends = (-mu / 2, mu / 2) if opposite else (mu, 0.0)
        reach = 12.0 + max(map(abs, ends))
        cell = min(1.0, 1 / mu) / (8 * resolution.cells)
        edges = np.linspace(-reach, reach, 2 * math.ceil(reach / cell) + 1)
        p, q = (rate * _cells(edges - end) + (1 - rate) * _cells(edges) for end in ends)
        return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)


def _removal_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, of a Gaussian on a Poisson sample, one record with (P) and without it (Q).

    P = γN(μ, 1) + (1−γ)N(0, 1), Q = N(0, 1). With δ the Gaussian's profile H_E(P‖Q) is γ·δ(l) at
    E = 1 + γ(e^l − 1), and H_E(Q‖P) is γ·E·e^−l·δ(l) at 1/E = 1 − γ(1 − e^−l).
    """
    mu = 1 / noise_multiplier
    losses = profile_reach(mu, cells=resolution.cells)
    deltas = gaussian_profile(losses, mu=mu)
    added = -np.log1p(sampling_rate * np.expm1(-losses))
    right = hull_outcomes(np.log1p(sampling_rate * np.expm1(losses)), sampling_rate * deltas)
    apart = np.concatenate([[True], np.diff(added) > 0])  # far out the loss of an added record hardly grows
    left = hull_outcomes(added[apart], (sampling_rate * np.exp(added - losses) * deltas)[apart])
    return finite_losses(
        *joined(right, left, total=1.0),
        missing=max(left.beyond, right.beyond),
        kind="upper",
        resolution=resolution,
        symmetric=False,
    )


def _cells(edges: Floats) -> Floats:
    """Masses of a standard normal between edges."""
    left, right = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    return np.asarray(np.where(edges[1:] <= 0, left, right), dtype=np.float64)
