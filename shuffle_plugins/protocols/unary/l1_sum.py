"""Sums of vectors in an ℓ1 ball by counted unary encoding: each client sends one signed coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from shuffle_plugins.accounting import BitEncoding, PrivacyTarget
from shuffle_plugins.core import FieldLayout, ReportLayout, Rows, checks, rows_at_once
from shuffle_plugins.mechanisms import CountRange, Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.protocols.shuffle_protocol import check_cohort, honest_population
from shuffle_plugins.protocols.tally import Tally
from shuffle_plugins.protocols.unary.unary_counts import (
    FAILURE,
    UnaryCounts,
    affordable_failure,
    calibrated_bits,
    epsilon_of_noise,
    weight_limit,
)
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryL1Sum(UnaryCounts, PrivateSum):
    """The sum of vectors in an ℓ1 ball, by counted unary encoding of one drawn coordinate per client.

    A client draws one coordinate: j with probability \\|x_j\\|/radius, and none with the remaining
    probability. Among 2·dim bits, one for each coordinate and sign, it sets the bit of that coordinate and
    its sign. The set bit, as a signed vector times the radius, is x on average. It then flips all bits as in
    :class:`CountedUnary`. Use it when each client holds a histogram (the fractions of its own records in each
    category), or another short vector of small ℓ1 norm. Data are floating (clients, dim).

    Attributes:
        dim: d, length of a client's vector.
        radius: ℓ1 radius of the ball; longer vectors are scaled onto it.
        cohort, bit_epsilon, encoding, max_weight, honest_fraction: as of :class:`CountedUnary`.

    Raises:
        ValueError: if a field is out of range.
    """

    name: ClassVar[str] = "unary-l1-sum"
    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"
    norm: ClassVar[Norm] = Norm.L1

    dim: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        object.__setattr__(self, "radius", checks.radius(self.radius))
        UnaryCounts.__post_init__(self)

    @classmethod
    def calibrated(
        cls,
        *,
        dim: int,
        cohort: int,
        epsilon: float,
        delta: float,
        radius: float = 1.0,
        encoding: BitEncoding | str = BitEncoding.SYMMETRIC,
        num_steps: int = 1,
        population: int | None = None,
        honest_fraction: float = 1.0,
        failure: float | None = FAILURE,
    ) -> Self:
        """The protocol of the least noise whose certified ε at δ is at most ``epsilon``.

        Args:
            dim, cohort, radius, encoding, honest_fraction: as the fields.
            epsilon, delta, num_steps, population, failure: as in :meth:`CountedUnary.calibrated`.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        kind = checks.choice(BitEncoding, "encoding", encoding)

        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        affordable = affordable_failure(failure, target)
        return calibrated_bits(
            target,
            build=lambda bit_epsilon: cls._limited(
                dim=dim,
                cohort=cohort,
                radius=radius,
                bit_epsilon=bit_epsilon,
                encoding=kind,
                honest_fraction=honest_fraction,
                failure=affordable,
            ),
            ones=1,
            encoding=kind,
            cohort=cohort,
            population=population,
            honest_fraction=honest_fraction,
        )

    @classmethod
    def with_noise(
        cls,
        *,
        dim: int,
        cohort: int,
        noise_multiplier: float,
        radius: float = 1.0,
        encoding: BitEncoding | str = BitEncoding.SYMMETRIC,
        honest_fraction: float = 1.0,
        failure: float | None = FAILURE,
    ) -> Self:
        """The protocol that, to leading order, is as private as a Gaussian of this noise multiplier.

        This is an approximation; its :meth:`round` says what it really costs.

        Args:
            dim, cohort, radius, encoding, honest_fraction: as the fields.
            noise_multiplier: deviation of that Gaussian over ``radius``, in each coordinate of the sum. Over
                the replace-one sensitivity it is half as much.
            failure: as in :meth:`calibrated`, but taken as it is: how many steps there will be is not known
                here. Many steps need less than a hundredth of δ/(steps·(1 + e^ε)).

        Raises:
            ValueError: if a number is out of range.
        """
        kind = checks.choice(BitEncoding, "encoding", encoding)
        noise = checks.number("noise_multiplier", noise_multiplier, above=0) / 2
        honest = honest_population(check_cohort(cohort), honest_fraction)
        return cls._limited(
            dim=dim,
            cohort=cohort,
            radius=radius,
            bit_epsilon=epsilon_of_noise(noise, ones=1, encoding=kind, honest=honest),
            encoding=kind,
            honest_fraction=honest_fraction,
            failure=failure,
        )

    @classmethod
    def _limited(
        cls,
        *,
        dim: int,
        cohort: int,
        radius: float,
        bit_epsilon: float,
        encoding: BitEncoding,
        honest_fraction: float,
        failure: float | None,
    ) -> Self:
        return cls(
            dim=dim,
            cohort=cohort,
            radius=radius,
            bit_epsilon=bit_epsilon,
            encoding=encoding,
            honest_fraction=honest_fraction,
            max_weight=weight_limit(
                failure,
                size=2 * checks.dim(dim),
                ones=1,
                bit_epsilon=bit_epsilon,
                encoding=encoding,
                cohort=check_cohort(cohort),
            ),
        )

    @property
    def size(self) -> int:
        """Bits of a report: two for each coordinate, for its signs."""
        return 2 * self.dim

    @property
    def ones(self) -> int:
        """1: a client sets at most one bit before the flips."""
        return 1

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: its flipped bits, first those of positive coordinates."""
        return ReportLayout(self.name, self.dim, (FieldLayout(1, self.size),))

    @property
    def counts(self) -> CountRange:
        """A client's number for each of its bits: 0 or 1. How many may be set is no part of the range."""
        return CountRange(self.size, 0, 1)

    @property
    def local_epsilon(self) -> float:
        """ε0 of one client's whole report, in nats."""
        return self.round().local_epsilon

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖², from the flips and from each client's draw of one coordinate."""
        return self.radius**2 * (self.counts_variance + self.cohort)

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of the sum of the vectors, float64 (dim,).

        Args:
            total: what :meth:`total` or :meth:`tally` returned.
            reports: how many clients' messages are in it; a tally may say so by itself.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        counts = self._counts(total, reports=reports)
        return (counts[: self.dim] - counts[self.dim :]) * self.radius

    def _sum(self, total: Tensor, *, reports: int) -> Tensor:
        return self.estimate(total, reports=reports)

    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")
        rows, _ = rows.finite(rows.l1_norm())
        held = torch.empty(rows.num_rows, 1, dtype=torch.int64)
        step = rows_at_once(self.dim, device=held.device)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows)).dense().double().cpu()
            reached = part.abs().cumsum(dim=1)
            length = reached[:, -1:].clamp(min=self.radius)
            place = randomness.uniform((len(part), 1)) * length
            column = torch.searchsorted(reached, place, right=True)
            chosen = column.clamp(max=self.dim - 1)
            negative = part.gather(1, chosen) < 0
            held[start : start + step] = torch.where(column < self.dim, chosen + self.dim * negative, -1)
        return held
