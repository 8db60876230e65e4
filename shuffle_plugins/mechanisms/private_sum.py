"""What makes reports, what adds them up, and the one interface of private sums of vectors that hosts know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from shuffle_plugins.accounting import Adversary, Round, Sampling, SeveralReportsRound, ShuffleRound
from shuffle_plugins.core import ReportLayout, Reports, Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.ranges import Count, Ranged
from shuffle_plugins.randomness import Randomness, secure

PrivacyParameter = Literal["local_epsilon", "noise_multiplier"]


class Norm(StrEnum):
    """Norm of the ball in which a mechanism takes its inputs."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


@dataclass(frozen=True)
class CountRange:
    """The whole numbers that one client adds to a total, for whoever adds them up unseen.

    Attributes:
        size: how many there are, the length of a total.
        lowest: the least that a client may add to an entry.
        highest: the most.
    """

    size: int
    lowest: int
    highest: int


class Reporter(ABC):
    """Turns each client's datum into one report, and everybody's reports into an estimate of their sum.

    What :class:`~shuffle_plugins.mechanisms.Mechanism`, which sends one message, has in common with protocols
    in which a client's report stands for many.

    Attributes:
        name: its registered name, also written in the header of its reports.
    """

    name: ClassVar[str]

    @property
    def local_delta(self) -> float:
        """δ0 of one client's whole report; 0 unless a mechanism says otherwise."""
        return 0.0

    @property
    @abstractmethod
    def layout(self) -> ReportLayout:
        """The form of a client's whole report on the wire: its fields, and so its length and header."""

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire, without the header."""
        return self.layout.bits

    @abstractmethod
    def randomize(self, x: Any, *, randomness: Randomness | None = None) -> Reports:
        """Each client's whole report, in the clients' order.

        Args:
            x: the clients' data, one client a row; may have no rows.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.
        """

    @abstractmethod
    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over those who reported, (dim,). No reports sum to zero."""

    def aggregate(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the mean over those who reported, (dim,); there must be some."""
        if len(reports) == 0:
            raise ValueError("no reports to average; use sum() where a round may be empty")
        return self.sum(reports) / len(reports)

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
        """


class Summation(Reporter):
    """A randomizer whose reports are added up before they are read: a total, and an estimate of the sum.

    Attributes:
        cohort: how many clients' shares of noise add up to the noise of the sum. None if each report carries
            all its noise itself, as a local randomizer's do: then any number of reports will do.
    """

    if TYPE_CHECKING:  # At run time this may be a field of a dataclass, which would inherit a property here.

        @property
        def cohort(self) -> int | None:
            """How many clients' shares of noise make up the sum's; None if each report carries its own."""

    @property
    def counts(self) -> CountRange | None:
        """The range of ``total`` of one report, if that is whole numbers with known bounds; else None.

        Where it is known, parties can add up clients' totals mod a power of two, so that nobody sees a single
        one (:mod:`shuffle_plugins.secure_aggregation`).
        """
        return None

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """Bound on E‖error‖² over all data: of the whole sum, or per report if :attr:`cohort` is None."""

    @abstractmethod
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """What these clients add to a total, for a host that simulates all clients; rows are clipped, and one
        that is not finite is one of zeros.

        A share is distributed as ``total(randomize(x))`` without :meth:`common_noise`, and may be cheaper to
        compute. Shares of disjoint groups of clients add up. They are not private until the common noise is
        added.
        """

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor | None:
        """Noise that is added to the total once for all clients of a round; None if shares have their own."""
        return None

    @abstractmethod
    def total(self, reports: Reports) -> Tensor:
        """The reports added up. Totals of disjoint groups add up.

        If reports must be summed these are whole numbers, so that no rounding error depends on how
        clients were grouped. What this mechanism never produces is refused.
        """

    @abstractmethod
    def estimate(self, total: Any, *, reports: int) -> Any:
        """Unbiased estimate of the sum of the clients' data, floating (dim,).

        Args:
            total: the total of all clients of the round. If reports must be summed, estimates of groups must
                not be added up instead: their rounding errors would reveal the grouping.
            reports: how many clients' reports are in the total.
        """

    @override
    def sum(self, reports: Reports) -> Tensor:
        return self._sum(self.total(reports), reports=len(reports))

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw distributed as ``sum(randomize(x))``, (dim,), for a host that simulates all clients.

        Where :attr:`cohort` is a number there must be as many rows.
        """
        source = secure(randomness)
        total = self.share(x, randomness=source)
        held = len(x) if isinstance(x, Tensor) else x.num_rows
        if self.cohort is not None and held != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {held} rows")
        noise = self.common_noise(randomness=source)
        found = self._sum(total if noise is None else total + noise, reports=held)
        floating = isinstance(x, Rows) or x.is_floating_point()
        return found.to(Rows.of(x).compute_dtype if floating else torch.float64)

    def secret_round(self, *, answered: int, participation: float) -> Round:
        """The round of a sum whose clients all add noise, while only some, drawn in secret, add data.

        Args:
            answered: clients that add noise.
            participation: probability with which each of them adds its vector, by a secret coin of its own;
                otherwise it adds zero, in the same way.
        """
        del answered, participation
        raise ValueError(
            f"{type(self).__name__} has no accounting for clients that take part in secret: use VectorSum or "
            "BallSum, or let the server draw the clients"
        )

    def _sum(self, total: Tensor, *, reports: int) -> Tensor:
        """The estimated sum as a vector, where :meth:`estimate` may give more than that."""
        estimate: Tensor = self.estimate(total, reports=reports)
        return estimate


class PrivateSum(Summation):
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
        privacy_parameter: the number by which a user sets its privacy.
        norm: norm of the ball that holds the vectors.
        dim: length of a client's vector.
        radius: radius of the ball; vectors outside are scaled onto it.
    """

    privacy_parameter: ClassVar[PrivacyParameter]
    norm: ClassVar[Norm]

    if TYPE_CHECKING:  # As in Summation: at run time these may be fields of a dataclass.

        @property
        def dim(self) -> int:
            """Length of a client's vector."""

        @property
        def radius(self) -> float:
            """Radius of the ball, in :attr:`norm`; vectors outside are scaled onto it."""

    @property
    @abstractmethod
    def local_epsilon(self) -> float:
        """ε0 of one client's whole report, in nats, if nothing else protected it; may be infinite."""

    @property
    def must_be_summed(self) -> bool:
        """True if only the sum of the reports may be revealed, False if single shuffled reports may be."""
        return self.cohort is not None

    @override
    @abstractmethod
    def estimate(self, total: Tensor, *, reports: int) -> Tensor: ...

    @abstractmethod
    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Randomise each row into a report.

        Args:
            x: (clients, dim), one client a row; may have no rows.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.
            clip: scale rows outside of the ball onto it. The default differs: a local randomizer has False,
                and then refuses such rows; a multi-message sum always clips, and refuses False. Clipping
                takes a row with NaN or infinite entries for one of zeros, whatever the other rows are.
        """


@dataclass(frozen=True)
class SeveralReports(Ranged):
    """What all reports of a client cost together, for accountants and ledgers; it makes none.

    Attributes:
        mechanism: makes each report.
        reports_per_client: s, how many a client that takes part sends.
    """

    mechanism: PrivateSum
    reports_per_client: Count

    @property
    def name(self) -> str:
        """That of the mechanism whose reports are put together."""
        return self.mechanism.name

    @property
    def local_epsilon(self) -> float:
        """ε0 of all reports together, s·ε0."""
        return self.reports_per_client * self.mechanism.local_epsilon

    @property
    def local_delta(self) -> float:
        """δ0 of all reports together, s·δ0."""
        return self.reports_per_client * self.mechanism.local_delta

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> SeveralReportsRound:
        """The round for an accountant, as :meth:`PrivateSum.round`; ``cohort`` counts clients."""
        one = self.mechanism.round(
            population=population, cohort=cohort, sampling=sampling, adversary=adversary
        )
        if type(one) is not ShuffleRound:
            raise ValueError(
                f"several reports per client are accounted for shuffled reports, and a round of "
                f"{self.name!r} is a {type(one).__name__}: take a one-message mechanism with δ0 = 0, such as "
                "'privunit-g' or 'laplace'"
            )
        return SeveralReportsRound.of(one, reports_per_client=self.reports_per_client)
