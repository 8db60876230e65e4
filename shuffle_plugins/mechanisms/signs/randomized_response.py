"""Random signs of given expectation, as bits.

A sign that is flipped with probability p = low/2**62 costs log((1-p)/p). The signs of one report are
independent, so their costs add up: :func:`split_budget` divides one ε0 over several.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness import PROBABILITY_BITS, WHOLE, Randomness

LOUDEST_EXACT = 42
"""ε0 from which a probability is a few units of 2**-62 and cannot follow."""

_CONTEXT = decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)
_BELOW = 1 - Decimal(10) ** -60  # more than 80 digits can lose in one exponential


@dataclass(frozen=True, slots=True)
class SignThresholds:
    """Probabilities of a plus sign as multiples of 2**-62.

    Attributes:
        low: the smallest of them, taken at the value -1; the largest, taken at +1, is ``2**62 - low``.
    """

    low: int

    @property
    def high(self) -> int:
        """The largest threshold, 2**62 - low, taken at the value +1."""
        return WHOLE - self.low

    @property
    def gain(self) -> float:
        """E[sign] at the value 1: 1 - 2·low/2**62, about tanh(ε0/2). Dividing by it removes the bias."""
        return (self.high - self.low) / WHOLE

    @classmethod
    def of(cls, local_epsilon: float) -> SignThresholds:
        r"""Thresholds that never exceed ε0.

        ``low`` is at most one above the smallest integer with :math:`(2^{62} - low)/low \le e^{ε_0}`, in
        60-digit arithmetic with the exponential rounded down. From ε0 ≈ 43 on it is 1.
        """
        return _thresholds(Decimal(checks.local_epsilon(local_epsilon)), Constants.EXACT)


def sign_blanket(local_epsilon: float) -> Blanket:
    r"""Blanket of a sign flipped with probability 1/(e^ε0 + 1), about any public or random coordinate.

    The inputs that are +radius, or -radius, in every coordinate attain the weights (e, 1) and (1, e) on every
    report: :math:`ω(j, ±) = 1/(d(e+1))`, so the two masses are 1/(e+1) in total, as for the generic blanket.
    As the coordinate tells nothing about the record, others' reports hide by more than the blanket.
    From ε0 = 42 on thresholds cannot follow ε0, and the blanket is only a bound.
    """
    return Blanket.sign(local_epsilon, exact=local_epsilon < LOUDEST_EXACT)


def bit_blanket(local_epsilon: float) -> Blanket:
    """One sign of one number and nothing else: counted as a bit, which is tighter than any blanket."""
    return Blanket.bit(local_epsilon, exact=local_epsilon < LOUDEST_EXACT)


class Constants(StrEnum):
    """Whose constants a sampled mechanism uses.

    ``EXACT``: each message spends its share v of ε0 to the last bit, E[sign] = tanh(v/2) times the value, and
    values are counted from the centre of their range, which is best in the worst case.

    ``THESIS``: as printed in Girgis's thesis (Lemma 2.4.1, Algorithms 3.3.1 and 3.5.1), for comparison. There
    E[sign] = v/√(v² + 4) times the value, which spends only 2·asinh(v/2) < v, and what is not sampled counts
    as the low end of the range.
    """

    EXACT = "exact"
    THESIS = "thesis"


def split_budget(
    local_epsilon: float, *, shares: Sequence[float], repeats: int = 1, constants: Constants = Constants.EXACT
) -> tuple[SignThresholds, ...]:
    r"""Thresholds for ``repeats`` signs of each share, which together cost at most ε0.

    Sign k gets :math:`v_k = ε_0 \, share_k / (repeats \sum_l share_l)`, rounded down in 80-digit arithmetic;
    its ``low`` is rounded up, so that :math:`(2^{62} - low)/low \le e^{v_k}`.

    Args:
        local_epsilon: ε0 of a whole report, in nats.
        shares: relative budgets, positive.
        repeats: signs of each kind.
        constants: the thesis's thresholds are never below the exact ones.

    Raises:
        ValueError: if ε0 is out of range, or a sign's budget below 1e-9.
    """
    exact_epsilon = Decimal(checks.local_epsilon(local_epsilon))
    with decimal.localcontext(_CONTEXT):
        total = sum((Decimal(share) for share in shares), Decimal(0)) * repeats
        budgets = [exact_epsilon * Decimal(share) / total * _BELOW for share in shares]
    if float(min(budgets)) < checks.MIN_LOCAL_EPSILON * (1 - 1e-9):
        raise ValueError(
            f"local_epsilon={local_epsilon:g} over {repeats * len(shares)} signs leaves one less than "
            f"{checks.MIN_LOCAL_EPSILON:g}: send fewer levels or samples"
        )
    return tuple(_thresholds(budget, constants) for budget in budgets)


def _thresholds(budget: Decimal, constants: Constants) -> SignThresholds:
    with decimal.localcontext(_CONTEXT):
        odds = budget.exp() * _BELOW
        low = int((WHOLE / (odds + 1)).to_integral_value(decimal.ROUND_FLOOR)) + 1
        if constants is Constants.THESIS:
            gain = (budget**2 / (budget**2 + 4)).sqrt()
            low = max(low, int((WHOLE * (1 - gain) / 2).to_integral_value(decimal.ROUND_CEILING)))
    return SignThresholds(low=low)


def random_signs(values: Tensor, *, thresholds: SignThresholds, randomness: Randomness) -> Tensor:
    """Draw 1 (plus) or 0 (minus) for each value, with E[sign] = gain · value.

    Args:
        values: (clients,), in [-1, 1]; what rounding leaves outside is clamped.
        thresholds: the integer probabilities of the two ends; every draw's probability lies between them.
        randomness: source of the draws.

    Returns:
        uint8 tensor (clients,).
    """
    return randomness.bernoulli(plus_thresholds(values, thresholds=thresholds)).to(torch.uint8)


def plus_thresholds(values: Tensor, *, thresholds: SignThresholds) -> Tensor:
    """Probability of a plus sign at each value of [-1, 1], as an int64 multiple of 2**-62."""
    half_span = (thresholds.high - thresholds.low) / 2
    from_nearer_end = (1 - values.double().abs()).clamp_(0, 1).mul_(half_span).round_().to(torch.int64)
    return torch.where(values < 0, thresholds.low + from_nearer_end, thresholds.high - from_nearer_end)


def sign_log_likelihood(signs: Tensor, values: Tensor, *, thresholds: SignThresholds) -> Tensor:
    """Log-probability, float64, that :func:`random_signs` gives these signs (±1) for these values."""
    plus = plus_thresholds(values, thresholds=thresholds)
    drawn = torch.where(signs > 0, plus, WHOLE - plus)
    return drawn.double().log_().sub_(PROBABILITY_BITS * math.log(2))
