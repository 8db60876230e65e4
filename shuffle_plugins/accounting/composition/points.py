"""From one (ε, δ) point of a shuffle to T rounds: amplification by sampling, then strong composition.

It is how most papers compose their bounds, and far looser than composing losses or Rényi curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_plugins.core import checks


def check_rounds(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> None:
    """Refuse a question about T rounds of k of n clients that makes no sense."""
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("population", population)
    checks.whole("cohort", cohort, at_most=population)
    checks.whole("num_steps", num_steps)
    checks.delta(delta)


def amplify_by_sampling(*, epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(ε, δ) of a mechanism run on a uniform k of n records, for replace-one neighbours.

    Ullman 2017; Balle, Barthe, Gaboardi 2018, Theorem 9. Tight for a black-box mechanism:
    ε' = log(1 + γ(e^ε − 1)), δ' = γδ. For one particular mechanism, such as a shuffled randomizer, it is
    loose, because it knows nothing of the mechanism but one point of its privacy profile.

    Args:
        epsilon: ε ≥ 0 of the mechanism on the sampled records, in nats.
        delta: its δ, in [0, 1].
        sampling_rate: γ = k/n, in (0, 1].

    Returns:
        The amplified (ε', δ').
    """
    checks.number("epsilon", epsilon, at_least=0)
    checks.fraction("delta", delta)
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    # log(1 + γ(e^ε − 1)) = ε + log(γ + (1 − γ)e^−ε), which cannot overflow; small ε takes the other form
    if epsilon < 1:
        amplified = math.log1p(sampling_rate * math.expm1(epsilon))
    else:
        amplified = epsilon + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-epsilon))
    return amplified, sampling_rate * delta


def strong_composition(*, epsilon: float, num_steps: int, delta_slack: float) -> float:
    r"""ε of T adaptively composed (ε, δ)-DP steps, at total δ of 1 − (1 − δ)^T (1 − δ̃) ≤ T·δ + δ̃.

    Kairouz, Oh, Viswanath 2015, Theorem 3.4: the smallest of

        Tε,   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(e + √T·ε/δ̃)),   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(1/δ̃)).

    Within a small factor of the best possible for steps of which nothing but (ε, δ) is known; composing the
    steps' Rényi curves or privacy loss distributions is far tighter.

    Args:
        delta_slack: δ̃ in (0, 1), what composition itself may add to δ.
    """
    checks.number("epsilon", epsilon, at_least=0)
    checks.whole("num_steps", num_steps, at_least=0)
    checks.delta(delta_slack, name="delta_slack")
    mean = num_steps * epsilon * math.tanh(epsilon / 2)
    deviation = epsilon * math.sqrt(2 * num_steps)
    logarithm = min(
        math.log(math.e + math.sqrt(num_steps) * epsilon / delta_slack), math.log(1 / delta_slack)
    )
    return min(num_steps * epsilon, mean + deviation * math.sqrt(logarithm))


def compose_points(
    *,
    shuffled: Callable[[float], float],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
) -> float:
    """ε of T rounds from one (ε, δ) point of the shuffle, k-of-n amplification and strong composition.

    Half of δ pays for strong composition and the rounds share the other half. Where the sum of the rounds' ε
    is smaller, they share all of δ. Where shuffling gains nothing, each round counts as ε0 and composition
    gets all of δ. The smallest of the three is returned; its looseness grows with T.

    Args:
        shuffled: ε of one shuffle of k reports as a function of its δ in (0, 1].
        local_epsilon, population, cohort, num_steps, delta: the question, as of :func:`check_rounds`.

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )
    sampling_rate = cohort / population

    def sampled(round_delta: float) -> float:
        shuffle_delta = min(1.0, round_delta / sampling_rate)
        point, _ = amplify_by_sampling(
            epsilon=min(shuffled(shuffle_delta), local_epsilon),
            delta=shuffle_delta,
            sampling_rate=sampling_rate,
        )
        return point

    unshuffled, _ = amplify_by_sampling(epsilon=local_epsilon, delta=0.0, sampling_rate=sampling_rate)
    found = [
        num_steps * local_epsilon,
        strong_composition(epsilon=unshuffled, num_steps=num_steps, delta_slack=delta),
    ]
    if num_steps > 1:
        half = sampled(delta / (2 * num_steps))
        found.append(strong_composition(epsilon=half, num_steps=num_steps, delta_slack=delta / 2))
    found.append(num_steps * sampled(delta / num_steps))
    return min(found)
