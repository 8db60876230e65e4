"""Sums of vectors in an ℓ2 ball by the Poisson binomial mechanism: a few random bits per coefficient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.accounting import Adversary, PoissonBinomialRound, PrivacyTarget, Sampling
from shuffle_plugins.compressors import KashinFrame
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks, rows_at_once
from shuffle_plugins.mechanisms import CountRange, Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.mechanisms.sign_patterns import SignThresholds
from shuffle_plugins.protocols.coins.calibration import least_noise_multiplier
from shuffle_plugins.protocols.counts.calibration import MOST_BITS_EACH, fewest_bits, loudest_gain
from shuffle_plugins.protocols.errors import TargetUnreachable
from shuffle_plugins.protocols.rounding import compiled_kernels
from shuffle_plugins.protocols.shuffle_protocol import (
    check_clips,
    check_cohort,
    check_overhead,
    hiding,
    honest_population,
    population_of,
)
from shuffle_plugins.protocols.tally import LabelledSum, Tally
from shuffle_plugins.randomness import WHOLE, Randomness, secure

_STRETCH = 1.05  # ‖coefficients‖ over ‖vector‖, at most: a Kashin frame keeps to it but for few vectors
_ROUNDING = 1e-9  # relative, by which rounding may move a norm
_BITS, _COEFFICIENTS = 1 << 16, 1 << 19  # handled at a time: the first stay in a processor's own cache
_LEVELS = 32  # of values in the dataset that bounds a round from below
_MORE_NOISE = 1e-3
_MOST_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonBinomialSum(LabelledSum, PrivateSum):
    r"""The sum of vectors in an ℓ2 ball by the Poisson binomial mechanism: random bits, and no other noise.

    Chen, Özgür, Kairouz 2022, "The Poisson Binomial Mechanism for unbiased federated learning with secure
    aggregation". A Kashin frame, public and linear, represents a vector by D coefficients of which none is
    large. For each a client sends ``bits`` bits, each a one with probability :math:`(1 + τ v)/2`, v in
    [−1, 1] the coefficient in units of :attr:`coefficient_radius`. What is seen is one count per
    coefficient, as in a :class:`VectorSum`; the randomness of the bits is the noise. The privacy cost depends
    on the ℓ2 norm of all of a client's coefficients together (``docs/proofs/counts.md``).

    Attributes:
        dim: d, length of a client's vector.
        cohort: n, how many clients take part in one sum, at least 2.
        bits: m, how many bits a client sends for each coefficient, in [1, 2**20).
        message_epsilon: ε0 of one bit, in nats: τ = tanh(ε0/2), rounded down.
        radius: ℓ2 radius of the ball; longer vectors are scaled onto it.
        seed: whole number that fixes the frame. It is public and all must use the same.
        honest_fraction: share of the clients that are counted on to follow the protocol; the guarantee holds
            whatever the others send or do not send.

    Raises:
        ValueError: if a field is out of range, or so few clients hide nobody.
    """

    name: ClassVar[str] = "poisson-binomial"
    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"
    norm: ClassVar[Norm] = Norm.L2

    dim: int
    bits: int
    message_epsilon: float
    radius: float = 1.0
    seed: int = 0
    spread: KashinFrame = field(init=False, repr=False, compare=False)
    thresholds: SignThresholds = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        object.__setattr__(self, "radius", checks.radius(self.radius))
        checks.whole("bits", self.bits, at_most=MOST_BITS_EACH)
        epsilon = checks.local_epsilon(self.message_epsilon, name="message_epsilon")
        object.__setattr__(self, "message_epsilon", epsilon)
        object.__setattr__(self, "thresholds", SignThresholds.of(epsilon))
        object.__setattr__(self, "spread", KashinFrame(dim=self.dim, seed=self.seed))
        LabelledSum.__post_init__(self)
        _ = self.round()

    @classmethod
    def with_noise(
        cls,
        *,
        dim: int,
        cohort: int,
        noise_multiplier: float,
        radius: float = 1.0,
        seed: int = 0,
        honest_fraction: float = 1.0,
        overhead: float = 0.1,
        bits: int | None = None,
    ) -> Self:
        """The protocol with the fewest bits that is as private as a Gaussian of this noise multiplier.

        Args:
            dim, cohort, radius, seed, honest_fraction: as the fields.
            noise_multiplier: deviation of that Gaussian over ``radius``, in each coordinate of the sum. Over
                the replace-one sensitivity it is half as much.
            overhead: how much larger the variance may be to save bits, as a fraction in (0, 1].
            bits: m; chosen by default.

        Raises:
            ValueError: if a number is out of range, or no bits protect as much.
        """
        noise = checks.number("noise_multiplier", noise_multiplier, above=0) / 2
        honest = honest_population(check_cohort(cohort), honest_fraction)
        spread = KashinFrame(dim=checks.dim(dim), seed=seed)
        distance = _distance(spread)
        if bits is None:
            bits = fewest_bits(
                size=spread.size,
                honest=honest,
                distance=distance,
                noise_multiplier=noise,
                overhead=check_overhead(overhead),
            )
        bits = checks.whole("bits", bits, at_most=MOST_BITS_EACH)

        def round_of(gain: float) -> PoissonBinomialRound:
            return PoissonBinomialRound(
                dim=spread.size,
                bits=bits,
                flip=_flip(SignThresholds.of(2 * math.atanh(gain))),
                distance=distance,
                population=honest,
                cohort=honest,
            )

        odds = math.sqrt(honest / bits) / (distance * noise)
        gain = loudest_gain(noise, start=odds / math.sqrt(1 + odds**2), round_of=round_of)
        return cls(
            dim=dim,
            cohort=cohort,
            bits=bits,
            message_epsilon=2 * math.atanh(gain),
            radius=radius,
            seed=seed,
            honest_fraction=honest_fraction,
        )

    @classmethod
    def calibrated(
        cls,
        *,
        dim: int,
        cohort: int,
        epsilon: float,
        delta: float,
        num_steps: int = 1,
        population: int | None = None,
        radius: float = 1.0,
        seed: int = 0,
        honest_fraction: float = 1.0,
        participation: float | None = None,
        overhead: float = 0.1,
        bits: int | None = None,
    ) -> Self:
        """The protocol of few bits and least noise whose certified ε at δ is at most ``epsilon``.

        Args:
            dim, cohort, radius, seed, honest_fraction: as the fields.
            epsilon: target for all rounds together, replace-one.
            delta: δ of the target.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``cohort`` of them without replacement.
            participation: probability with which each client sends its data, by a secret coin of its own; see
                :meth:`round`.
            overhead, bits: as in :meth:`with_noise`.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        people = hiding(
            population_of(check_cohort(cohort), population), cohort=cohort, honest_fraction=honest_fraction
        )
        noise = least_noise_multiplier(
            target, sampling_rate=cohort / people, participation=checks.participation(participation)
        )
        for _ in range(_MOST_ATTEMPTS):
            found = cls.with_noise(
                dim=dim,
                cohort=cohort,
                noise_multiplier=2 * noise,
                radius=radius,
                seed=seed,
                honest_fraction=honest_fraction,
                overhead=overhead,
                bits=bits,
            )
            if target.allows(found.round(population=population, participation=participation)):
                return found
            noise *= 1 + _MORE_NOISE
        raise TargetUnreachable(
            f"no bits reach ε={epsilon:g} at δ={delta:g} over {num_steps} steps: ask for a larger δ, another "
            "ε, or fewer steps"
        )

    # -- what it costs ----------------------------------------------------------------------------------

    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participation: float | None = None,
    ) -> PoissonBinomialRound:
        """What one sum costs, as :meth:`LabelledSum.round`, or with secret participation.

        Args:
            population, cohort, sampling, adversary: as in :meth:`LabelledSum.round`.
            participation: probability with which each client takes part, by a secret coin of its own. The
                bits of a client that does not take part are those of a zero vector. None if all take part.

        Raises:
            ValueError: if the numbers contradict each other, or too few honest clients are left.
        """
        present = self.participants(population=population, cohort=cohort, sampling=sampling)
        return PoissonBinomialRound(
            dim=self.size,
            bits=self.bits,
            flip=_flip(self.thresholds),
            distance=_distance(self.spread),
            population=present.population,
            cohort=present.reports,
            honest=None if present.honest == present.reports else present.honest,
            sampling=present.sampling,
            adversary=adversary,
            participation=participation,
            attained=_attained(self.dim, self.seed),
        )

    def secret_round(self, *, answered: int, participation: float) -> PoissonBinomialRound:
        """The round of ``answered`` clients, each of which takes part with probability ``participation``.

        Raises:
            ValueError: as :meth:`round`.
        """
        return self.round(cohort=answered, participation=participation)

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
    def labels(self) -> int:
        """Coefficients, each under its label: D."""
        return self.size

    @property
    def messages_per_coordinate(self) -> int:
        """Bits that a client sends for each coefficient."""
        return self.bits

    @property
    def layout(self) -> ReportLayout:
        """The wire format of a client's whole report: its number of ones for each coefficient."""
        return ReportLayout(self.name, self.size, (FieldLayout(self.bits.bit_length(), self.size),))

    @property
    def counts(self) -> CountRange:
        """A client's ones for each coefficient: from none to all of its bits."""
        return CountRange(self.size, 0, self.bits)

    # -- what is done -----------------------------------------------------------------------------------

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each client's number of ones for each coefficient, in [0, bits].

        Raises:
            ValueError: if x is not a floating (clients, dim) batch, or if ``clip`` is false: a sum always
                clips.
        """
        check_clips(clip)
        source = secure(randomness)
        rows = self._checked(x)
        counts = torch.zeros(rows.num_rows, self.size, dtype=torch.int64)
        for clients, columns, ones in self._drawn(rows, source):
            counts[clients, columns] += ones.cpu()
        return self.layout.reports(counts)

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Randomise each row and add up the counts of all rows, int64 (size,) on the CPU.

        Results for several groups of clients may be added.

        Raises:
            ValueError: as :meth:`randomize`.
        """
        source = secure(randomness)
        rows = self._checked(x)
        total = torch.zeros(self.size, dtype=torch.int64)
        for _, columns, ones in self._drawn(rows, source):
            total[columns] += (ones[0] if len(ones) == 1 else ones.sum(dim=0)).cpu()
        return total

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of the sum over the clients that answered, float64 (dim,).

        Args:
            total: what :meth:`total` or :meth:`tally` returned.
            reports: how many clients' bits are in it. A tally says so by itself.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        ones = self._ones(total)
        # A tally says of each label how many bits came, also where some are missing.
        sent = total.bits.double() if isinstance(total, Tally) else self._number(total, reports) * self.bits
        values = (2 * ones.double() - sent) / (self.bits * self.thresholds.gain)
        return self.spread.reconstruct(values * self.coefficient_radius)

    def _checked(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")
        return rows.finite(rows.l2_norm())[0]

    def _values(self, rows: Rows) -> Tensor:
        """Coefficients in units of their radius, (clients, size) float64: in [−1, 1], of bounded norm."""
        found, scale = _representation(self.spread, rows, radius=self.radius)
        return found.mul(scale).clamp_(-1, 1)

    def _drawn(self, rows: Rows, randomness: Randomness) -> Iterator[tuple[slice, slice, Tensor]]:
        """How many of some bits are ones: of which clients, of which coefficients, and int32 of both."""
        few, many = (rows_at_once(self.size, device=rows.device, entries=e) for e in (_BITS, _COEFFICIENTS))
        width = min(self.size, rows_at_once(1, device=rows.device, entries=_BITS))
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
        at_once = rows_at_once(values.numel(), device=values.device, entries=_BITS)
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

    Of two unit vectors, along a coordinate and along a vector of the frame, the one with the longer values. A
    value is rounded down to one of few, which leaks less: bits can be flipped to make it so. None if the
    values of −x are not those of x with the other sign.
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
    step = values.abs().amax(dim=1, keepdim=True) / _LEVELS
    levels = (values.abs() * (1 - _ROUNDING) / step).floor() * step
    best = levels[levels.square().sum(dim=1).argmax()]
    found, counts = np.unique(best[best > 0].numpy(), return_counts=True)
    return tuple(zip(found.tolist(), counts.tolist(), strict=True))


def _distance(spread: KashinFrame) -> float:
    """Bound on ‖v − v'‖₂ of two vectors' coefficients, each in units of a coefficient's radius."""
    longest = min(_STRETCH, spread.level) * math.sqrt(spread.size) / spread.level
    return 2 * longest * (1 + _ROUNDING)


def _flip(thresholds: SignThresholds) -> float:
    """The least probability of a one, rounded down."""
    return math.nextafter(thresholds.low / WHOLE, 0)
