"""One random block of coordinates of an l-infinity ball, sent as a pattern of signs."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from shuffle_plugins.accounting.blanket import Blanket
from shuffle_plugins.mechanisms.base import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.coordinate_blocks import entries
from shuffle_plugins.mechanisms.hypercube_cap import MAX_SIGNS, cap_blanket, cap_parameters
from shuffle_plugins.mechanisms.linf_block_parameters import best_block, block_count, report_bits
from shuffle_plugins.mechanisms.reports import Field, Reports, compact_dtype
from shuffle_plugins.mechanisms.rows import Rows
from shuffle_plugins.mechanisms.sign_patterns import (
    pattern_likelihood,
    pattern_signs,
    round_to_patterns,
    send_patterns,
)
from shuffle_plugins.randomness import Randomness

_MOST_OUTCOMES = 1 << 16


class LInfBlock(LocalRandomizer):
    r"""One block of s neighbouring coordinates, rounded to signs, through the optimal cap on {±1}^s.

    A client draws one of B = ceil(d/s) blocks uniformly, rounds its coordinates to signs of mean x_i/r
    (beyond
    d: of mean 0), and sends the block and the pattern, which is likelier by e^ε0 where it agrees with the
    rounded signs in at least t places (``hypercube_cap``). A sign stands for ±B·r/g, so

    .. math:: E\|R(x) - x\|^2 = d\,B\,r^2/g^2 - \|x\|_2^2,
              \qquad g = \frac{(e^{ε_0} - 1) \binom{s-1}{t-1}}{2^s + (e^{ε_0} - 1) \sum_{a \ge t}
              \binom{s}{a}}.

    s and t are the best for ε0, d and ``max_bits``. One coordinate, s = t = 1, is ``linf-coordinate``;
    two (K-ary response over four patterns) take the same bits, and have less variance from
    :math:`e^{ε_0} > (3 - \sqrt2)/(\sqrt2 - 1)`, ε0 = 1.343, on if d is even; for large ε0 a block of s has
    1/s of the variance.

    **Below the crossing** hardly anything is left to gain, whatever the mechanism. For a report y let u be
    the direction of its estimate. The average of x over uniform corners given y is at most :math:`G =
    \max_{u, S} (e^{ε_0}-1) E[\langle u, x\rangle 1_S] / (1 + (e^{ε_0}-1) P(S))` along u, over unit vectors u
    and sets S of corners. Unbiasedness and Cauchy and Schwarz's inequality then give :math:`E\|R(x)\|^2 \ge
    r^2 d^2/G^2` on average over corners, for every ε0-LDP unbiased mechanism of any number of bits. By
    Khinchine's inequality :math:`E|\langle u, x\rangle| \le 1`, with equality for one coordinate, so as ε0
    goes to 0 this is the variance of one coordinate.

    Clipping is coordinate by coordinate, the projection onto the ball.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest absolute coordinate.
        block: s, in [1, min(d, 20)]; of least variance by default.
        max_bits: most bits of a report; by default 15, or ceil(log2 d) + 1 if that is more.

    Raises:
        ValueError: if a parameter is out of range, or a report cannot have so few bits.
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
        if block is None:
            block = best_block(local_epsilon=self.local_epsilon, dim=dim, max_bits=max_bits)
        if type(block) is not int or not 1 <= block <= min(dim, MAX_SIGNS):
            raise ValueError(f"block must be a whole number in [1, {min(dim, MAX_SIGNS)}], got {block!r}")
        if max_bits is not None and report_bits(dim=dim, signs=block) > max_bits:
            raise ValueError(f"blocks of {block} take more than max_bits={max_bits} bits")
        self._cap = cap_parameters(local_epsilon=self.local_epsilon, signs=block)
        self._blocks = block_count(dim=dim, signs=block)
        self._index_bits = (self._blocks - 1).bit_length()

    @property
    def block(self) -> int:
        """s, signs per report."""
        return self._cap.signs

    @property
    def agreements(self) -> int:
        """t, least agreements of a likely pattern."""
        return self._cap.agreements

    @property
    def bits_per_report(self) -> int:
        """ceil(log2 ceil(d/s)) + s."""
        return self._index_bits + self.block

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for at its coordinate, B·r/g."""
        return self._blocks * self.radius / self._cap.gain

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = d·B·r²/g² - ‖x‖₂² of each row, (clients,), float64."""
        second_moment = self.dim * self.report_value**2 / self._blocks
        return second_moment - self._rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """The cap's blanket: rows of opposite sign in every coordinate attain it where s divides d.

        Coordinates beyond d have random signs, which only adds to what any two records share.
        """
        return cap_blanket(
            local_epsilon=self.local_epsilon, signs=self.block, exact=self.dim % self.block == 0
        )

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum of the rows, (dim,) float32.

        Raises:
            ValueError: if the reports are not this mechanism's, or name a block that does not exist.
        """
        blocks, patterns = self._parse(reports)
        signs = pattern_signs(patterns, signs=self.block)
        counts = torch.zeros(self._blocks, self.block, dtype=torch.int64, device=signs.device)
        counts.index_add_(0, blocks, signs)
        return (counts.flatten()[: self.dim].double() * self.report_value).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Every pattern of every block, where they are at most 2**16."""
        count = self._blocks << self.block
        if count > _MOST_OUTCOMES:
            return None
        every = torch.arange(count)
        return self._reports(every >> self.block, every & ((1 << self.block) - 1))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        blocks, patterns = self._parse(reports)
        values = self._values(Rows.of(x.detach().unsqueeze(0).expand(len(reports), -1)), blocks)
        return pattern_likelihood(patterns, values, cap=self._cap).log() - math.log(self._blocks)

    def _clip(self, rows: Rows, norms: Tensor) -> Tensor:
        return rows.dense().clamp(-self.radius, self.radius)

    def _randomize(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        blocks = randomness.integers(self._blocks, x.num_rows, device=x.device)
        patterns = round_to_patterns(self._values(x, blocks), randomness=randomness)
        return self._reports(blocks, send_patterns(patterns, cap=self._cap, randomness=randomness))

    def _values(self, x: Rows, blocks: Tensor) -> Tensor:
        columns = blocks.unsqueeze(1) * self.block + torch.arange(self.block, device=blocks.device)
        values = entries(x, columns.clamp(max=self.dim - 1)).double() / self.radius
        return values.masked_fill_(columns >= self.dim, 0.0)

    def _reports(self, blocks: Tensor, patterns: Tensor) -> Reports:
        named = Field(blocks.to(compact_dtype(self._index_bits)), self._index_bits)
        pattern = Field(patterns.to(compact_dtype(self.block)), self.block)
        return Reports(mechanism=self.name, dim=self.dim, fields=(named, pattern))

    def _parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        self._own(reports, fields=2)
        for part, bits in zip(reports.fields, (self._index_bits, self.block), strict=True):
            if part.values.is_floating_point() or part.values.dim() != 1 or part.bits != bits:
                raise ValueError(
                    f"a report of {self.name} is a block of {self._index_bits} bits and {self.block} signs"
                )
        blocks, patterns = (part.values.to(torch.int64) for part in reports.fields)
        if blocks.numel():
            if not (int(blocks.min()) >= 0 and int(blocks.max()) < self._blocks):
                raise ValueError(f"a report names a block outside [0, {self._blocks})")
            if not (int(patterns.min()) >= 0 and int(patterns.max()) < 1 << self.block):
                raise ValueError(f"a pattern has {self.block} signs")
        return blocks, patterns
