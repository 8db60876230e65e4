"""Base classes: a Reporter makes reports, a Summation adds them up, a PrivateSum is what hosts call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from shuffle_plugins.accounting import Adversary, Blanket, Round, Sampling, SeveralReportsRound, ShuffleRound
from shuffle_plugins.core import ReportLayout, Reports, Rows
from shuffle_plugins.core.checks import Count, Dim, LocalEpsilon, Radius, Ranged
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.randomness.sources import Randomness, secure

PrivacyParameter = Literal["local_epsilon", "noise_multiplier"]

MOST_OUTCOMES = 1 << 16
"""The most reports that a mechanism lists in ``outcomes``; of one that can send more there is no list."""


class Norm(StrEnum):
    """Norm of the ball in which a mechanism takes its inputs."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


@dataclass(frozen=True)
class CountRange:
    """The whole numbers that one client adds to each of the ``size`` entries of a total added up unseen."""

    size: int
    lowest: int
    highest: int


class Reporter(ABC):
    """Turns each client's datum into one report, and everybody's reports into an estimate of their sum.

    ``name`` is its registered name, also written in the header of its reports.
    """

    name: ClassVar[str]

    @property
    def local_delta(self) -> float:
        """δ0 of one client's whole report; 0 unless a mechanism says otherwise."""
        return 0.0

    @property
    @abstractmethod
    def layout(self) -> ReportLayout:
        """The form of a client's whole report on the wire."""

    @property
    def bits_per_report(self) -> int:
        """Bits of one report on the wire, without the header."""
        return self.layout.bits

    @abstractmethod
    def randomize(self, x: Any, *, randomness: Randomness | None = None) -> Reports:
        """Each client's whole report, in the clients' order, for data of one client a row; there may be none.

        All random bits come from ``randomness``, a fresh :class:`SecureRandomness` by default.
        """

    @abstractmethod
    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over those who reported, (dim,); float32 for vectors, else float64.

        An empty batch sums to zeros, and sums of chunks add up. What was never sent is refused.
        """

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
        """The round for an accountant, of ``cohort`` reports, or as many expected, of n = ``population``."""


class Summation(Reporter):
    """A randomizer whose reports are added up before they are read: a total, and an estimate of the sum."""

    if TYPE_CHECKING:  # At run time this may be a field of a dataclass, which would inherit a property here.

        @property
        def cohort(self) -> int | None:
            """How many clients' shares of noise make up the sum's; None if each report carries its own."""

    @property
    def counts(self) -> CountRange | None:
        """The range of ``total`` of one report, if that is whole numbers with known bounds; else None.

        Where it is known, :mod:`shuffle_plugins.secure_aggregation` can add totals up unseen.
        """
        return None

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """Bound on E‖error‖² over all data: of the whole sum, or per report if :attr:`cohort` is None."""

    def variance_over(self, num_steps: int, *, momentum: float = 0.0) -> float:
        """:attr:`worst_variance`; where noise is correlated over rounds, that of independent noise which
        leaves as much in a model after each of so many rounds, whose sums it adds up, with ``momentum``.
        """
        return self.worst_variance

    @abstractmethod
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """What these clients add to a total, distributed as ``total(randomize(x))`` without
        :meth:`common_noise`, for a host that simulates all clients; rows are clipped.

        Shares of disjoint groups of clients add up. They are not private until the common noise is added.
        """

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor | None:
        """Noise that is added to the total once for all clients of a round; None if shares have their own."""
        return None

    @abstractmethod
    def total(self, reports: Reports) -> Tensor:
        """The reports added up, whole numbers if they must be summed; totals of disjoint groups add up."""

    @abstractmethod
    def estimate(self, total: Any, *, reports: int) -> Any:
        """Unbiased estimate of the sum of the clients' data, floating (dim,), from the total of all reports.

        If reports must be summed, estimates of groups must not be added up instead: their rounding errors
        would reveal the grouping.
        """

    @override
    def sum(self, reports: Reports) -> Tensor:
        return self._sum(self.total(reports), reports=len(reports))

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw distributed as ``sum(randomize(x))``, (dim,), for a host that simulates all clients."""
        held = x.num_rows if isinstance(x, Rows) else len(x)
        if self.cohort is not None and held != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {held} rows")
        source = secure(randomness)
        total = self.share(x, randomness=source)
        noise = self.common_noise(randomness=source)
        found = self._sum(total if noise is None else total + noise, reports=held)
        floating = isinstance(x, Rows) or x.is_floating_point()
        return found.to(Rows.of(x).compute_dtype if floating else torch.float64)

    def secret_round(self, *, answered: int, participation: float) -> Round:
        """The round of a sum to which ``answered`` clients add noise, and each, by a secret coin of its own,
        its vector with probability ``participation``; otherwise zero, in the same way.
        """
        raise ValueError(
            f"{type(self).__name__} has no accounting for clients that take part in secret: use VectorSum or "
            "BallSum, or let the server draw the clients"
        )

    def _sum(self, total: Tensor, *, reports: int) -> Tensor:
        """The estimated sum as a vector, where :meth:`estimate` may give more than that."""
        estimate: Tensor = self.estimate(total, reports=reports)
        return estimate


class PrivateSum(Summation):
    """Adds up the vectors of many clients so that what is seen of the sum is private: what hosts call.

    Reports of a :class:`~shuffle_plugins.mechanisms.LocalRandomizer` are shuffled and may be seen. In a
    multi-message sum such as :class:`~shuffle_plugins.protocols.VectorSum` the noise of all clients together
    protects each: only the shuffler may see a single report (:attr:`must_be_summed`). A server that gets
    reports calls ``total`` and ``estimate``; one that simulates all clients ``share``, once per round
    ``common_noise``, and ``estimate`` (``docs/guides/extending.md``).

    Attributes:
        privacy_parameter: the number by which a user sets its privacy.
        norm: norm of the ball that holds the vectors.
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
        def local_epsilon(self) -> float:
            """ε0 of one client's whole report, in nats, if nothing else protected it; may be infinite."""

    @property
    def must_be_summed(self) -> bool:
        """True if only the sum of the reports may be revealed, False if single shuffled reports may be."""
        return self.cohort is not None

    @property
    def reports_per_client(self) -> int:
        """How many reports ``randomize`` makes of each row, which are shuffled each by itself."""
        return 1

    @override
    @abstractmethod
    def estimate(self, total: Tensor, *, reports: int) -> Tensor: ...

    @abstractmethod
    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Randomise each row (clients, dim) into a report.

        With ``clip``, rows outside of the ball are brought into it, and one with NaN or infinite entries is
        one of zeros. A multi-message sum refuses False, which is a local randomizer's default.
        """


@dataclass(frozen=True)
class SeveralReports(Ranged):
    """What all s = ``reports_per_client`` reports of a client cost together, for accountants and ledgers."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(Ranged, Reporter):
    """A local randomizer: one call turns each client's datum into one report, at a cost of ε0.

    Attributes:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of what is estimated: of a client's vector, or the number of categories.
    """

    local_epsilon: LocalEpsilon
    dim: Dim

    @property
    def shufflable(self) -> bool:
        """Whether a report can be read without knowing whose it is; only then does shuffling amplify."""
        return True

    @property
    @abstractmethod
    def domain(self) -> str:
        """What a client may hold, in a word: a norm for the ball of vectors, or ``"categories"``."""

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """Largest E‖R(x) - x‖² over the domain, or a bound on it."""

    @abstractmethod
    def blanket(self) -> Blanket:
        """The mechanism's own privacy blanket, for tight accounting."""

    @override
    @abstractmethod
    def sum(self, reports: Reports) -> Tensor: ...

    def outcomes(self) -> Reports | None:
        """Every report there is, each once, where they are at most 2**16; else None."""
        return None

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x, a vector (dim,) or category (): float64.

        Probabilities are as they are rounded. Where :meth:`outcomes` does not list the reports, densities, up
        to a term that is the same for every x. A mechanism that does not know it raises NotImplementedError.
        """
        raise NotImplementedError(f"{self.name} does not tell its law")

    @override
    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> ShuffleRound:
        """As of :class:`Reporter`, with all that is known of the reports.

        A mechanism with δ0 > 0 is accounted through its (ε0, δ0) alone. The channel is fixed: where what a
        client randomises follows from other reports of the round, record
        ``dataclasses.replace(round, channel_fixed=False)``.
        """
        if not self.shufflable:
            raise ValueError(
                f"a report of {self!r} can be read only by whoever knows whose it is: it cannot be shuffled, "
                "and costs local_epsilon"
            )
        return self._round(population=population, cohort=cohort, sampling=sampling, adversary=adversary)

    def _round(self, **who: Any) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            mechanism=self.name,
            blanket=None if self.local_delta else self.blanket(),
            local_delta=self.local_delta,
            channel_fixed=True,
            **who,
        )

    def read_reports(self, reports: Reports, *below: int) -> tuple[Tensor, ...]:
        """The whole numbers in reports, an int64 tensor for each field, refused unless ``below`` it."""
        return self.layout.read(reports, *below)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalRandomizer(Mechanism, PrivateSum):
    """An unbiased randomizer of vectors in a norm ball, batched over clients; see :class:`Mechanism`.

    As a :class:`PrivateSum`, its reports are shuffled one by one; a total is the sum of their estimates.
    """

    privacy_parameter: ClassVar[PrivacyParameter] = "local_epsilon"

    radius: Radius = 1.0

    @property
    @override
    def cohort(self) -> None:
        return None

    @property
    @override
    def domain(self) -> str:
        return str(self.norm)

    @property
    def worst_variance(self) -> float:
        """Largest E‖R(x) - x‖² over the ball: at 0, unless a mechanism says otherwise."""
        return float(self.variance(torch.zeros(1, self.dim, dtype=torch.float64))[0])

    @abstractmethod
    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row's report, (clients,) float64, for rows in the ball."""

    @abstractmethod
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """One report for each row, brought into the ball as :meth:`clip` does; every mechanism implements it.

        No clipped copy of the batch is needed: multiply by :meth:`clip_factors` where entries are used. Rows
        are finite; ``norms``, (clients,), are as of :meth:`row_norms`.
        """

    def clip(self, x: Tensor | Rows) -> Tensor:
        """The rows brought into the ball, as a copy (clients, dim): what ``clip=True`` works with.

        A row outside is scaled by radius/‖row‖, unless a mechanism says otherwise. A row with NaN or infinite
        entries becomes zero.
        """
        return self.clip_rows(*self._admitted(x, clip=True))

    @override
    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = False
    ) -> Reports:
        """Report each row (clients, dim) once, at a cost of ε0 per row.

        With ``clip``, as :meth:`clip` leaves it; else a row outside by more than rounding is refused.
        """
        return self.randomize_rows(*self._admitted(x, clip=clip), secure(randomness))

    @override
    def randomize_sum(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, (dim,), for a host that simulates all clients.

        A mechanism may draw it more cheaply: any sampler of the same law has the reports' guarantee.
        """
        rows, norms = self._admitted(x, clip=clip)
        return self.sum_rows(rows, norms, secure(randomness)).to(rows.compute_dtype)

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        return self.randomize_sum(x, randomness=randomness, clip=True)

    @override
    def total(self, reports: Reports) -> Tensor:
        return self.sum(reports)

    @override
    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        return total

    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        """The sum of the rows' reports, (dim,); a mechanism that can draw it faster overrides this."""
        return self.sum(self.randomize_rows(x, norms, randomness))

    def check_rows(self, x: Tensor | Rows) -> Rows:
        """The batch as :class:`~shuffle_plugins.core.rows.Rows`, of this mechanism's dimension."""
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")
        return rows

    def row_norms(self, rows: Rows) -> Tensor:
        """Norm of each row in which the ball is meant, (clients,); NaN and infinite ones are passed on."""
        norms: Tensor = getattr(rows, f"{self.norm}_norm")()
        return norms

    def admitted(self, rows: Rows, norms: Tensor, *, clip: bool) -> tuple[Rows, Tensor]:
        """Rows and norms to be randomised: what is not finite as zeros with ``clip``, else refused."""
        if clip:
            return rows.finite(norms)
        tolerance = {torch.float64: 1e-9, torch.float32: 1e-5}.get(rows.dtype, 1e-2)
        limit = self.radius * (1 + tolerance)
        if norms.numel() and not float(norms.max()) <= limit:  # not so for NaN either
            raise ValueError(
                f"a row has {self.domain} norm {float(norms.max()):g}, outside the ball of radius "
                f"{self.radius:g}; clip it first, or pass clip=True, which takes a row with NaN or infinite "
                "entries for zeros. Leave out neither the round nor the client: that would tell of the row"
            )
        return rows, norms

    def _admitted(self, x: Tensor | Rows, *, clip: bool) -> tuple[Rows, Tensor]:
        rows = self.check_rows(x)
        return self.admitted(rows, self.row_norms(rows), clip=clip)

    def clip_factors(self, norms: Tensor) -> Tensor:
        """Factor that brings each row into the ball, (clients,): radius/norm outside it, else 1."""
        return self.radius / norms.clamp(min=self.radius)

    def clip_rows(self, rows: Rows, norms: Tensor) -> Tensor:
        """The rows in the ball, for :meth:`clip`; a mechanism that clips in another way overrides this."""
        return rows.dense() * self.clip_factors(norms).unsqueeze(1).to(rows.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class FrequencyOracle(Mechanism):
    """An unbiased ε0-LDP randomizer of one of K = ``dim`` categories, at least 2, batched over clients.

    A client's datum x in {0, …, K - 1} stands for the unit vector e_x; ``sum`` estimates the counts,
    ``aggregate`` the frequencies. Single entries may be negative. See :class:`Mechanism`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 2:
            raise ValueError(f"categories must be at least 2 for {self.name}, got dim={self.dim}")

    @property
    @override
    def domain(self) -> str:
        return "categories"

    def variance(self, x: Tensor) -> Tensor:
        """E‖R(x) - e_x‖² of each client's report, (clients,) float64: by default :attr:`worst_variance`."""
        return torch.full((len(self.check_categories(x)),), self.worst_variance, dtype=torch.float64)

    @abstractmethod
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """One report for each category, (clients,) int64 in [0, dim); every oracle implements it."""

    @override
    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> Reports:
        """Report each client's category, (clients,) integers in [0, dim), once, at a cost of ε0 each."""
        return self.randomize_categories(self.check_categories(x), secure(randomness))

    def randomize_sum(self, x: Tensor, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, (dim,), for a host that simulates all clients."""
        return self.sum(self.randomize(x, randomness=randomness))

    def check_categories(self, x: Tensor) -> Tensor:
        """The categories as int64, (clients,), refused as by :meth:`randomize`."""
        return checked_categories(x, categories=self.dim)
