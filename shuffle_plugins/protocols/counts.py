"""Sums of vectors in an ℓ2 ball by the Poisson binomial mechanism: a few random bits per coefficient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting import PoissonBinomialRound
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.compressors.frames import KashinFrame
from shuffle_plugins.compressors.quantization import SignThresholds
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.checks import Dim, LocalEpsilon, Radius, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import rows_at_once
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.lattices import compiled_kernels
from shuffle_plugins.protocols.sums import CountSum, Tally, TargetUnreachable, WantedNoise
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure

MOST_BITS_EACH = (1 << 20) - 1  # of one client in one coordinate

_ROUNDING = 1e-9  # relative, by which rounding may move a norm
_IN_CACHE = 1 << 16  # bits that stay in a processor's own cache


@dataclass(frozen=True, kw_only=True)
class PoissonBinomialSum(CountSum[PoissonBinomialRound], PrivateSum):
    """The sum of vectors in an ℓ2 ball by the Poisson binomial mechanism: random bits, and no other noise.

    Chen, Özgür, Kairouz 2022, "The Poisson Binomial Mechanism for unbiased federated learning with secure
    aggregation". For each coefficient of a Kashin frame a client sends ``bits`` bits, each a one with
    probability :math:`(1 + τ v)/2`, v in [−1, 1] the coefficient in units of :attr:`coefficient_radius`. The
    cost depends on the ℓ2 norm of all of a client's coefficients together (``docs/proofs/counts.md``).

    Attributes:
        message_epsilon: ε0 of one bit, in nats: τ = tanh(ε0/2), rounded down.
        radius: ℓ2 radius of the ball; longer vectors are scaled onto it.
        seed: fixes the frame. It is public and all must use the same.
    """

    name: ClassVar[str] = "poisson-binomial"
    in_secret: ClassVar[bool] = True
    norm: ClassVar[Norm] = Norm.L2

    dim: Dim
    bits: Annotated[int, whole_number(at_most=MOST_BITS_EACH)]
    message_epsilon: LocalEpsilon
    radius: Radius = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.round()

    @cached_property
    def spread(self) -> KashinFrame:
        """How a vector is spread over coefficients."""
        return KashinFrame(dim=self.dim, seed=self.seed)

    @cached_property
    def thresholds(self) -> SignThresholds:
        """The probabilities of a bit."""
        return SignThresholds.of(self.message_epsilon)

    @override
    @classmethod
    def _of_noise(  # type: ignore[override]
        cls,
        wanted: WantedNoise,
        *,
        dim: int,
        seed: int = 0,
        overhead: float = 0.1,
        bits: int | None = None,
        **data: Any,
    ) -> dict[str, Any]:
        """With the fewest bits, of the form 2^k − 1, whose variance exceeds that of many by ``overhead``."""
        spread = KashinFrame(dim=checks.dim(dim), seed=seed)
        checks.number("overhead", overhead, above=0, at_most=1)
        noise = _distance(spread) / 2 * wanted.noise_multiplier  # in units of a coefficient's radius
        if bits is None:
            bits = _fewest_bits(honest=wanted.honest, noise=noise, overhead=overhead)
        checks.whole("bits", bits, at_most=MOST_BITS_EACH)

        def quietness(gain: float) -> float:
            try:
                found = PoissonBinomialRound(
                    dim=spread.size,
                    bits=bits,
                    flip=_flip(SignThresholds.of(2 * math.atanh(gain))),
                    distance=_distance(spread),
                    population=wanted.honest,
                    cohort=wanted.honest,
                )
            except ValueError:  # hardly anybody is hidden
                return 4 / wanted.noise_multiplier
            return 0.5 / found.noise_multiplier  # a round tells it over the sensitivity

        gain = largest_within(
            quietness,
            target=1 / wanted.noise_multiplier,
            start=_gain(wanted.honest / bits, noise),
            lowest=1e-8,
            highest=0.97,  # of a louder bit the other clients hide little
            precision=5e-4,
            slope=1.0,
        )
        if gain is None:
            raise TargetUnreachable(
                "these bits do not protect as a Gaussian of noise multiplier "
                f"{wanted.noise_multiplier:.3g}: send more of them, or ask for less noise"
            )
        return {"dim": dim, "bits": bits, "message_epsilon": 2 * math.atanh(gain), "seed": seed, **data}

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> PoissonBinomialRound:
        return PoissonBinomialRound(
            dim=self.size,
            bits=self.bits,
            flip=_flip(self.thresholds),
            distance=_distance(self.spread),
            honest=honest,
            participation=participation,
            attained=_attained(self.dim, self.seed),
            **who,
        )

    @property
    def size(self) -> int:
        """D, coefficients of a vector: twice the next power of two."""
        return self.spread.size

    @property
    def coefficient_radius(self) -> float:
        """Bound on the absolute value of every coefficient, in units of the data."""
        return self.spread.level * self.radius / math.sqrt(self.size)

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖² over data whose coefficients are not shortened."""
        each = self.cohort / (self.bits * self.thresholds.gain**2)
        return self.dim * each * self.coefficient_radius**2  # the frame is tight: size·column_square = dim

    @property
    @override
    def messages_per_coordinate(self) -> int:
        return self.bits

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.size, 0, self.bits)

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        rows = self._rows(x)
        counts = torch.zeros(rows.num_rows, self.size, dtype=torch.int64)
        for clients, columns, ones in self._drawn(rows, randomness):
            counts[clients, columns] += ones.cpu()
        return self.layout.reports(counts)

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        total = torch.zeros(self.size, dtype=torch.int64)
        for _, columns, ones in self._drawn(self._rows(x), secure(randomness)):
            total[columns] += (ones[0] if len(ones) == 1 else ones.sum(dim=0)).cpu()
        return total

    @override
    def _sum(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        if isinstance(total, Tally) and total.bits.shape == (self.labels,):
            # It says of each label how many bits came, also where some are missing.
            return self._of_surplus(2 * total.ones.double() - total.bits.double())
        return super()._sum(total, reports=reports)

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        return self._of_surplus(2 * numbers.double() - reports * self.bits)

    def _of_surplus(self, surplus: Tensor) -> Tensor:
        values = surplus / (self.bits * self.thresholds.gain)
        return self.spread.reconstruct(values * self.coefficient_radius)

    def _drawn(self, rows: Rows, randomness: Randomness) -> Iterator[tuple[slice, slice, Tensor]]:
        """How many of some bits are ones: of which clients, of which coefficients, and int32 of both."""
        few, many = (rows_at_once(self.size, device=rows.device, entries=e) for e in (_IN_CACHE, 1 << 19))
        width = min(self.size, rows_at_once(1, device=rows.device, entries=_IN_CACHE))
        for first in range(0, rows.num_rows, many):
            part = rows.narrow(first, min(first + many, rows.num_rows))
            found, scale = _representation(self.spread, part, radius=self.radius)
            for start, column in itertools.product(range(0, part.num_rows, few), range(0, self.size, width)):
                columns = slice(column, column + width)
                values, factors = found[start : start + few, columns], scale[start : start + few]
                clients = slice(first + start, first + start + len(values))
                yield clients, columns, self._ones_of(values, factors, randomness)

    def _ones_of(self, values: Tensor, scale: Tensor, randomness: Randomness) -> Tensor:
        """How many bits of each client are ones, int32; times ``scale`` values are in [−1, 1]."""
        half = math.nextafter(WHOLE // 2 - self.thresholds.low, 0)  # a one's chance leaves ½ by at most this
        ones = torch.zeros(values.shape, dtype=torch.int32, device=values.device)
        kernels = compiled_kernels() if values.is_cpu else None
        at_once = rows_at_once(values.numel(), device=values.device, entries=_IN_CACHE)
        for sent in range(0, self.bits, at_once):
            shape = (min(at_once, self.bits - sent), *values.shape)
            if kernels is not None:
                words = randomness.words(math.prod(shape)).view(shape)
                kernels.add_ones(values.numpy(), scale.numpy(), half, words.numpy(), ones.numpy())
            else:
                plus = values.mul(scale).clamp_(-1, 1).mul_(half).to(torch.int64).add_(WHOLE // 2)
                ones += randomness.bernoulli(plus.expand(shape)).sum(dim=0, dtype=torch.int32)
        return ones


def _representation(spread: KashinFrame, rows: Rows, *, radius: float) -> tuple[Tensor, Tensor]:
    """Coefficients of each row, and what brings them to units of their radius and a bounded norm."""
    dense = Rows.of(rows.dense().to(rows.compute_dtype))
    found = spread.represent(dense)
    scale = math.sqrt(spread.size) / (spread.level * dense.l2_norm().double().clamp(min=radius))
    length = torch.linalg.vector_norm(found, dim=1, dtype=torch.float64) * scale
    most = _distance(spread) / 2 * (1 - _ROUNDING)
    scale *= most / length.clamp(min=most)
    return found, scale.unsqueeze(1)


@lru_cache(maxsize=64)
def _attained(dim: int, seed: int) -> tuple[tuple[float, int], ...] | None:
    """Values of a vector x of full length, as ``PoissonBinomialRound.attained`` takes them.

    Of two unit vectors, along a coordinate and along a vector of the frame, the one with the longer values,
    rounded down to few of them, which leaks less. None if −x has not the values of x with the other sign.
    """
    spread = KashinFrame(dim=dim, seed=seed)
    x = torch.eye(2, dim, dtype=torch.float64)
    x[-1] = spread.reconstruct(torch.eye(1, spread.size, dtype=torch.float64)[0])
    x /= torch.linalg.vector_norm(x, dim=1, keepdim=True)
    values, negated = (
        found.mul(scale).clamp_(-1, 1)
        for found, scale in (_representation(spread, Rows.of(rows), radius=1.0) for rows in (x, -x))
    )
    if not torch.equal(values, -negated):
        return None
    step = values.abs().amax(dim=1, keepdim=True) / 32
    levels = (values.abs() * (1 - _ROUNDING) / step).floor() * step
    best = levels[levels.square().sum(dim=1).argmax()]
    found, counts = np.unique(best[best > 0].numpy(), return_counts=True)
    return tuple(zip(found.tolist(), counts.tolist(), strict=True))


def _distance(spread: KashinFrame) -> float:
    """Bound on ‖v − v'‖₂ of two vectors' coefficients, each in units of a coefficient's radius."""
    # ‖coefficients‖ over ‖vector‖ is at most 1.05 in a Kashin frame but for few vectors, which are shortened.
    longest = min(1.05, spread.level) * math.sqrt(spread.size) / spread.level
    return 2 * longest * (1 + _ROUNDING)


def _flip(thresholds: SignThresholds) -> float:
    return math.nextafter(thresholds.low / WHOLE, 0)


# -- how many bits, and how loud ----------------------------------------------------------------------------


def _gain(crowd: float, noise: float) -> float:
    """τ of a bit, to leading order: how much its probability of being one depends on the client's value."""
    odds = math.sqrt(crowd) / noise
    return odds / math.sqrt(1 + odds**2)


def _fewest_bits(*, honest: int, noise: float, overhead: float) -> int:
    bits = 1
    while bits <= MOST_BITS_EACH:
        gain = _gain(honest / bits, noise)
        crowd = max((honest - 1) * bits, 1)
        # The second term is roughly what a crowd's skew costs of the variance.
        if (1 + 50.0 * gain / math.sqrt(crowd)) / (1 - gain**2) <= 1 + overhead:
            return bits
        bits = 2 * bits + 1
    raise TargetUnreachable(
        f"no number of bits protects {honest} clients with so much noise within an overhead of {overhead:g}: "
        "ask for less noise or a larger overhead"
    )
