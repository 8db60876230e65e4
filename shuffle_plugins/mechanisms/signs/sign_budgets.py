r"""One ε0 divided over several flipped signs, without ever exceeding it.

A message whose sign is flipped with probability p = low/2**62 costs log((1-p)/p). The messages of one report
are independent, so their costs add up.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import MIN_LOCAL_EPSILON
from shuffle_plugins.mechanisms.signs.randomized_response_law import PROBABILITY_BITS, SignThresholds

_CONTEXT = decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)
_BELOW = 1 - Decimal(10) ** -60
_WHOLE = 1 << PROBABILITY_BITS


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
    if float(min(budgets)) < MIN_LOCAL_EPSILON * (1 - 1e-9):
        raise ValueError(
            f"local_epsilon={local_epsilon:g} over {repeats * len(shares)} signs leaves one less than "
            f"{MIN_LOCAL_EPSILON:g}: send fewer levels or samples"
        )
    return tuple(_thresholds(budget, constants) for budget in budgets)


def _thresholds(budget: Decimal, constants: Constants) -> SignThresholds:
    with decimal.localcontext(_CONTEXT):
        odds = budget.exp() * _BELOW
        low = int((_WHOLE / (odds + 1)).to_integral_value(decimal.ROUND_FLOOR)) + 1
        if constants is Constants.THESIS:
            gain = (budget**2 / (budget**2 + 4)).sqrt()
            low = max(low, int((_WHOLE * (1 - gain) / 2).to_integral_value(decimal.ROUND_CEILING)))
    return SignThresholds(low=low)
