"""Cheu, Smith, Ullman, Zeber, Zhilyaev 2019, "Distributed Differential Privacy via Shuffling" (EUROCRYPT).

Of one shuffle of binary randomized response, which that paper writes as: with probability λ/n a client sends
a fair coin instead of its bit. The statement is that of its Theorem 4.11, written down from other papers
that draw it; **its own text could not be read here**. The tests compare it with the exact value.
"""

from __future__ import annotations

import math

from shuffle_plugins.core import checks


def binary_response_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle of binary randomized response (Theorem 4.11 as it is cited; see the module).

    With λ = 2n/(e^ε0 + 1) fair coins expected and s = λ − √(2λ·log(2/δ)),

        ε = √(32·log(4/δ)/s)·(1 − s/n)   where λ ≥ 14·log(4/δ).

    Not a bound for other ε0-LDP randomizers: 3-ary response leaks more from ε0 = log 2 on. 4.3 to
    5 times the exact ε of binary response at n = 10⁴…10⁶, ε0 = 0.5…4, δ = 10⁻⁶.

    Returns:
        ε in nats for replace-one neighbours. It may exceed ε0.

    Raises:
        ValueError: if λ < 14·log(4/δ), where the theorem is silent.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)
    coins = 2 * cohort * math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    least = 14 * math.log(4 / delta)
    if coins < least:
        raise ValueError(
            f"Theorem 4.11 needs 2·cohort/(e^local_epsilon + 1) >= {least:.4g} at delta={delta:.3g}, "
            f"got {coins:.4g}"
        )
    kept = coins - math.sqrt(2 * coins * math.log(2 / delta))
    return math.sqrt(32 * math.log(4 / delta) / kept) * (1 - kept / cohort)
