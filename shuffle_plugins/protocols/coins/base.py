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
from shuffle_plugins.core.reports import Reports
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.protocols.coins.sampling import DISTANCE, MOST_COINS, MOST_LISTED, RATIO, heads
from shuffle_plugins.protocols.lattices import Lattice
from shuffle_plugins.protocols.tally import Tally, as_messages, label_bits, tally
from shuffle_plugins.protocols.targets import check_honest_fraction, check_population, hiding
from shuffle_plugins.randomness import Randomness, secure


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinSum(ABC):
    """Each client rounds its datum to a lattice and adds ``coins`` fair coins to every coordinate.

    Its messages are labelled bits: span + coins of them per coordinate, of which x̂_j − lowest + heads are
    ones. The shuffler mixes everybody's; what is left is one count per coordinate (``tally``), so counts are
    computed with throughout. Cheu, Joseph, Mao, Peng 2022, Algorithm 1, at p = ½, which gives the most noise
    per message.

    Attributes:
        clients: n, how many clients take part in one sum.
        levels: g, lattice steps per radius, or per interval.
        coins: b, fair coins per client and coordinate.
        honest_fraction: share of the clients that are counted on to toss their coins (robust shuffle privacy,
            Appendix A.3); the guarantee holds whatever the others send or do not send.

    Raises:
        ValueError: if a field is out of range, or the honest coins are too few to cover anybody.
    """

    name: ClassVar[str]

    clients: int
    levels: int
    coins: int
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        if type(self.clients) is not int or self.clients < 2:
            raise ValueError(f"clients must be a whole number, at least 2, got {self.clients!r}")
        if type(self.coins) is not int or self.coins < 1:
            raise ValueError(f"coins must be a whole number, at least 1, got {self.coins!r}")
        check_honest_fraction(self.honest_fraction)
        if self.clients * self.coins > MOST_COINS:
            raise ValueError(
                f"{self.coins:,} coins from each of {self.clients:,} clients are more than can be drawn, "
                f"{MOST_COINS:,}: ask for less noise, a larger ε or δ, or a larger overhead"
            )
        self.sum_round()

    @property
    @abstractmethod
    def lattice(self) -> Lattice:
        """How data become integers."""

    # -- what it costs ----------------------------------------------------------------------------------

    def sum_round(
        self,
        *,
        population: int | None = None,
        cohort: int | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> SumRound:
        """The round for an accountant.

        Args:
            population: n of the whole training; by default the clients of this sum.
            cohort: reports really received, by default ``clients``: fewer clients toss fewer coins.
            sampling: k of n where the population is larger, else everybody, by default.
            adversary: against whom.

        Raises:
            ValueError: if the numbers contradict each other, or too few honest coins are left.
        """
        reports = self.clients if cohort is None else cohort
        people = reports if population is None else population
        check_population(people, clients=reports)
        if sampling is None:
            sampling = Sampling.FULL if people == reports else Sampling.WITHOUT_REPLACEMENT
        if sampling is Sampling.WITHOUT_REPLACEMENT:
            people = hiding(people, clients=reports, honest_fraction=self.honest_fraction)
        return SumRound(
            sensitivity=self.lattice.sensitivity,
            attained=self.lattice.attained,
            trials=math.floor(self.honest_fraction * reports * (1 + 1e-12)) * self.coins,
            coin_distance=DISTANCE,
            # Whether drawn for all clients at once, in so many parts, or by each for itself.
            coin_ratio=RATIO * reports * (1 + self.clients * self.coins // MOST_LISTED),
            dim=self.lattice.size,
            population=people,
            cohort=reports,
            sampling=sampling,
            adversary=adversary,
        )

    @property
    def noise_variance(self) -> float:
        """Variance of the coins in one coordinate of the sum, in squared units of the data."""
        return self.clients * self.coins / 4 * self.lattice.step**2

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖²: the coins' noise, and rounding."""
        rounding = self.clients * self.lattice.rounding_variance * self.lattice.step**2
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
    def bits_per_client(self) -> int:
        """Bits that a client sends to a shuffler that takes counts."""
        return self.lattice.size * self.messages_per_coordinate.bit_length()

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
            counts, each=self.messages_per_coordinate, clients=self.clients, mechanism=self.name
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

    def total(self, counts: Tensor) -> Tally:
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

    def decode(self, total: Tensor | Tally, *, clients: int | None = None) -> Tensor:
        """Unbiased estimate of the sum over the clients that answered, float64 (size,).

        Args:
            total: what :meth:`total` or :meth:`tally` returned; or ones under each label alone.
            clients: whose messages are in it; a tally says so by itself, if every one of them sent as many
                messages as it should.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        ones = total.ones if isinstance(total, Tally) else total
        if ones.shape != (self.lattice.size,):
            raise ValueError(f"a total is ({self.lattice.size},), got {tuple(ones.shape)}")
        count = self.senders(total) if clients is None else clients
        if type(count) is not int or count < 0:
            raise ValueError(f"clients must be a whole number, zero or more, got {count!r}")
        return self.lattice.decode(ones.double() - count * (self.coins / 2 - self.lattice.lowest))

    def senders(self, total: Tensor | Tally) -> int:
        """How many clients' messages a tally is of.

        Raises:
            ValueError: if it does not say so: its labels have different numbers of bits, or not the messages
                of a whole number of clients, or it is ones alone.
        """
        if not isinstance(total, Tally):
            raise ValueError("ones alone do not say how many clients sent them: pass clients=")
        count, rest = divmod(int(total.bits[0]), self.messages_per_coordinate)
        if rest or bool((total.bits != total.bits[0]).any()):
            raise ValueError(
                f"every client sends {self.messages_per_coordinate} messages under each label; these are not "
                "those of a whole number of clients: pass clients="
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
        if rows.num_rows != self.clients:
            raise ValueError(f"the sum is for {self.clients} clients, got {rows.num_rows} rows")
        source = secure(randomness)
        ones = self.rounded_total(rows, randomness=source) + self.all_coins(randomness=source)
        return self.decode(ones, clients=self.clients).to(rows.compute_dtype)

    def rounded_total(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Sum over clients of encoded vectors and their offset, without coins; chunks of clients add up."""
        rows = Rows.of(x)
        total = self.lattice.encoded_sum(rows, randomness=randomness)
        return total - rows.num_rows * self.lattice.lowest

    def all_coins(self, *, randomness: Randomness) -> Tensor:
        """Heads among the coins of all clients, int64 (size,) on the CPU: one draw for the whole sum."""
        return heads(self.clients * self.coins, self.lattice.size, randomness=randomness)
