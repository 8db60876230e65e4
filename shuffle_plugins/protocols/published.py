"""What the paper's own constants ask for, for comparison only."""

from __future__ import annotations

import math
from dataclasses import dataclass

SOURCE = "Cheu, Joseph, Mao, Peng 2022, Lemma 3.1 and Theorem 3.2"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedVectorSum:
    """Parameters of P_vec as the proof of Theorem 3.2 sets them.

    Attributes:
        levels: g, lattice steps over the range 2·radius of a coordinate.
        coins: b, the fewest whole number allowed, coins per client and coordinate.
        probability: p of a coin, below ½.
        noise_variance: n·b·p(1 − p) lattice steps squared, in units of the radius squared.
    """

    levels: int
    coins: int
    probability: float
    noise_variance: float


def vector_sum(*, dim: int, clients: int, epsilon: float, delta: float) -> PublishedVectorSum:
    """Levels, coins and noise of P_vec for vectors of norm at most 1, by the paper's constants.

    Each coordinate gets (ε̂, δ̂) = (ε/(18·√log((d + 1)/δ)), δ/(d + 1)) and the coins of Lemma 3.1,
    b > 180·g²·log(2/δ̂)/(ε̂²·n), p = 90·g²·log(2/δ̂)/(b·ε̂²·n), with g = max(2√n, √d, 4).

    Raises:
        ValueError: outside the theorem's range, 0 < ε ≤ 15 and 0 < δ < ½.
    """
    if not 0 < epsilon <= 15:
        raise ValueError(f"the theorem is for epsilon in (0, 15], got {epsilon!r}")
    if not 0 < delta < 0.5:
        raise ValueError(f"the theorem is for delta in (0, 1/2), got {delta!r}")
    levels = math.ceil(max(2 * math.sqrt(clients), math.sqrt(dim), 4))
    own_delta = delta / (dim + 1)
    own_epsilon = epsilon / (18 * math.sqrt(math.log(1 / own_delta)))
    needed = 90 * levels**2 * math.log(2 / own_delta) / (own_epsilon**2 * clients)
    coins = math.floor(2 * needed) + 1
    probability = needed / coins
    steps = clients * coins * probability * (1 - probability)
    return PublishedVectorSum(
        levels=levels,
        coins=coins,
        probability=probability,
        noise_variance=steps * (2 / levels) ** 2,
    )
