r"""PrivUnit: a random unit vector that leans towards the client's own direction.

PrivUnit (Bhowmick et al. 2018) reports a unit vector V whose density with respect to the uniform law on the
sphere is :math:`c\,e^{ε_0}` on the cap :math:`\{v : \langle v, u \rangle \ge t\}` around the client's
direction u and c elsewhere. With s the measure of the cap, :math:`c = 1/(1 + (e^{ε_0}-1)s)`. The ratio of
densities is exactly :math:`e^{ε_0}`: unlike in the original no budget is split between the cap and its
probability.

The same law as a mixture: with probability c, V is uniform on the whole sphere and says nothing about u;
otherwise it is uniform on the cap. This is how it is sampled here.

**Optimal cap.** The mean of V is m·u with :math:`m(t) = (e^{ε_0}-1)φ(t)/(1+(e^{ε_0}-1)s(t))`,
:math:`φ(t) = E[A; A \ge t]`. The variance of V/m is :math:`1/m^2 - 1`, so the best t maximises m. Since
:math:`φ' = -t f` and :math:`s' = -f`, the derivative vanishes exactly where :math:`t = m(t)`, that is, at the
root of :math:`h(t) = t(1/(e^{ε_0}-1) + s(t)) - φ(t)`. As :math:`h(0) < 0 < h(1)` and
:math:`h'(t) = 1/(e^{ε_0}-1) + s(t) > 0`, the root is unique; it is positive, so s ≤ 1/2. (Optimality of the
form within ε0-LDP: Asi, Feldman, Talwar 2022.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket, zero_between
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.privunit.privunit_reports import Draws, dense_reports
from shuffle_plugins.mechanisms.privunit.privunit_sum import ChunkedSum, chunk_size
from shuffle_plugins.mechanisms.privunit.sphere import (
    LOUDEST_TOLD,
    OVERLAP_ERROR,
    Caps,
    cap_coordinate,
    cap_measure,
    cap_moment,
    caps_at_angle,
    caps_information,
    plain_share,
    plain_share_drawn,
    three_caps,
)
from shuffle_plugins.mechanisms.signs.randomized_response import bit_blanket
from shuffle_plugins.randomness import WHOLE, Randomness, secure


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivUnitParameters:
    """One PrivUnit.

    Attributes:
        local_epsilon: ε0 in nats.
        dim: d, dimension of the space.
        threshold: t, least inner product of a point of the cap with its centre.
        cap_measure: s, share of the sphere in the cap, in (0, 1/2].
        uniform_threshold: probability of a report that is uniform on the sphere, times 2**62, rounded up; so
            ε0 is never exceeded.
        mean: m, length of E[V]; reports are divided by it.
    """

    local_epsilon: float
    dim: int
    threshold: float
    cap_measure: float
    uniform_threshold: int
    mean: float

    @property
    def uniform_probability(self) -> float:
        """c, mass of the blanket."""
        return self.uniform_threshold / WHOLE

    @classmethod
    def at(cls, threshold: float, *, local_epsilon: float, dim: int) -> PrivUnitParameters:
        """PrivUnit with a given cap, ε0 spent in full.

        Raises:
            ValueError: if a parameter is out of range, or the cap is so small that its measure is zero.
        """
        checks.local_epsilon(local_epsilon)
        checks.dim(dim)
        if not 0 <= threshold < 1:
            raise ValueError(f"the cap's threshold must be in [0, 1), got {threshold!r}")
        measure = cap_measure(threshold, dim=dim)
        if measure < 1e-300:
            raise ValueError(f"the cap at {threshold} has no measure in dimension {dim}")
        uniform_threshold = plain_share_drawn(measure, local_epsilon=local_epsilon)
        informative = (WHOLE - uniform_threshold) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and threshold={threshold} a report says nothing: raise "
                "local_epsilon, or lower the threshold"
            )
        return cls(
            local_epsilon=local_epsilon,
            dim=dim,
            threshold=threshold,
            cap_measure=measure,
            uniform_threshold=uniform_threshold,
            mean=informative * cap_moment(threshold, dim=dim) / measure,
        )


@lru_cache(maxsize=256)
def optimal_privunit(*, local_epsilon: float, dim: int) -> PrivUnitParameters:
    """The PrivUnit of least variance."""
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    if dim == 1:
        return PrivUnitParameters.at(0.0, local_epsilon=local_epsilon, dim=dim)
    inverse_odds = math.exp(-local_epsilon) / -math.expm1(-local_epsilon)

    def slope(threshold: float) -> float:
        share = inverse_odds + cap_measure(threshold, dim=dim)
        return threshold * share - (cap_moment(threshold, dim=dim) if threshold < 1 else 0.0)

    threshold = zero_between(slope, 0.0, 1.0, xtol=1e-300, rtol=1e-13, most_steps=2000)
    return PrivUnitParameters.at(min(threshold, 1 - 1e-16), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def privunit_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket of PrivUnit on the ball: (e, 1) and (1, e) with mass c·s each, (1, 1) with mass c(1 - 2s).

    In one dimension a report is a sign, binary randomized response, and counted as a bit.

    *Proof.* A client at x, ‖x‖ ≤ radius, becomes the direction ±x/‖x‖ with probabilities (1 ± ‖x‖/radius)/2,
    so its density is :math:`c(1 + (e-1) A_x(v))` with :math:`A_x(v) \in [0, 1]` the probability that the cap
    of its random direction contains v; x = 0 reports the uniform law, :math:`A_0 = s`. Always
    :math:`\int A_x = s`. Every v lies outside the cap of some unit vector, so ω = c times the uniform law,
    and the two weights of a blanket report are :math:`1 + (e-1)A` and :math:`1 + (e-1)B`, with A, B in [0, 1]
    of mean s.

    Accounting needs :math:`E[f(const + \sum_i G_i)]`, f convex, :math:`G = r_0 - E r_1`, E ≥ 0. It does not
    fall when one slot's (A, B) is moved (i) to the corners of the unit square at equal mean, with masses
    :math:`w_{10} = w_{01} = s - w_{11}`; then (ii) by trading mass :math:`w_{11}` at (1, 1) and as much at
    (0, 0) for :math:`w_{11}` at (1, 0) and at (0, 1): G is linear, so the means agree, and the two new values
    of G enclose the two old ones. There is enough at (0, 0), as :math:`w_{00} = 1 - 2s + w_{11} \ge w_{11}`
    by s ≤ 1/2. What is left is (1, 0): s, (0, 1): s, (0, 0): 1 - 2s: two disjoint caps. Antipodal points of
    the boundary attain it, so overlapping caps, inner points and the random sign are all covered, at every ε.

    A third record at a right angle to both leaves most of either cap at the blanket's density: that makes
    the lower bound.
    """
    parameters = optimal_privunit(local_epsilon=local_epsilon, dim=dim)
    if dim == 1:
        return bit_blanket(local_epsilon)
    s = parameters.cap_measure
    uniform = plain_share(s, local_epsilon=local_epsilon)
    shared = float(caps_at_angle(parameters.threshold, angle=math.pi / 2, dim=dim)) + OVERLAP_ERROR * s
    caps = Caps(
        local_epsilon=local_epsilon,
        density=uniform,
        measure=s,
        overlap=lambda angle: caps_at_angle(parameters.threshold, angle=angle, dim=dim),
    )
    quiet = local_epsilon <= LOUDEST_TOLD
    return Blanket(
        local_epsilon=local_epsilon,
        differing=uniform * s,
        low=uniform * (1 - 2 * s),
        outside=uniform * max(s - shared, 0.0),
        instances=(three_caps(caps),),
        information_bound=caps_information(caps) if quiet else None,
    ).shared()


_UNIT_TOLERANCE = 1e-3  # of the norm of a float32 vector
_ROUNDED_ANGLE = 5e-7  # radians by which rounding to float32 may turn a report


class PrivUnit(LocalRandomizer):
    r"""PrivUnit on an l2 ball, with the cap of least variance and ε0 spent exactly.

    A row x becomes a direction: x/‖x‖ with probability (1 + ‖x‖/radius)/2, else the opposite, whose mean is
    x/radius. PrivUnit turns the direction into a unit vector V (see
    :mod:`.privunit`), which stands for V·radius/m. The direction is
    drawn within the client, so every output density is an average of PrivUnit's and ε0 holds for the whole
    ball; x = 0 reports a uniform V. ‖R(x)‖ is constant, so E‖R(x) - x‖² = (radius/m)² - ‖x‖².

    Choices among finitely many outcomes are made with integer thresholds, so their probabilities are exact.
    The density of V is that of ideal real arithmetic: ε0 and the blanket are proved for it. What is sent is
    computed in float64 and rounded to float32 once, 32·dim bits. Rounding the ideal V would be mere
    post-processing; float64 in its place is off by a relative 1e-15 or so per coordinate, far below what
    rounding leaves visible, but no proof covers that difference.

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection against reconstruction"; Asi,
    Feldman, Talwar 2022, "Optimal algorithms for mean estimation under local differential privacy".

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector; at 1 it is binary randomized response.
        radius: radius of the l2 ball.
    """

    name: ClassVar[str] = "privunit"
    norm: ClassVar[Norm] = Norm.L2

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._parameters = optimal_privunit(local_epsilon=self.local_epsilon, dim=dim)

    @property
    def parameters(self) -> PrivUnitParameters:
        """The cap, the probability of a uniform report, and the mean's length."""
        return self._parameters

    @property
    def layout(self) -> ReportLayout:
        """A vector of floats of 32 bits."""
        return ReportLayout(self.name, self.dim, (FieldLayout(32, self.dim, floating=True),))

    @property
    def report_norm(self) -> float:
        """‖R(x)‖ = radius/m, the same for every report."""
        return self.radius / self._parameters.mean

    @property
    def worst_variance(self) -> float:
        """That of 0, (radius/m)²."""
        return self.report_norm**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = (radius/m)² - ‖x‖² of each row, (clients,), float64."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """Two disjoint caps; see :func:`~.privunit_blanket`."""
        return privunit_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.check_reports(reports)
        vectors = reports.fields[0].values.reshape(len(reports), self.dim)
        norms = torch.linalg.vector_norm(vectors, dim=1)
        if not bool(((norms - 1).abs() <= _UNIT_TOLERANCE).all()):
            raise ValueError("a report is not a unit vector: it was altered or forged; drop it")
        return vectors.sum(dim=0).mul_(self.report_norm)

    def outcomes(self) -> Reports | None:
        """The two signs in one dimension; from two dimensions on there are too many unit vectors."""
        if self.dim > 1:
            return None
        signs = torch.tensor([[-1.0], [1.0]])
        return self.layout.reports(signs)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each unit vector with respect to the uniform law, or log-probability at dim 1.

        A report within rounding to float32 of the cap counts as inside.
        """
        vectors = reports.fields[0].values.double()
        row = x.detach().double()
        length = float(torch.linalg.vector_norm(row))
        uniform = self._parameters.uniform_probability
        if length == 0:
            return torch.full((len(reports),), -math.log(2) if self.dim == 1 else 0.0, dtype=torch.float64)
        direction = row / length
        along = vectors @ direction
        across = torch.linalg.vector_norm(vectors - along.unsqueeze(1) * direction, dim=1)
        widest = math.acos(self._parameters.threshold) + _ROUNDED_ANGLE
        near, far = (torch.atan2(across, side) <= widest for side in (along, -along))
        lean = min(length / self.radius, 1.0)
        inside = near.double().mul_((1 + lean) / 2).add_(far.double(), alpha=(1 - lean) / 2)
        density: Tensor = inside.mul_((1 - uniform) / self._parameters.cap_measure).add_(uniform)
        return density.log_().sub_(math.log(2) if self.dim == 1 else 0.0)

    def randomize_sum(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Tensor:
        """As :meth:`LocalRandomizer.randomize_sum`, without one dense vector per client.

        The method is that of :mod:`.privunit_sum`, whose law is exactly that of the sum in real arithmetic.
        Values are float32 numbers, also where the dtype is wider.
        """
        rows = self.check_rows(x)
        chunk = chunk_size(rows)
        if chunk is None:
            return super().randomize_sum(rows, randomness=randomness, clip=clip)
        randomness = secure(randomness)
        chunked = ChunkedSum(rows, chunk=chunk)
        admitted, norms = self.admitted(rows, chunked.norms(), clip=clip)
        if admitted is not rows:
            chunked = ChunkedSum(admitted, chunk=chunk)
        total = chunked.sample(norms, draws=self._draw(norms, randomness), randomness=randomness)
        return total.mul_(self.report_norm).to(torch.float32).to(rows.compute_dtype)

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A unit vector for each row."""
        vectors = dense_reports(x, norms, draws=self._draw(norms, randomness), randomness=randomness)
        return self.layout.reports(vectors)

    def _draw(self, norms: Tensor, randomness: Randomness) -> Draws:
        count = norms.shape[0]
        lengths = norms.cpu().double()
        uniform = randomness.bernoulli(torch.full((count,), self._parameters.uniform_threshold))
        filled = (lengths / self.radius).clamp(max=1.0)
        thresholds = ((1 + filled) * (WHOLE / 2)).to(torch.int64).clamp_(max=WHOLE)
        sign = randomness.bernoulli(thresholds).double().mul_(2).sub_(1)
        tails = randomness.exponential(count).neg_().exp_().numpy() * self._parameters.cap_measure
        along = torch.from_numpy(cap_coordinate(tails, dim=self.dim))
        return Draws(along=along * sign, uniform=uniform | (lengths == 0))
