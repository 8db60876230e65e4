"""Vectors plus noise on every coordinate, on a public grid (``docs/proofs/mechanisms.md``, section 6).

A real number plus real noise, computed in floating point, shows the number in its low digits (Mironov 2012).
So nothing leaves a client but multiples of a public step h, as codes in [0, 2·limit]; those beyond ±limit are
moved onto it, which is post-processing, with a probability that each mechanism states.

Of scalar records the two ends of an interval are the worst pair at every ε (``docs/proofs/noise.md``, Theorem
2). Continuous weights of a blanket are spread over a few levels at equal mean, which is an upper bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import (
    Atoms,
    Blanket,
    Floats,
    GaussianReportsRound,
    InformationBound,
    ShuffleRound,
)
from shuffle_plugins.accounting.numerics.search import narrowed, zero_between
from shuffle_plugins.accounting.pairs.noise import delta_of_gaussian
from shuffle_plugins.accounting.pairs.reports import most_telling, read_coarsely
from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import in_range, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.packing import compact_dtype
from shuffle_plugins.core.rows import spans
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, LocalRandomizer, Norm
from shuffle_plugins.mechanisms.discrete_sampling import MAX_SIGMA, discrete_gaussian, discrete_laplace
from shuffle_plugins.randomness.sources import Randomness

FINE_BITS = 20
"""Bits per coordinate of the mechanism called Laplace: the grid adds about 1e-4 to its variance."""

_MARGIN = 1e-9  # relative; covers rounding in float64
_LOUDEST_BLANKET = 150.0  # keeps products of the blanket's weights in float64's range
_LINE_CELLS = 4096  # in which reports about a number are read
_CELLS_ACROSS = 800  # of records in an l1 ball, along the axis of everybody else's
_IN_ORDER = np.tri(_CELLS_ACROSS + 1, dtype=np.bool_).T  # of two records the first is no further along it
_CELLS = 1 << 13  # in which continuous weights are counted first
_MOST_LEVELS = 96
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)  # exact to the last digit in cells of a few tenths


@dataclass(frozen=True, kw_only=True, eq=False)
class GridNoise(LocalRandomizer):
    """A randomizer whose report is, per coordinate, a noisy multiple of a public step, in so many bits.

    Rows are rounded to whole steps without bias, unless a mechanism says otherwise.
    """

    bits: int

    @property
    @abstractmethod
    def step(self) -> float:
        """h, the grid's step, in the units of a row."""

    @property
    @abstractmethod
    def _noise_variance(self) -> float:
        """Of one coordinate, in squared steps."""

    @abstractmethod
    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        """Whole numbers, int64: the float64 rows in units of the step, with noise."""

    @abstractmethod
    def _log_mass(self, multiples: Tensor, centre: Tensor) -> Tensor:
        """Log-probability of a multiple where the noise is added to ``centre``, perhaps up to a constant."""

    @property
    def worst_variance(self) -> float:
        """The noise's variance, and at most h²/4 per coordinate or, in all, h times the largest ℓ1 norm."""
        longest = self.radius / self.step * (1.0 if self.norm is Norm.L1 else math.sqrt(self.dim))
        return (self.dim * self._noise_variance + min(self.dim / 4, longest)) * self.step**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row: noise, and h²·f(1 - f) where x/h has fraction f."""
        rows = self.check_rows(x)
        spread = torch.empty(rows.num_rows, dtype=torch.float64, device=rows.device)
        for start, stop in spans(rows.num_rows, width=self.dim, device=rows.device):
            fraction = self._scaled(rows.narrow(start, stop))
            fraction.sub_(fraction.floor())
            spread[start:stop] = fraction.mul_(1 - fraction).sum(dim=1)
        return spread.add_(self.dim * self._noise_variance).mul_(self.step**2)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Of whole steps around x (dim,), each as likely as rounding makes it."""
        multiples = self._multiples(reports)
        below, fraction = self._whole_around(x)
        low = self._log_mass(multiples, below) + torch.log1p(-fraction)
        high = self._log_mass(multiples, below + 1) + fraction.log()
        return torch.logaddexp(low, high).sum(dim=1)

    @property
    def limit(self) -> int:
        """The largest multiple of the step that is sent, 2**(bits - 1) - 1."""
        return (1 << (self.bits - 1)) - 1

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout(self.bits, self.dim),))

    @override
    def sum(self, reports: Reports) -> Tensor:
        codes = self._codes(reports)
        total = torch.zeros(self.dim, dtype=torch.int64, device=codes.device)
        for start, stop in spans(len(codes), width=self.dim, device=codes.device):
            total += codes[start:stop].sum(dim=0, dtype=torch.int64)
        return self._value(total.sub_(len(codes) * self.limit))

    @override
    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        total = torch.zeros(self.dim, dtype=torch.int64, device=x.device)
        for start, stop in spans(x.num_rows, width=self.dim, device=x.device):
            total += self._cut(x.narrow(start, stop), randomness).sum(dim=0)
        return self._value(total)

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        codes = torch.empty(x.num_rows, self.dim, dtype=compact_dtype(self.bits), device=x.device)
        for start, stop in spans(x.num_rows, width=self.dim, device=x.device):
            codes[start:stop] = self._cut(x.narrow(start, stop), randomness).add_(self.limit)
        return self.layout.reports(codes)

    def _value(self, multiple: Tensor) -> Tensor:
        return multiple.double().mul_(self.step).to(torch.float32)

    def _codes(self, reports: Reports) -> Tensor:
        """The codes of reports, (reports, dim), as compact as they came, checked."""
        self.layout.check(reports)
        codes = reports.fields[0].values.reshape(len(reports), self.dim)
        if codes.numel() and not (int(codes.min()) >= 0 and int(codes.max()) <= 2 * self.limit):
            raise ValueError("a report holds a code that does not exist: it was altered or forged; drop it")
        return codes

    def _multiples(self, reports: Reports) -> Tensor:
        return self._codes(reports).to(torch.int64, copy=True).sub_(self.limit)

    def _cut(self, x: Rows, randomness: Randomness) -> Tensor:
        return self._noisy(self._scaled(x), randomness).clamp_(-self.limit, self.limit)

    def _scaled(self, x: Rows) -> Tensor:
        """Rows in units of the step, float64, none outside the ball by more than float64's own rounding."""
        rows = x.dense().to(torch.float64, copy=True)
        order = 1.0 if self.norm is Norm.L1 else 2.0
        lengths = torch.linalg.vector_norm(rows, ord=order, dim=1, keepdim=True)
        if not bool(lengths.isfinite().all()):  # squares overflowed
            largest = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1.0)
            lengths = torch.linalg.vector_norm(rows / largest, ord=order, dim=1, keepdim=True).mul_(largest)
        return rows.mul_(lengths.div_(self.radius).clamp_(min=1.0).mul_(self.step).reciprocal_())

    def _whole_around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The multiple below each coordinate of one row (dim,), and how far above it the coordinate is."""
        scaled = self._scaled(Rows.of(x.detach().reshape(1, -1)))
        below = scaled.floor()
        return below, scaled - below


@dataclass(frozen=True, kw_only=True)
class LaplaceGrid:
    """One discrete Laplace mechanism, of scale T in units of its step, exactly."""

    scale: Fraction
    radius_in_steps: float
    whole_radius: int | None
    """The radius in steps if it is a whole number, in one dimension."""


@lru_cache(maxsize=256)
def laplace_grid(*, local_epsilon: float, dim: int, bits: int) -> LaplaceGrid:
    """The finest grid on which ±(r + 28·T·h) has codes of so many bits."""
    limit = (1 << (bits - 1)) - 1
    # Noise scales from the ball to the last code; cut with probability below e^-28.
    wanted = limit / (28.0 + checks.local_epsilon(local_epsilon) / 2)
    whole = int(local_epsilon * wanted / 2) if checks.dim(dim) == 1 else 0
    if whole >= 1:
        grain = 1 << 40
        scale = Fraction(math.ceil(Fraction(2 * whole) / Fraction(local_epsilon) * grain), grain)
        return LaplaceGrid(scale=scale, radius_in_steps=float(whole), whole_radius=whole)
    scale = Fraction(wanted).limit_denominator(1 << 20)
    rate = 1 / float(scale)
    radius = local_epsilon / (math.expm1(rate) + rate) * (1 - _MARGIN)
    return LaplaceGrid(scale=scale, radius_in_steps=radius, whole_radius=None)


@lru_cache(maxsize=256)
def grid_blanket(*, local_epsilon: float, dim: int, bits: int = 12) -> Blanket:
    """The discrete Laplace blanket in one dimension; else, and above ε0 = 150, the generic one as a bound."""
    grid = laplace_grid(local_epsilon=local_epsilon, dim=dim, bits=bits)
    whole = grid.whole_radius
    if whole is None or local_epsilon > _LOUDEST_BLANKET or whole > 1 << 21:
        generic = Blanket.generic(local_epsilon, exact=False).shared()
        if grid.radius_in_steps < 1 or local_epsilon > _LOUDEST_BLANKET:
            return generic
        # Rows on an axis, at whole steps, so that nothing is rounded.
        steps = 2 * math.floor(grid.radius_in_steps)
        rate = float(1 / grid.scale)
        own = discrete_laplace_instances(rate=rate, steps=steps, axes=dim)
        if local_epsilon > 30.0:  # beyond, no round is large enough
            return replace(generic, instances=own)
        information = laplace_ball_information(
            rate=rate * (1 + _MARGIN), radius=grid.radius_in_steps * (1 + _MARGIN), dim=dim
        )
        bound = InformationBound.of_any(local_epsilon=local_epsilon, information=information)
        return replace(generic, instances=own, information_bound=bound)
    law = discrete_laplace_blanket(local_epsilon=local_epsilon, steps=2 * whole)
    own = discrete_laplace_instances(rate=local_epsilon / (2 * whole), steps=2 * whole, axes=1)
    information = discrete_laplace_information(local_epsilon=local_epsilon, steps=2 * whole)
    bound = InformationBound.of_blanket(
        local_epsilon=local_epsilon, information=information, mass=law.mass * (1 - _MARGIN)
    )
    return replace(law, instances=own, information_bound=bound).shared()


@dataclass(frozen=True, kw_only=True, eq=False)
class DiscreteLaplace(GridNoise):
    """x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-|k|/T}`, per coordinate.

    ε0 holds for the whole l1 ball and the rounding in it, exactly. The variance is about :math:`e^{1/(2T)}`
    times the Laplace mechanism's, 2·(2r/ε0)², T about :math:`2^{bits-1}/(28 + ε_0/2)`. A coordinate is cut
    with probability below e^-28, a bias below 1e-12 of the noise's scale, which is not removed.

    Source: Ghosh, Roughgarden, Sundararajan 2009; Canonne, Kamath, Steinke 2020.
    """

    name: ClassVar[str] = "discrete-laplace"
    norm: ClassVar[Norm] = Norm.L1
    bits: Annotated[int, whole_number(at_least=8, at_most=24)] = 12

    @cached_property
    def grid(self) -> LaplaceGrid:
        """The noise, and the radius in steps."""
        return laplace_grid(local_epsilon=self.local_epsilon, dim=self.dim, bits=self.bits)

    @property
    @override
    def step(self) -> float:
        return self.radius / self.grid.radius_in_steps

    @property
    @override
    def _noise_variance(self) -> float:
        return 0.5 / math.sinh(0.5 / float(self.grid.scale)) ** 2

    @override
    def blanket(self) -> Blanket:
        return grid_blanket(local_epsilon=self.local_epsilon, dim=self.dim, bits=self.bits)

    @override
    def outcomes(self) -> Reports | None:
        if self.dim > 1 or 2 * self.limit + 1 > MOST_OUTCOMES:
            return None
        return self.layout.reports(torch.arange(2 * self.limit + 1, dtype=compact_dtype(self.bits)))

    @override
    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        edge, scale = self.grid.radius_in_steps, self.grid.scale
        rounded = stochastic_round(scaled.clamp_(-edge, edge), randomness=randomness)
        noise = discrete_laplace(rounded.numel(), scale=scale, randomness=randomness, device=rounded.device)
        return rounded.add_(noise.reshape(rounded.shape))

    @override
    def _log_mass(self, multiples: Tensor, centre: Tensor) -> Tensor:
        rate = 1 / float(self.grid.scale)
        distance = (multiples - centre).abs().mul_(-rate)
        at_end, inside = -math.log1p(math.exp(-rate)), math.log(math.tanh(rate / 2))
        return distance.add_((multiples.abs() == self.limit).double(), alpha=at_end - inside).add_(inside)


@dataclass(frozen=True, kw_only=True, eq=False)
class Laplace(DiscreteLaplace):
    """The Laplace mechanism: noise of scale 2·radius/ε0 on every coordinate of a vector in the l1 ball.

    :class:`~.DiscreteLaplace` on a grid of about 2**-14 of the noise's scale, of the same variance up to
    1e-4. Source: Dwork, McSherry, Nissim, Smith 2006.
    """

    name: ClassVar[str] = "laplace"
    bits: int = field(init=False, repr=False, default=FINE_BITS)


def _least_delta(ratio: float, *, epsilon: float) -> float:
    """δ of noise whose standard deviation is ``ratio`` times the distance of the records.

    For a small step μ = 1/ratio, of which two tails would cancel: with M the Mills ratio and z = ε·ratio −
    μ/2, φ(z)·(M(z) − M(z + μ)), the difference taken as the integral of M' = z·M − 1.
    """
    half, shift = 0.5 / ratio, epsilon * ratio
    if half >= 0.005:
        return delta_of_gaussian(epsilon, mu=1 / ratio)[1]
    places = shift - half + half * (1 + NODES)
    slopes = 1 - places * math.sqrt(math.pi / 2) * special.erfcx(places / math.sqrt(2))
    density = math.exp(-0.5 * (shift - half) ** 2) / math.sqrt(2 * math.pi)
    return density * half * float(WEIGHTS @ slopes)


@lru_cache(maxsize=256)
def noise_ratio(*, local_epsilon: float, local_delta: float) -> float:
    """Standard deviation of the least (ε0, δ0)-private Gaussian noise per unit of distance, rounded up.

    Balle, Wang 2018, Theorem 8.
    """
    checks.target_epsilon(local_epsilon, name="local_epsilon")
    checks.delta(local_delta, name="local_delta")

    def excess(log_ratio: float) -> float:
        found = _least_delta(math.exp(log_ratio), epsilon=local_epsilon)
        return math.log(max(found, 1e-300) / local_delta)

    return math.exp(zero_between(excess, -8.0, 72.0, xtol=1e-13, rtol=1e-13)) * (1 + _MARGIN)


@dataclass(frozen=True, kw_only=True, eq=False)
class ApproximateNoise(GridNoise):
    """Noise on the l2 ball whose reports are (ε0, δ0)-LDP.

    They are accounted by the likelihoods of the noise
    (:class:`~shuffle_plugins.accounting.GaussianReportsRound`), a number (dim 1) also by its own blanket,
    whose cut tail is charged instead of δ0. Epochs, check-ins, rounds of few reports and little noise charge
    δ0 for every report of a round: for these choose δ0 far below the δ that is wanted, over the reports.
    """

    norm: ClassVar[Norm] = Norm.L2
    local_delta: Annotated[float, in_range(at_least=1e-30, at_most=0.1)] = 1e-6

    @abstractmethod
    def _sigma_per_radius(self) -> float:
        """Of the Gaussian mechanism whose post-processing a report is: standard deviation over radius."""

    @abstractmethod
    def _radius_per_sigma(self) -> float:
        """Radius of all records, over the standard deviation of the noise that a report is made of."""

    @abstractmethod
    def _attained_per_sigma(self) -> float:
        """Of two opposite records, with what codes add to the noise; 0 where that is not known."""

    @abstractmethod
    def _instance(self) -> Atoms:
        """Of one number: two opposite records, everybody else at one of them."""

    def blanket(self) -> Blanket:
        """That of scalar Gaussian noise, at dim 1; its ``local_epsilon`` is where its weights are cut.

        At dim 2 and more, or with too little noise, refused: use :meth:`round`.
        """
        if self.dim > 1:
            raise ValueError(
                f"a report of {self.name} is ({self.local_epsilon:.4g}, {self.local_delta:g})-LDP, and no "
                "bound covers it without its δ0. In Python, use its round(). In a shell, type "
                f"--mechanism generic --local-epsilon {self.local_epsilon:g} --local-delta 1e-12, without "
                "--dim: that δ0 must be far below δ / k"
            )
        law = gaussian_blanket(sigma=self._sigma_per_radius(), radius=1.0)
        return replace(law, instances=(self._instance(),))

    @override
    def _round(self, **who: Any) -> ShuffleRound:
        # At dim 1 its blanket, too, whose cut is the round's ε0.
        reports: dict[str, Any] = {"local_epsilon": self.local_epsilon, "local_delta": self.local_delta}
        if self.dim == 1:
            try:
                own = self.blanket()
                reports = {"local_epsilon": own.local_epsilon, "mechanism": self.name, "blanket": own}
            except ValueError:  # too little noise for its weights
                pass
        return GaussianReportsRound(
            **reports,
            **who,
            radius=self._radius_per_sigma(),
            attained=self._attained_per_sigma(),
            channel_fixed=True,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaussian(ApproximateNoise):
    """x + N(0, σ²) on every coordinate, σ by the analytic calibration for records at distance 2·radius.

    The noisy value is rounded to the nearest multiple of the step :math:`h = (r + 10σ)/(2^{bits-1} - 1)`,
    which adds h²/12 to the variance. A coordinate is cut with probability below 2e-23, a bias below 2e-24·σ,
    which is not removed. ε0 and δ0 are proved for ideal real arithmetic; noise and sum are float64, and a
    grid 2**30 times coarser hides which doubles are possible. :class:`~.DiscreteGaussian` is exact.

    Source: Balle, Wang 2018, Theorem 8.
    """

    name: ClassVar[str] = "gaussian"
    bits: Annotated[int, whole_number(at_least=8, at_most=24)] = 20

    @cached_property
    def _ratio(self) -> float:
        return noise_ratio(local_epsilon=self.local_epsilon, local_delta=self.local_delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a coordinate."""
        return 2 * self.radius * self._ratio

    @property
    @override
    def step(self) -> float:
        return (self.radius + 10.0 * self.sigma) / self.limit

    @property
    @override
    def _noise_variance(self) -> float:
        return (self.sigma / self.step) ** 2 + 1 / 12

    @property
    def worst_variance(self) -> float:
        """dim·(σ² + h²/12), whatever the row."""
        return self.dim * self._noise_variance * self.step**2

    @override
    def variance(self, x: Tensor | Rows) -> Tensor:
        rows = self.check_rows(x)
        return torch.full((rows.num_rows,), self.worst_variance, dtype=torch.float64, device=rows.device)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each report as a Gaussian around x (dim,), up to a constant, (reports,) float64."""
        below, fraction = self._whole_around(x)
        return self._log_mass(self._multiples(reports), below + fraction).sum(dim=1)

    @override
    def _log_mass(self, multiples: Tensor, centre: Tensor) -> Tensor:
        return (multiples - centre).mul_(self.step / self.sigma).square_().mul_(-0.5)

    @override
    def _sigma_per_radius(self) -> float:
        return 2 * self._ratio

    @override
    def _radius_per_sigma(self) -> float:
        return 1 / self._sigma_per_radius()

    @override
    def _attained_per_sigma(self) -> float:
        if self.bits < 16:  # too coarse a grid for reports to be taken as they are without it
            return 0.0
        # A sum of codes, smoothed over some steps, is normal to the last digit.
        step = self.step / self.sigma
        return self._radius_per_sigma() / math.sqrt(1 + 10 * step**2)

    @override
    def _instance(self) -> Atoms:
        return gaussian_instance(sigma=self.sigma / self.step, radius=self.radius / self.step)

    @override
    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        noise = randomness.normal(tuple(scaled.shape), dtype=torch.float64, device=scaled.device)
        return scaled.add_(noise, alpha=self.sigma / self.step).round_().to(torch.int64)


@dataclass(frozen=True, kw_only=True)
class GaussianGrid:
    """One discrete Gaussian mechanism in units of its step: σ is a whole number."""

    sigma: int
    radius_in_steps: float
    bits: int

    @property
    def continuous_sigma(self) -> float:
        """Standard deviation of the continuous Gaussian of which the noise is a post-processing."""
        return math.sqrt(self.sigma**2 - 4)  # noise of variance 4 makes a discrete law a normal one


def rounded_distance(radius_in_steps: float, *, dim: int, miss: float) -> float:
    """The distance of two rounded records of the ball, exceeded with probability at most ``miss``."""
    apart, root = 2 * radius_in_steps, math.sqrt(dim)
    spread = (2 * apart + root) * math.sqrt(math.log(1 / miss) / 2)
    return min(math.sqrt(apart**2 + min(dim / 4, root * apart) + spread), apart + root)


@lru_cache(maxsize=256)
def gaussian_grid(*, local_epsilon: float, local_delta: float, dim: int, bits: int | None) -> GaussianGrid:
    """The finest grid on which ±(radius + 9.5σ) has codes of so many bits; refused if none is fine enough.

    Without ``bits``: the fewest on which rounding adds no more than 1 % to the variance, or the best.
    """
    # A thousandth of δ0 is spent on rows that rounding makes too long.
    ratio = noise_ratio(local_epsilon=local_epsilon, local_delta=local_delta * (1 - 1e-3))

    def sigma(radius: float) -> int:
        distance = rounded_distance(radius, dim=dim, miss=local_delta * 1e-3) * (1 + _MARGIN)
        return math.ceil(math.hypot(ratio * distance, 2))

    def finest(width: int) -> GaussianGrid | None:
        def fits(radius: float) -> bool:
            noise = sigma(radius)
            return noise <= MAX_SIGMA and radius + 9.5 * noise + 1 <= (1 << (width - 1)) - 1

        if not fits(2.0**-20):
            return None
        radius, _ = narrowed(fits, 2.0**-20, 2.0**40, precision=1e-15)
        return GaussianGrid(sigma=sigma(radius), radius_in_steps=radius, bits=width)

    def loss(grid: GaussianGrid) -> float:
        return grid.sigma / (2 * ratio * grid.radius_in_steps)

    best = None
    for width in range(6, 41) if bits is None else (bits,):
        grid = finest(width)
        if grid is not None and (best is None or loss(grid) < loss(best) * (1 - _MARGIN)):
            best = grid
        if best is not None and loss(best) <= 1.005:
            return best
    if best is None:
        raise ValueError(
            f"no grid of {'so many as 40' if bits is None else bits} bits per coordinate holds the noise for "
            f"local_epsilon={local_epsilon} in dimension {dim}: allow more bits, or raise local_epsilon or "
            "local_delta"
        )
    return best


@dataclass(frozen=True, kw_only=True, eq=False)
class DiscreteGaussian(ApproximateNoise):
    """x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-k^2/(2σ^2)}`.

    (ε0, δ0) holds for the whole l2 ball and the rounding in it; no float decides. A coordinate is cut with
    probability below 1e-20, a bias below 1e-21·σ, which is not removed.

    Source: Canonne, Kamath, Steinke 2020.

    Attributes:
        bits: bits per coordinate, in [6, 40]; by default the fewest that add no more than 1 % to the
            variance.
    """

    name: ClassVar[str] = "discrete-gaussian"
    bits: Annotated[int, whole_number(at_least=6, at_most=40)] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bits", self.grid.bits)

    @cached_property
    def grid(self) -> GaussianGrid:
        """Noise, radius and bits."""
        return gaussian_grid(
            local_epsilon=self.local_epsilon, local_delta=self.local_delta, dim=self.dim, bits=self.bits
        )

    @property
    @override
    def step(self) -> float:
        return self.radius / self.grid.radius_in_steps

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a coordinate, σ·h."""
        return self.grid.sigma * self.step

    @property
    @override
    def _noise_variance(self) -> float:
        return float(self.grid.sigma**2)

    @override
    def _log_mass(self, multiples: Tensor, centre: Tensor) -> Tensor:
        # The two outermost codes, where values beyond are cut, are taken as they are.
        return (multiples - centre).square_().mul_(-0.5 / self.grid.sigma**2)

    @override
    def _sigma_per_radius(self) -> float:
        return self.grid.continuous_sigma / math.ceil(self.grid.radius_in_steps)

    @override
    def _radius_per_sigma(self) -> float:
        # Rounded records are longer with probability below 1e-34, by Hoeffding's inequality for each random
        # part (docs/proofs/sums.md, "Rounding").
        radius, log_miss = self.grid.radius_in_steps, 80.0
        likely = radius**2 + 2 * radius * math.sqrt(log_miss / 2)
        likely += self.dim / 4 + math.sqrt(self.dim * log_miss / 2)
        longest = min(math.sqrt(likely), radius + math.sqrt(self.dim)) * (1 + _MARGIN)
        return longest / self.grid.continuous_sigma

    @override
    def _attained_per_sigma(self) -> float:
        # Whole records are not rounded; noise of variance 4 more makes the discrete law a normal one.
        return math.floor(self.grid.radius_in_steps) / math.hypot(self.grid.sigma, 2)

    @override
    def _instance(self) -> Atoms:
        return discrete_gaussian_instance(sigma=self.grid.sigma, radius=self.grid.radius_in_steps)

    @override
    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        rounded = stochastic_round(scaled, randomness=randomness)
        noise = discrete_gaussian(
            rounded.numel(), sigma=self.grid.sigma, randomness=randomness, device=rounded.device
        )
        return rounded.add_(noise.reshape(rounded.shape))


def discrete_laplace_blanket(*, local_epsilon: float, steps: int) -> Blanket:
    """x in {0, …, steps} is released as x + k with P[k] ∝ e^(−|k|·ε0/steps), ε0 at most 150."""
    checks.whole("steps", steps)
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LOUDEST_BLANKET)
    rate = local_epsilon / steps
    scale = math.tanh(rate / 2)  # P[k = 0]
    last = math.exp(-local_epsilon) / (1 + math.exp(-rate))
    # y above the middle has weight e^{(2y − steps)·rate} and ω mass scale·e^{−y·rate}.
    y = np.arange(steps // 2 + 1, steps, dtype=np.float64)
    weight, mass = np.exp((2 * y - steps) * rate), scale * np.exp(-y * rate)
    middle = scale * math.exp(-local_epsilon / 2) if steps % 2 == 0 else 0.0
    if len(y) <= _MOST_LEVELS:
        return Blanket(
            local_epsilon=local_epsilon,
            differing=last,
            low=middle,
            edges=tuple(zip(weight.tolist(), mass.tolist(), strict=True)),
            exact=True,
        )
    log_weights = np.linspace(0.0, local_epsilon, _CELLS + 1)
    cell = np.clip(np.searchsorted(log_weights, np.log(weight), side="right") - 1, 0, _CELLS - 1)
    blanket = np.bincount(cell, weights=mass, minlength=_CELLS).astype(np.float64)
    record = np.bincount(cell, weights=mass * weight, minlength=_CELLS).astype(np.float64)
    return _on_levels(log_weights, blanket, record, last=last, tail=0.0, low=middle)


@lru_cache(maxsize=256)
def discrete_laplace_instances(*, rate: float, steps: int, axes: int) -> tuple[Atoms, ...]:
    """The instances of noise P[k] ∝ e^(−rate·|k|) on whole numbers that tell most: on a line, and on axes.

    Records are ``steps`` apart on a line, and everybody else's is between them; or all are half as far from 0
    on axes, which tells more in large rounds.
    """
    places = sorted({round(steps * i / 16) for i in range(9)})  # of everybody else
    edges = np.unique(np.round(np.linspace(0, steps, _LINE_CELLS + 1)).astype(np.int64))
    edges = np.unique(np.concatenate([edges, places]))
    ends = _line_masses(rate, edges, steps), _line_masses(rate, edges, 0)
    candidates = []
    for place in places:
        other = _line_masses(rate, edges, place)
        candidates.append(read_coarsely(ends[0] / other - 1, ends[1] / other - 1, other))
    found: tuple[Atoms, ...] = (most_telling(candidates),)
    half = steps // 2
    if axes > 1 and half:
        edges = np.unique(np.round(np.linspace(0, 2 * half, 49)).astype(np.int64))
        edges = np.union1d(edges, [half])
        low, middle, high = (_line_masses(rate, edges, place) for place in (0, half, 2 * half))
        one = np.ones(1)
        rows = [  # of x, x' and everybody else's: masses along three axes
            ((high, middle, one), (middle, high, one), (middle, middle, one)),
            ((high, middle, one), (middle, high, one), (low, middle, one)),
            ((high, middle, one), (low, middle, one), (middle, high, one)),
        ]
        if axes > 2:
            rows.append(((high, middle, middle), (middle, high, middle), (middle, middle, high)))
        found += (most_telling([_product_atoms(*each) for each in rows]),)
    return found


def _product_atoms(first: tuple[Floats, ...], second: tuple[Floats, ...], other: tuple[Floats, ...]) -> Atoms:
    """Of records whose reports' coordinates have these masses, independently."""
    x, y, z = (reduce(np.multiply.outer, along).ravel() for along in (first, second, other))
    return read_coarsely(x / z - 1, y / z - 1, z)


def _line_masses(rate: float, edges: NDArray[np.int64], record: int) -> Floats:
    """Masses of the reports up to edges[0], of those above each edge up to the next, and of those beyond."""
    share = 1 / (1 + math.exp(-rate))
    below = np.minimum(edges - record, 0.0)  # of reports up to an edge left of the record
    above = np.maximum(edges - record, 0.0)
    left = share * np.exp(rate * below)
    right = share * np.exp(-rate * above) * math.exp(-rate)  # beyond an edge right of it
    width = np.diff(edges)
    rising = left[1:] * -np.expm1(-rate * width)
    falling = right[:-1] * -np.expm1(-rate * width)
    inner = np.where(edges[1:] <= record, rising, falling)
    return np.concatenate([left[:1], inner, right[-1:]])


def discrete_laplace_information(*, local_epsilon: float, steps: int) -> float:
    """The most that a report tells: of both ends, everybody else at one (proofs on noise, section 8)."""
    w = math.exp(-local_epsilon / steps)
    whole = 1 + w + w * w
    far = (1 + w * w) / whole * math.expm1(local_epsilon) + w / whole * math.expm1(-2 * local_epsilon)
    return far * (1 + 1e-9)


@lru_cache(maxsize=256)
def laplace_ball_information(*, rate: float, radius: float, dim: int) -> float:
    """How much a report tells of vectors of an l1 ball, at most (section 8 of the proofs on noise).

    The noise falls by ``rate`` nats per step; ``radius`` is in steps, and dim at least 2.
    """
    spread = min(radius, dim / 4)  # variance of the rounded vector's norm, at most
    least = math.inf
    for deviations in (1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0):  # that rounding may take vectors out of the ball
        beyond = deviations * (math.sqrt(spread) + deviations / 3)
        tilt = max(math.log1p(beyond / spread), 2 * rate)
        log_rare = 2 * rate * (radius + beyond) - tilt * beyond + spread * (math.expm1(tilt) - tilt)
        # Of three vectors one may be rounded farther out; then a report tells no more than 2·e^(2·rate·norm).
        within = _whole_ball_information(rate * math.floor(radius + beyond), rate)
        least = min(least, within + 6 * math.exp(log_rare))
    return least * (1 + 1e-9)


def _whole_ball_information(radius: float, rate: float) -> float:
    """Of vectors of whole steps in a ball, its radius in nats."""
    w = math.exp(-rate)
    rising, falling = (1 + w * w) / (1 + w + w * w), w / (1 + w + w * w)
    half = radius / _CELLS_ACROSS  # of a cell

    def alpha(t: Floats) -> Floats:
        return np.asarray(rising * np.exp(t) + falling * np.exp(-2 * t))

    along = np.linspace(-radius, radius, _CELLS_ACROSS + 1)
    left = np.exp(-(radius - np.abs(along)))  # of the other coordinates
    single = alpha(radius + along) * alpha(radius - np.abs(along)) * math.exp(2 * half)
    near = np.exp(-(radius + along))  # falls, so that of two the first is the larger one
    beta = (1 / near)[:, None] - (falling * (1 / near**2 - near))[:, None] * near
    beta *= 1 - (1 - left)[:, None] * (1 - left)
    found = single[:, None] + single - 2 * math.exp(-5 * half) * beta
    return float(found.max(where=_IN_ORDER, initial=-math.inf))


def gaussian_blanket(*, sigma: float, radius: float, tail: float = 1e-18) -> Blanket:
    """Gaussian noise on an interval: x in [−radius, radius] is released as x + N(0, sigma²).

    Its weights have no bound. They are cut at the blanket's ``local_epsilon``; the mass of the client's own
    report above it is the blanket's ``tail``, at most the one given, in (0, 0.01].
    """
    checks.number("sigma", sigma, above=0)
    checks.number("radius", radius, above=0)
    checks.number("tail", tail, above=0, at_most=0.01)
    a = radius / sigma
    largest = 2 * a * (a - float(special.ndtri(tail)))
    if not largest <= _LOUDEST_BLANKET:
        raise ValueError(
            f"sigma={sigma!r} is too little noise for a radius of {radius!r}: a report would speak for its "
            f"client with odds of e^{largest:.0f}, above e^{_LOUDEST_BLANKET:g}; add noise, or allow more "
            "tail"
        )
    log_weights = np.linspace(0.0, largest, _CELLS + 1)
    y = log_weights / (2 * a)  # in units of sigma
    blanket, record = _between(y + a), _between(y - a)
    beyond = float(special.ndtr(-(y[-1] + a)))
    lost = max(float(special.ndtr(-(y[-1] - a))) - math.exp(largest) * beyond, 0.0)
    return _on_levels(log_weights, blanket, record, last=beyond, tail=lost)


@lru_cache(maxsize=256)
def gaussian_instance(*, sigma: float, radius: float) -> Atoms:
    """That of records ±radius plus N(0, sigma²), in whole steps; everybody else holds −radius."""
    return _gaussian_cells(sigma, ((radius, 1.0),))


@lru_cache(maxsize=256)
def discrete_gaussian_instance(*, sigma: int, radius: float) -> Atoms:
    """As :func:`gaussian_instance`, of noise P[k] ∝ e^(−k²/(2·sigma²)) on records rounded without bias.

    Where codes are too many to list, noise of variance 4 more makes it a Gaussian one, up to a relative
    e^-76.
    """
    below = math.floor(radius)
    records = ((float(below), below + 1 - radius), (below + 1.0, radius - below))
    if sigma > 1 << 17:
        return _gaussian_cells(math.hypot(sigma, 2.0), records)
    edges = _code_edges(sigma, radius)
    far = math.ceil(radius + 13 * sigma)
    codes = np.arange(-far, far + 1, dtype=np.float64)
    mass, gain = _opposite(codes / sigma, sigma, records)
    cells = np.concatenate([[0], np.ceil(edges + far).astype(np.int64)])
    return _atoms_of_cells(*(np.add.reduceat(column, cells) for column in (mass, gain)))


def _gaussian_cells(sigma: float, records: tuple[tuple[float, float], ...]) -> Atoms:
    edges = _code_edges(sigma, records[-1][0]) / sigma
    half = np.diff(edges)[:, None] / 2
    inner = _opposite(edges[:-1, None] + half * (1 + NODES), sigma, records)
    mass, gain = ((half * WEIGHTS * column).sum(axis=1) for column in inner)
    low, high = (
        [
            math.fsum(share * float(special.ndtr(-edge + sign * c / sigma)) for c, share in records)
            for sign in (-1, 1)
        ]
        for edge in (-edges[0], edges[-1])
    )
    # Left of all edges x is the farther record, right of them z.
    return _atoms_of_cells(
        np.concatenate([[low[1]], mass, [high[0]]]),
        np.concatenate([[low[0] - low[1]], gain, [high[1] - high[0]]]),
    )


def _opposite(y: Floats, sigma: float, records: tuple[tuple[float, float], ...]) -> tuple[Floats, Floats]:
    """Densities at y deviations from the middle: of z = −record, and how far that of x exceeds it."""
    density = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    parts = [(c / sigma, share * math.exp(-((c / sigma) ** 2) / 2)) for c, share in records]
    other = sum(share * np.exp(-c * y) for c, share in parts)
    # e^(cy) − e^(−cy): the excess is never a difference of two masses.
    excess = sum(share * 2 * np.sinh(c * y) for c, share in parts)
    return np.asarray(density * other), np.asarray(density * excess)


def _code_edges(sigma: float, radius: float) -> Floats:
    """Edges of cells, halfway between whole numbers, ending where reports are rare and weigh too much."""
    a = max(radius / sigma, 1e-300)
    beyond = min(max(7.0 / (2 * a) - a, 1.0), 8.5)  # the heaviest weight is e^7, or there is no cell
    reach = radius + beyond * sigma
    return np.asarray(np.unique(np.floor(np.linspace(-reach, reach, _LINE_CELLS + 1))) + 0.5)


def _atoms_of_cells(mass: Floats, excess: Floats) -> Atoms:
    keep = mass > 0
    mass, excess = mass[keep], excess[keep]
    return read_coarsely(np.maximum(excess / mass, -1.0), np.zeros(len(mass)), mass / mass.sum())


def _between(z: Floats) -> Floats:
    """Standard normal mass between neighbouring points, increasing, from the nearer tail."""
    below, above = np.diff(special.ndtr(z)), -np.diff(special.ndtr(-z))
    return np.asarray(np.where(z[:-1] > 0, above, below), dtype=np.float64)


def _on_levels(
    log_weights: Floats, blanket: Floats, record: Floats, *, last: float, tail: float, low: float = 0.0
) -> Blanket:
    """Spread one edge of a blanket over levels of r, at equal mean.

    Between neighbours of increasing ``log_weights`` from 0 on there are ω masses ``blanket`` and the record's
    own masses ``record``, r times as much; ω has mass ``last`` at the largest weight and ``low`` at (1, 1).
    """
    weights = np.exp(log_weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        second = np.where(blanket > 0, record * (record / blanket), 0.0)
    offset = np.expm1(log_weights)
    information = float((second - 2 * record + blanket).sum()) + last * float(offset[-1]) ** 2
    # For a given number of levels the least is added if their distance goes as the density to the power −1/3.
    # Some more do the same for the logarithms of weights, which decide where few clients take part, and keep
    # the record's tail where it is.
    crowding = np.cumsum(np.cbrt(blanket * np.diff(weights) ** 2))
    log_crowding = np.cumsum(np.cbrt(record * np.diff(log_weights) ** 2))
    remaining = np.cumsum(record[::-1])[::-1] + last * weights[-1]
    tail_depth = np.log(remaining[0] / np.maximum(np.append(remaining[1:], last * weights[-1]), 1e-300))
    crowding = crowding / crowding[-1] + 0.2 * log_crowding / log_crowding[-1] + 0.01 * tail_depth
    count = 6
    while True:
        wanted = np.linspace(0.0, crowding[-1], count)[1:-1]
        knots = np.unique(np.concatenate([[0], np.searchsorted(crowding, wanted) + 1, [len(blanket)]]))
        w, r, s = (np.add.reduceat(column, knots[:-1]) for column in (blanket, record, second))
        below, above = weights[knots[:-1]], weights[knots[1:]]
        added = float(((below + above) * r - below * above * w - s).sum())
        if added <= 1e-3 * information or count >= _MOST_LEVELS:
            break
        count += 2
    share = np.clip(r - below * w, 0.0, w * (above - below)) / (above - below)
    mass = np.append(w - share, last)
    mass[1:] += share
    edges = zip(weights[knots][1:-1].tolist(), mass[1:-1].tolist(), strict=True)
    return Blanket(
        local_epsilon=float(log_weights[-1]),
        differing=float(mass[-1]),
        low=low + 2 * float(mass[0]),
        edges=tuple((weight, m) for weight, m in edges if m > 0),
        tail=tail,
        exact=False,
    )
