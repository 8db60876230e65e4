"""Laplace noise for vectors in an l1 ball, safe in floating point."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.mechanisms.noise.discrete_laplace import FINE_BITS, DiscreteLaplace


class Laplace(DiscreteLaplace):
    r"""The Laplace mechanism: noise of scale 2·radius/ε0 on every coordinate of a vector in the l1 ball.

    The textbook's x + Laplace(2r/ε0), computed in floating point, is not private: which doubles can come out
    depends on x (Mironov 2012, "On significance of the least significant bits for differential privacy").
    This is :class:`~.DiscreteLaplace` on a grid of about 2**-14 of
    the noise's scale, 20 bits per coordinate, with the same variance up to 1e-4 and an exact ε0.

    Source: Dwork, McSherry, Nissim, Smith 2006.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: r, radius of the l1 ball.
    """

    name: ClassVar[str] = "laplace"

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius, bits=FINE_BITS)
