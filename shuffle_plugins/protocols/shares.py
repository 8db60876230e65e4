"""The sum of numbers by shuffled additive shares: a few messages per client, and a trusted server's noise.

Why shuffled shares tell little more than their sum, and how clients share noise: docs/proofs/sums.md, "Split
sums".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Floats, LaplaceRound, Sampling
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.checks import Radius, whole_number
from shuffle_plugins.protocols.laplace import SharedLaplace
from shuffle_plugins.protocols.lattices import Interval
from shuffle_plugins.protocols.sums import Participants, TargetUnreachable, WantedNoise, unreachable
from shuffle_plugins.randomness.sources import Randomness

FEWEST_SHARES, MOST_SHARES = 3, 64

_LISTED = 1024  # J
_LARGEST = 600.0  # of an exponent


@dataclass(frozen=True, kw_only=True)
class SplitSum(SharedLaplace):
    r"""Each client rounds its number, adds its share of discrete Laplace noise, and splits the result.

    It sends m shares, whole numbers mod q that are uniform but for their sum. Mixed, all tell no more
    than a sum with a trusted server's noise, up to :func:`mixing_distance`. Balle, Bell, Gascón, Nissim 2019,
    "Differentially private summation with multi-message shuffling", and 2020, "Private summation in the
    multi-message shuffle model"; splitting: Ishai, Kushilevitz, Ostrovsky, Sahai 2006.

    A client that sends something else, or only some of its shares, can move the sum to any value. If clients
    may do so, use :class:`ScalarSum`, which bounds a client's influence.

    Data are (clients, 1), in [0, upper]; others are brought inside.

    Attributes:
        noise_epsilon: ε0 of the noise: P[k] ∝ e^(−ε0·\|k\|/g), in steps.
        shares: m, messages per client, in [2, 64].
    """

    name: ClassVar[str] = "split-sum"
    lattice_type: ClassVar[type[Any]] = Interval

    shares: Annotated[int, whole_number(at_least=2, at_most=MOST_SHARES)]
    upper: Radius = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits_per_message > 62:
            raise ValueError(
                f"sums of {self.cohort} clients at {self.levels} levels need {self.bits_per_message} bits, "
                "more than 62: use fewer levels"
            )

    @override
    @classmethod
    def _of_noise(cls, wanted: WantedNoise, **data: Any) -> dict[str, Any]:
        _, cohort, honest, target = wanted
        if target is None:
            raise ValueError("the fewest shares follow from a target: use SplitSum.calibrated")
        found = super()._of_noise(wanted, **data)
        # A tenth of δ may be spent on what shares give away.
        distance = 0.1 * target.delta / (1 + math.exp(min(target.epsilon, _LARGEST))) / target.num_steps
        for shares in range(FEWEST_SHARES, MOST_SHARES + 1):
            found["shares"] = shares
            if cls(cohort=cohort, honest_fraction=honest / cohort, **found).distance <= distance:
                return found
        raise TargetUnreachable(f"{unreachable(target, cohort=cohort)}, or use ScalarSum")

    @property
    def distance(self) -> float:
        """Total variation of what is seen from a function of a sum with discrete Laplace noise."""
        return mixing_distance(clients=self.honest_cohort, shares=self.shares, modulus=self.modulus)

    @override
    def participants(
        self, *, population: int | None = None, cohort: float | None = None, sampling: Sampling | None = None
    ) -> Participants:
        """All of the cohort, of whom enough must have answered: ``honest_cohort`` clients or more."""
        answered = self.cohort if cohort is None else cohort
        checks.whole("cohort", answered, at_least=self.honest_cohort, at_most=self.cohort)
        return super().participants(population=population, sampling=sampling)

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> LaplaceRound:
        if who["population"] == self.cohort:
            who["sampling"] = Sampling.FULL
        return LaplaceRound(
            noise_epsilon=self.noise_epsilon,
            sensitivity=self.levels,
            attained=self.lattice.attained,
            distance=self.distance,
            **who,
        )

    @property
    def reach(self) -> int:
        """Steps within which the noise of all clients stays, but for a probability of 2**-40."""
        return self.noise.reach(clients=self.cohort, bits=40)

    @property
    def modulus(self) -> int:
        """q, a power of two."""
        return 1 << self.bits_per_message

    @property
    @override
    def messages_per_client(self) -> int:
        return self.shares

    @property
    def bits_per_message(self) -> int:
        """Bits of one share: the shares are numbers mod q = 2**bits."""
        return (self.cohort * self.levels + 2 * self.reach).bit_length()

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, 1, (FieldLayout(self.bits_per_message, self.shares),))

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        values = self.lattice.encode(x, randomness=randomness).squeeze(1).cpu()
        values += self.noise.draw(len(values), randomness=randomness)
        drawn = randomness.words(len(values) * (self.shares - 1)).reshape(len(values), -1)
        # Sums wrap around at 2**64, of which q is a divisor.
        last = values - drawn.sum(dim=1)
        return self.layout.reports(torch.cat([drawn, last[:, None]], dim=1).bitwise_and_(self.modulus - 1))

    @property
    def message_layout(self) -> ReportLayout:
        """The form of one share."""
        return ReportLayout(self.name, 1, (FieldLayout(self.bits_per_message),))

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self.layout.check(reports)
        return [self.message_layout.reports(shares) for shares in reports.fields[0].values]

    def total(self, reports: Reports) -> Tensor:
        """The sum of all shares mod q, int64 (1,), in [0, q), of whole reports or of shuffled messages."""
        shares = reports.fields[0].values
        (self.layout if shares.dim() == 2 else self.message_layout).check(reports)
        if shares.numel() % self.shares:
            raise ValueError(
                f"{shares.numel()} shares are no multiple of {self.shares}: a client's shares are missing or "
                "too many, and the sum cannot be read"
            )
        return shares.to(torch.int64).sum().remainder(self.modulus).reshape(1)

    def estimate(self, total: Tensor, *, reports: int | None = None) -> Tensor:
        """The representative nearest to the middle of all sums, unbiased but for sums that wrap around."""
        count = checks.whole(
            "reports", self.cohort if reports is None else reports, at_least=0, at_most=self.cohort
        )
        if total.numel() != 1 or total.dtype != torch.int64:
            raise ValueError(f"a total is one whole number, int64 (1,), got {total!r}")
        lowest = count * self.levels // 2 - self.modulus // 2
        nearest = (int(total) - lowest) % self.modulus + lowest
        return torch.tensor([nearest * self.lattice.step], dtype=torch.float64)


@lru_cache(maxsize=1024)
def mixing_distance(*, clients: int, shares: int, modulus: int) -> float:
    """Bound on the total variation between shuffled shares and a function of their sum, rounded up.

    ``clients`` are those who split honestly. Two shares each protect many poorly, and at most 2,048.
    """
    checks.whole("clients", clients)
    checks.whole("shares", shares, at_least=2)
    checks.whole("modulus", modulus, at_least=2)
    if clients <= 2 * _LISTED:
        log_excess = float(_log_excesses(clients, shares, modulus)[clients])
        excess = math.exp(min(log_excess, _LARGEST))
    elif shares < FEWEST_SHARES:
        raise ValueError(f"two shares are accounted for up to {2 * _LISTED} clients; use three or more")
    else:
        excess = _excess_of_many(clients, shares, modulus)
    return min(1.0, 0.5 * math.sqrt(excess * (1 + 1e-5)))


def _log_excesses(most: int, shares: int, modulus: int) -> Floats:
    """log(z_n − 1) for n up to ``most``; the entry at 0 is unused. Rounded up where q + 1 < n."""
    factorial = gammaln(np.arange(most + 1) + 1.0)
    shuffles = gammaln(shares * np.arange(most + 1) + 1.0)
    weights = shuffles - 2 * factorial
    found = np.full(most + 1, -math.inf)
    moments = np.zeros(most + 1)
    for n in range(2, most + 1):
        k = np.arange(1, n)
        with np.errstate(divide="ignore"):
            factor = np.log(np.maximum((modulus + 1.0) * k / n - 1.0, 0.0))
        terms = factor + weights[1:n] + weights[n - 1 : 0 : -1] - weights[n] + moments[n - 1 : 0 : -1]
        found[n] = np.logaddexp.reduce(terms)
        moments[n] = np.logaddexp(0.0, found[n])
    return found


def _excess_of_many(clients: int, shares: int, modulus: int) -> float:
    """z_n − 1 for more clients than are listed; infinite if the shares are too few to tell."""
    loss = modulus * _closed(2 * _LISTED, shares)
    if loss >= 1:
        return math.inf
    excesses = _log_excesses(2 * _LISTED, shares, modulus)[_LISTED:]
    largest = float(np.logaddexp(0.0, excesses.max()))
    if largest > _LARGEST:
        return math.inf
    return modulus * _closed(clients, shares) * max(math.exp(largest), 1 / (1 - loss))


def _closed(clients: int, shares: int) -> float:
    """W(n): bound on the expected number of closed sets of at most half of the clients."""
    # Sizes up to 4 are told apart.
    terms = [
        Fraction(math.comb(clients, k) ** 2, math.comb(shares * clients, shares * k)) for k in range(1, 6)
    ]
    return float(sum(terms[:-1]) + Fraction(clients, 2) * terms[-1])
