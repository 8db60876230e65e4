r"""Feldman, McMillan, Talwar 2022, "Stronger Privacy Amplification by Shuffling" (arXiv 2208.04591).

**Erratum.** The paper's own errata withdraws Theorems 3.1, 3.2, 5.2 and Corollary 4.3 for general (adaptive)
randomizers: the proof of Lemma 3.5 is wrong, and the bounds are claimed for a restricted class only.

**What carries them here.** Claim 2 of ``docs/proofs/accounting.md`` proves that the pair of the paper's
numerical bound, clones with probability 2/(e^ε0 + 1), dominates one shuffle of *any* ε0-LDP randomizer that
is the same for all clients of the round: the setting of this package. The closed form holds there because it
lies above that pair, which the tests check on a grid of settings. Claim 6 proves the same for randomizers
that follow from earlier reports of the round, by an argument of its own: the paper's lemma stays wrong.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from shuffle_plugins.accounting.numerics.orders import Vector, real_orders
from shuffle_plugins.accounting.pairs.clones import binary_pair
from shuffle_plugins.core import checks


def stronger_clone_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle of n reports, each from the same ε0-LDP randomizer (Theorem 3.2, replace-one).

        ε = log(1 + (e^ε0 − 1)·(4·√(2·log(4/δ)/((e^ε0 + 1)·n)) + 4/n))

    At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies 2.3 to 4.7 times above the pair it bounds.

    Raises:
        ValueError: if ε0 > log(n/(8·log(2/δ)) − 1), where the theorem is
            silent.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)
    room = cohort / (8 * math.log(2 / delta)) - 1
    reach = math.log(room) if room > 0 else -math.inf
    if local_epsilon > reach:
        raise ValueError(
            f"Theorem 3.2 needs local_epsilon <= {reach:.3g} for {cohort} reports at delta={delta:.3g}, "
            f"got {local_epsilon:.3g}"
        )
    e = math.exp(local_epsilon)  # ε0 is below log n here
    spread = 4 * math.sqrt(2 * math.log(4 / delta) / ((e + 1) * cohort)) + 4 / cohort
    return math.log1p(math.expm1(local_epsilon) * spread)


def stronger_clone_rdp_bound(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    r"""Rényi divergence of one shuffle at most: Corollary 4.3, ε(α) = 48·α·(e^ε0 − 1)²/(e^ε0·n).

    At small divergences it is 48(1 + e^−ε0) times the pair's own.

    Args:
        orders: real α > 1, below n/(16·ε0·e^ε0), shape (m,).

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,).

    Raises:
        ValueError: if an order is outside the corollary's regime.
    """
    pair = binary_pair(local_epsilon=local_epsilon, cohort=cohort)
    alpha = real_orders(orders)
    edge = pair.cohort * math.exp(-local_epsilon) / (16 * local_epsilon)
    if np.any(alpha >= edge):
        raise ValueError(f"Corollary 4.3 needs orders below {edge:.4g}, got {alpha.max():.4g}")
    return 48 * alpha * (2 * math.sinh(local_epsilon / 2)) ** 2 / pair.cohort
