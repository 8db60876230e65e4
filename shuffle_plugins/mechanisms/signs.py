"""Mechanisms that send a few signs of a row as one pattern: of coordinates, or of coefficients.

All are one thing: numbers of [-1, 1] that stand for a row, k places among them (k neighbours, or one of each
of k blocks), and their signs through a cap of :mod:`~shuffle_plugins.mechanisms.sign_patterns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted
from shuffle_plugins.compressors import l1_norms
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, rows_at_once
from shuffle_plugins.mechanisms.coefficients import (
    CLIENTS,
    CoefficientRandomizer,
    Coordinates,
    Frame,
    HadamardRows,
    NumberRandomizer,
    Oversized,
    flat_lean,
)
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.mechanisms.private_sum import Norm
from shuffle_plugins.mechanisms.sign_patterns import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    CoordinateBlocks,
    PublicIndices,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
    pattern_likelihood,
    pattern_signs,
    send_patterns,
    spread_information,
    three_patterns,
)
from shuffle_plugins.protocols.unary import FAILURE
from shuffle_plugins.randomness import Randomness


class SignPatternRandomizer(NumberRandomizer):
    r"""Sends k signs of the D numbers that stand for a row as one pattern, and where they are.

    A subclass calls :meth:`_choose_places` when it is built. A sign at a number that is drawn with
    probability 1/b stands for ±b/g there, g the cap's gain. So with an isometry E‖R(x) - x‖² is a constant
    less ‖x‖².

    With ``public_seed`` the client at each position of the round is told its places, and a report is the
    pattern alone. The analyzer must then know whose report it is: reports cannot be shuffled, each costs ε0,
    and ``sum`` reads them in order, the first being that of the client at ``position``. Estimates are
    unbiased over the seed; take a new one for every round, drawn after the data are fixed.
    """

    def _choose_places(
        self, signs: int, *, together: bool, public_seed: int | None = None, position: int = 0
    ) -> None:
        """Send ``signs`` neighbours (``together``; the last are padded with zeros), or one of each block."""
        self._public = PublicIndices(purpose=self.name, seed=public_seed, position=position)
        self._cap = cap_parameters(local_epsilon=self.local_epsilon, signs=signs)
        self._together = together
        size = self._frame.size
        cells, count = (-(-size // signs), 1) if together else (size, signs)
        self._cells = CoordinateBlocks(dim=cells, count=count)

    @property
    @override
    def shufflable(self) -> bool:
        return self._public.seed is None

    @property
    def signs(self) -> int:
        """k, signs per report."""
        return self._cap.signs

    @property
    def agreements(self) -> int:
        """t, least agreements of a likely pattern."""
        return self._cap.agreements

    @property
    def layout(self) -> ReportLayout:
        """The places, unless they are public or there is no choice, and the pattern of the signs."""
        places = FieldLayout(self._cells.index_bits, self._cells.count)
        fields = (places, FieldLayout(self.signs)) if self._names_places else (FieldLayout(self.signs),)
        return ReportLayout(self.name, self.dim, fields)

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for at its number: how many places there are, over the gain."""
        return self._cells.longest * self.coefficient_radius / self._cap.gain

    @property
    @override
    def worst_variance(self) -> float:
        return self.coefficient_radius**2 * self._second_moment

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64: :attr:`worst_variance` less ‖x‖₂²."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    @property
    def _second_moment(self) -> float:
        """E‖R(x)‖² in units of coefficient_radius², less what pairs of numbers add."""
        squares = self._frame.size * self._cells.dim if self._together else self._cells.square_lengths
        return self._frame.column_square * squares / self._cap.gain**2

    @property
    def _names_places(self) -> bool:
        return self.shufflable and self._cells.index_bits > 0

    def _columns(self, places: Tensor) -> Tensor:
        """Numbers (clients, k) at places (clients, …); D or more where a block is padded."""
        if self._together:
            return places * self.signs + torch.arange(self.signs, device=places.device)
        return places + self._cells.starts().to(places.device)

    def _public_places(self, clients: int, device: torch.device) -> Tensor:
        return self._public.of(clients, highs=self._cells.lengths(), device=device)

    def _parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Columns (reports, k) and patterns (reports,), int64."""
        if self._names_places:
            places, patterns = self.read_reports(reports, self._cells.longest, 1 << self.signs)
            places = places.view(len(reports), self._cells.count)
            if bool((places >= self._cells.lengths().to(places.device)).any()):
                raise ValueError("a report names a coefficient outside its block")
        else:
            (patterns,) = self.read_reports(reports, 1 << self.signs)
            places = patterns.new_zeros(len(reports), self._cells.count)
            if not self.shufflable:
                places = self._public_places(len(reports), patterns.device)
        return self._columns(places), patterns

    def _reports(self, places: Tensor, patterns: Tensor) -> Reports:
        return self.layout.reports(*((places, patterns) if self._names_places else (patterns,)))

    @override
    def sum(self, reports: Reports) -> Tensor:
        columns, patterns = self._parse(reports)
        signs = pattern_signs(patterns, signs=self.signs)
        width = self._cells.dim * (self.signs if self._together else 1)
        counts = torch.zeros(width, dtype=torch.int64, device=signs.device)
        counts.index_add_(0, columns.flatten(), signs.flatten())
        totals = counts[: self._frame.size].double()
        drawn = self._cells.dim if self._together else self._cells.lengths_by_coordinate().to(totals.device)
        return self._in_units(totals * drawn / self._cap.gain)

    @override
    def outcomes(self) -> Reports | None:
        most = MOST_OUTCOMES if self.shufflable else 0
        every = self._cells.outcomes(1 << self.signs, repeats=1, most=most)
        return None if every is None else self._reports(*every)

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        columns, patterns = self._parse(reports)
        values = self._numbers_of(x)[columns.clamp(max=self._frame.size - 1)]
        values = values.masked_fill(columns >= self._frame.size, 0.0)
        law = pattern_likelihood(patterns, values, cap=self._cap).log()
        return law - float(self._cells.lengths().double().log().sum()) if self.shufflable else law

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        if self.shufflable:
            drawn = self._cells.draw(x.num_rows, repeats=1, randomness=randomness, device=x.device)
            places = drawn.squeeze(1)
        else:
            places = self._public_places(x.num_rows, x.device)
        columns = self._columns(places)
        values = self._sampled_numbers(x, norms, columns.clamp(max=self._frame.size - 1))
        values.masked_fill_(columns >= self._frame.size, 0.0)
        return self._reports(places, send_patterns(values, cap=self._cap, randomness=randomness))


class LInfBlock(SignPatternRandomizer):
    r"""One random block of s neighbouring coordinates of an l-infinity ball, as a pattern of signs.

    A client draws one of B = ceil(d/s) blocks uniformly, rounds its coordinates to signs of mean x_i/r
    (beyond d: of mean 0), and sends the block and the pattern through the cap, so

    .. math:: E\|R(x) - x\|^2 = d\,B\,r^2/g^2 - \|x\|_2^2,
              \qquad g = \frac{(e^{ε_0} - 1) \binom{s-1}{t-1}}{2^s + (e^{ε_0} - 1) \sum_{a \ge t}
              \binom{s}{a}}.

    s and t are the best for ε0, d and ``max_bits``. One coordinate, s = t = 1, is ``linf-coordinate``;
    two (K-ary response over four patterns) take the same bits, and have less variance from
    :math:`e^{ε_0} > (3 - \sqrt2)/(\sqrt2 - 1)`, ε0 = 1.343, on if d is even; for large ε0 a block of s has
    1/s of the variance.

    Below the crossing hardly anything is left to gain (``docs/proofs/mechanisms.md``, section 1).

    Clipping is coordinate by coordinate, the projection onto the ball.

    Args:
        block: s, in [1, min(d, 20)]; of least variance by default.
        max_bits: most bits of a report; by default 15, or ceil(log2 d) + 1 if that is more.
    """

    name: ClassVar[str] = "linf-block"
    norm: ClassVar[Norm] = Norm.LINF

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        block: int | None = None,
        max_bits: int | None = None,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._frame = Coordinates(dim)
        if block is None:
            one = _report_bits(dim, 1)
            limit = max(15, one) if max_bits is None else checks.whole("max_bits", max_bits)
            block = _best_block(self.local_epsilon, dim, limit)
        checks.whole("block", block, at_most=min(dim, MAX_SIGNS))
        if max_bits is not None and _report_bits(dim, block) > max_bits:
            raise ValueError(f"blocks of {block} take more than max_bits={max_bits} bits")
        self._choose_places(block, together=True)

    @property
    def block(self) -> int:
        """s, signs per report."""
        return self.signs

    def blanket(self) -> Blanket:
        """The cap's blanket: rows of opposite sign in every coordinate attain it where s divides d.

        Rows whose blocks all have one pattern make the lower bound. A last block that is padded, and so has
        random signs for any row, is read as telling nothing.
        """
        whole = (self.dim // self.signs) / self._cells.dim
        instances: tuple[Atoms, ...] = ()
        if whole > 0 and self.signs > 1 and self.local_epsilon < LOUDEST_EXACT:
            own = three_patterns(local_epsilon=self.local_epsilon, signs=self.signs)
            instances = (diluted(own, whole),)
        return cap_blanket(
            local_epsilon=self.local_epsilon,
            signs=self.signs,
            exact=self.dim % self.signs == 0,
            instances=instances,
        )


def _report_bits(size: int, signs: int) -> int:
    """ceil(log2 of the number of blocks) for which block, and its signs."""
    return (-(-size // signs) - 1).bit_length() + signs


def _within(limit: int, bits: dict[int, int]) -> list[int]:
    """Numbers of signs of which a report takes at most that many bits."""
    allowed = [signs for signs, count in bits.items() if count <= limit]
    if not allowed:
        raise ValueError(f"a report takes at least {min(bits.values())} bits, got max_bits={limit}")
    return allowed


@lru_cache(maxsize=1024)
def _best_block(local_epsilon: float, dim: int, limit: int) -> int:
    """Length of block of least ceil(dim/s)/g_s², the shortest first."""

    def cost(signs: int) -> float:
        return -(-dim // signs) / cap_parameters(local_epsilon=local_epsilon, signs=signs).gain ** 2

    bits = {signs: _report_bits(dim, signs) for signs in range(1, min(dim, MAX_SIGNS) + 1)}
    return min(_within(limit, bits), key=cost)


class LInfCoordinate(LInfBlock):
    r"""R^ℓ∞ of Girgis's thesis (Algorithm 3.5.1) with one level and one coordinate, m = s = 1.

    A client draws one coordinate j uniformly and sends (j, sign); the sign is + with probability
    :math:`\frac12 + \frac{x_j}{2r} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`, and stands for
    :math:`\pm d\,r\,(e+1)/(e-1)` at j. The thesis's constants are ε0-LDP with room to spare; these are exact.

    Clipping is coordinate by coordinate, the projection onto the ball: scaling a whole row, as other
    mechanisms do, would let one large coordinate shrink all the others. The script behind the MNIST
    experiment of Girgis et al. 2021 clips this way.
    """

    name: ClassVar[str] = "linf-coordinate"

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius, block=1)


class BinaryRandomizedResponse(LInfCoordinate):
    r"""One number x in [-radius, radius], sent as one sign: ``linf-coordinate`` at dim 1.

    The sign is + with probability :math:`\frac12 + \frac{x}{2r} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`,
    and stands for :math:`\pm r (e+1)/(e-1)` (2RR, Algorithm 2.2.1 and Theorem 2.4.1 of Girgis's thesis).

    Args:
        dim: 1.
    """

    name: ClassVar[str] = "binary-rr"

    def __init__(self, *, local_epsilon: float, dim: int = 1, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        if dim != 1:
            raise ValueError(f"{self.name} takes one number per client (dim=1), got dim={dim}")

    def blanket(self) -> Blanket:
        """The blanket of one bit, whose law the accountant counts exactly."""
        return Blanket.bit(self.local_epsilon, exact=self.local_epsilon < LOUDEST_EXACT)


class L1Hadamard(SignPatternRandomizer):
    r"""R^ℓ1 of Girgis's thesis (Algorithm 3.4.1, Lemma 3.4.1) with exact ε0, for ℓp balls with p in [1, 2).

    With D the next power of two and H the ±1 Hadamard matrix, a client draws j in [0, D) uniformly and sends
    (j, sign), the sign being + with probability
    :math:`\frac12 + \frac{\langle H_j, x\rangle}{2 r_1} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`. It
    stands for :math:`\pm r_1 \frac{e+1}{e-1} H_{:,j}`, cut to d entries, so

    .. math:: E\|R(x) - x\|^2 = d \, r_1^2 \left(\frac{e+1}{e-1}\right)^2 - \|x\|_2^2.

    :math:`|\langle H_j, x\rangle| \le \|x\|_1 \le r_1`, and all of ε0 is spent. The server counts signs per j
    and transforms once.

    **p > 1.** The ball of radius r in ℓp lies within the ℓ1 ball of radius :math:`r_1 = d^{1-1/p} r`
    (Hölder's inequality, with equality for flat vectors), which is what is used. Remark 3.4.1 of the thesis
    prints the containment the other way round and would use r itself, which would break ε0. Lower bounds for
    p in [1, 2) do not grow with p; past p = 1 this mechanism loses the factor :math:`d^{2-2/p}`.

    Args:
        p: the ball's norm, in [1, 2).
        public_seed: whole number from which all derive the indices: a report is one bit, which cannot be
            shuffled (:class:`SignPatternRandomizer`). Private indices by default.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
    """

    name: ClassVar[str] = "l1-hadamard"
    norm: ClassVar[Norm] = Norm.L1

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        p: float = 1.0,
        public_seed: int | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._p = checks.number("p", p, at_least=1, below=2)
        self._frame = HadamardRows(dim)
        self._choose_places(1, together=False, public_seed=public_seed, position=position)

    @property
    def coefficient_radius(self) -> float:
        """r1, the radius of an l1 ball that holds the ball."""
        return float(self.dim ** (1 - 1 / self._p) * self.radius)

    @property
    def domain(self) -> str:
        """The norm of the ball: ``"l1"``, or such as ``"l1.5"``."""
        return f"l{self._p:g}"

    def blanket(self) -> Blanket:
        """The generic blanket: r1 times the first unit vector and its opposite attain it."""
        return cap_blanket(local_epsilon=self.local_epsilon, signs=1, exact=True)

    @override
    def row_norms(self, rows: Rows) -> Tensor:
        if self._p == 1:
            return l1_norms(rows)
        norms = torch.empty(rows.num_rows, dtype=rows.compute_dtype, device=rows.device)
        step = rows_at_once(self.dim, device=rows.device, entries=1 << 17)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, start + step).dense().to(rows.compute_dtype).abs()
            largest = part.amax(dim=1, keepdim=True)  # so that no power overflows or vanishes
            scale = torch.where(largest > 0, largest, torch.ones_like(largest))
            lengths = (part / scale).pow_(self._p).sum(dim=1) ** (1 / self._p)
            norms[start : start + step] = lengths * scale.squeeze(1)
        return norms


class CoefficientPatterns(CoefficientRandomizer, SignPatternRandomizer):
    """What ``sqkr`` and ``l2-block`` share: a pattern of k of the D coefficients of a row of an l2 ball.

    Args:
        signs: k, in [1, min(d, 20)]; the best for ε0 by default, about ε0/log 2 for a large one.
        max_bits: most bits of a report; no limit by default.
        frame: ``"kashin"`` or ``"rotation"``.
        seed: whole number that fixes frame or rotation; public, the same for all.
        public_seed: whole number from which all derive the places: a report is the pattern, which cannot be
            shuffled (:class:`SignPatternRandomizer`). Private places by default.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
        level: r_inf·√D/r; by default the Kashin frame's own, or by what follows.
        oversized: ``"clip"``, ``"balance"`` or ``"bound"``, for a rotation.
        clients: reports in a round, for a rotation's level.
        failure: how likely a round may be clipped, for a rotation's level.
    """

    _side_by_side: ClassVar[bool]

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        signs: int | None = None,
        max_bits: int | None = None,
        frame: Frame | str = Frame.KASHIN,
        seed: int = 0,
        public_seed: int | None = None,
        position: int = 0,
        level: float | None = None,
        oversized: Oversized | str = Oversized.CLIP,
        clients: int = CLIENTS,
        failure: float = FAILURE,
    ) -> None:
        super().__init__(
            local_epsilon=local_epsilon, dim=dim, radius=radius, frame=frame, seed=seed, level=level
        )
        allowed = list(range(1, min(dim, MAX_SIGNS) + 1))
        if max_bits is not None:
            bits = {k: k if public_seed is not None else self._bits(k) for k in allowed}
            allowed = _within(checks.whole("max_bits", max_bits), bits)
        if signs is None:
            signs = _best_signs(self.local_epsilon, tuple(allowed))
        if type(signs) is not int or signs not in allowed:
            raise ValueError(f"signs must be one of {allowed} within max_bits={max_bits}, got {signs!r}")
        self._choose_places(signs, together=self._side_by_side, public_seed=public_seed, position=position)
        noise = self._second_moment / self._frame.size
        self._choose_level(oversized, clients=clients, failure=failure, noise=noise)

    def _bits(self, signs: int) -> int:
        """Of a report that names its places."""
        size = self._frame.size
        if self._side_by_side:
            return _report_bits(size, signs)
        return signs * (1 + CoordinateBlocks(dim=size, count=signs).index_bits)

    def blanket(self) -> Blanket:
        """The cap's blanket, as a bound, and what a report tells, as no vector is extreme everywhere.

        From above it holds for any records. Beside it is a bound on the information, which often gives a
        much smaller ε, since a vector of the ℓ2 ball cannot have all coefficients at ±r_inf. From below
        client 1 holds r·e_1 or −r·e_1, whose coefficients are all ±r/√D. Neither is there for ε0 ≥ 42, where
        probabilities in units of 2**-62 are too coarse.
        """
        epsilon, signs, quiet = self.local_epsilon, self.signs, self.local_epsilon < LOUDEST_EXACT
        size, square = self._frame.size, self._mean_square
        whole = (size // signs) / self._cells.dim if self._together else 1.0
        if not self._together:  # of shorter blocks each coefficient is drawn more often
            square = min(square * size / (signs * (size // signs)), 1.0)
        instances: tuple[Atoms, ...] = ()
        if whole > 0 and quiet:
            own = leaning_patterns(local_epsilon=epsilon, signs=signs, lean=flat_lean(self.level))
            instances = (diluted(own, whole),)
        blanket = cap_blanket(local_epsilon=epsilon, signs=signs, exact=False, instances=instances)
        if square == 1 or not quiet:
            return blanket
        information = spread_information(local_epsilon=epsilon, signs=signs, mean_square=square)
        bound = InformationBound.of_blanket(local_epsilon=epsilon, information=information, mass=blanket.mass)
        return replace(blanket, information_bound=bound)


@lru_cache(maxsize=1024)
def _best_signs(local_epsilon: float, among: tuple[int, ...]) -> int:
    """The first number k of signs of the largest k·gain², for which the variance is about least."""
    return max(among, key=lambda k: k * cap_parameters(local_epsilon=local_epsilon, signs=k).gain ** 2)


class L2Block(CoefficientPatterns):
    r"""``sqkr`` with its k coefficients side by side: one place instead of k.

    A row is represented by D coefficients of absolute value at most r_inf = level·r/√D. A client draws one of
    B = ceil(D/k) blocks of k neighbouring coefficients uniformly, rounds them to signs of mean c_j/r_inf, and
    sends the block and the pattern through the cap. With P the reconstruction, c_b the coefficients of block
    b and :math:`ρ = E[y_1 y_2]` for a pattern y about all-plus signs,

    .. math:: E\|R(x) - x\|^2 = \frac{d}{D} \frac{r_{inf}^2 B D}{g^2} - \|x\|^2
              + \frac{B ρ}{g^2} \sum_b \Big(\|P c_b\|^2 - \frac{d}{D}\|c_b\|^2\Big).

    The last term, from pairs of neighbours, is zero for an isometry and small for the frames used, whose
    columns are nearly orthogonal. So this is the variance of ``sqkr`` at (k - 1)·log2(D/k) bits less: a
    report takes ceil(log2 B) + k bits, 17 for ε0 = 4 and 13,706 numbers. k is the best for ε0 by default, up
    to 20.

    With ``frame="rotation"`` encoding takes one pass over a row instead of several transforms (in Opacus, 2.1
    to 2.5 times Opacus's own step instead of 20 to 28 times), reports are as short, the level is larger
    (:class:`~.Oversized`), and a coefficient that passes it is clipped, with a bias: see ``l2-bit-planes``.
    With a Kashin frame nothing is ever clipped, but a few vectors are sent as shorter ones: those close to
    one column of the frame, which are made from the seed, and some of those with a few equal numbers and
    zeros (:class:`~.KashinFrame`, ``stretch``).
    """

    name: ClassVar[str] = "l2-block"
    _side_by_side = True

    @property
    def _pair_factor(self) -> float:
        """B·ρ/g², by which inner products of neighbours add to the variance."""
        return self._cells.dim * self._cap.pair_moment / self._cap.gain**2

    @property
    def _worst_spread_variance(self) -> float:
        largest = max(float(np.linalg.eigvalsh(part).max()) for _, part in self._neighbour_overlaps())
        pairs = self._pair_factor * self._frame.size * max(0.0, largest)
        return self.coefficient_radius**2 * (self._second_moment + pairs)

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._frame.reconstruct(coefficients).square().sum(dim=1)
        blocks, signs = self._cells.dim, self.signs
        padding = (0, blocks * signs - self._frame.size)
        cut = torch.nn.functional.pad(coefficients, padding).view(-1, blocks, signs)
        pairs = torch.zeros_like(norms)
        for some, overlaps in self._neighbour_overlaps():
            part = cut[:, some]
            pairs += torch.einsum("nbi,bij,nbj->n", part, torch.from_numpy(overlaps).to(part.device), part)
        return self.coefficient_radius**2 * self._second_moment - norms + self._pair_factor * pairs

    def _neighbour_overlaps(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Some blocks, and inner products of the columns of each, (blocks, k, k), without the diagonal."""
        overlaps, size, blocks = self._frame.overlaps(), self._frame.size, self._cells.dim
        step = max(1, (1 << 20) // self.signs**2)
        for start in range(0, blocks, step):
            some = slice(start, min(start + step, blocks))
            columns = np.arange(some.start, some.stop)[:, None] * self.signs + np.arange(self.signs)
            beyond = columns >= size
            both = columns[:, :, None] ^ columns[:, None, :]
            alone = beyond[:, :, None] | beyond[:, None, :] | (both == 0)
            yield some, np.where(alone, 0.0, overlaps[np.where(alone, 0, both)])


class SQKR(CoefficientPatterns):
    r"""Subsampled and quantised Kashin response (Chen, Kairouz, Özgür 2020), with the optimal cap.

    A row is represented by D coefficients of absolute value at most r_inf = level·r/√D, a Kashin
    representation. A client draws one coefficient from each of k blocks of them, rounds these to signs of
    mean c_j/r_inf, and sends the places and the pattern of k signs through the cap. The paper's
    :math:`2^k`-ary randomised response is t = k; the best t is never worse. A sign at a coefficient of a
    block of length b stands for ±b·r_inf/g.

    With :math:`A = \sum b^2` (D²/k if k divides D), P the reconstruction, c_B the coefficients of block B,
    and :math:`ρ = E[y_1 y_2]` for a pattern y about all-plus signs,

    .. math:: E\|R(x) - x\|^2 = \frac{d}{D} \frac{r_{inf}^2 A}{g^2} - \|x\|^2
              + \frac{ρ}{g^2} \Big(\|x\|^2 - \sum_B \|P c_B\|^2\Big).

    By default k is the best for ε0, about ε0/log 2 for large ε0 and up to 20: the order
    :math:`r^2 d / \min(ε_0, ε_0^2)` of the lower bound. Places take k·ceil(log2 ceil(D/k)) bits of a report,
    and the pattern k. For ``frame="rotation"`` see ``l2-block``.
    """

    name: ClassVar[str] = "sqkr"
    _side_by_side = False

    @property
    def _pair_gain(self) -> float:
        """ρ/g², by which pairs of signs add to the variance."""
        return self._cap.pair_moment / self._cap.gain**2

    @property
    def _worst_spread_variance(self) -> float:
        pairs = max(0.0, self._pair_gain - 1) * self.radius**2
        return self.coefficient_radius**2 * self._second_moment + pairs

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._frame.reconstruct(coefficients).square().sum(dim=1)
        pairs = norms - self._blockwise_squares(coefficients, self._cells.lengths().tolist())
        return self.coefficient_radius**2 * self._second_moment - norms + self._pair_gain * pairs
