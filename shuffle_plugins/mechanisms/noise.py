"""Vectors plus noise on every coordinate, on a public grid (``docs/proofs/mechanisms.md``, section 6).

A real number plus real noise, computed in floating point, shows the number in its low digits (Mironov 2012).
So nothing leaves a client but multiples of a public step h, as codes in [0, 2·limit]; those beyond ±limit are
moved onto it, which is post-processing, with a probability that each mechanism states.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar

from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import (
    Adversary,
    Atoms,
    Blanket,
    GaussianReportsRound,
    InformationBound,
    Sampling,
    ShuffleRound,
)
from shuffle_plugins.accounting.numerics.search import narrowed, zero_between
from shuffle_plugins.accounting.rounds.sums import delta_of_gaussian
from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import in_range, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.packing import compact_dtype
from shuffle_plugins.core.rows import spans
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, LocalRandomizer, Norm
from shuffle_plugins.mechanisms.discrete_sampling import MAX_SIGMA, discrete_gaussian, discrete_laplace
from shuffle_plugins.mechanisms.noise_law import (
    NODES,
    WEIGHTS,
    discrete_gaussian_instance,
    discrete_laplace_blanket,
    discrete_laplace_information,
    discrete_laplace_instances,
    gaussian_blanket,
    gaussian_instance,
    laplace_ball_information,
)
from shuffle_plugins.randomness.sources import Randomness

FINE_BITS = 20
"""Bits per coordinate of the mechanism called Laplace: the grid adds about 1e-4 to its variance."""


_MARGIN = 1e-9  # relative; covers rounding in float64
_LOUDEST_BLANKET = 150.0  # keeps products of the blanket's weights in float64's range


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
                "bound covers it without its δ0: use round(), or ShuffleRound(local_delta=…); in a shell "
                "--mechanism generic --local-delta …, far below δ / k"
            )
        law = gaussian_blanket(sigma=self._sigma_per_radius(), radius=1.0)
        return replace(law, instances=(self._instance(),))

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> ShuffleRound:
        """A round of this mechanism: its noise; at dim 1 its blanket, too, whose cut is the round's ε0."""
        reports: dict[str, Any] = {"local_epsilon": self.local_epsilon, "local_delta": self.local_delta}
        if self.dim == 1:
            try:
                own = self.blanket()
                reports = {"local_epsilon": own.local_epsilon, "mechanism": self.name, "blanket": own}
            except ValueError:  # too little noise for its weights
                pass
        return GaussianReportsRound(
            **reports,
            population=population,
            cohort=cohort,
            sampling=sampling,
            adversary=adversary,
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
