r"""The blanket-mixed Gaussian mechanism: a Gaussian vector that leans towards the client's, in steps.

A report V is that of :mod:`.half_spaces` with J = 8 half-spaces. It is N(0, I) with a probability c that
does not depend on the client's record: this part is the *blanket*. PrivUnitG is the case J = 1.

**Why several half-spaces.** After shuffling many reports, ε follows from how much one report tells,
:math:`I = \sup_{x, x', z} \sum (R_x - R_{x'})^2 / R_z`, and hardly from ε0. For a given mean of V this sum is
least if the density rises linearly with the inner product of V and the client's direction, as that of a
shifted normal law does to first order. Eight steps are nearly linear. The one step of PrivUnitG, which is
best for a given ε0, tells up to π/2 times as much as a linear density. So at equal ε after shuffling this
mechanism has less variance, and a larger ε0.

Source: Takagi, Liew 2026, "Shuffling-aware optimization for private vector mean estimation" (arXiv
2604.28032). Theirs is the aim, the least error for what is told after shuffling, and a blanket of Gaussian
noise that is mixed with a Gaussian report about the record. The likelihoods of a Gaussian have no bound. The
steps, which bound them by e^ε0, and their thresholds are this project's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np
from scipy import special

from shuffle_plugins.accounting import (
    Atoms,
    Blanket,
    Floats,
    InformationBound,
    most_telling,
    read_coarsely,
    two_level_atoms,
)
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.privunit.half_spaces import HalfSpaceParameters, HalfSpaceReports
from shuffle_plugins.mechanisms.privunit.privunit_g import optimal_privunit_g
from shuffle_plugins.mechanisms.privunit.sphere import ANGLES, LOUDEST_TOLD, most_information, plain_share
from shuffle_plugins.randomness import WHOLE

STEPS = 8
"""J, how many steps the density has. 32 would tell half a per cent less at the same variance."""

_MANY = 10**6  # dimensions for which PrivUnitG's threshold is taken, so that ours do not depend on the model
_LOUDEST_LISTED = 100.0  # ε0 up to which squares of weights are floats
_OVERLAP_ERROR = 1e-6  # of the measure of two half-spaces, as a share of the smaller; far above that of T
_APART = np.linspace(math.pi / 2, math.pi, 13).tolist()  # angles between two records that are tried
_ROUGHLY = 180  # directions of a report in a plane, to choose the records by
_PIECE = 0.01  # radians: over shorter pieces without a kink Gauss' rule of eight nodes is exact to 13 digits
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@lru_cache(maxsize=256)
def mixed_half_spaces(*, local_epsilon: float, dim: int) -> HalfSpaceParameters:
    """The mechanism of an ε0.

    Its thresholds are spread evenly: between 0 and 2.25 standard deviations up to ε0 = 1.7, and around
    PrivUnitG's for a large ε0. Up to ε0 = 4 the variance is within 6 per cent of the least that evenly spread
    thresholds and an ε0 of up to 1 more have for the same information.
    """
    checks.dim(dim)
    # The numbers are near the best of a search over both ends at ε0 = 0.1 … 6, as functions of one threshold.
    (one_step,) = optimal_privunit_g(local_epsilon=local_epsilon, dim=_MANY).thresholds
    low = max(0.0, min(1.6 * one_step - 1.1, one_step - 0.2))
    high = max(2.25, low + min(2 / one_step, 1.6)) if one_step < 3 else low + 2 / one_step
    thresholds = low + (high - low) * (np.arange(STEPS) + 0.5) / STEPS
    return HalfSpaceParameters.at(*thresholds.tolist(), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def blanket_mixed_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket on the ball: weights (1 + i(e − 1)/J, 1), and mirrored, of mass c(q_i − q_{i+1}) each.

    Here e is e^ε0. A report weighs the same for a record and its opposite unless it is in a half-space of one
    of them, and then 1 for the other, as thresholds are positive. These two records are the worst: r_0 rises
    and r_1 falls with the inner product, so :math:`r_0 - E r_1` is a sum of two quantities that rise
    together, which in convex order is the largest of all with the same laws. Rows within the ball are
    averages of opposite directions, for which the same holds. The row 0 reports N(0, I), which weighs a
    constant: the mean of the others' weights.
    """
    found = mixed_half_spaces(local_epsilon=local_epsilon, dim=dim)
    tails, gain = np.array(found.tails), math.expm1(local_epsilon)
    plain = plain_share(float(tails.mean()), local_epsilon=local_epsilon)
    step = gain / STEPS
    if local_epsilon > _LOUDEST_LISTED:
        return _read_as_one_step(found, plain)
    inner = plain * (tails[:-1] - tails[1:])
    last = float(plain * tails[-1])
    weights = 1 + step * np.arange(1, STEPS)
    if dim > 1:
        even: Floats = (np.arange(_ROUGHLY, dtype=np.float64) + 0.5) * (2 * math.pi / _ROUGHLY)
        rough = [_three_records(found, apart, even, np.full(_ROUGHLY, 1 / _ROUGHLY)) for apart in _APART]
        best = _APART[rough.index(most_telling(rough))]
        instance = _three_records(found, best, *_directions(found.thresholds, best))
    else:
        instance = _two_records(found)
    quiet = dim > 1 and local_epsilon <= LOUDEST_TOLD
    return Blanket(
        local_epsilon=local_epsilon,
        differing=last,
        low=plain * (1 - 2 * float(tails[0])),
        edges=tuple(zip(weights.tolist(), inner.tolist(), strict=True)),
        outside=last * (1 - float(tails[0])) if dim > 1 else 0.0,
        instances=(instance,),
        information_bound=_information(found, plain) if quiet else None,
    ).shared()


def _read_as_one_step(found: HalfSpaceParameters, plain: float) -> Blanket:
    """For an ε0 of larger weights: a step's weight is spread over 1 and e^ε0, at equal mean."""
    tails = np.array(found.tails)
    differing = plain * float(tails.mean())
    clear = float(plain * tails[-1]) * (1 - float(tails[0]) if found.dim > 1 else 1.0)
    shares: dict[tuple[int, ...], float] = {(1, 0, 0): clear, (0, 1, 0 if found.dim > 1 else 1): clear}
    return Blanket(
        local_epsilon=found.local_epsilon,
        differing=differing,
        low=plain - 2 * differing,
        exact=False,
        instances=(two_level_atoms(local_epsilon=found.local_epsilon, shares=shares),),
    )


def _levels(found: HalfSpaceParameters) -> tuple[float, float]:
    """c and (e − 1)/J as they are drawn: c is rounded up, so that a report tells a little less."""
    plain = found.plain_probability
    return plain, (WHOLE - found.plain_threshold) / found.plain_threshold / math.fsum(found.tails)


def _two_records(found: HalfSpaceParameters) -> Atoms:
    """x and −x, everybody else at −x."""
    plain, step = _levels(found)
    tails, level = np.array(found.tails), step * np.arange(1, STEPS + 1)
    cells = plain * (tails - np.append(tails[1:], 0.0))
    u = np.concatenate([level, -level / (1 + level), [0.0]])
    mass = np.concatenate([cells, cells * (1 + level), [plain * (1 - 2 * tails[0])]])
    return read_coarsely(u, np.zeros_like(u), mass)


def _directions(thresholds: tuple[float, ...], apart: float) -> tuple[Floats, Floats]:
    """Directions in the plane of three records, and weights, such that sums over them are integrals.

    Between kinks, where two half-spaces of two records begin at the same length, the measure of reports of
    given likelihoods is a smooth function of the direction.
    """
    s = np.array(thresholds)
    found = [np.arange(0.0, 2 * math.pi, _PIECE), np.array([2 * math.pi])]
    for first, second in combinations((apart / 2, -apart / 2, math.pi), 2):
        up = np.subtract.outer(s * math.cos(second), s * math.cos(first))
        across = np.subtract.outer(s * math.sin(second), s * math.sin(first))
        kink = np.arctan2(-up, across).ravel()
        found += [kink % (2 * math.pi), (kink + math.pi) % (2 * math.pi)]
    ends = np.unique(np.concatenate(found))
    half = np.diff(ends)[:, None] / 2
    return (ends[:-1, None] + half * (1 + _NODES)).ravel(), (half * _WEIGHTS).ravel() / (2 * math.pi)


def _three_records(found: HalfSpaceParameters, apart: float, turn: Floats, weight: Floats) -> Atoms:
    """Two records of that angle, and everybody else at a third, which faces away from the middle of the two.

    In their plane a report's direction is uniform, and half its squared length is exponential. Given the
    direction each half-space begins at a length; between these lengths the three likelihoods are constant.

    Args:
        found: the mechanism.
        apart: the angle.
        turn: directions of a report.
        weight: of each; 1 in all.
    """
    plain, step = _levels(found)
    directions = len(turn)
    places = np.array([apart / 2, -apart / 2, math.pi])
    cosine = np.cos(turn[:, None] - places)[:, :, None]
    thresholds = np.array(found.thresholds)
    with np.errstate(divide="ignore", over="ignore"):
        starts = np.where(cosine > 0, thresholds / np.maximum(cosine, 1e-150), np.inf)
    # Which likelihoods a report has is one number of three digits, to which each half-space adds its own.
    levels = (STEPS + 1, STEPS + 1, STEPS + 1)
    digits = np.repeat([levels[1] * levels[2], levels[2], 1], STEPS)
    starts = starts.reshape(directions, -1)
    order = np.argsort(starts, axis=1)
    with np.errstate(over="ignore"):
        beyond = np.exp(-(np.take_along_axis(starts, order, axis=1) ** 2) / 2)
    mass = -np.diff(beyond, axis=1, prepend=1.0, append=0.0) * weight[:, None]
    number = np.zeros(mass.shape, dtype=np.int64)
    np.cumsum(digits[order], axis=1, out=number[:, 1:])
    total = np.bincount(number.ravel(), weights=mass.ravel(), minlength=math.prod(levels))
    x, other, z = np.unravel_index(np.flatnonzero(total), levels)
    likelihood = 1 + step * z
    u, v = step * (x - z) / likelihood, step * (other - z) / likelihood
    atoms = read_coarsely(u, v, plain * likelihood * total[total != 0])
    # Several have nearly the same u, and roundoff would decide their order; each has a u − v of its own.
    return tuple(sorted(atoms, key=lambda atom: atom[0] - atom[1]))


def _information(found: HalfSpaceParameters, plain: float) -> InformationBound:
    """How much a report tells, at most (section 3d of the proofs of accounting).

    F is the share of half-spaces that a report is in and 1/(1 + (e − 1)F) = 1 − ψ; both are sums of their
    half-spaces' indicators.
    """
    gain = math.expm1(found.local_epsilon)
    overlaps = _overlaps(np.array(found.thresholds))
    margin = _OVERLAP_ERROR * np.minimum.outer(np.array(found.tails), np.array(found.tails))
    low, high = np.maximum(overlaps - margin, 0.0), overlaps + margin
    count = np.arange(STEPS + 1)
    once, squared = np.full(STEPS, 1 / STEPS), np.diff((count / STEPS) ** 2)
    hidden = np.diff(-1 / (1 + gain * count / STEPS))
    most = most_information(
        square=float(squared @ np.array(found.tails)),
        told=low @ hidden @ squared,
        both=low @ once @ once,
        saved=float(hidden.sum()),
        thrice=high @ hidden @ once,
    )
    return InformationBound.of_blanket(
        local_epsilon=found.local_epsilon, information=plain * gain**2 * most, mass=plain
    )


def _overlaps(thresholds: Floats) -> Floats:
    """P[⟨V, u⟩ ≥ s_i and ⟨V, w⟩ ≥ s_j] at each of the angles between u and w: shape (angles, J, J)."""
    s, t = thresholds[:, None], thresholds[None, :]
    cosine, sine = np.cos(ANGLES[1:-1, None, None]), np.sin(ANGLES[1:-1, None, None])
    tails = special.ndtr(-thresholds)
    halves = (tails[:, None] + tails[None, :]) / 2
    inner = halves - special.owens_t(s, (t / s - cosine) / sine) - special.owens_t(t, (s / t - cosine) / sine)
    return np.concatenate([np.minimum.outer(tails, tails)[None], inner, np.zeros_like(halves)[None]])


class BlanketMixedGaussian(HalfSpaceReports):
    """One vector report per client on an l2 ball, of the least error for a given ε after shuffling.

    A report is a vector of dim float32 numbers, 32·dim bits. With a probability that does not depend on the
    client's row it is N(0, I); these reports are the blanket, under which those of the others hide. Otherwise
    it is N(0, I) conditioned on one of eight half-spaces that face the client's direction. Rows of every
    length in the ball are reported without bias.

    At a given ε0 its variance is larger than PrivUnit's, and what it tells after shuffling is less. So choose
    ε0 by the ε that you want after shuffling. At the ε that PrivUnit has with ε0 = 0.25, 1 and 4 (1,200
    rounds of 10,000 of 60,000 clients, δ = 1e-5), its variance is 28, 17 and 7 per cent below PrivUnit's, and
    its ε0 0.47, 1.41 and 4.61. Without shuffling take PrivUnit.

    Source: after Takagi, Liew 2026, arXiv 2604.28032; :mod:`.blanket_mixed` says what is theirs and what
    is not.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: radius of the l2 ball.
    """

    name: ClassVar[str] = "blanket-mixed-gaussian"

    def blanket(self) -> Blanket:
        """Weights of all steps; see ``blanket_mixed.blanket_mixed_blanket``."""
        return blanket_mixed_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    def _half_spaces(self) -> HalfSpaceParameters:
        return mixed_half_spaces(local_epsilon=self.local_epsilon, dim=self.dim)
