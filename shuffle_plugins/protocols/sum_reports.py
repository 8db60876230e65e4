"""One client's part in a sum as one report, for a shuffler that adds up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.accounting.rounds.laws import Round
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.protocols.coins.vector_sum import VectorSum
from shuffle_plugins.protocols.tags.ball_sum import BallSum
from shuffle_plugins.protocols.tags.base import TaggedBits
from shuffle_plugins.randomness import Randomness

Sum = VectorSum | BallSum
"""Multi-message sums of vectors in an ℓ2 ball."""

P = TypeVar("P", bound=VectorSum | BallSum)


class SumReports(ABC, Generic[P]):
    """A multi-message sum behind the methods of a one-message mechanism, for hosts of those.

    A client's messages travel together, as one report. Shuffled message by message, everybody's say no more
    than their sum does; so whoever adds the reports up and hands on nothing but the sum stands in for the
    shuffler. **Shuffling whole reports does not help**: a report alone protects as ``local_epsilon`` says.

    Args:
        protocol: what all clients follow.
    """

    local_delta: ClassVar[float] = 0.0

    def __init__(self, protocol: P) -> None:
        self._protocol = protocol

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._protocol!r})"

    @property
    def protocol(self) -> P:
        """What all clients follow."""
        return self._protocol

    @property
    def name(self) -> str:
        """The protocol's."""
        return self._protocol.name

    @property
    def dim(self) -> int:
        """Length of a client's vector."""
        return self._protocol.dim

    @property
    def radius(self) -> float:
        """ℓ2 radius of the ball; longer vectors are scaled onto it."""
        return self._protocol.radius

    @property
    def local_epsilon(self) -> float:
        """ε0 of one report in nats, as its client's whole guarantee if nobody is trusted."""
        return self._protocol.sum_round().local_epsilon

    @property
    @abstractmethod
    def bits_per_report(self) -> int:
        """Bits of one report on the wire."""

    @abstractmethod
    def _reported(self, x: Tensor | Rows, randomness: Randomness | None) -> tuple[Field, ...]:
        """The fields of each row's report."""

    @abstractmethod
    def _added(self, fields: tuple[Field, ...]) -> Tensor:
        """The reports added up, int64; ValueError if one is none that a client can make."""

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each row's part in the sum.

        Raises:
            ValueError: if x is not a floating (clients, dim) batch, has NaN or infinite entries, or ``clip``
                is false: a sum always clips.
        """
        if not clip:
            raise ValueError("a sum always clips to its ball: leave clip as it is")
        return Reports(mechanism=self.name, dim=self.dim, fields=self._reported(x, randomness))

    def total(self, reports: Reports) -> Tensor:
        """The reports added up, in whole numbers: all that may be seen of them. Totals of groups add up.

        Raises:
            ValueError: if the reports are not this protocol's, or one is none that a client can make.
        """
        if (reports.mechanism, reports.dim) != (self.name, self.dim):
            raise ValueError(f"not reports of {self!r}")
        return self._added(reports.fields)

    def decode(self, total: Tensor, *, clients: int) -> Tensor:
        """Unbiased estimate of the sum over the clients whose reports are in a total, float64 (dim,)."""
        return self._protocol.decode(total, clients=clients)

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over those who reported, float64 (dim,).

        Estimates of groups must not be added up: in floating point that tells of the groups.

        Raises:
            ValueError: as :meth:`total`.
        """
        return self.decode(self.total(reports), clients=len(reports))

    def shuffle_round(
        self, *, population: int, cohort: int, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> Round:
        """The sum over ``cohort`` clients of ``population``, for an accountant.

        Raises:
            ValueError: if the numbers contradict each other, or so few clients make too little noise.
        """
        return self._protocol.sum_round(population=population, cohort=cohort, sampling=sampling)

    def _wide(self, fields: tuple[Field, ...], *layout: tuple[int, int]) -> list[Tensor]:
        """The values of fields that have this (bits, width), as int64 (clients, width)."""
        found = [(field.bits, field.width) for field in fields]
        if found != list(layout):
            raise ValueError(f"not reports of {self!r}")
        return [field.values.long().reshape(-1, field.width) for field in fields]


class CountReports(SumReports[VectorSum]):
    """P_vec's: a client's number of ones under every label. Alone it protects nobody, ε0 is infinite."""

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire."""
        return self._protocol.bits_per_client

    def _reported(self, x: Tensor | Rows, randomness: Randomness | None) -> tuple[Field, ...]:
        return (Field(self._protocol.encode(x, randomness=randomness), self._bits),)

    def _added(self, fields: tuple[Field, ...]) -> Tensor:
        (counts,) = self._wide(fields, (self._bits, self.dim))
        return self._protocol.total(counts).ones

    @property
    def _bits(self) -> int:
        return self._protocol.messages_per_coordinate.bit_length()


class TaggedReports(SumReports[BallSum]):
    """Multi-message mean estimation's: under every tag a place and a flipped bit."""

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire."""
        return self._protocol.bits_per_client

    def _reported(self, x: Tensor | Rows, randomness: Randomness | None) -> tuple[Field, ...]:
        sent = self._protocol.encode(x, randomness=randomness)
        bits = Field(sent.bits.flatten(1).long(), 1)
        if not self._index_bits:  # one place per tag goes without saying
            return (bits,)
        return Field(sent.places.flatten(1), self._index_bits), bits

    def _added(self, fields: tuple[Field, ...]) -> Tensor:
        tags = self._protocol.tags
        if self._index_bits:
            places, bits = self._wide(fields, (self._index_bits, tags), (1, tags))
        else:
            (bits,) = self._wide(fields, (1, tags))
            places = torch.zeros_like(bits)
        shape = (-1, self._protocol.levels, self._protocol.samples)
        sent = TaggedBits(places=places.reshape(shape), bits=bits.reshape(shape))
        return self._protocol.signs(sent)

    @property
    def _index_bits(self) -> int:
        return self._protocol.planes.blocks.index_bits


def sum_reports(protocol: Sum) -> SumReports[VectorSum] | SumReports[BallSum]:
    """The reports of a protocol's clients.

    Raises:
        TypeError: if it is no sum of vectors in an ℓ2 ball.
    """
    if isinstance(protocol, VectorSum):
        return CountReports(protocol)
    if isinstance(protocol, BallSum):
        return TaggedReports(protocol)
    raise TypeError(f"expected a VectorSum or a BallSum, got {protocol!r}")
