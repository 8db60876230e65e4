"""Rounds of central training: a trusted server adds Gaussian noise to a sum of clipped vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from scipy.special import ndtr
from typing_extensions import override

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    hull_outcomes,
    joined,
)
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.pairs.noise import (
    gaussian_losses,
    gaussian_profile,
    participation_losses,
    profile_reach,
)
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import NeighbouringRelation, Sampling
from shuffle_plugins.core import Positive, checks, one_of

_INSTANCE = "Gaussian instance"
_LEAST_NOISE = 0.05  # of an instance that is listed: with less nobody is protected
_FINER = 8  # cells of the instance's outcomes in one of its losses' cells


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
    def pair_name(self) -> str:
        return "Gaussian"

    @property
    @override
    def description(self) -> str:
        return f"a sum with Gaussian noise of {self.noise_multiplier:.6g} of its sensitivity, trusted server"

    @property
    @override
    def seen(self) -> str:
        return "the noisy sum; the server sees every vector, and is trusted"

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        noise, rate = self.noise_multiplier, self.sampling_rate
        if rate == 1 or self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return gaussian_losses(noise_multiplier=noise, sampling_rate=rate, resolution=resolution)
        if self._adds_or_removes:
            return removal_losses(noise_multiplier=noise, sampling_rate=rate, resolution=resolution)
        # Who is not drawn leaves the zero vector, half as far away as the record that takes its place.
        return participation_losses(
            noise_multiplier=noise, norm=0.5, participation=rate, sampling_rate=1.0, resolution=resolution
        )

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        return (_INSTANCE,) if self.noise_multiplier >= _LEAST_NOISE else ()

    @override
    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """In one dimension, of a record at the norm C; the others hold zero, or the client's other record."""
        mu, rate = 1 / self.noise_multiplier, self.sampling_rate
        opposite = self.sampling is Sampling.POISSON and not self._adds_or_removes
        ends = (-mu / 2, mu / 2) if opposite else (mu, 0.0)
        reach = 12.0 + max(map(abs, ends))
        cell = min(1.0, 1 / mu) / (_FINER * resolution.cells)
        edges = np.linspace(-reach, reach, 2 * math.ceil(reach / cell) + 1)
        p, q = (rate * _cells(edges - end) + (1 - rate) * _cells(edges) for end in ends)
        return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)


def removal_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, of a Gaussian on a Poisson sample, one record with (P) and without it (Q).

    P = γN(μ, 1) + (1−γ)N(0, 1), Q = N(0, 1). With δ the Gaussian's profile H_E(P‖Q) is γ·δ(l) at
    E = 1 + γ(e^l − 1), and H_E(Q‖P) is γ·E·e^−l·δ(l) at 1/E = 1 − γ(1 − e^−l).

    Args:
        noise_multiplier: deviation over sensitivity.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are kept.
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
