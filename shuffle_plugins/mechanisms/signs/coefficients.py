r"""What randomizers of an l2 ball that send coefficients of a public representation have in common.

Both mechanisms represent a vector of the ℓ2 ball by D coefficients of absolute value at most
r_inf = level·r/√D, with r the radius. A client draws k coefficients, rounds each to a random sign of mean
coefficient/r_inf, and sends these k signs, the *pattern*, through ``sign_patterns``: patterns that agree
with the true one in enough places, the *cap*, are sent more often by a factor e^ε0. ``sqkr`` divides the
coefficients into k blocks and draws one of each; ``l2-block`` draws one block of k neighbours.

All levels are in units of :math:`r/\sqrt{size}`, what every coefficient would be if all were equal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted
from shuffle_plugins.compressors import KashinFrame
from shuffle_plugins.core import Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.signs.randomized_response import LOUDEST_EXACT
from shuffle_plugins.mechanisms.signs.representations import Frame, representation
from shuffle_plugins.mechanisms.signs.sign_patterns import (
    MAX_SIGNS,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
    spread_information,
)
from shuffle_plugins.mechanisms.signs.unit_numbers import NumberRandomizer

CLIENTS, FAILURE = 10_000, 1e-6
"""Reports in a round, and how likely one may be clipped, that the level provides for by default."""

_SINGLE_PRECISION = 1 - 1e-5
_HALVINGS = 80  # of the bracket of the level: float64 has no more digits


class Oversized(StrEnum):
    """What becomes of coefficients that are larger than the rotation makes likely.

    ``CLIP``: the ball is so large that, with probability 1 - β over the rotation's signs, no coefficient of
    any client is clipped: a sub-Gaussian and a union bound. Otherwise those coefficients are clipped, with a
    bias.

    ``BALANCE``: the ball that minimises variance/n + bias² for n clients with the same vector, its rotated
    entries as good as normal. Always biased: hardly where n is large beside the variance of one report, and
    down to a shrunk estimate of little but directions where it is small.

    ``BOUND``: the ball of radius r, which no coefficient can leave. Always unbiased, and of size/level² times
    the variance.
    """

    CLIP = "clip"
    BALANCE = "balance"
    BOUND = "bound"


def sound_level(*, size: int, clients: int, failure: float) -> float:
    r"""Level that no coefficient of any client passes, but with probability β: at most :math:`\sqrt{size}`.

    :math:`P(\max |w| > t) \le 2 \, size \, n \exp(-size\,t^2/(2 r^2))` gives
    :math:`\sqrt{2 \log(2 \, size \, n/β)}`.
    """
    return min(math.sqrt(2 * math.log(2 * size * clients / failure)), math.sqrt(size))


def thesis_level(*, size: int, clients: int, failure: float) -> float:
    """As printed in Algorithm 3.6.1 of Girgis's thesis: 10·sqrt(log(size·n/β))."""
    return 10 * math.sqrt(math.log(size * clients / failure))


def balanced_level(*, size: int, clients: int, noise: float) -> float:
    r"""Level c that minimises :math:`c^2 \, noise/n + E[(|g| - c)_+^2]`, g standard normal.

    Args:
        size: number of coefficients; the level is at most its square root.
        clients: n, how many clients there are.
        noise: variance of one report at level 1, in units of r².
    """

    def slope(level: float) -> float:
        density = math.exp(-level * level / 2) / math.sqrt(2 * math.pi)
        above = math.erfc(level / math.sqrt(2)) / 2
        return level * noise / clients - 2 * (density - level * above)

    low, high = 0.0, math.sqrt(size)
    if slope(high) <= 0:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return high


def check_expected(*, clients: int, failure: float) -> None:
    """Check how many clients are expected and how often one may be clipped.

    Raises:
        ValueError: unless they are a positive whole number and a probability.
    """
    checks.whole("clients", clients)
    checks.number("failure", failure, above=0, below=1)


def mean_square(level: float, *, stretch: float = 1.0) -> float:
    """An upper bound on the mean square of a record's coefficients, over the square of the clipping bound.

    Coefficients above a fixed bound, the clipping bound, are clipped to it.

    Args:
        level: the clipping bound, over the size of the coefficients of a longest record if all are equal.
        stretch: an upper bound on the norm of all coefficients over the norm of the record.
    """
    return min((stretch / (_SINGLE_PRECISION**10 * level)) ** 2, 1.0)


def flat_lean(level: float) -> float:
    """The size of the coefficients of the vector ±r·e_1, as a share of the clipping bound; at most 1.

    All of them have the same size: in a rotation and in a Kashin frame they are a row of a Hadamard matrix.
    The result is rounded down by as much as computing them in single precision can change them.

    Args:
        level: the clipping bound, over the size of the coefficients of a longest record if all are equal.
    """
    return 1.0 if level <= 1 else _SINGLE_PRECISION / level


def aligned_records(*, level: float, dim: int) -> tuple[tuple[float, float], ...]:
    """Vectors whose rotated coefficients are of one size, or 0: their sizes, and how many are not 0.

    Of the first 2**a numbers all are of one size, with the rotation's own signs, and the others 0. Then each
    2**a-th coefficient is √(2**a) times what it would be if all were equal, and the others are 0.
    Coefficients above the clipping bound are clipped to it.
    """
    found = []
    for power in range(dim.bit_length()):
        size = flat_lean(level / 2.0 ** (power / 2))
        found.append((size, 2.0**-power))
        if size == 1:
            break
    return tuple(found)


def best_signs(*, local_epsilon: float, dim: int, among: tuple[int, ...] | None = None) -> int:
    """The number k of signs with the largest k·gain², for which the variance of a report is about least.

    The gain is the factor by which randomising shrinks the mean: E[sent sign] = gain · true sign. Of several
    equally good k the first in ``among`` is taken.

    Args:
        local_epsilon: ε0 of a report in nats, in [1e-9, 500].
        dim: length of a client's vector; not used if ``among`` is given.
        among: values of k to choose from, in [1, 20]; by default 1, 2, …, min(20, dim).
    """
    checks.local_epsilon(local_epsilon)
    return _best_signs(local_epsilon, among or tuple(range(1, min(checks.dim(dim), MAX_SIGNS) + 1)))


@lru_cache(maxsize=1024)
def _best_signs(local_epsilon: float, among: tuple[int, ...]) -> int:
    def information(signs: int) -> float:
        return signs * cap_parameters(local_epsilon=local_epsilon, signs=signs).gain ** 2

    return max(among, key=information)


def drawn_square(*, size: int, signs: int, square: float) -> float:
    """An upper bound on the mean square of the coefficients that ``sqkr`` draws, one of each of k blocks.

    If k does not divide D, some blocks have one coefficient less than the others. Each of their coefficients
    is drawn more often, so the mean over drawn coefficients can be above the mean over all.

    Args:
        size: D, the number of coefficients of a vector.
        signs: k, the number of blocks, at most D.
        square: mean over all D of (coefficient/r_inf)², or an upper bound on it; in (0, 1].

    Returns:
        The bound, in units of r_inf²; in (0, 1].
    """
    return min(square * size / (signs * (size // signs)), 1.0)


def patterns_blanket(
    *, local_epsilon: float, signs: int, level: float, square: float, whole: float = 1.0
) -> Blanket:
    """The blanket of reports that send one pattern of k signs of coefficients, from above and from below.

    From above it holds for any records. It is the blanket of a pattern whose signs are certain. Beside it is
    a bound on the information (``Blanket.information_bound``), which often gives a much smaller ε, since a
    vector of the ℓ2 ball cannot have all coefficients at ±r_inf. There is no such bound for square = 1 or
    ε0 ≥ 42.

    From below (``Blanket.instances``) client 1 holds r·e_1 or −r·e_1, with e_1 the first unit vector. All of
    their coefficients are ±r/√D, that is ±r_inf/level. There is no such bound for ε0 ≥ 42, where
    probabilities in units of 2**-62 are too coarse.

    Args:
        local_epsilon: ε0 of a report in nats, in [1e-9, 500].
        signs: k, signs in a pattern, in [1, 20].
        level: r_inf·√D/r, the largest coefficient allowed over the size r/√D of coefficients that are all
            equal.
        square: upper bound on the mean of (coefficient/r_inf)² over the coefficients drawn; in (0, 1].
        whole: share of the blocks that have k coefficients; the others are padded with zeros. In [0, 1].
    """
    instances: tuple[Atoms, ...] = ()
    if whole > 0 and local_epsilon < LOUDEST_EXACT:
        own = leaning_patterns(local_epsilon=local_epsilon, signs=signs, lean=flat_lean(level))
        instances = (diluted(own, whole),)
    blanket = cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=False, instances=instances)
    if square == 1 or local_epsilon >= LOUDEST_EXACT:
        return blanket
    information = spread_information(local_epsilon=local_epsilon, signs=signs, mean_square=square)
    bound = InformationBound.of_blanket(
        local_epsilon=local_epsilon, information=information, mass=blanket.mass
    )
    return replace(blanket, information_bound=bound)


_CHUNK_ENTRIES = 1 << 20  # coefficients handled at a time, on a CPU
_LARGEST_LEVEL = 1e6  # no sensible level comes near; squares stay in range


class CoefficientRandomizer(NumberRandomizer):
    r"""Sends some of the D coefficients of a row's public representation, each within [-r_inf, r_inf].

    r_inf = level·r/√D. A coefficient beyond it is clipped, and only then is the estimate biased. Of a Kashin
    frame none is, but all coefficients of a vector are shortened if they are too long (``kashin_stretch``),
    as if the vector were shorter: accounting counts on it. Vectors close to single columns of the frame, made
    from the seed, have coefficients up to 1.6 times as long; of vectors with a few equal numbers and zeros
    about one in a hundred is shortened, by at most 6 per cent where it was measured.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest l2 norm.
        frame: ``"rotation"`` or ``"kashin"``.
        seed: whole number that fixes rotation or frame.
        level: what the mechanism would choose itself, if given.
    """

    norm: ClassVar[Norm] = Norm.L2

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float,
        frame: Frame | str,
        seed: int,
        level: float | None,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        if level is not None:
            level = checks.number("level", level, above=0, at_most=_LARGEST_LEVEL)
        self._representation = representation(Frame(frame), dim=dim, seed=seed, level=level)
        self._level = math.nan if level is None else level

    @property
    def level(self) -> float:
        """r_inf·√D/r: how many times its average size a coefficient may have."""
        return self._level

    @property
    def coefficient_radius(self) -> float:
        """r_inf, beyond which a coefficient is clipped."""
        return self._level * self.radius / math.sqrt(self._representation.size)

    def clipping_bias(self, x: Tensor | Rows) -> Tensor:
        """E[R(x)] - x of each row, (clients, dim) float64: rounding alone where no coefficient is clipped."""
        rows = self.check_rows(x)
        biases = [torch.zeros(0, self.dim, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            clipped = self._clipped(self._representation.represent(part))
            biases.append(self._representation.reconstruct(clipped) - part)
        return torch.cat(biases)

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64, exact, with the square of the bias of clipping.

        It takes as many transforms of the batch as a report has signs, where coefficients are not an
        isometry.
        """
        rows = self.check_rows(x)
        totals = [torch.zeros(0, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            clipped = self._clipped(self._representation.represent(part))
            bias = self._representation.reconstruct(clipped) - part
            totals.append(self._spread_variance(clipped) + bias.square().sum(dim=1))
        return torch.cat(totals)

    @property
    def worst_variance(self) -> float:
        """A bound on E‖R(x) - x‖² over the ball: the largest variance, and the largest bias squared.

        The bias is largest for a vector of one coefficient; with a sound level it takes a vector made for the
        seed. With a Kashin frame the bias of vectors whose coefficients are shortened is left out: it is
        up to (1 - stretch/level)·radius for those made for the seed, and rarely 0.06·radius for others.
        """
        kashin = isinstance(self._representation, KashinFrame)
        bias = 0.0 if kashin else max(0.0, self.radius - self.coefficient_radius)
        return self._worst_spread_variance + bias**2

    @property
    def _mean_square(self) -> float:
        """An upper bound on the mean square of a record's coefficients over the squared clipping bound."""
        frame = self._representation
        return mean_square(self.level, stretch=frame.stretch if isinstance(frame, KashinFrame) else 1.0)

    @property
    @abstractmethod
    def _worst_spread_variance(self) -> float:
        """Largest E‖R(x) - E R(x)‖², or a bound."""

    @abstractmethod
    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        """E‖R(x) - E R(x)‖², (clients,), for clipped coefficients (clients, D)."""

    def _choose_level(
        self, oversized: Oversized, *, clients: int, failure: float, noise: float, thesis: bool = False
    ) -> float:
        """The level, given the variance of one report at level 1 in units of r²."""
        check_expected(clients=clients, failure=failure)
        size = self._representation.size
        if not math.isnan(self._level):
            return self._level
        if isinstance(self._representation, KashinFrame):
            return self._representation.level
        if oversized is Oversized.BOUND:
            return math.sqrt(size)
        if oversized is Oversized.BALANCE:
            return balanced_level(size=size, clients=clients, noise=noise)
        level = thesis_level if thesis else sound_level
        return level(size=size, clients=clients, failure=failure)

    def _sampled_numbers(self, x: Rows, norms: Tensor, columns: Tensor) -> Tensor:
        """Coefficients over r_inf of rows as ``clip`` leaves them, of the shape (clients, ...) of columns."""
        scale = self.clip_factors(norms.double()) / self.coefficient_radius
        values = self._representation.coefficients(x, columns.flatten(1)).double() * scale.unsqueeze(1)
        return values.clamp_(-1, 1).view(columns.shape)

    def _numbers_of(self, x: Tensor) -> Tensor:
        """Clipped coefficients over r_inf of one vector (dim,), (D,)."""
        coefficients = self._representation.represent(x.detach().double().unsqueeze(0))[0]
        return self._clipped(coefficients) / self.coefficient_radius

    def _in_units(self, total: Tensor) -> Tensor:
        return self._representation.reconstruct(total) * self.coefficient_radius

    def _clipped(self, coefficients: Tensor) -> Tensor:
        return coefficients.clamp(-self.coefficient_radius, self.coefficient_radius)

    def _chunks(self, rows: Rows) -> Iterator[Tensor]:
        step = rows_at_once(self._representation.size, device=rows.device, entries=_CHUNK_ENTRIES)
        for start in range(0, rows.num_rows, step):
            yield rows.narrow(start, start + step).dense().double()

    def _blockwise_squares(self, means: Tensor, lengths: list[int]) -> Tensor:
        """Squared norm of what each block of coefficients reconstructs to alone, summed, (clients,)."""
        if self._representation.isometric:
            return means.square().sum(dim=1)
        total = torch.zeros(len(means), dtype=torch.float64, device=means.device)
        start = 0
        for length in lengths:
            alone = torch.zeros_like(means)
            alone[:, start : start + length] = means[:, start : start + length]
            total += self._representation.reconstruct(alone).square().sum(dim=1)
            start += length
        return total
