"""The interfaces of local randomizers: what all share, and those of vectors in a norm ball."""

from __future__ import annotations

from abc import abstractmethod
from operator import methodcaller
from typing import ClassVar

from shuffle_plugins.accounting import Adversary, Blanket, Sampling, ShuffleRound
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, checked_categories
from shuffle_plugins.mechanisms.private_sum import Norm as Norm
from shuffle_plugins.mechanisms.private_sum import PrivacyParameter, PrivateSum, Reporter
from shuffle_plugins.randomness import Randomness, secure

_NORMS = {
    Norm.L1: methodcaller("l1_norm"),
    Norm.L2: methodcaller("l2_norm"),
    Norm.LINF: methodcaller("linf_norm"),
}
MOST_OUTCOMES = 1 << 16
"""A mechanism of more reports does not list them."""


class Mechanism(Reporter):
    """A local randomizer: one call turns each client's datum into one report, at a cost of ε0.

    The reports of a round, shuffled, are all that leaves the clients; ``sum`` and ``aggregate`` are
    post-processing of them. Vectors in a norm ball go to a :class:`LocalRandomizer`, categories to a
    :class:`~shuffle_plugins.mechanisms.local_randomizer.FrequencyOracle`.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of what is estimated: of a client's vector, or the number of categories.
    """

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        self._local_epsilon = checks.local_epsilon(local_epsilon)
        self._dim = checks.dim(dim)

    @property
    def local_epsilon(self) -> float:
        """ε0 of one report, in nats."""
        return self._local_epsilon

    @property
    def dim(self) -> int:
        """Length of what is estimated."""
        return self._dim

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

    @abstractmethod
    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum over clients, (dim,): of vectors, or how many hold each category.

        Float32 for vectors, float64 for categories. Sums of chunks add up; no reports sum to zero. Reports
        that are not shufflable are read in order, the first as that of the client at ``position``. What this
        mechanism never sends is refused.
        """

    def outcomes(self) -> Reports | None:
        """Every report there is, each once, where they are at most 2**16; else None.

        With :meth:`log_likelihood` this makes ε0 and unbiasedness a matter of enumeration.
        """
        return None

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x, (reports,) float64.

        For proofs, audits and tests, with probabilities as they are rounded. Log-probabilities where
        :meth:`outcomes` lists the reports; otherwise densities, up to a term that is the same for every x. x
        is one datum of the domain: a vector (dim,), or a category ().

        Raises:
            NotImplementedError: if the mechanism does not know it.
        """
        raise NotImplementedError(f"{self.name} does not tell its law")

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> ShuffleRound:
        """A round of this mechanism, with all that is known of its reports, for an accountant.

        A mechanism with δ0 > 0 is accounted through its (ε0, δ0) alone. The round has a fixed channel: what a
        client randomises must not follow from other reports of the round. Where it does, record
        ``dataclasses.replace(round, channel_fixed=False)``.
        """
        if not self.shufflable:
            raise ValueError(
                f"a report of {self!r} can be read only by whoever knows whose it is: it cannot be shuffled, "
                "and costs local_epsilon"
            )
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=population,
            cohort=cohort,
            sampling=sampling,
            adversary=adversary,
            mechanism=self.name,
            blanket=None if self.local_delta else self.blanket(),
            local_delta=self.local_delta,
            channel_fixed=True,
        )

    def check_reports(self, reports: Reports, *below: int) -> None:
        """Refuse reports of another mechanism or layout, and values not ``below`` the limit of their field.

        Without limits the layout alone is checked.
        """
        self.layout.check(reports, *below)

    def read_reports(self, reports: Reports, *below: int) -> tuple[Tensor, ...]:
        """The whole numbers in reports, checked as by :meth:`check_reports`: an int64 tensor for each field.

        (reports,) for a field of one value per report, else (reports, width).
        """
        return self.layout.read(reports, *below)


class LocalRandomizer(Mechanism, PrivateSum):
    """An unbiased randomizer of vectors in a norm ball, batched over clients.

    One call randomises each row of a batch on its own. As a :class:`PrivateSum`, its reports are shuffled one
    by one; a total is the sum of their estimates already.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, radius of the ball, in the mechanism's norm.
    """

    privacy_parameter: ClassVar[PrivacyParameter] = "local_epsilon"

    norm: ClassVar[Norm]

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._radius = checks.radius(radius)

    @property
    def radius(self) -> float:
        """Radius of the ball, in the mechanism's norm."""
        return self._radius

    @property
    def cohort(self) -> None:
        """None: every report has noise of its own, so any number of them will do."""

    @property
    def domain(self) -> str:
        """The norm of the ball."""
        return str(self.norm)

    @property
    def worst_variance(self) -> float:
        """Largest E‖R(x) - x‖² over the ball: at 0, unless a mechanism says otherwise."""
        return float(self.variance(torch.zeros(1, self.dim, dtype=torch.float64))[0])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(local_epsilon={self.local_epsilon!r}, dim={self.dim}, "
            f"radius={self.radius!r})"
        )

    @abstractmethod
    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row's report, (clients,), for rows in the ball."""

    @abstractmethod
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """One report for each row, brought into the ball as :meth:`clip` does; every mechanism implements it.

        No clipped copy of the batch is needed: multiply by :meth:`clip_factors` where entries are used.

        Args:
            x: the batch, of this mechanism's dimension, with finite entries.
            norms: norm of each row, (clients,), as :meth:`row_norms` measures it.
            randomness: source of all random bits.
        """

    def clip(self, x: Tensor | Rows) -> Tensor:
        """The rows brought into the ball, as a copy (clients, dim): what ``clip=True`` works with.

        A row outside is scaled by radius/‖row‖ (CLDP-SGD, Algorithm 1), unless a mechanism says otherwise. A
        row with NaN or infinite entries becomes zero.
        """
        rows = self.check_rows(x)
        return self.clip_rows(*self.admitted(rows, self.row_norms(rows), clip=True))

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = False
    ) -> Reports:
        """Report each row once, at a cost of ε0 per row.

        Args:
            x: (clients, dim), one client a row; may have no rows.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.
            clip: bring rows outside the ball onto it first, as :meth:`clip` does, without a copy of the
                batch. Otherwise a row outside the ball by more than rounding, or not finite, is refused.
        """
        rows = self.check_rows(x)
        rows, norms = self.admitted(rows, self.row_norms(rows), clip=clip)
        return self.randomize_rows(rows, norms, secure(randomness))

    def randomize_sum(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, (dim,), for a host that simulates all clients.

        A mechanism may draw it more cheaply than report by report. The sum is a post-processing of the
        shuffled reports, so any sampler of the same law has the reports' guarantee.
        """
        rows = self.check_rows(x)
        rows, norms = self.admitted(rows, self.row_norms(rows), clip=clip)
        return self.sum_rows(rows, norms, secure(randomness)).to(rows.compute_dtype)

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """:meth:`randomize_sum`, with rows clipped to the ball."""
        return self.randomize_sum(x, randomness=randomness, clip=True)

    def total(self, reports: Reports) -> Tensor:
        """:meth:`Mechanism.sum`, which is the estimate itself."""
        return self.sum(reports)

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """The total as it is: every report is unbiased by itself."""
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
        norms: Tensor = _NORMS[self.norm](rows)
        return norms

    def admitted(self, rows: Rows, norms: Tensor, *, clip: bool) -> tuple[Rows, Tensor]:
        """The rows to be randomised and their norms: with ``clip`` a row that is not finite becomes zero.

        Without it a row that is outside the ball, or is not finite, is refused.
        """
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

    def clip_factors(self, norms: Tensor) -> Tensor:
        """Factor that brings each row into the ball, (clients,): radius/norm outside it, else 1."""
        return self.radius / norms.clamp(min=self.radius)

    def clip_rows(self, rows: Rows, norms: Tensor) -> Tensor:
        """The rows in the ball, for :meth:`clip`; a mechanism that clips in another way overrides this."""
        return rows.dense() * self.clip_factors(norms).unsqueeze(1).to(rows.dtype)


class FrequencyOracle(Mechanism):
    """An unbiased ε0-LDP randomizer of one of K categories, batched over clients.

    A client's datum x in {0, …, K - 1} stands for the unit vector e_x; ``sum`` estimates the counts,
    ``aggregate`` the frequencies. Estimates are unbiased, so single entries may be negative.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        if dim < 2:
            raise ValueError(f"categories must be at least 2 for {self.name}, got dim={dim}")

    @property
    def domain(self) -> str:
        """Categories 0, …, dim - 1."""
        return "categories"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(local_epsilon={self.local_epsilon!r}, dim={self.dim})"

    def variance(self, x: Tensor) -> Tensor:
        """E‖R(x) - e_x‖² of each client's report, (clients,) float64, for categories x (clients,).

        :attr:`worst_variance`, the same for every category, unless a mechanism says otherwise.
        """
        return torch.full((len(self.check_categories(x)),), self.worst_variance, dtype=torch.float64)

    @abstractmethod
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """One report for each category, (clients,) int64 in [0, dim); every oracle implements it."""

    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> Reports:
        """Report each client's category, (clients,) integers in [0, dim), once, at a cost of ε0 per client.

        Raises:
            TypeError: if x is not a tensor.
            ValueError: if x is not a vector of integers, or names a category that does not exist.
        """
        return self.randomize_categories(self.check_categories(x), secure(randomness))

    def randomize_sum(self, x: Tensor, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, (dim,), for a host that simulates all clients."""
        return self.sum(self.randomize(x, randomness=randomness))

    def check_categories(self, x: Tensor) -> Tensor:
        """The categories as int64, (clients,), refused as by :meth:`randomize`."""
        return checked_categories(x, categories=self.dim)
