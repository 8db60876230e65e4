r"""How far shuffled additive shares are from telling no more than their sum.

n clients each split a value of Z_q into m shares, uniform but for their sum; all nm shares are shuffled
(Ishai, Kushilevitz, Ostrovsky, Sahai 2006). Let V(x) be the law of what is seen, and U_S that of nm values
uniform but for their sum S = Σ x_i, which depends on S alone. For every x,

    TV(V(x), U_S) ≤ ½·√(E[q^(C−1)] − 1),

where C is the number of connected components of the random bipartite multigraph with n left and n right
vertices, all of degree m, whose nm edges are a uniform matching of half-edges.

Proof. The density of V(x) to U_S at y is q^(n−1)·P_π[the blocks of π(y) sum to x]. So its second moment under
U_S is q^(2n−2) times the probability, over y ∼ U_S and two permutations, that the blocks of both sum to x.
Those are 2n equations, one per vertex, on nm values, one per edge. If they have a solution they have
q^(nm−2n+C), out of the q^(nm−1) values of y: the moment is E[q^(C−1)·1{solvable}], and all are solvable if
all x_i are equal. Cauchy–Schwarz. ∎

Counting components of random graphs goes back to Balle, Bell, Gascón, Nissim 2019, "Improved summation from
shuffling", and 2020, "Private summation in the multi-message shuffle model". Here the expectation is computed
and not bounded by a formula:

- The component sizes of labelled structures have an exponential generating function. With
  w_k = C(n, k)²/C(mn, mk), the probability that given sets would be closed summed over sets, it gives
  z_n = E[q^(C−1)] by z_n = 1 + Σ_{k<n} ((q + 1)·k/n − 1)·w_k·z_{n−k}.
- For many clients: if C ≥ 2, a component has at most n/2 vertices on a side, so
  z_n ≤ 1 + q·Σ_{k≤n/2} w_k·z_{n−k}. For m ≥ 3, w_k falls in n, and in k ≤ n/2. So with
  W(n) = Σ_{k≤4} w_k + (n/2)·w_5, which falls in n, and Z no less than z_j from j = J to 2J nor
  1/(1 − q·W(2J)), induction gives z_n − 1 ≤ q·W(n)·Z for all n > 2J.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from shuffle_plugins.accounting import Floats

FEWEST_SHARES = 3
_LISTED = 1024  # J
_CLOSED = 4  # sizes of closed sets that are told apart
_ROUNDOFF = 1e-5  # relative, of a second moment
_LARGEST = 600.0


@lru_cache(maxsize=1024)
def mixing_distance(*, clients: int, shares: int, modulus: int) -> float:
    """Bound on the total variation between shuffled shares and a function of their sum, rounded up.

    Args:
        clients: n ≥ 1, those who split honestly. Others only add messages that the adversary knows.
        shares: m ≥ 2, per client; two protect many clients poorly, and their number is limited to 2,048.
        modulus: q ≥ 2.

    Returns:
        At most 1, which says nothing.

    Raises:
        ValueError: if an argument is out of range.
    """
    for name, value, least in (("clients", clients, 1), ("shares", shares, 2), ("modulus", modulus, 2)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
    if clients <= 2 * _LISTED:
        log_excess = float(_log_excesses(clients, shares, modulus)[clients])
        excess = math.exp(min(log_excess, _LARGEST))
    elif shares < FEWEST_SHARES:
        raise ValueError(f"two shares are accounted for up to {2 * _LISTED} clients; use three or more")
    else:
        excess = _excess_of_many(clients, shares, modulus)
    return min(1.0, 0.5 * math.sqrt(excess * (1 + _ROUNDOFF)))


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
    terms = [
        Fraction(math.comb(clients, k) ** 2, math.comb(shares * clients, shares * k))
        for k in range(1, _CLOSED + 2)
    ]
    return float(sum(terms[:-1]) + Fraction(clients, 2) * terms[-1])
