"""The code shared by sampled mechanisms: vectors of [-1, 1] as bit planes, sampled, flipped, and decoded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from typing_extensions import override

from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.bit_planes_law import (
    SampledPlan,
    budgets,
    plane_weights,
    worst_excess,
)
from shuffle_plugins.mechanisms.signs.coordinate_blocks import CoordinateBlocks
from shuffle_plugins.mechanisms.signs.randomized_response import plus_thresholds, sign_log_likelihood
from shuffle_plugins.mechanisms.signs.randomized_response_law import Constants, SignThresholds, split_budget
from shuffle_plugins.mechanisms.signs.unit_numbers import NumberRandomizer
from shuffle_plugins.randomness import Randomness

_MOST_OUTCOMES = 1 << 16  # more reports are not listed


def plane_value(x: Tensor, *, level: int, levels: int) -> Tensor:
    """What one level sends of each value of [-1, 1]: a sign ±1, or in the last the rest; float64.

    With the weights of :func:`plane_weights`, x is the weighted sum over levels 0, …, levels - 1. The value 1
    has all signs +1.
    """
    depth = min(level + 1, levels - 1)
    scaled = (x.double().clamp(-1, 1) + 1) * 2.0 ** (depth - 1)
    whole = scaled.floor().clamp_(max=2.0**depth - 1)
    return (scaled - whole if level == levels - 1 else whole.remainder_(2)) * 2 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BitPlanes:
    """m levels of s sampled coordinates each, every one a flipped sign.

    Attributes:
        dim: length of a vector.
        plan: numbers of levels and samples.
        thresholds: sign thresholds of each level.
        constants: whose constants.
        blocks: the blocks that coordinates are drawn from.
        weights: weight of each level.

    Raises:
        ValueError: if there is not one pair of thresholds for each level, or an argument is out of range.
    """

    dim: int
    plan: SampledPlan
    thresholds: tuple[SignThresholds, ...]
    constants: Constants = Constants.EXACT
    blocks: CoordinateBlocks = field(init=False)
    weights: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.thresholds) != self.plan.levels:
            raise ValueError(f"{self.plan.levels} levels need as many thresholds, got {len(self.thresholds)}")
        object.__setattr__(self, "blocks", CoordinateBlocks(dim=self.dim, count=self.plan.samples))
        object.__setattr__(self, "weights", plane_weights(self.plan.levels))

    @classmethod
    def within(
        cls, local_epsilon: float, *, dim: int, plan: SampledPlan, constants: Constants = Constants.EXACT
    ) -> Self:
        """Signs whose costs add up to at most ε0, shared out so that the worst variance is least.

        Raises:
            ValueError: if a sign's budget is below 1e-9, or an argument out of range.
        """
        levels, samples = plan.levels, plan.samples
        shares = budgets(levels, per_place=local_epsilon / samples, constants=constants)
        thresholds = split_budget(local_epsilon, shares=shares.tolist(), repeats=samples, constants=constants)
        return cls(dim=dim, plan=plan, thresholds=thresholds, constants=constants)

    @property
    def messages(self) -> int:
        """How many signs one report carries."""
        return self.plan.levels * self.plan.samples

    @property
    def bits(self) -> int:
        """Bits per report: levels · samples · (ceil(log2 ceil(dim/samples)) + 1)."""
        return self.messages * (self.blocks.index_bits + 1)

    @property
    def noises(self) -> tuple[float, ...]:
        """1/gain² - 1 of each level, free of cancellation."""
        return tuple(4 * t.low * t.high / (t.high - t.low) ** 2 for t in self.thresholds)

    @property
    def worst_variance(self) -> float:
        """Largest variance over [-1, 1]^dim, attained."""
        short, longer = divmod(self.dim, self.plan.samples)
        lengths = np.repeat([short + 1, short], [longer, self.plan.samples - longer])
        total = 0.0
        for level, (weight, noise) in enumerate(zip(self.weights, self.noises, strict=True)):
            last = level == self.plan.levels - 1
            excess = worst_excess(lengths, last=last, constants=self.constants)
            total += weight**2 * float(np.sum(lengths * (lengths * noise + excess)))
        return total

    @property
    def worst_second_moment(self) -> float:
        """Largest sum over coordinates of second moments of :meth:`moments`."""
        extra = 1.0 if self.constants is Constants.EXACT else 4.0
        squares = zip(self.weights, self.noises, strict=True)
        return self.blocks.square_lengths * sum(weight**2 * (noise + extra) for weight, noise in squares)

    def draw(self, clients: int, *, randomness: Randomness, device: torch.device) -> Tensor:
        """Places within blocks, (clients, levels, samples) int64, independent of all data."""
        return self.blocks.draw(clients, repeats=self.plan.levels, randomness=randomness, device=device)

    def columns(self, places: Tensor) -> Tensor:
        """Coordinates that places (..., samples) stand for."""
        return places + self.blocks.starts().to(places.device)

    def flip(self, values: Tensor, *, randomness: Randomness) -> Tensor:
        """Bits (clients, levels, samples) for values in [-1, 1] of the sampled coordinates."""
        plus = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        for level, thresholds in enumerate(self.thresholds):
            plus[:, level] = plus_thresholds(self._sent(values, level), thresholds=thresholds)
        return randomness.bernoulli(plus)

    def _sent(self, values: Tensor, level: int) -> Tensor:
        """What a level's signs (clients, samples) are about, for values (clients, levels, samples)."""
        return plane_value(values[:, level], level=level, levels=self.plan.levels)

    def _planes(self, x: Tensor) -> Iterator[tuple[float, float, Tensor]]:
        """Weight, noise and plane of each level, for all coordinates."""
        for level, (weight, noise) in enumerate(zip(self.weights, self.noises, strict=True)):
            yield weight, noise, plane_value(x, level=level, levels=self.plan.levels)

    @property
    def layout(self) -> tuple[FieldLayout, ...]:
        """The form of a report: places, unless blocks have one coordinate, and signs."""
        signs = FieldLayout(1, self.messages)
        bits = self.blocks.index_bits
        return (FieldLayout(bits, self.messages), signs) if bits else (signs,)

    def sent(self, places: Tensor, bits: Tensor) -> tuple[Tensor, ...]:
        """The fields of reports of places and bits: bits alone where every block has one coordinate."""
        return (places, bits) if self.blocks.index_bits else (bits,)

    def parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Coordinates and signs ±1 in reports of this layout, each (reports, levels, samples) int64.

        Raises:
            ValueError: if reports name a place that does not exist.
        """
        shape = (len(reports), self.plan.levels, self.plan.samples)
        parts = [field.values.to(torch.int64).reshape(shape) for field in reports.fields]
        bits = parts[-1]
        places = parts[0] if len(parts) == 2 else torch.zeros_like(bits)
        if bool(((places < 0) | (places >= self.blocks.lengths().to(places.device))).any()):
            raise ValueError("a report names a coordinate outside its block")
        if bits.numel() and not (int(bits.min()) >= 0 and int(bits.max()) <= 1):
            raise ValueError("a sign takes one bit")
        return self.columns(places), bits * 2 - 1

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum of vectors in [-1, 1], (dim,) float64.

        Whole numbers are counted first, so neither order nor chunks change more than the last rounding.

        Raises:
            ValueError: as :meth:`parse`.
        """
        columns, signs = self.parse(reports)
        total = self.estimate(self.count(columns, signs))
        if self.constants is Constants.THESIS:
            hits = self.count(columns, torch.ones_like(signs)).double()
            weights = torch.tensor(self.weights, dtype=torch.float64, device=hits.device)
            missed = (hits * weights.unsqueeze(1)).sum(dim=0)
            total += missed * self.blocks.lengths_by_coordinate().to(total.device) - len(reports)
        return total

    def estimate(self, counts: Tensor) -> Tensor:
        """What signs added up, (levels, dim), say of the sum, (dim,) float64: unbiased, from the centre."""
        scale = torch.tensor(
            [w / t.gain for w, t in zip(self.weights, self.thresholds, strict=True)], dtype=torch.float64
        )
        total = (counts.double() * scale.to(counts.device).unsqueeze(1)).sum(dim=0)
        return total * self.blocks.lengths_by_coordinate().to(total.device)

    def count(self, columns: Tensor, values: Tensor) -> Tensor:
        """Values (clients, levels, samples) added up at their columns, int64 (levels, dim)."""
        levels = torch.arange(self.plan.levels, device=columns.device).view(1, -1, 1) * self.dim
        counts = torch.zeros(self.plan.levels * self.dim, dtype=torch.int64, device=columns.device)
        return counts.index_add_(0, (columns + levels).flatten(), values.flatten()).view(-1, self.dim)

    def moments(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each level, mean and second moment of every coordinate of its estimate, (clients, dim) float64.

        Within a block the coordinates of one estimate are never both non-zero; blocks and levels are
        independent. The thesis's constant, -1 in every coordinate, is left out.

        Args:
            x: (clients, dim) in [-1, 1].
        """
        lengths = self.blocks.lengths_by_coordinate().to(x.device)
        for weight, noise, plane in self._planes(x):
            if self.constants is Constants.EXACT:
                yield weight * plane, (weight**2 * (noise + 1) * lengths).expand_as(plane)
            else:
                above = plane + 1
                yield weight * above, weight**2 * lengths * (noise + 2 * above)

    def variance(self, x: Tensor) -> Tensor:
        """E‖estimate - x‖² of each row of [-1, 1]^dim, (clients,) float64."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        lengths = self.blocks.lengths_by_coordinate().to(x.device).double()
        for weight, noise, plane in self._planes(x):
            if self.constants is Constants.EXACT:
                each = (lengths - plane.square()).sum(dim=1)
            else:
                above = plane + 1
                each = (2 * above * lengths - above.square()).sum(dim=1)
            total += weight**2 * (each + noise * self.blocks.square_lengths)
        return total

    def outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Places and bits (reports, levels, samples) of every report, if they are at most 2**16."""
        choices = (self.blocks.lengths() * 2).tolist() * self.plan.levels
        count = math.prod(choices)
        if count > _MOST_OUTCOMES:
            return None
        rest = torch.arange(count)
        digits = []
        for choice in choices:
            digits.append(rest % choice)
            rest = rest // choice
        drawn = torch.stack(digits, dim=1).view(count, self.plan.levels, self.plan.samples)
        return drawn // 2, drawn % 2

    def log_likelihood(self, reports: Reports, values: Tensor) -> Tensor:
        """Log-probability of each report for one vector in [-1, 1], (reports,) float64."""
        columns, signs = self.parse(reports)
        at = values[columns]
        total = torch.full((len(reports),), -self._log_places(), dtype=torch.float64, device=at.device)
        for level, thresholds in enumerate(self.thresholds):
            sent = self._sent(at, level)
            total += sign_log_likelihood(signs[:, level], sent, thresholds=thresholds).sum(dim=1)
        return total

    def _log_places(self) -> float:
        return self.plan.levels * float(self.blocks.lengths().double().log().sum())


class BitPlaneRandomizer(NumberRandomizer):
    """A randomizer that sends bit planes of sampled numbers of [-1, 1] that stand for a row.

    A subclass sets ``_planes`` when it is built.
    """

    _planes: BitPlanes

    @property
    def plan(self) -> SampledPlan:
        """How many bit planes there are, and how many coordinates are sent of each."""
        return self._planes.plan

    @property
    def constants(self) -> Constants:
        """Whether probabilities are exact, or those printed in the thesis."""
        return self._planes.constants

    @property
    def layout(self) -> ReportLayout:
        """The sampled places in their blocks, where blocks have more than one, and their signs."""
        return ReportLayout(self.name, self.dim, self._planes.layout)

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.check_reports(reports)
        return self._in_units(self._planes.sum(reports)).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Every combination of places and signs, where they are at most 2**16."""
        every = self._planes.outcomes()
        return None if every is None else self.layout.reports(*self._planes.sent(*every))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        self.check_reports(reports)
        return self._planes.log_likelihood(reports, self._numbers_of(x))

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """Sampled bits of the numbers that stand for each row."""
        places = self._planes.draw(x.num_rows, randomness=randomness, device=x.device)
        numbers = self._sampled_numbers(x, norms, self._planes.columns(places))
        bits = self._planes.flip(numbers, randomness=randomness)
        return self.layout.reports(*self._planes.sent(places, bits))
