"""Rounds whose output is a count for each coordinate, of random bits that lean to the clients' values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from shuffle_plugins.accounting.composition.tags import sampled_instance
from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    discounted,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL
from shuffle_plugins.accounting.pairs.bits import has_leaning_instance, leaning_instance
from shuffle_plugins.accounting.pairs.gaussian_cover import (
    ScoreCover,
    gaussian_losses,
    participation_losses,
    score_cover,
)
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks

_INSTANCE = "opposite vectors instance"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonBinomialRound(Round):
    """A round of the Poisson binomial mechanism (Chen, Özgür, Kairouz 2022), in an ℓ2 ball.

    For each coordinate j a client with value v_j in [−1, 1] adds ``bits`` bits, each a one with probability
    (1 + τ·v_j)/2, τ = 1 − 2·``flip``. What is seen is the number of ones of all clients, in each coordinate.
    It is accounted through a Gaussian that covers the counts (``score_cover``), whose mean moves with the ℓ2
    norm of what v does: a client cannot be extreme in all coordinates at once.

    Attributes:
        population, cohort, sampling, adversary: as of :class:`Round`.
        dim: coordinates.
        bits: of one client in one coordinate.
        flip: q, the least probability of a one, in (0, ½).
        distance: bound on ‖v − v'‖₂ over two clients' values.
        honest: clients of the cohort counted on to follow the protocol; all of them if None.
        participation: probability with which each of the cohort, by a secret coin of its own, sends bits of
            its values; the others' are of v = 0. None if all send their own.
        attained: values of a v such that v, −v and 0 may all be sent, as (abs(v_j), how many coordinates),
            rounded down, coordinates of value 0 left out: it makes the lower bound. None if none is known.

    Raises:
        ValueError: if a field is out of range, the fields contradict each other, or so few clients hide
            nobody.
    """

    cohort: int
    dim: int
    bits: int
    flip: float
    distance: float
    honest: int | None = None
    participation: float | None = None
    attained: tuple[tuple[float, int], ...] | None = None

    KIND: ClassVar[str] = "poisson-binomial"
    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/counts.md"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (*Round.SAMPLINGS, Sampling.SINGLE_PASS)
    STORED: ClassVar[tuple[str, ...]] = (
        "dim",
        "bits",
        "flip",
        "distance",
        "population",
        "cohort",
        "honest",
        "participation",
        "attained",
    )

    def __post_init__(self) -> None:
        Round.__post_init__(self)
        checks.dim(self.dim)
        checks.whole("bits", self.bits)
        object.__setattr__(self, "flip", checks.number("flip", self.flip, above=0, below=0.5))
        object.__setattr__(self, "distance", checks.number("distance", self.distance, above=0))
        if self.honest is not None:
            checks.whole("honest", self.honest, at_most=self.cohort)
        object.__setattr__(self, "participation", checks.participation(self.participation))
        self._check_attained()
        self.cover()

    def _check_attained(self) -> None:
        if self.attained is None:
            return
        pairs = tuple((float(value), checks.whole("attained", count)) for value, count in self.attained)
        object.__setattr__(self, "attained", pairs)
        length = 2 * math.sqrt(math.fsum(count * value**2 for value, count in pairs))
        within = all(0 < value <= 1 for value, _ in pairs) and sum(count for _, count in pairs) <= self.dim
        if not pairs or not within or length > self.distance:
            raise ValueError(
                "attained must be values in (0, 1] of at most dim coordinates, of a v for which v and −v are "
                f"no further apart than distance={self.distance:g}; got {pairs}"
            )

    def opened(self) -> PoissonBinomialRound:
        """The round as one sees it who knows whose values the bits are of."""
        return replace(self, participation=None)

    def cover(self) -> ScoreCover:
        """The Gaussian that covers one bit's share in the count of a coordinate."""
        return score_cover(crowd=self._crowd, own=self.bits, flip=self.flip)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the covering Gaussian over the replace-one sensitivity."""
        return 1 / (self.cover().shift * self.bits * self.distance)

    @property
    def local_epsilon(self) -> float:
        """ε0 of all bits of one client together."""
        return self.dim * self.bits * (math.log1p(-self.flip) - math.log(self.flip))

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return "covering Gaussian"

    @property
    def description(self) -> str:
        """The noise over the sensitivity, which is twice the radius of a client's ball."""
        noise = f"counts of bits, as noise of {self.noise_multiplier:.6g} of the sensitivity"
        if self.participation is None:
            return noise
        return f"{noise}, with each client's data in it with probability {self.participation:.6g}"

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages."""
        return "the number of ones in each coordinate, over all clients, and nobody's own bits"

    @property
    def replacement_distance(self) -> float:
        """Total variation between the round and a function of the Gaussian mechanism, all coordinates."""
        return min(1.0, self.dim * self.cover().distance)

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of the covering Gaussian, on a sample."""
        if self.participation is None:
            return gaussian_losses(
                noise_multiplier=self.noise_multiplier,
                sampling_rate=self.sampling_rate,
                resolution=resolution,
            )
        return participation_losses(
            noise_multiplier=self.noise_multiplier,
            norm=1.0,  # the Gaussian covers pairs of values, not three at once
            participation=self.participation,
            sampling_rate=self.sampling_rate,
            resolution=resolution,
        )

    @property
    def lower_families(self) -> tuple[str, ...]:
        """All counts of one dataset, if two opposite records are known and the counts can be listed."""
        known = self.attained is not None and has_leaning_instance(others=self._crowd, own=self.bits)
        return (_INSTANCE,) if known else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy losses of a client that holds v or −v while everybody else holds −v.

        With secret participation it holds v or 0, and everybody else 0: then who does not take part sends
        what the others do.
        """
        return self._opposite_vectors(resolution, exchanged=False)

    def reversed_lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The same with the client's two vectors exchanged."""
        return self._opposite_vectors(resolution, exchanged=True)

    def _opposite_vectors(self, resolution: Resolution, *, exchanged: bool) -> PrivacyLossDistribution:
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

    @classmethod
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The fields, with the pairs of ``attained`` as tuples."""
        attained = saved.get("attained")
        return saved | {"attained": attained if attained is None else tuple(map(tuple, attained))}
