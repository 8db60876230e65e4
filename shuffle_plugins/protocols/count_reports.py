"""One client's part in a sum as one report: its counts, for a shuffler that adds them up."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from shuffle_plugins.accounting.rounds import Sampling
from shuffle_plugins.accounting.sum_rounds import SumRound
from shuffle_plugins.mechanisms.reports import Field, Reports
from shuffle_plugins.protocols.vector_sum import VectorSum
from shuffle_plugins.randomness import Randomness
from shuffle_plugins.rows import Rows


class CountReports:
    """A multi-message sum behind the methods of a one-message mechanism, for hosts of those.

    A client sends its number of ones under every label instead of the ones and zeros. The shuffled messages
    of all clients say no more than the counts' sum, so whoever adds the counts up and hands on nothing but
    the sum stands in for the shuffler. **A report alone protects nobody**: ε0 is infinite, and shuffling
    whole reports does not help.

    Args:
        protocol: what all clients follow.

    Raises:
        TypeError: if it is not a :class:`VectorSum`.
    """

    name: ClassVar[str] = VectorSum.name
    local_epsilon: ClassVar[float] = math.inf
    local_delta: ClassVar[float] = 0.0

    def __init__(self, protocol: VectorSum) -> None:
        if not isinstance(protocol, VectorSum):
            raise TypeError(f"expected a VectorSum, got {protocol!r}")
        self._protocol = protocol

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._protocol!r})"

    @property
    def protocol(self) -> VectorSum:
        """What all clients follow."""
        return self._protocol

    @property
    def dim(self) -> int:
        """Length of a client's vector."""
        return self._protocol.dim

    @property
    def radius(self) -> float:
        """ℓ2 radius of the ball; longer vectors are scaled onto it."""
        return self._protocol.radius

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire."""
        return self._protocol.bits_per_client

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Round each row, add its coins, and report the counts.

        Raises:
            ValueError: if x is not a floating (clients, dim) batch, has NaN or infinite entries, or ``clip``
                is false: the rounding always clips.
        """
        if not clip:
            raise ValueError("a sum always clips to its ball: leave clip as it is")
        counts = self._protocol.encode(x, randomness=randomness)
        return Reports(mechanism=self.name, dim=self.dim, fields=(Field(counts, self._bits),))

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over those who reported, float64 (dim,).

        Raises:
            ValueError: if the reports are not this protocol's, or a count is one that no client can have.
        """
        field = reports.fields[0]
        if (reports.mechanism, reports.dim) != (self.name, self.dim) or len(reports.fields) != 1:
            raise ValueError(f"not reports of {self!r}")
        if field.bits != self._bits or field.values.dim() != 2:
            raise ValueError(f"not reports of {self!r}")
        total = self._protocol.total(field.values.long().reshape(len(reports), self.dim))
        return self._protocol.decode(total, clients=len(reports))

    def shuffle_round(
        self, *, population: int, cohort: int, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> SumRound:
        """The sum over ``cohort`` clients of ``population``, for an accountant.

        Raises:
            ValueError: if the numbers contradict each other, or so few clients toss too few coins.
        """
        return self._protocol.sum_round(population=population, cohort=cohort, sampling=sampling)

    @property
    def _bits(self) -> int:
        return self._protocol.messages_per_coordinate.bit_length()
