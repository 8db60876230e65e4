"""Multi-message mean estimation: flipped bits of sampled coordinates, each shuffled under its tag.

How loud each bit plane is, and why further planes cost nothing but bits: docs/proofs/tags.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar

import torch
from scipy.optimize import brentq
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Tag, TaggedRound
from shuffle_plugins.compressors.frames import KashinFrame, TightFrame
from shuffle_plugins.compressors.quantization import SignThresholds
from shuffle_plugins.core import ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Count, Dim, Positive, Radius, one_of
from shuffle_plugins.core.rows import rows_at_once
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.mechanisms.bit_planes import (
    MAX_LEVELS,
    NEXT_TO_NOTHING,
    BitPlanes,
    SampledPlan,
    plane_leans,
    plane_weights,
)
from shuffle_plugins.mechanisms.coefficients import (
    Frame,
    check_expected,
    flat_lean,
    representation,
    sound_level,
)
from shuffle_plugins.protocols.sums import LabelledSum, Tally, WantedNoise, check_bits
from shuffle_plugins.randomness.sources import Randomness, secure

_QUIETEST, _LOUDEST = 1e-8, 400.0  # ε0 of one message, where searches end


@dataclass(frozen=True, kw_only=True)
class TaggedSum(LabelledSum[TaggedRound]):
    """The thesis's multi-message mean estimation (Girgis 2023, Chapter 3), as a sum.

    A datum is brought to :math:`[-1, 1]^D` and written as ``levels`` bit planes. Of each plane a client draws
    one coordinate from each of ``samples`` blocks and sends a flipped sign under the label of plane and
    coordinate. The label's *tag*, its plane and block, gets one message from each client. Messages of one tag
    are shuffled (Remark 3.2.1). :meth:`round` composes what each tag costs exactly.

    Attributes:
        budget: v, ε0 of all messages of one client together. Planes share it so that the variance of a
            shuffled sum is least.
        samples: s, blocks per plane, in [1, D].
        levels: m, bit planes.
    """

    in_secret: ClassVar[bool] = True
    only_levels: ClassVar[int | None] = None  # of data that have no more

    dim: Dim
    budget: Positive
    samples: Count
    levels: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("samples", self.samples, at_most=self.size)
        _ = self.planes, self.round()

    @cached_property
    def planes(self) -> BitPlanes:
        """The bits of all tags."""
        thresholds = tuple(map(SignThresholds.of, self.message_epsilons))
        return BitPlanes(dim=self.size, plan=self.plan, thresholds=thresholds)

    @property
    def size(self) -> int:
        """D, coordinates that are sampled."""
        return self._coefficients(dim=self.dim)

    @classmethod
    def _coefficients(cls, *, dim: int, **data: Any) -> int:
        return checks.dim(dim)

    @property
    def flat(self) -> float:
        """How large all coordinates of two opposite data are, at most 1: they make the lower bound."""
        return 1.0

    @abstractmethod
    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        """What is at these coordinates of each datum in [-1, 1]^D, of the shape (clients, …) of columns."""

    @abstractmethod
    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        """From the estimated sum in [-1, 1]^D to the one in units of the data, (dim,)."""

    @override
    @classmethod
    def _of_noise(
        cls,
        wanted: WantedNoise,
        *,
        overhead: float = 0.1,
        levels: int | None = None,
        samples: int | None = None,
        **data: Any,
    ) -> dict[str, Any]:
        size = cls._coefficients(**data)
        plan = _best_plan(
            size=size,
            cohort=wanted.honest,
            noise=wanted.noise_multiplier,
            overhead=checks.number("overhead", overhead, above=0, at_most=1),
            levels=cls.only_levels if levels is None else levels,
            samples=samples,
        )
        budget = plan.samples * sum(
            _epsilons(plan.levels, _strength(plan, size, wanted.honest, wanted.noise_multiplier))
        )
        # Parties whose processors round differently agree on it.
        budget = float(f"{budget:.9g}")
        return {"budget": budget, "samples": plan.samples, "levels": plan.levels, **data}

    @property
    def plan(self) -> SampledPlan:
        """Levels and samples of what a client sends."""
        return SampledPlan(levels=self.levels, samples=self.samples)

    @property
    def message_epsilons(self) -> tuple[float, ...]:
        """ε0 of one message of each plane, in nats; a ValueError if it is below 1e-8 or above 400."""
        return _level_epsilons(self.plan, self.budget)

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> TaggedRound:
        single, several = _tag_counts(self.plan, size=self.size)
        # Of numbers next to 0 the last of several planes is almost certain, too.
        sizes = (self.flat, self.flat * NEXT_TO_NOTHING)
        leans = max((plane_leans(size, levels=self.levels) for size in sizes), key=min)
        counts = [(count, places) for count, places in ((single, False), (several, True)) if count]
        return TaggedRound(
            tags=tuple(
                Tag(local_epsilon=epsilon, count=count, places=places, lean=lean)
                for epsilon, lean in zip(self.message_epsilons, leans, strict=True)
                for count, places in counts
            ),
            honest=honest,
            opposite=True,
            participation=participation,
            **who,
        )

    @property
    def messages_per_client(self) -> int:
        """Messages that a client sends: one under each tag, m·s."""
        return self.levels * self.samples

    @property
    def labels(self) -> int:
        """Planes times coordinates, m·D: label k·D + j is coordinate j of plane k."""
        return self.levels * self.size

    @property
    def layout(self) -> ReportLayout:
        """A place in its block and a bit for each tag, in order."""
        return ReportLayout(self.name, self.dim, self.planes.layout)

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.labels, -1, 1)

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        places, bits = self._encoded(self._rows(x), randomness)
        return self.layout.reports(*self.planes.sent(places, bits))

    def surplus(self, counted: Tally) -> int:
        """Messages under tags beyond one of each client; honest clients send none."""
        return int((self._sent(counted) - self.cohort).clamp(min=0).sum())

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        source = secure(randomness)
        rows = self._rows(x)
        counts = torch.zeros(self.labels, dtype=torch.int64)
        wide = max(self.messages_per_client, self.size)
        step = rows_at_once(wide, device=rows.device, entries=1 << 20)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows))
            places, bits = self._encoded(part, source)
            counts += self._added(self.planes.columns(places), bits.to(torch.int64) * 2 - 1)
        return counts

    @override
    def total(self, reports: Reports) -> Tensor:
        self.layout.check(reports)
        return self._added(*self.planes.parse(reports))

    @override
    def _sent(self, tally: Tally) -> Tensor:
        by_plane = tally.bits.view(self.levels, self.size).cumsum(dim=1)
        ends = self.planes.blocks.starts + self.planes.blocks.lengths - 1
        before = torch.zeros(self.levels, 1, dtype=torch.int64)
        return by_plane[:, ends].diff(dim=1, prepend=before).flatten()

    @override
    def _total_of(self, tally: Tally) -> Tensor:
        return 2 * tally.ones - tally.bits

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        sums = self.planes.estimate(numbers.view(self.levels, self.size))
        return self._in_units(sums, reports=reports)

    @override
    def _read(self, reports: Reports) -> list[tuple[Tensor, Tensor]]:
        self.layout.check(reports)
        columns, signs = self.planes.parse(reports)
        labels = columns + torch.arange(self.levels, device=columns.device)[:, None] * self.size
        return list(zip(labels.flatten(1), (signs > 0).flatten(1), strict=True))

    @override
    def _listed(self, read: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return read

    def _encoded(self, rows: Rows, randomness: Randomness) -> tuple[Tensor, Tensor]:
        places = self.planes.draw(rows.num_rows, randomness=randomness, device=rows.device)
        values = self._values(rows, self.planes.columns(places))
        return places, self.planes.flip(values, randomness=randomness)

    def _added(self, columns: Tensor, signs: Tensor) -> Tensor:
        counts: Tensor = self.planes.count(columns, signs).cpu().flatten()
        return counts


@dataclass(frozen=True, kw_only=True)
class CubeSum(TaggedSum):
    """The sum of vectors in an ℓ∞ ball: Girgis's thesis, Algorithms 3.5.1 and 3.5.2. See TaggedSum.

    Coordinates larger than ``radius`` are clipped, each by itself.
    """

    name: ClassVar[str] = "multi-message-cube"

    radius: Radius = 1.0

    @property
    def worst_variance(self) -> float:
        """Largest E‖estimate − Σ x_i‖² over the ball, attained."""
        return self.cohort * self.radius**2 * self.planes.worst_variance

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        return (rows.gather(columns).double() / self.radius).clamp_(-1, 1)

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return sums * self.radius


@dataclass(frozen=True, kw_only=True)
class BinarySum(TaggedSum):
    """The sum of vectors of zeros and ones: Girgis's thesis, Algorithms 3.3.1 and 3.3.2. See TaggedSum.

    What is not sampled counts as one half, not as zero as in the thesis.
    """

    name: ClassVar[str] = "multi-message-binary"
    only_levels: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        if self.levels != 1:
            raise ValueError(f"a bit has one plane, got levels={self.levels!r}")
        super().__post_init__()

    @property
    def worst_variance(self) -> float:
        """E‖estimate − Σ x_i‖², the same for all data."""
        (noise,) = self.planes.noises
        return self.cohort / 4 * (self.planes.blocks.square_lengths * (noise + 1) - self.dim)

    @override
    def _rows(self, x: Tensor | Rows) -> Rows:
        rows = super()._rows(x)
        check_bits(rows.blocks)
        return rows

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        return rows.gather(columns).double() * 2 - 1

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return (sums + reports) / 2


@dataclass(frozen=True, kw_only=True)
class BallSum(TaggedSum, PrivateSum):
    """The sum of vectors in an ℓ2 ball: Girgis's thesis, Algorithms 3.6.1 and 3.6.2. See TaggedSum.

    The D coefficients of a public frame go the way of :class:`CubeSum`. In a Kashin frame none is larger than
    about 2·radius/√D. A rotation takes one transform and half as many messages, but its coefficients are
    clipped at √(2 log(2Dn/β))·radius/√D, which for vectors chosen before the seed happens to nobody but with
    probability β; variance is about ten times a Kashin frame's.

    Attributes:
        radius: ℓ2 radius of the ball; longer vectors are scaled onto it.
        seed: fixes the frame. It is public and all must use the same.
        failure: β of a rotation, in (0, 1).
    """

    name: ClassVar[str] = "multi-message"
    norm: ClassVar[Norm] = Norm.L2

    radius: Radius = 1.0
    frame: Annotated[Frame, one_of(Frame)] = Frame.KASHIN
    seed: int = 0
    failure: float = 1e-6

    def __post_init__(self) -> None:
        check_expected(clients=self.cohort, failure=self.failure)
        super().__post_init__()

    @cached_property
    def spread(self) -> TightFrame:
        """How a vector is spread over coefficients."""
        return representation(self.frame, dim=self.dim, seed=self.seed)

    @property
    def size(self) -> int:
        """D, coefficients of a vector: the next power of two, or twice that for a Kashin frame."""
        return self.spread.size

    @override
    @classmethod
    def _coefficients(cls, *, dim: int, frame: Frame | str = Frame.KASHIN, seed: int = 0, **data: Any) -> int:
        return representation(checks.choice(Frame, "frame", frame), dim=checks.dim(dim), seed=seed).size

    @property
    def flat(self) -> float:
        """The coefficients of ±radius·e_1, a row of a Hadamard matrix, over the largest there may be."""
        return flat_lean(self._level)

    @property
    def coefficient_radius(self) -> float:
        """Beyond which a coefficient is clipped, in units of the data."""
        return self._level * self.radius / math.sqrt(self.size)

    @property
    def _level(self) -> float:
        if isinstance(self.spread, KashinFrame):
            return self.spread.level
        return sound_level(size=self.size, clients=self.cohort, failure=self.failure)

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖² over data of which no coefficient is clipped."""
        planes = self.planes
        unit = (
            planes.worst_variance
            if self.spread.isometric
            else self.spread.column_square * planes.worst_second_moment
        )
        return self.cohort * self.coefficient_radius**2 * unit

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        norms = rows.l2_norm().double()
        scale = self.radius / norms.clamp(min=self.radius) / self.coefficient_radius
        wanted = columns.flatten(1)
        if isinstance(self.spread, KashinFrame) or wanted.shape[1] <= self.size.bit_length():
            values = self.spread.coefficients(rows, wanted)
        else:
            values = self.spread.represent(rows.dense().to(rows.compute_dtype)).gather(1, wanted)
        return (values.double() * scale.unsqueeze(1)).clamp_(-1, 1).view(columns.shape)

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return self.spread.reconstruct(sums) * self.coefficient_radius


# -- how many coordinates and bit planes to send, and how loudly --------------------------------------------


@lru_cache(maxsize=256)
def _best_plan(
    *, size: int, cohort: int, noise: float, overhead: float, levels: int | None, samples: int | None
) -> SampledPlan:
    """The plan of fewest bits whose worst variance is within ``overhead`` of the best plan's."""
    if samples is not None:
        checks.whole("samples", samples, at_most=size)
    if levels is not None:
        checks.whole("levels", levels, at_most=MAX_LEVELS)
    halved = sorted({-(-size // (1 << j)) for j in range(size.bit_length())})
    found: list[tuple[float, int, SampledPlan]] = []
    problem: ValueError | None = None
    for s in halved if samples is None else [samples]:
        for m in range(1, 17) if levels is None else [levels]:
            plan = SampledPlan(levels=m, samples=s)
            try:
                variance = _variance(plan, size=size, strength=_strength(plan, size, cohort, noise))
            except ValueError as error:
                problem = error
                continue
            index_bits = (-(-size // s) - 1).bit_length()
            found.append((variance, m * s * (index_bits + 1), plan))
    if not found:
        raise ValueError(f"no plan of messages is as loud as that: {problem}")
    limit = min(variance for variance, _, _ in found) * (1 + overhead) * (1 + 1e-9)
    good = [entry for entry in found if entry[0] <= limit]
    return min(good, key=lambda entry: (entry[1], entry[0]))[2]


def _tag_counts(plan: SampledPlan, *, size: int) -> tuple[int, int]:
    """Blocks of one level that have a single place, and those that have more."""
    short, longer = divmod(size, plan.samples)
    return (plan.samples - longer, longer) if short == 1 else (0, plan.samples)


def _epsilons(levels: int, strength: float) -> tuple[float, ...]:
    """v_k with sinh²(v_k/2) = strength²·W_k."""
    return tuple(2 * math.asinh(strength * math.sqrt(weight)) for weight in plane_weights(levels))


@lru_cache(maxsize=4096)
def _level_epsilons(plan: SampledPlan, budget: float) -> tuple[float, ...]:
    """ε0 of one message of each level, such that all of a client's messages add up to ``budget``."""

    def excess(log_strength: float) -> float:
        return sum(_epsilons(plan.levels, math.exp(log_strength))) - budget / plan.samples

    return _epsilons(plan.levels, _solved(excess, levels=plan.levels, what=f"budget={budget:g}"))


@lru_cache(maxsize=4096)
def _strength(plan: SampledPlan, size: int, cohort: int, noise: float) -> float:
    """How loud messages protect, to leading order, as a Gaussian of this noise multiplier."""
    single, several = _tag_counts(plan, size=size)

    def excess(log_strength: float) -> float:
        told = -cohort / noise**2
        for epsilon in _epsilons(plan.levels, math.exp(log_strength)):
            bit = math.sinh(epsilon / 2) ** 2
            told += bit * (single + several * 2 / (1 + math.exp(-epsilon)))
        return told

    return _solved(excess, levels=plan.levels, what=f"noise_multiplier={noise:g}")


def _solved(excess: Callable[[float], float], *, levels: int, what: str) -> float:
    low = math.log(math.sinh(_QUIETEST / 2)) - math.log(min(plane_weights(levels))) / 2
    high = math.log(math.sinh(_LOUDEST / 2))
    if excess(low) > 0 or excess(high) < 0:
        raise ValueError(
            f"{what} leaves no message of the {levels} levels between {_QUIETEST:g} and {_LOUDEST:g}: "
            "send more or fewer messages"
        )
    return math.exp(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-14)))


def _variance(plan: SampledPlan, *, size: int, strength: float) -> float:
    """Worst E‖estimate − x‖² of one client's vector in [-1, 1]^size."""
    short, longer = divmod(size, plan.samples)
    total = 0.0
    for k, weight in enumerate(plane_weights(plan.levels)):
        noise = 1 / (strength**2 * weight)
        for blocks, length in ((longer, short + 1), (plan.samples - longer, short)):
            total += weight**2 * blocks * length * (length * noise + length - (k < plan.levels - 1))
    return total
