"""The sum of numbers by shuffled additive shares: a few messages per client, and a trusted server's noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Adversary, LaplaceRound, PrivacyTarget, Sampling, narrowed
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.protocols.errors import TargetUnreachable
from shuffle_plugins.protocols.lattices import Interval
from shuffle_plugins.protocols.shares.mixing import FEWEST_SHARES, mixing_distance
from shuffle_plugins.protocols.shares.noise import PolyaNoise
from shuffle_plugins.protocols.shuffle_protocol import SummingProtocol, check_overhead, counted_on
from shuffle_plugins.randomness import Randomness, secure

MOST_BITS = 62
MOST_SHARES = 64
WRAPS = 2.0**-40
"""Bound on the probability that noise takes an honest sum out of the range of its representatives."""

_ROWS_AT_ONCE = 1 << 18  # memory of a few MB
_DISTANCE_SHARE = 0.1  # of δ, that may be spent on what shares give away
_PRECISION = 1e-4  # relative, of ε0
_LEAST_EPSILON, _MOST_EPSILON = 1e-5, 500.0  # ε0 of the noise, where searches end


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSum(SummingProtocol):
    r"""Each client rounds its number, adds its share of discrete Laplace noise, and splits the result.

    It sends m shares, whole numbers mod q that are uniform but for their sum. The shuffler mixes everybody's;
    the analyzer adds them up mod q. Shuffled shares tell no more than their sum, up to a total variation that
    :mod:`shuffle_plugins.protocols.shares.mixing` computes, and the sum bears the noise of a trusted server.
    Balle, Bell, Gascón, Nissim 2019, "Differentially private summation with multi-message shuffling", and
    2020, "Private summation in the multi-message shuffle model"; splitting: Ishai, Kushilevitz, Ostrovsky,
    Sahai 2006.

    q is a power of two, so large that the probability that an honest sum and its noise wrap around is below
    2**-40. Privacy does not depend on that. Accuracy depends on every message: a client that sends something
    else, or only some of its shares, can move the sum to any value. If clients may do so, use
    :class:`ScalarSum`, which bounds a client's influence.

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

    levels: int
    noise_epsilon: float
    shares: int
    upper: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", self.lattice.upper)
        SummingProtocol.__post_init__(self)
        checks.whole("shares", self.shares, at_least=2, at_most=MOST_SHARES)
        object.__setattr__(self, "noise_epsilon", checks.number("noise_epsilon", self.noise_epsilon))
        _ = self.round()
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
        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        _, people = counted_on(cohort, population, honest_fraction)
        check_overhead(overhead)
        # The mixing of shares may take its part of δ, whatever their number.
        distance = _DISTANCE_SHARE * delta / ((1 + math.exp(min(epsilon, 600.0))) * num_steps)

        def fits(noise_epsilon: float) -> bool:
            return target.allows(
                LaplaceRound(
                    noise_epsilon=noise_epsilon,
                    sensitivity=_levels(noise_epsilon, cohort, overhead),
                    population=people,
                    cohort=cohort,
                    sampling=Sampling.FULL if people == cohort else Sampling.WITHOUT_REPLACEMENT,
                    distance=distance,
                )
            )

        noise_epsilon = _largest(fits, start=min(epsilon / num_steps, 1.0))
        if noise_epsilon is None:
            raise TargetUnreachable(f"no noise reaches ε={epsilon:g} at δ={delta:g} over {num_steps} steps")
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
        raise TargetUnreachable(
            f"{MOST_SHARES} shares give away more than δ={delta:g} over {num_steps} steps allows among "
            f"{cohort} clients: ask for a larger δ or more clients, or use ScalarSum"
        )

    # -- what it costs ----------------------------------------------------------------------------------

    @property
    def lattice(self) -> Interval:
        """How numbers in [0, upper] become whole numbers in [0, levels]."""
        return Interval(upper=self.upper, levels=self.levels)

    @property
    def noise(self) -> PolyaNoise:
        """The share of discrete Laplace noise that each client adds to its number."""
        return PolyaNoise(rate=self.noise_epsilon / self.levels, holders=self.honest_cohort)

    @property
    def distance(self) -> float:
        """Total variation of what is seen from a function of a sum with discrete Laplace noise."""
        mixing = mixing_distance(clients=self.honest_cohort, shares=self.shares, modulus=self.modulus)
        return min(1.0, (mixing + self.noise.distance) * (1 + 1e-12))

    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> LaplaceRound:
        """The round for an accountant, as :meth:`ShuffleProtocol.round`: the same for all of the cohort that
        answer, if they are ``honest_cohort`` clients or more; a ValueError for fewer.
        """
        checks.whole(
            "cohort",
            self.cohort if cohort is None else cohort,
            at_least=self.honest_cohort,
            at_most=self.cohort,
        )
        present = self.participants(population=population, sampling=sampling)
        return LaplaceRound(
            noise_epsilon=self.noise_epsilon,
            sensitivity=self.levels,
            attained=self.lattice.attained,
            distance=self.distance,
            population=present.population,
            cohort=self.cohort,
            sampling=Sampling.FULL if present.population == self.cohort else present.sampling,
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
        """Bits of one share: the shares are numbers mod q = 2**bits."""
        return (self.cohort * self.levels + 2 * self.reach).bit_length()

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: its shares."""
        return ReportLayout(self.name, 1, (FieldLayout(self.bits_per_message, self.shares),))

    # -- what is done -----------------------------------------------------------------------------------

    def randomize(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Reports:
        """Each client's shares, entries in [0, q), for floating x (clients, 1)."""
        source = secure(randomness)
        values = self._noisy(x, source)
        drawn = source.words(len(values) * (self.shares - 1)).reshape(len(values), -1)
        # Sums wrap around at 2**64, of which q is a divisor.
        last = values - drawn.sum(dim=1)
        return self.layout.reports(torch.cat([drawn, last[:, None]], dim=1).bitwise_and_(self.modulus - 1))

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self.layout.check(reports)
        layout = ReportLayout(self.name, 1, (FieldLayout(self.bits_per_message),))
        return [layout.reports(shares) for shares in reports.fields[0].values]

    def total(self, reports: Reports) -> Tensor:
        """The sum of all shares mod q, int64 (1,), in [0, q). Totals of groups add up.

        Args:
            reports: whole reports, or shuffled messages.

        Raises:
            ValueError: if they are not this protocol's, or shares are missing: then no sum is left to be
                read.
        """
        shares = reports.fields[0].values
        layouts = [ReportLayout(self.name, 1, (FieldLayout(self.bits_per_message),)), self.layout]
        layouts[shares.dim() == 2].check(reports)
        if shares.numel() % self.shares:
            raise ValueError(
                f"{shares.numel()} shares are no multiple of {self.shares}: a client's shares are missing or "
                "too many, and the sum cannot be read"
            )
        return shares.to(torch.int64).sum().remainder(self.modulus).reshape(1)

    def estimate(self, total: Tensor, *, reports: int | None = None) -> Tensor:
        """Estimate of the clients' sum, float64 (1,): the representative nearest to the middle of all sums.

        Unbiased but for sums that wrap around.

        Args:
            total: what :meth:`total` returned, or a sum of such; it is read mod q.
            reports: of how many clients shares are in it, by default of all.

        Raises:
            ValueError: if the total is not one whole number, or the number of clients is out of range.
        """
        count = checks.whole(
            "reports", self.cohort if reports is None else reports, at_least=0, at_most=self.cohort
        )
        if total.numel() != 1 or total.dtype != torch.int64:
            raise ValueError(f"a total is one whole number, int64 (1,), got {total!r}")
        lowest = count * self.levels // 2 - self.modulus // 2
        nearest = (int(total) - lowest) % self.modulus + lowest
        return torch.tensor([nearest * self.lattice.step], dtype=torch.float64)

    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        """The sum of these clients' rounded numbers and noise, int64 (1,): shares cancel, none are drawn."""
        rows, source = Rows.of(x), secure(randomness)
        total = torch.zeros(1, dtype=torch.int64)
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            part = rows.narrow(start, min(start + _ROWS_AT_ONCE, rows.num_rows))
            total += self._noisy(part, source).sum()
        return total

    def _noisy(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        """Each client's rounded number and its share of the noise, int64 (clients,)."""
        values = self.lattice.encode(x, randomness=randomness).squeeze(1).cpu()
        return values + self.noise.shares(len(values), randomness=randomness)


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
    return narrowed(fits, low, high, precision=_PRECISION)[0]
