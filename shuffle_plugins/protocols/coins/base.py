"""Sums whose noise is fair coins that every client adds to its own messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Sampling
from shuffle_plugins.accounting.rounds.coins import SumRound
from shuffle_plugins.core import checks
from shuffle_plugins.core.reports import FieldLayout, ReportLayout, Reports
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.protocols.coins.sampling import DISTANCE, MOST_COINS, MOST_LISTED, RATIO, heads
from shuffle_plugins.protocols.lattices import Lattice
from shuffle_plugins.protocols.tally import Tally, as_messages, label_bits, tally
from shuffle_plugins.protocols.targets import check_clips, check_honest_fraction, check_population, hiding
from shuffle_plugins.randomness import Randomness, secure


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinSum(ABC):
    """Each client rounds its datum to a lattice and adds ``coins`` fair coins to every coordinate.

    Its messages are labelled bits: span + coins of them per coordinate, of which x̂_j − lowest + heads are
    ones. The shuffler mixes everybody's; what is left is one count per coordinate (``tally``), so counts are
    computed with throughout. Cheu, Joseph, Mao, Peng 2022, Algorithm 1, at p = ½, which gives the most noise
    per message.

    Attributes:
        cohort: n, how many clients take part in one sum.
        levels: g, lattice steps per radius, or per interval.
        coins: b, fair coins per client and coordinate.
        honest_fraction: share of the clients that are counted on to toss their coins (robust shuffle privacy,
            Appendix A.3); the guarantee holds whatever the others send or do not send.

    Raises:
        ValueError: if a field is out of range, or the honest coins are too few to cover anybody.
    """

    name: ClassVar[str]

    cohort: int
    levels: int
    coins: int
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("cohort", self.cohort, at_least=2)
        checks.whole("coins", self.coins)
        check_honest_fraction(self.honest_fraction)
        if self.cohort * self.coins > MOST_COINS:
            raise ValueError(
                f"{self.coins:,} coins from each of {self.cohort:,} clients are more than can be drawn, "
                f"{MOST_COINS:,}: ask for less noise, a larger ε or δ, or a larger overhead"
            )
        _ = self.round()

    @property
    @abstractmethod
    def lattice(self) -> Lattice:
        """How data become integers."""

    # -- what it costs ----------------------------------------------------------------------------------

    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> SumRound:
        """The round for an accountant.

        Args:
            population: n of the whole training; by default the clients of this sum.
            cohort: reports really received, by default :attr:`cohort`: fewer clients toss fewer coins.
            sampling: k of n where the population is larger, else everybody, by default.
            adversary: against whom.

        Raises:
            ValueError: if the numbers contradict each other, or too few honest coins are left.
        """
        reports = self.cohort if cohort is None else checks.whole("cohort", cohort, at_least=2)
        people = reports if population is None else population
        check_population(people, cohort=reports)
        if sampling is None:
            sampling = Sampling.FULL if people == reports else Sampling.WITHOUT_REPLACEMENT
        if sampling is Sampling.WITHOUT_REPLACEMENT:
            people = hiding(people, cohort=reports, honest_fraction=self.honest_fraction)
        return SumRound(
            sensitivity=self.lattice.sensitivity,
            attained=self.lattice.attained,
            trials=math.floor(self.honest_fraction * reports * (1 + 1e-12)) * self.coins,
            coin_distance=DISTANCE,
            # Whether drawn for all clients at once, in so many parts, or by each for itself.
            coin_ratio=RATIO * reports * (1 + self.cohort * self.coins // MOST_LISTED),
            dim=self.lattice.size,
            population=people,
            cohort=reports,
            sampling=sampling,
            adversary=adversary,
        )

    @property
    def noise_variance(self) -> float:
        """Variance of the coins in one coordinate of the sum, in squared units of the data."""
        return self.cohort * self.coins / 4 * self.lattice.step**2

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖²: the coins' noise, and rounding."""
        rounding = self.cohort * self.lattice.rounding_variance * self.lattice.step**2
        return self.lattice.size * (self.noise_variance + rounding)

    @property
    def messages_per_client(self) -> int:
        """Labelled bits that a client sends."""
        return self.lattice.size * self.messages_per_coordinate

    @property
    def messages_per_coordinate(self) -> int:
        """Bits under one label from one client."""
        return self.lattice.span + self.coins

    @property
    def bits_per_message(self) -> int:
        """A label and a bit."""
        return label_bits(self.lattice.size) + 1

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: its number of ones in each coordinate."""
        size = self.lattice.size
        field = FieldLayout(self.messages_per_coordinate.bit_length(), size)
        return ReportLayout(self.name, size, (field,))

    @property
    def bits_per_report(self) -> int:
        """Bits that a client sends to a shuffler that takes counts."""
        return self.layout.bits

    # -- what is done -----------------------------------------------------------------------------------

    def encode(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Each client's number of ones per coordinate, int64 (clients, size).

        Raises:
            ValueError: if x is not a floating (clients, size) batch, or has NaN or infinite entries.
        """
        source = secure(randomness)
        values = self.lattice.encode(x, randomness=source)
        coins = heads(self.coins, values.numel(), randomness=source).reshape(values.shape)
        return values - self.lattice.lowest + coins.to(values.device)

    def randomize(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Reports:
        """Each client's whole report, its counts, for a shuffler that adds up.

        Raises:
            ValueError: as :meth:`encode`, or if ``clip`` is false: a sum always clips.
        """
        check_clips(clip)
        return self.layout.reports(self.encode(x, randomness=randomness))

    def messages(self, counts: Tensor) -> Reports:
        """One client's counts as the labelled bits they stand for.

        Raises:
            ValueError: if they are not one client's, a count is impossible, or everybody's messages are too
                many to list.
        """
        if counts.shape != (self.lattice.size,):
            raise ValueError(
                f"one client's counts are ({self.lattice.size},), got {tuple(counts.shape)}: list messages "
                "client by client"
            )
        return as_messages(
            counts, each=self.messages_per_coordinate, clients=self.cohort, mechanism=self.name
        )

    def tally(self, messages: Reports) -> Tally:
        """Count shuffled messages under each label; impossible labels are set aside and counted as foreign.

        Raises:
            ValueError: if the reports are not this protocol's.
        """
        if messages.mechanism != self.name or messages.dim != self.lattice.size:
            raise ValueError(
                f"these are reports of {messages.mechanism!r} in dimension {messages.dim}, "
                f"not of {self.name!r} in dimension {self.lattice.size}"
            )
        return tally(messages, labels=self.lattice.size)

    def total(self, reports: Reports) -> Tensor:
        """The counts of whole reports added up, int64 (size,); totals of groups add up.

        Raises:
            ValueError: if the reports are not this protocol's, or a count is impossible; then a client did
                not follow the protocol.
        """
        self.layout.check(reports)
        return self.tally_counts(reports.fields[0].values.long().reshape(-1, self.lattice.size)).ones

    def tally_counts(self, counts: Tensor) -> Tally:
        """What a shuffler that takes counts hands on: their sum. Totals of disjoint groups add up.

        Args:
            counts: int64 (clients, size), a row for each client that answered.

        Raises:
            ValueError: if a count is impossible; then a client did not follow the protocol.
        """
        if counts.dim() != 2 or counts.shape[1] != self.lattice.size or counts.dtype != torch.int64:
            raise ValueError(
                f"counts must be int64 (clients, {self.lattice.size}), got {counts.dtype} "
                f"{tuple(counts.shape)}"
            )
        most = self.messages_per_coordinate
        if counts.numel() and not (int(counts.min()) >= 0 and int(counts.max()) <= most):
            raise ValueError(f"a client sent a count outside [0, {most}]: leave its messages out")
        ones = counts.sum(dim=0)
        return Tally(ones=ones, bits=torch.full_like(ones, len(counts) * most))

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of the sum over the clients that answered, float64 (size,).

        Args:
            total: what :meth:`total` or :meth:`tally` returned; or ones under each label alone.
            reports: of how many clients messages are in it; a tally says so by itself, if every one of them
                sent as many messages as it should.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        ones = total.ones if isinstance(total, Tally) else total
        if ones.shape != (self.lattice.size,):
            raise ValueError(f"a total is ({self.lattice.size},), got {tuple(ones.shape)}")
        count = checks.whole("reports", self.senders(total) if reports is None else reports, at_least=0)
        return self.lattice.decode(ones.double() - count * (self.coins / 2 - self.lattice.lowest))

    def senders(self, total: Tensor | Tally) -> int:
        """How many clients' messages a tally is of.

        Raises:
            ValueError: if it does not say so: its labels have different numbers of bits, or not the messages
                of a whole number of clients, or it is ones alone.
        """
        if not isinstance(total, Tally):
            raise ValueError("ones alone do not say how many clients sent them: pass reports=")
        count, rest = divmod(int(total.bits[0]), self.messages_per_coordinate)
        if rest or bool((total.bits != total.bits[0]).any()):
            raise ValueError(
                f"every client sends {self.messages_per_coordinate} messages under each label; these are not "
                "those of a whole number of clients: pass reports="
            )
        return count

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of the protocol's estimate, (size,), for a host that simulates all clients.

        The coins of all clients are tossed together, Bin(clients·coins, ½) per coordinate; memory beyond the
        batch is bounded.

        Raises:
            ValueError: as :meth:`encode`, or if there are not exactly ``clients`` rows.
        """
        rows = Rows.of(x)
        if rows.num_rows != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {rows.num_rows} rows")
        source = secure(randomness)
        ones = self.share(rows, randomness=source) + self.common_noise(randomness=source)
        return self.estimate(ones, reports=self.cohort).to(rows.compute_dtype)

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Sum over clients of encoded data and their offset, without coins, int64 (size,) on the CPU.

        Shares of groups of clients add up. Before :meth:`common_noise` is in them they are not private.

        Raises:
            ValueError: as :meth:`encode`.
        """
        rows = Rows.of(x)
        total = self.lattice.encoded_sum(rows, randomness=secure(randomness))
        return total - rows.num_rows * self.lattice.lowest

    def common_noise(self, *, randomness: Randomness | None = None) -> Tensor:
        """Heads among the coins of all clients, int64 (size,) on the CPU: one draw for the whole sum."""
        return heads(self.cohort * self.coins, self.lattice.size, randomness=randomness)
