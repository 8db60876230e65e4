"""The sum of numbers by shuffled additive shares: a few messages per client, and a trusted server's noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleAccountant
from shuffle_plugins.accounting.rounds.laplace import LaplaceRound
from shuffle_plugins.core import checks
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.protocols.errors import OutOfReach
from shuffle_plugins.protocols.lattices import Interval
from shuffle_plugins.protocols.shares.mixing import FEWEST_SHARES, mixing_distance
from shuffle_plugins.protocols.shares.noise import PolyaNoise
from shuffle_plugins.protocols.targets import (
    check_honest_fraction,
    check_overhead,
    check_population,
    check_targets,
    hiding,
    honest_clients,
)
from shuffle_plugins.randomness import Randomness, secure

MOST_BITS = 62
MOST_SHARES = 64
WRAPS = 2.0**-40
"""Bound on the probability that noise takes an honest sum out of the range of its representatives."""

_ROWS_AT_ONCE = 1 << 18
_DISTANCE_SHARE = 0.1  # of δ, that may be spent on what shares give away
_PRECISION = 1e-4
_LEAST_EPSILON, _MOST_EPSILON = 1e-5, 500.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSum:
    r"""Each client rounds its number, adds its share of discrete Laplace noise, and splits the result.

    It sends m shares, whole numbers mod q that are uniform but for their sum. The shuffler mixes everybody's;
    the analyzer adds them up mod q. Shuffled shares tell no more than their sum, up to a total variation that
    is computed (``accounting.share_mixing``), and the sum bears the noise of a trusted server. Balle, Bell,
    Gascón, Nissim 2019, "Differentially private summation with multi-message shuffling", and 2020, "Private
    summation in the multi-message shuffle model"; splitting: Ishai, Kushilevitz, Ostrovsky, Sahai 2006.

    q is a power of two, so large that honest sums and their noise do not wrap around but with probability
    below 2**-40. Privacy does not depend on that. Accuracy does depend on every message: a client that sends
    something else, or only a part of its shares, moves the sum anywhere. Where that is to be feared use
    :class:`ScalarSum`, in which a client's influence is bounded.

    Data are (clients, 1).

    Attributes:
        upper: Δ; numbers are in [0, upper], and brought inside if they are not.
        cohort: n, how many clients take part in one sum.
        levels: g, lattice steps from 0 to ``upper``.
        noise_epsilon: ε0 of the noise: P[k] ∝ e^(−ε0·\|k\|/g), in steps.
        shares: m, messages per client, in [2, 64].
        honest_fraction: share of the clients that are counted on to split and add noise as they should. The
            guarantee holds whatever the others send, or if they drop out; noise grows by its reciprocal.

    Raises:
        ValueError: if a field is out of range, nobody is counted on, or q would need more than 62 bits.
    """

    name: ClassVar[str] = "split-sum"

    cohort: int
    levels: int
    noise_epsilon: float
    shares: int
    upper: float = 1.0
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", self.lattice.upper)
        checks.whole("cohort", self.cohort, at_least=2)
        if type(self.shares) is not int or not 2 <= self.shares <= MOST_SHARES:
            raise ValueError(f"shares must be a whole number in [2, {MOST_SHARES}], got {self.shares!r}")
        check_honest_fraction(self.honest_fraction)
        if isinstance(self.noise_epsilon, bool) or not isinstance(self.noise_epsilon, (int, float)):
            raise ValueError(f"noise_epsilon must be a number, got {self.noise_epsilon!r}")
        object.__setattr__(self, "noise_epsilon", float(self.noise_epsilon))
        if self.counted_on < 1:
            raise ValueError(f"honest_fraction={self.honest_fraction!r} of {self.cohort} clients is nobody")
        self.round()
        if self.bits_per_message > MOST_BITS:
            raise ValueError(
                f"sums of {self.cohort} clients at {self.levels} levels need {self.bits_per_message} bits, "
                f"more than {MOST_BITS}: use fewer levels"
            )

    @classmethod
    def calibrated(
        cls,
        *,
        cohort: int,
        epsilon: float,
        delta: float,
        upper: float = 1.0,
        honest_fraction: float = 1.0,
        num_steps: int = 1,
        population: int | None = None,
        overhead: float = 0.02,
    ) -> Self:
        """The protocol with the least noise, and the fewest shares at it, whose certified ε is ``epsilon``.

        Args:
            clients: of one sum.
            epsilon, delta: what all steps together may cost.
            upper: Δ.
            honest_fraction: as the attribute; the expected drop-out belongs here too.
            num_steps: how many sums are taken.
            population: clients of whom ``clients`` are drawn for each sum; by default they are all.
            overhead: share of the noise's variance that rounding may add, in (0, 1].

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        check_targets(epsilon=epsilon, delta=delta, num_steps=num_steps, cohort=cohort, population=population)
        check_overhead(overhead)
        honest_clients(cohort=cohort, honest_fraction=honest_fraction)

        def fits(noise_epsilon: float) -> bool:
            # The mixing of shares may take its part of δ, whatever their number.
            people = hiding(
                cohort if population is None else population,
                cohort=cohort,
                honest_fraction=honest_fraction,
            )
            accountant = ShuffleAccountant()
            accountant.step(
                LaplaceRound(
                    noise_epsilon=noise_epsilon,
                    sensitivity=_levels(noise_epsilon, cohort, overhead),
                    population=people,
                    cohort=cohort,
                    sampling=Sampling.FULL if people == cohort else Sampling.WITHOUT_REPLACEMENT,
                    distance=distance,
                ),
                num_steps=num_steps,
            )
            return accountant.charged_epsilon(delta) <= epsilon

        distance = _DISTANCE_SHARE * delta / ((1 + math.exp(min(epsilon, 600.0))) * num_steps)
        noise_epsilon = _largest(fits, start=min(epsilon / num_steps, 1.0))
        if noise_epsilon is None:
            raise OutOfReach(f"no noise reaches ε={epsilon:g} at δ={delta:g} over {num_steps} steps")
        for shares in range(FEWEST_SHARES, MOST_SHARES + 1):
            found = cls(
                cohort=cohort,
                levels=_levels(noise_epsilon, cohort, overhead),
                noise_epsilon=noise_epsilon,
                shares=shares,
                upper=upper,
                honest_fraction=honest_fraction,
            )
            if found.distance <= distance:
                return found
        raise OutOfReach(
            f"{MOST_SHARES} shares give away more than δ={delta:g} over {num_steps} steps allows among "
            f"{cohort} clients: ask for a larger δ or more clients, or use ScalarSum"
        )

    # -- what it costs ----------------------------------------------------------------------------------

    @property
    def lattice(self) -> Interval:
        """How numbers become integers."""
        return Interval(upper=self.upper, levels=self.levels)

    @property
    def counted_on(self) -> int:
        """Honest clients who do not drop out, at least."""
        return math.floor(self.honest_fraction * self.cohort * (1 + 1e-12))

    @property
    def noise(self) -> PolyaNoise:
        """What each client adds."""
        return PolyaNoise(rate=self.noise_epsilon / self.levels, holders=self.counted_on)

    @property
    def distance(self) -> float:
        """Total variation of what is seen from a function of a sum with discrete Laplace noise."""
        mixing = mixing_distance(clients=self.counted_on, shares=self.shares, modulus=self.modulus)
        return min(1.0, (mixing + self.noise.distance) * (1 + 1e-12))

    def round(
        self,
        *,
        population: int | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> LaplaceRound:
        """The round for an accountant. It covers sums in which ``counted_on`` honest clients or more answer.

        Args:
            population: n of the whole training, of whom ``clients`` are drawn; by default the clients.
            adversary: against whom.

        Raises:
            ValueError: if the population is smaller than the clients.
        """
        people = self.cohort if population is None else population
        check_population(people, cohort=self.cohort)
        people = hiding(people, cohort=self.cohort, honest_fraction=self.honest_fraction)
        return LaplaceRound(
            noise_epsilon=self.noise_epsilon,
            sensitivity=self.levels,
            attained=self.lattice.attained,
            distance=self.distance,
            population=people,
            cohort=self.cohort,
            sampling=Sampling.FULL if people == self.cohort else Sampling.WITHOUT_REPLACEMENT,
            adversary=adversary,
        )

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in the sum, in squared units of the data."""
        return self.cohort * self.noise.share_variance * self.lattice.step**2

    @property
    def worst_variance(self) -> float:
        """Bound on E(estimate − Σ x_i)² if nothing wraps around: the noise's, and n/4 steps² of rounding."""
        return self.noise_variance + self.cohort / 4 * self.lattice.step**2

    @property
    def reach(self) -> int:
        """Steps within which the noise of all clients stays, but for a probability of 2**-40."""
        return self.noise.reach(cohort=self.cohort, log_probability=math.log(WRAPS))

    @property
    def modulus(self) -> int:
        """q, a power of two."""
        return 1 << self.bits_per_message

    @property
    def messages_per_client(self) -> int:
        """Shares that a client sends."""
        return self.shares

    @property
    def bits_per_message(self) -> int:
        """Bits of a share."""
        return (self.cohort * self.levels + 2 * self.reach).bit_length()

    @property
    def bits_per_report(self) -> int:
        """Bits that a client sends."""
        return self.shares * self.bits_per_message

    # -- what is done -----------------------------------------------------------------------------------

    def encode(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """Each client's shares, int64 (clients, shares), entries in [0, q).

        Raises:
            ValueError: if x is not a floating (clients, 1) batch, or has NaN or infinite entries.
        """
        source = secure(randomness)
        values = self._noisy(x, source)
        mask = self.modulus - 1
        drawn = source.words(len(values) * (self.shares - 1)).reshape(len(values), -1)
        # Sums wrap around at 2**64, of which q is a divisor.
        last = values - drawn.sum(dim=1)
        return torch.cat([drawn, last[:, None]], dim=1).bitwise_and_(mask)

    def messages(self, shares: Tensor) -> Reports:
        """One client's shares as its messages.

        Raises:
            ValueError: if they are impossible.
        """
        if shares.shape != (self.shares,):
            raise ValueError(f"a client sends {self.shares} shares, got {tuple(shares.shape)}")
        self._check(shares)
        return Reports(mechanism=self.name, dim=1, fields=(Field(shares, self.bits_per_message),))

    def total(self, messages: Reports | Tensor) -> int:
        """The sum of all shares mod q, in [0, q).

        Args:
            messages: shuffled reports, or int64 shares of any shape.

        Raises:
            ValueError: if a share is impossible, or some are missing: then no sum is left to be read.
        """
        if isinstance(messages, Reports):
            if len(messages.fields) != 1 or messages.fields[0].bits != self.bits_per_message:
                raise ValueError(f"these reports are not shares of {self.bits_per_message} bits")
            messages = messages.fields[0].values
        shares = messages.to(torch.int64) if not messages.is_floating_point() else messages
        self._check(shares)
        if shares.numel() % self.shares:
            raise ValueError(
                f"{shares.numel()} shares are no multiple of {self.shares}: a client's shares are missing or "
                "too many, and the sum cannot be read"
            )
        return int(shares.sum()) % self.modulus

    def estimate(self, total: int, *, reports: int | None = None) -> float:
        """Estimate of the clients' sum: the representative of ``total`` nearest to the middle of all sums.

        Unbiased but for sums that wrap around.

        Args:
            total: in [0, q).
            reports: of how many clients shares are in it, by default of all.

        Raises:
            ValueError: if the total or the number of clients is out of range.
        """
        count = self.cohort if reports is None else reports
        if type(total) is not int or not 0 <= total < self.modulus:
            raise ValueError(f"a total is a whole number in [0, {self.modulus}), got {total!r}")
        if type(count) is not int or not 0 <= count <= self.cohort:
            raise ValueError(f"reports must be a whole number in [0, {self.cohort}], got {count!r}")
        lowest = count * self.levels // 2 - self.modulus // 2
        return ((total - lowest) % self.modulus + lowest) * self.lattice.step

    def randomize_sum(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of the protocol's estimate, (1,), for a host that simulates all clients.

        Shares cancel in their sum, so none are drawn; memory beyond the batch is bounded.

        Raises:
            ValueError: as :meth:`encode`, or if there are not exactly ``clients`` rows.
        """
        rows = Rows.of(x)
        if rows.num_rows != self.cohort:
            raise ValueError(f"the sum is for {self.cohort} clients, got {rows.num_rows} rows")
        source = secure(randomness)
        total = 0
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            part = rows.narrow(start, min(start + _ROWS_AT_ONCE, rows.num_rows))
            total += int(self._noisy(part, source).sum())
        return torch.tensor([self.estimate(total % self.modulus)], dtype=rows.compute_dtype)

    def _noisy(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        """Each client's rounded number and its share of the noise, int64 (clients,)."""
        values = self.lattice.encode(x, randomness=randomness).squeeze(1).cpu()
        return values + self.noise.shares(len(values), randomness=randomness)

    def _check(self, shares: Tensor) -> None:
        if shares.dtype != torch.int64:
            raise ValueError(f"shares must be whole numbers, got {shares.dtype}")
        if shares.numel() and not (int(shares.min()) >= 0 and int(shares.max()) < self.modulus):
            raise ValueError(f"a share is outside [0, {self.modulus}): leave all shares of its client out")


def _levels(noise_epsilon: float, cohort: int, overhead: float) -> int:
    """Fewest levels at which rounding adds at most the overhead to noise of variance about 2·(g/ε0)²."""
    return max(1, math.ceil(noise_epsilon * math.sqrt(cohort / (8 * overhead))))


def _largest(fits: Callable[[float], bool], *, start: float) -> float | None:
    """The largest ε0 that fits, to a part in 10,000; None if none does."""
    low = start
    while not fits(low):
        low /= 2
        if low < _LEAST_EPSILON:
            return None
    high = min(2 * low, _MOST_EPSILON)
    while high < _MOST_EPSILON and fits(high):
        low, high = high, min(2 * high, _MOST_EPSILON)
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
