"""The one interface of everything that adds up clients' vectors privately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from shuffle_plugins.accounting import Adversary, Round, Sampling
from shuffle_plugins.core import ReportLayout, Reports, Rows
from shuffle_plugins.randomness import Randomness, secure

PrivacyParameter = Literal["local_epsilon", "noise_multiplier"]


class Norm(StrEnum):
    """Norm of the ball in which a mechanism takes its inputs."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


class PrivateSum(ABC):
    """Adds up the vectors of many clients so that what is seen of the sum is private.

    Two kinds implement it. A :class:`~shuffle_plugins.mechanisms.LocalRandomizer` randomises each vector by
    itself; its reports are shuffled and may be seen. In a multi-message sum such as
    :class:`~shuffle_plugins.protocols.VectorSum` the noise of all clients together protects each of them:
    only the shuffler, or whoever takes its place, may see a single report (:attr:`must_be_summed`). A host,
    the program that runs a mechanism (a server, or a process that simulates all clients), needs only this
    interface.

    A server that gets reports::

        total = mechanism.total(reports)  # totals of groups of clients add up
        estimate = mechanism.estimate(total, reports=len(reports))

    A host that simulates all clients of a round::

        rows = Rows.of(x)
        total = mechanism.share(rows, randomness=source)  # shares of groups of clients add up
        noise = mechanism.common_noise(randomness=source)  # once for the whole round
        estimate = mechanism.estimate(total if noise is None else total + noise, reports=rows.num_rows)

    Attributes:
        name: its registered name, also written in the header of its reports.
        privacy_parameter: the number by which a user sets its privacy.
        norm: norm of the ball that holds the vectors.
        dim: length of a client's vector.
        radius: radius of the ball; vectors outside are scaled onto it.
        cohort: how many clients' shares of noise add up to the noise of the sum. None if each report carries
            all its noise itself, as a local randomizer's do: then any number of reports will do.
    """

    __slots__ = ()

    name: ClassVar[str]
    privacy_parameter: ClassVar[PrivacyParameter]
    norm: ClassVar[Norm]

    if TYPE_CHECKING:  # At run time these may be fields of a dataclass, which would inherit a property here.

        @property
        def dim(self) -> int:
            """Length of a client's vector."""

        @property
        def radius(self) -> float:
            """Radius of the ball, in :attr:`norm`; vectors outside are scaled onto it."""

        @property
        def cohort(self) -> int | None:
            """How many clients' shares of noise make up the sum's; None if each report carries its own."""

    # -- what a report is -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def local_epsilon(self) -> float:
        """ε0 of one client's whole report, in nats, if nothing else protected it; may be infinite."""

    @property
    def local_delta(self) -> float:
        """δ0 of one client's whole report; 0 unless a mechanism says otherwise."""
        return 0.0

    @property
    def must_be_summed(self) -> bool:
        """True if only the sum of the reports may be revealed, False if single shuffled reports may be."""
        return self.cohort is not None

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """Bound on E‖error‖²: per report, or for the whole sum if :attr:`must_be_summed`."""

    @property
    @abstractmethod
    def layout(self) -> ReportLayout:
        """The form of a report on the wire: its fields, and so its length and header."""

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire, without the header."""
        return self.layout.bits

    # -- what is done -----------------------------------------------------------------------------------

    @abstractmethod
    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Randomise each row into a report.

        Args:
            x: (clients, dim), one client a row; may have no rows.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.
            clip: scale rows outside of the ball onto it. The default differs: a local randomizer has False,
                and then refuses such rows; a multi-message sum always clips, and refuses False.

        Raises:
            ValueError: if x is not a floating (clients, dim) batch, or has NaN or infinite entries.
        """

    @abstractmethod
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """What these clients add to a total, for a host that simulates all clients; rows are clipped.

        A share is distributed as ``total(randomize(x))`` without :meth:`common_noise`, and may be cheaper to
        compute. Shares of disjoint groups of clients add up. They are not private until the common noise is
        added.

        Raises:
            ValueError: as :meth:`randomize`.
        """

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor | None:
        """Noise that is added to the total once for all clients of a round; None if shares have their own."""
        return None

    @abstractmethod
    def total(self, reports: Reports) -> Tensor:
        """The reports added up. Totals of disjoint groups add up.

        If reports must be summed these are whole numbers, so that no rounding error depends on how
        clients were grouped.

        Raises:
            ValueError: if the reports are another mechanism's, or hold values that this one never produces.
        """

    @abstractmethod
    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """Unbiased estimate of the sum of the vectors, floating (dim,).

        Args:
            total: the total of all clients of the round. If reports must be summed, estimates of groups must
                not be added up instead: their rounding errors would reveal the grouping.
            reports: how many clients' reports are in the total.
        """

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over those who reported, (dim,).

        Raises:
            ValueError: as :meth:`total`.
        """
        return self.estimate(self.total(reports), reports=len(reports))

    def aggregate(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the mean over those who reported, (dim,).

        Raises:
            ValueError: if there are no reports, or as :meth:`total`.
        """
        if len(reports) == 0:
            raise ValueError("no reports to average; use sum() where a round may be empty")
        return self.sum(reports) / len(reports)

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw distributed as ``sum(randomize(x))``, (dim,), for a host that simulates all clients.

        Raises:
            ValueError: as :meth:`randomize`, or if there are not exactly :attr:`cohort` rows, where that is
                a number.
        """
        rows = Rows.of(x)
        if self.cohort is not None and rows.num_rows != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {rows.num_rows} rows")
        source = secure(randomness)
        total = self.share(rows, randomness=source)
        noise = self.common_noise(randomness=source)
        found = self.estimate(total if noise is None else total + noise, reports=rows.num_rows)
        return found.to(rows.compute_dtype)

    # -- what it costs ----------------------------------------------------------------------------------

    @abstractmethod
    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> Round:
        """The round for an accountant.

        Args:
            population: n, how many clients there are.
            cohort: k, reports of the round; their expected number under Poisson sampling.
            sampling: how the cohort is chosen.
            adversary: whom the guarantee is against, an observer of the model or the server.

        Raises:
            ValueError: if the numbers contradict each other, or so few clients make too little noise.
        """
