"""One random block of coordinates of an l-infinity ball, sent as a pattern of signs."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor
from shuffle_plugins.mechanisms.signs.sign_blocks import (
    SignBlockRandomizer,
    SignBlocks,
    best_block,
    block_blanket,
    report_bits,
)
from shuffle_plugins.mechanisms.signs.sign_patterns import MAX_SIGNS, cap_parameters
from shuffle_plugins.mechanisms.signs.unit_numbers import CoordinateRandomizer


class LInfBlock(SignBlockRandomizer, CoordinateRandomizer):
    r"""One block of s neighbouring coordinates, rounded to signs, through the optimal cap on {±1}^s.

    A client draws one of B = ceil(d/s) blocks uniformly, rounds its coordinates to signs of mean x_i/r
    (beyond d: of mean 0), and sends the block and the pattern, which is likelier by e^ε0 where it agrees with
    the rounded signs in at least t places (``sign_patterns``). A sign stands for ±B·r/g, so

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
        checks.whole("block", block, at_most=min(dim, MAX_SIGNS))
        if max_bits is not None and report_bits(dim=dim, signs=block) > max_bits:
            raise ValueError(f"blocks of {block} take more than max_bits={max_bits} bits")
        cap = cap_parameters(local_epsilon=self.local_epsilon, signs=block)
        self._blocks = SignBlocks(dim=dim, cap=cap)

    @property
    def block(self) -> int:
        """s, signs per report."""
        return self._blocks.cap.signs

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for at its coordinate, B·r/g."""
        return self._blocks.sign_value * self.radius

    @property
    def worst_variance(self) -> float:
        """That of 0, d·B·r²/g²."""
        return self.dim * self.radius**2 * self._blocks.coordinate_second_moment

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = d·B·r²/g² - ‖x‖₂² of each row, (clients,), float64."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """The cap's blanket: rows of opposite sign in every coordinate attain it where s divides d.

        Coordinates beyond d have random signs, which only adds to what any two records share.
        """
        return block_blanket(local_epsilon=self.local_epsilon, dim=self.dim, signs=self.block)
