"""One sign of each of several sampled coordinates: bit vectors, and vectors rounded to bits."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.mechanisms.signs.linf_bit_planes import LInfBitPlanes
from shuffle_plugins.mechanisms.signs.randomized_response import Constants


class SampledBits(LInfBitPlanes):
    r"""R^Bin_{v,s} of Girgis's thesis (Algorithms 3.3.1 and 3.3.2) with exact ε0, on [-r, r]^d.

    A client draws one coordinate from each of s blocks and sends its place there and a sign of mean
    :math:`\tanh(ε_0/2s) \, x_j/r`: s messages of ε0/s each. It is ``linf-bit-planes`` with one level, the
    last, whose rounding to a bit and randomised response are one draw.

    The thesis takes bits b in {0, 1}^d. They are the corners r(2b - 1) of this ball: take means of these, and
    those of b are (mean/r + 1)/2, with a quarter of the variance. (Bits 0 and 1 put in as they are come out
    unbiased too.) A mechanism of bits alone could be given no gradient and be put through none of the tests
    that all vector mechanisms pass; and counting what is not sampled as 1/2, as happens here, has at worst
    variance :math:`(d/4)(b\,\coth^2(ε_0/2s) - 1)`, b = d/s, where the thesis's 0 adds up to 3/4 d(b - 1).

    .. math:: E\|R(x) - x\|^2 = r^2 \coth^2(ε_0/2s) \sum_i b_i - \|x\|^2.

    By default s is the best for this, about ε0/2.18 for large d. ``constants="thesis"`` has the printed
    probabilities and decoding, r(2b - 1) standing for b; Thm 3.3.1 takes s = ceil(ε0).

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest absolute coordinate.
        samples: s, in [1, d]; of least worst variance by default.
        constants: ``"exact"``, or ``"thesis"`` for the printed ones.

    Raises:
        ValueError: if a parameter is out of range, or ε0/s is less than 1e-9.
    """

    name: ClassVar[str] = "sampled-bits"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        samples: int | None = None,
        constants: Constants | str = Constants.EXACT,
    ) -> None:
        super().__init__(
            local_epsilon=local_epsilon,
            dim=dim,
            radius=radius,
            levels=1,
            samples=samples,
            constants=constants,
        )
