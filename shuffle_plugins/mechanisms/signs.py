"""Mechanisms that send a few signs of a row as one pattern: of coordinates, or of coefficients.

All are one thing: numbers of [-1, 1] that stand for a row, k places among them (k neighbours, or one of each
of k blocks), and their signs through a cap of :mod:`~shuffle_plugins.mechanisms.sign_patterns`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound
from shuffle_plugins.accounting.pairs.reports import diluted
from shuffle_plugins.compressors.frames import public_random_bytes
from shuffle_plugins.compressors.hadamard import l1_norms
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Count, Dim, in_range, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import spans
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, Norm
from shuffle_plugins.mechanisms.coefficients import (
    CoefficientRandomizer,
    Coordinates,
    HadamardRows,
    NumberRandomizer,
    flat_lean,
)
from shuffle_plugins.mechanisms.sign_patterns import (
    LOUDEST_EXACT,
    MAX_SIGNS,
    CapParameters,
    CoordinateBlocks,
    cap_blanket,
    cap_parameters,
    leaning_patterns,
    pattern_likelihood,
    pattern_signs,
    send_patterns,
    spread_information,
    three_patterns,
)
from shuffle_plugins.randomness.sources import Randomness


@dataclass(frozen=True, kw_only=True, eq=False)
class SignPatternRandomizer(NumberRandomizer):
    """Sends k signs of the D numbers that stand for a row as one pattern, and where they are.

    A sign at a number that is drawn with probability 1/b stands for ±b/g there, g the cap's gain.

    Attributes:
        public_seed: from which all derive the places; private places by default. A report is then the pattern
            alone: it cannot be shuffled and costs ε0, and ``sum`` reads reports in order. Unbiased over the
            seed: take a new one for every round, drawn after the data are fixed.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
    """

    _together: ClassVar[bool] = True  # k neighbours, the last padded with zeros; or one number of each block
    public_seed: Annotated[int, whole_number(at_least=-math.inf)] | None = None
    position: Annotated[int, whole_number(at_least=0, at_most=1 << 40)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position and self.shufflable:
            raise ValueError("position has a meaning only with public_seed")

    @cached_property
    def _cap(self) -> CapParameters:
        raise NotImplementedError

    @cached_property
    def _cells(self) -> CoordinateBlocks:
        size, signs = self._frame.size, self._cap.signs
        return CoordinateBlocks(
            dim=-(-size // signs) if self._together else size, count=1 if self._together else signs
        )

    @property
    @override
    def shufflable(self) -> bool:
        return self.public_seed is None

    @property
    @override
    def layout(self) -> ReportLayout:
        fields: tuple[FieldLayout, ...] = (FieldLayout(self._cap.signs),)
        if self._names_places:
            fields = (FieldLayout(self._cells.index_bits, self._cells.count), *fields)
        return ReportLayout(self.name, self.dim, fields)

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for at its number."""
        return self._cells.longest * self.coefficient_radius / self._cap.gain

    @property
    @override
    def worst_variance(self) -> float:
        return self.coefficient_radius**2 * self._second_moment

    @override
    def variance(self, x: Tensor | Rows) -> Tensor:
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    @property
    def _second_moment(self) -> float:
        squares = self._frame.size * self._cells.dim if self._together else self._cells.square_lengths
        return self._frame.column_square * squares / self._cap.gain**2

    @property
    def _names_places(self) -> bool:
        return self.shufflable and self._cells.index_bits > 0

    def _columns(self, places: Tensor) -> Tensor:
        """Numbers (clients, k) at places (clients, …); D or more where a block is padded."""
        if self._together:
            return places * self._cap.signs + torch.arange(self._cap.signs, device=places.device)
        return places + self._cells.starts.to(places.device)

    def _public_places(self, clients: int, device: torch.device) -> Tensor:
        """Places of the clients from ``position`` on, (clients, blocks), each from bytes of its own."""
        highs, seed = self._cells.lengths, self.public_seed or 0
        data = b"".join(
            public_random_bytes(f"{self.name} indices {at}", seed=seed, count=8 * len(highs))
            for at in range(self.position, self.position + clients)
        )
        words = np.frombuffer(data, dtype="<u8") >> np.uint64(2)
        drawn = torch.from_numpy(words.astype(np.int64)).view(clients, len(highs))
        return drawn.remainder_(highs).to(device)

    def _parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Columns (reports, k) and patterns (reports,), int64."""
        if self._names_places:
            places, patterns = self.read_reports(reports, self._cells.longest, 1 << self._cap.signs)
            places = places.view(len(reports), self._cells.count)
            if bool((places >= self._cells.lengths.to(places.device)).any()):
                raise ValueError("a report names a coefficient outside its block")
        else:
            (patterns,) = self.read_reports(reports, 1 << self._cap.signs)
            places = patterns.new_zeros(len(reports), self._cells.count)
            if not self.shufflable:
                places = self._public_places(len(reports), patterns.device)
        return self._columns(places), patterns

    def _reports(self, places: Tensor, patterns: Tensor) -> Reports:
        return self.layout.reports(*((places, patterns) if self._names_places else (patterns,)))

    @override
    def sum(self, reports: Reports) -> Tensor:
        columns, patterns = self._parse(reports)
        signs = pattern_signs(patterns, signs=self._cap.signs)
        width = self._cells.dim * (self._cap.signs if self._together else 1)
        counts = torch.zeros(width, dtype=torch.int64, device=signs.device)
        counts.index_add_(0, columns.flatten(), signs.flatten())
        totals = counts[: self._frame.size].double()
        drawn = self._cells.dim if self._together else self._cells.lengths_by_coordinate.to(totals.device)
        return self._in_units(totals * drawn / self._cap.gain)

    @override
    def outcomes(self) -> Reports | None:
        most = MOST_OUTCOMES if self.shufflable else 0
        every = self._cells.outcomes(1 << self._cap.signs, repeats=1, most=most)
        return None if every is None else self._reports(*every)

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        columns, patterns = self._parse(reports)
        values = self._numbers_of(x)[columns.clamp(max=self._frame.size - 1)]
        values = values.masked_fill(columns >= self._frame.size, 0.0)
        law = pattern_likelihood(patterns, values, cap=self._cap).log()
        return law - float(self._cells.lengths.double().log().sum()) if self.shufflable else law

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


def _report_bits(size: int, signs: int) -> int:
    """ceil(log2 of the number of blocks) for which block, and its signs."""
    return (-(-size // signs) - 1).bit_length() + signs


def _within(limit: int | None, bits: dict[int, int]) -> tuple[int, ...]:
    """Numbers of signs of which a report takes at most that many bits."""
    allowed = tuple(signs for signs, count in bits.items() if limit is None or count <= limit)
    if not allowed:
        raise ValueError(f"a report takes at least {min(bits.values())} bits, got max_bits={limit}")
    return allowed


@dataclass(frozen=True, kw_only=True, eq=False)
class LInfBlock(SignPatternRandomizer):
    """One random block of s neighbouring coordinates of an l-infinity ball, as a pattern of signs.

    With B = ceil(d/s) blocks E‖R(x) - x‖² = d·B·r²/g² - ‖x‖² (``docs/proofs/mechanisms.md``, section 1).
    Clipping is coordinate by coordinate, the projection onto the ball.

    Attributes:
        block: s, in [1, min(d, 20)]; of least variance by default.
        max_bits: most bits of a report. None limits the default block to 15 bits, or to those of a block of
            one if they are more, and a block that is given not at all.
    """

    name: ClassVar[str] = "linf-block"
    norm: ClassVar[Norm] = Norm.LINF
    block: int | None = None
    max_bits: Count | None = None
    public_seed: None = field(init=False, repr=False, default=None)
    position: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is None:
            limit = self.max_bits or max(15, _report_bits(self.dim, 1))
            bits = {signs: _report_bits(self.dim, signs) for signs in range(1, min(self.dim, MAX_SIGNS) + 1)}

            def cost(signs: int) -> float:
                cap = cap_parameters(local_epsilon=self.local_epsilon, signs=signs)
                return -(-self.dim // signs) / cap.gain**2

            object.__setattr__(self, "block", min(_within(limit, bits), key=cost))
        block = checks.whole("block", self.block, at_most=min(self.dim, MAX_SIGNS))
        if self.max_bits is not None and _report_bits(self.dim, block) > self.max_bits:
            raise ValueError(f"blocks of {block} take more than max_bits={self.max_bits} bits")

    @cached_property
    def _frame(self) -> Coordinates:
        return Coordinates(self.dim)

    @cached_property
    def _cap(self) -> CapParameters:
        return cap_parameters(local_epsilon=self.local_epsilon, signs=self.block or 1)

    def blanket(self) -> Blanket:
        """The cap's, attained by rows of opposite sign in every coordinate where s divides d."""
        signs = self._cap.signs
        whole = (self.dim // signs) / self._cells.dim
        instances: tuple[Atoms, ...] = ()
        if whole > 0 and signs > 1 and self.local_epsilon < LOUDEST_EXACT:
            instances = (diluted(three_patterns(local_epsilon=self.local_epsilon, signs=signs), whole),)
        return cap_blanket(
            local_epsilon=self.local_epsilon, signs=signs, exact=self.dim % signs == 0, instances=instances
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LInfCoordinate(LInfBlock):
    r"""R^ℓ∞ of Girgis's thesis (Algorithm 3.5.1) with one level and one coordinate, m = s = 1, and exact ε0.

    A client draws one coordinate j uniformly and sends (j, sign), + with probability
    :math:`\frac12 + \frac{x_j}{2r} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`, which stands for
    :math:`\pm d\,r\,(e+1)/(e-1)` at j. Clipping is as in the script behind the MNIST experiment of Girgis et
    al. 2021: scaling a row would let one large coordinate shrink all the others.
    """

    name: ClassVar[str] = "linf-coordinate"
    block: int = field(init=False, repr=False, default=1)
    max_bits: None = field(init=False, repr=False, default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class BinaryRandomizedResponse(LInfCoordinate):
    """One number x in [-radius, radius], sent as one sign: ``linf-coordinate`` at dim 1.

    2RR, Algorithm 2.2.1 and Theorem 2.4.1 of Girgis's thesis.
    """

    name: ClassVar[str] = "binary-rr"
    dim: Dim = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim != 1:
            raise ValueError(f"{self.name} takes one number per client (dim=1), got dim={self.dim}")

    @override
    def blanket(self) -> Blanket:
        return Blanket.bit(self.local_epsilon, exact=self.local_epsilon < LOUDEST_EXACT)


@dataclass(frozen=True, kw_only=True, eq=False)
class L1Hadamard(SignPatternRandomizer):
    r"""R^ℓ1 of Girgis's thesis (Algorithm 3.4.1, Lemma 3.4.1) with exact ε0, for ℓp balls with p in [1, 2).

    With D the next power of two and H the ±1 Hadamard matrix, a client draws j in [0, D) uniformly and sends
    (j, sign), + with probability :math:`\frac12 + \frac{\langle H_j, x\rangle}{2 r_1} \cdot \frac{e-1}{e+1}`,
    :math:`e = e^{ε_0}`. So :math:`E\|R(x) - x\|^2 = d \, r_1^2 ((e+1)/(e-1))^2 - \|x\|_2^2`.

    The ball of radius r in ℓp lies within the ℓ1 ball of radius :math:`r_1 = d^{1-1/p} r`, which is used.
    Remark 3.4.1 of the thesis prints the containment the other way round, which would break ε0.
    """

    name: ClassVar[str] = "l1-hadamard"
    norm: ClassVar[Norm] = Norm.L1
    _together = False
    p: Annotated[float, in_range(at_least=1, below=2)] = 1.0

    @cached_property
    def _frame(self) -> HadamardRows:
        return HadamardRows(self.dim)

    @cached_property
    def _cap(self) -> CapParameters:
        return cap_parameters(local_epsilon=self.local_epsilon, signs=1)

    @property
    def coefficient_radius(self) -> float:
        """r1, the radius of an l1 ball that holds the ball."""
        return float(self.dim ** (1 - 1 / self.p) * self.radius)

    @property
    def domain(self) -> str:
        """The norm of the ball: ``"l1"``, or such as ``"l1.5"``."""
        return f"l{self.p:g}"

    def blanket(self) -> Blanket:
        """The generic one. In the ℓ1 ball r1 times the first unit vector and its opposite attain it.

        For p > 1 these lie outside the ball; from below client 1 then holds r·e_1 or −r·e_1.
        """
        epsilon, exact = self.local_epsilon, self.p == 1 or self.dim == 1
        instances: tuple[Atoms, ...] = ()
        if not exact and epsilon < LOUDEST_EXACT:
            lean = flat_lean(self.coefficient_radius / self.radius)
            instances = (leaning_patterns(local_epsilon=epsilon, signs=1, lean=lean),)
        return cap_blanket(local_epsilon=epsilon, signs=1, exact=exact, instances=instances)

    @override
    def row_norms(self, rows: Rows) -> Tensor:
        if self.p == 1:
            return l1_norms(rows)
        norms = torch.empty(rows.num_rows, dtype=rows.compute_dtype, device=rows.device)
        for start, stop in spans(rows.num_rows, width=self.dim, device=rows.device, entries=1 << 17):
            part = rows.narrow(start, stop).dense().to(rows.compute_dtype).abs()
            largest = part.amax(dim=1, keepdim=True)  # so that no power overflows or vanishes
            scale = torch.where(largest > 0, largest, torch.ones_like(largest))
            lengths = (part / scale).pow_(self.p).sum(dim=1) ** (1 / self.p)
            norms[start:stop] = lengths * scale.squeeze(1)
        return norms


@dataclass(frozen=True, kw_only=True, eq=False)
class CoefficientPatterns(CoefficientRandomizer, SignPatternRandomizer):
    """What ``sqkr`` and ``l2-block`` share: a pattern of k of the D coefficients of a row of an l2 ball.

    Attributes:
        signs: k, in [1, min(d, 20)]; the best for ε0 by default, about ε0/log 2 for a large one.
    """

    signs: int | None = None
    max_bits: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self._frame.size

        def bits(signs: int) -> int:
            if not self.shufflable:
                return signs
            if self._together:
                return _report_bits(size, signs)
            return signs * (1 + CoordinateBlocks(dim=size, count=signs).index_bits)

        allowed = _within(self.max_bits, {k: bits(k) for k in range(1, min(self.dim, MAX_SIGNS) + 1)})
        if self.signs is None:
            caps = {k: cap_parameters(local_epsilon=self.local_epsilon, signs=k) for k in allowed}
            object.__setattr__(self, "signs", max(caps, key=lambda k: k * caps[k].gain ** 2))
        if type(self.signs) is not int or self.signs not in allowed:
            raise ValueError(
                f"signs must be one of {list(allowed)} within max_bits={self.max_bits}, got {self.signs!r}"
            )
        self._choose_level()

    @cached_property
    def _cap(self) -> CapParameters:
        return cap_parameters(local_epsilon=self.local_epsilon, signs=self.signs or 1)

    def blanket(self) -> Blanket:
        """The cap's, as a bound, and what a report tells, as no vector is extreme in all coefficients."""
        epsilon, signs, quiet = self.local_epsilon, self._cap.signs, self.local_epsilon < LOUDEST_EXACT
        size, square = self._frame.size, self._mean_square
        whole = (size // signs) / self._cells.dim if self._together else 1.0
        if not self._together:  # of shorter blocks each coefficient is drawn more often
            square = min(square * size / (signs * (size // signs)), 1.0)
        instances: tuple[Atoms, ...] = ()
        if whole > 0 and quiet:
            own = leaning_patterns(local_epsilon=epsilon, signs=signs, lean=flat_lean(self._level))
            instances = (diluted(own, whole),)
        blanket = cap_blanket(local_epsilon=epsilon, signs=signs, exact=False, instances=instances)
        if square == 1 or not quiet:
            return blanket
        information = spread_information(local_epsilon=epsilon, signs=signs, mean_square=square)
        bound = InformationBound.of_blanket(local_epsilon=epsilon, information=information, mass=blanket.mass)
        return replace(blanket, information_bound=bound)


class L2Block(CoefficientPatterns):
    """``sqkr`` with its k coefficients side by side: one of B = ceil(D/k) places instead of k.

    The variance is nearly that of ``sqkr`` at (k - 1)·log2(D/k) bits less: only the overlaps of neighbouring
    coefficients' columns differ. With ``frame="rotation"`` encoding takes one pass over a row, and the level
    is larger.
    """

    name: ClassVar[str] = "l2-block"

    @property
    def _pair_factor(self) -> float:
        return self._cells.dim * self._cap.pair_moment / self._cap.gain**2

    @property
    def _worst_spread_variance(self) -> float:
        largest = max(float(np.linalg.eigvalsh(part).max()) for _, part in self._neighbour_overlaps())
        pairs = self._pair_factor * self._frame.size * max(0.0, largest)
        return self.coefficient_radius**2 * (self._second_moment + pairs)

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._frame.reconstruct(coefficients).square().sum(dim=1)
        blocks, signs = self._cells.dim, self._cap.signs
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
        signs = self._cap.signs
        step = max(1, (1 << 20) // signs**2)
        for start in range(0, blocks, step):
            some = slice(start, min(start + step, blocks))
            columns = np.arange(some.start, some.stop)[:, None] * signs + np.arange(signs)
            beyond = columns >= size
            both = columns[:, :, None] ^ columns[:, None, :]
            alone = beyond[:, :, None] | beyond[:, None, :] | (both == 0)
            yield some, np.where(alone, 0.0, overlaps[np.where(alone, 0, both)])


class SQKR(CoefficientPatterns):
    """Subsampled and quantised Kashin response (Chen, Kairouz, Özgür 2020), with the optimal cap.

    A client draws one from each of k blocks of D coefficients of absolute value at most r_inf, rounds these
    to signs of mean c_j/r_inf, and sends the places and the pattern through the cap; the paper's 2^k-ary
    randomised response is t = k.
    """

    name: ClassVar[str] = "sqkr"
    _together = False

    @property
    def _pair_gain(self) -> float:
        return self._cap.pair_moment / self._cap.gain**2

    @property
    def _worst_spread_variance(self) -> float:
        pairs = max(0.0, self._pair_gain - 1) * self.radius**2
        return self.coefficient_radius**2 * self._second_moment + pairs

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._frame.reconstruct(coefficients).square().sum(dim=1)
        pairs = norms - self._blockwise_squares(coefficients, self._cells.lengths.tolist())
        return self.coefficient_radius**2 * self._second_moment - norms + self._pair_gain * pairs
