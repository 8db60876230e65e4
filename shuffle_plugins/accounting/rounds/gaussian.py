"""Rounds of shuffled reports that are vectors of an l2 ball plus Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from typing_extensions import override

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    profile_losses,
    tighter,
)
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.search import narrowed
from shuffle_plugins.accounting.pairs.gaussian_reports import (
    gaussian_instance_losses,
    gaussian_round_profile,
)
from shuffle_plugins.accounting.pairs.shuffle import PairMixture
from shuffle_plugins.accounting.rounds.shuffle import ShuffleRound
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import NotNegative, Positive, checks

_INSTANCE = "sum of Gaussian reports"
_WITHOUT_INSTANCE = (Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH)
_LARGEST_RADIUS = 4.0  # in units of σ; beyond it, reports have next to nothing in common


@dataclass(frozen=True, kw_only=True)
class GaussianReportsRound(ShuffleRound):
    """A shuffled round of reports that are a vector of an l2 ball plus N(0, σ²) on every coordinate.

    No such report is ε0-LDP, but its likelihoods are known. They are used here in any dimension: what can be
    told does not depend on it. Nothing is charged for the reports' δ0, but where the analysis says nothing:
    in epochs and check-ins, without ``channel_fixed``, in rounds of few reports, and for little noise. Those
    are accounted as a :class:`ShuffleRound` of (ε0, δ0) reports (``docs/proofs/noise.md``, section 6).
    Reports of one number have a blanket of their own: a round that is given one takes the smaller of both
    bounds, and needs no δ0.

    Attributes:
        local_epsilon, local_delta: ε0 and δ0 of one report.
        mechanism, blanket: as of :class:`ShuffleRound`, of reports of one number; both or neither.
        population, cohort, sampling, adversary, channel_fixed: as of :class:`ShuffleRound`.
        radius: of the ball of records, in units of σ, the noise's standard deviation: r/σ for a ball of
            radius r. Positive. Two records are at most 2·radius·σ apart.
        attained: in the same unit, the length of two records that clients may really hold, opposite each
            other; it makes the lower bound. 0 if none are known.
    """

    radius: Positive = field()
    attained: NotNegative = 0.0

    KIND: ClassVar[str] = "gaussian-reports"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("attained", self.attained, at_most=self.radius)
        if self.blanket is None and self.mechanism != "generic":
            raise ValueError(
                "a GaussianReportsRound without a blanket has its radius over σ and no mechanism: omit it"
            )

    @property
    @override
    def comparable(self) -> tuple[Any, ...] | None:
        if type(self) is not GaussianReportsRound:
            return None
        own = () if self.blanket is None else (self.mechanism, self.blanket.state())
        return self.KIND, (self.radius, self.attained, self.channel_fixed, *own)

    @property
    @override
    def description(self) -> str:
        return f"Gaussian reports with σ = {1 / self.radius:.6g} times the radius"

    @property
    @override
    def pair_name(self) -> str:
        plain = super().pair_name
        if self._profile() is None:
            return plain
        return "Gaussian reports" if self.blanket is None else f"Gaussian reports and {plain}"

    @property
    @override
    def replacement_distance(self) -> float:
        if self._profile() is not None:
            return 0.0
        return super().replacement_distance

    @override
    def instances(self) -> dict[str, PairMixture]:
        return {} if self.blanket is None else super().instances()

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        profile = self._profile()
        if profile is None:
            return super().upper_losses(resolution)
        found = profile_losses(*profile, resolution=resolution)
        if self.blanket is None:
            return found
        return tighter(super().upper_losses(resolution), found)

    @override
    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        if self._profile() is None:
            return super().upper_losses_from_below(resolution)
        return None

    @property
    @override
    def resolves_alone(self) -> bool:
        return self._profile() is None and super().resolves_alone

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        if self.blanket is not None:
            return super().lower_families
        known = self.attained > 0 and self.sampling not in _WITHOUT_INSTANCE
        return (_INSTANCE,) if known else ()

    @override
    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        if self.blanket is not None:
            return super().lower_losses(family, resolution)
        return gaussian_instance_losses(radius=self.attained, draw=self, resolution=resolution)

    @property
    def remedy(self) -> str:
        """How many reports hide each other by their noise, so that nothing is charged for δ0."""
        if self._profile() is not None:
            return ""
        everybody = self.population if self.sampling is Sampling.WITHOUT_REPLACEMENT else self.cohort

        def hides(cohort: float) -> bool:
            return replace(self, cohort=round(cohort))._profile() is not None

        if everybody == self.cohort or not hides(everybody):
            return f"{self.description} are hidden by no such cohort: take more noise"
        _, least = narrowed(lambda cohort: not hides(cohort), self.cohort, everybody, precision=0.05)
        return f"{self.description} hide each other from about {math.ceil(least)} of {self.population} on"

    def _profile(self) -> tuple[Floats, Floats] | None:
        if self.spans_batches or not self.channel_fixed or self.radius > _LARGEST_RADIUS:
            return None
        sampling = self.sampling
        if sampling is Sampling.EPOCH:  # before a server, one batch
            sampling = Sampling.FULL
        if sampling is Sampling.CHECK_IN:
            return None
        return gaussian_round_profile(
            radius=self.radius,
            population=self.population,
            cohort=self.cohort,
            sampling=sampling,
            sees_cohort=self.sees_cohort,
        )
