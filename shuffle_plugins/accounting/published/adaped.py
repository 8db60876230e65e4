r"""DP-AdaPeD (Girgis, thesis, UCLA 2023, section 4.5): its printed accounting, **which is no bound**.

In DP-AdaPeD each of K clients adds Gaussian noise to the clipped gradients of every local step, sends what τ
such steps made of the global model and of ψ, and the server averages. Theorem 4.5.1 claims for the averages

    ε(α) = (K/n)²·6(T/τ)·α·(C1²/(Kσ1²) + C2²/(Kσ2²)),   T steps in T/τ rounds, K of n clients in each.

Four things are wrong with it (:data:`REASONS`). It is here to draw the thesis's columns, and nothing that
gives a guarantee uses it. :func:`noisy_steps_epsilon` is what does hold of that algorithm. Neither concerns
:class:`shuffle_plugins.optim.AdaPeD`, whose rounds are those of the mechanism that randomises its updates.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from shuffle_plugins.accounting.composition.renyi import epsilon_from_rdp
from shuffle_plugins.accounting.numerics.orders import Vector
from shuffle_plugins.core import checks

REASONS = (
    "τ clipped steps move a client's part of the average by up to τ·C1/K (2τ·C1/K if its data are replaced): "
    "the squared sensitivity grows as τ², the proof has τ",
    "the gradients of later local steps depend on the noise of earlier ones, so what is released is not a "
    "fixed sum with Gaussian noise added, as the proof takes it to be",
    "the sampled Gaussian mechanism's α·(K/n)² holds for small sampling rates and orders only; neither "
    "is checked, and Table 4.2 samples nobody",
    "it takes for granted that only the average is seen, while the algorithm sends each client's model to "
    "the server",
)
"""Why Theorem 4.5.1 is not a bound, in words."""

_ORDERS = 1.0 + np.geomspace(1e-4, 1e6, 4000)


def printed_rdp(
    *,
    orders: ArrayLike,
    rounds: int,
    cohort: int,
    population: int,
    global_noise: float,
    dissimilarity_noise: float,
) -> Vector:
    """Rényi divergences as Theorem 4.5.1 claims them. **Not a bound**: see :data:`REASONS`.

    Args:
        orders: α > 1, shape (m,).
        rounds: T/τ ≥ 1, how often clients send.
        cohort: K ≥ 1, clients in a round.
        population: n ≥ K.
        global_noise: σ1/C1 > 0, deviation of a local step's noise over its clipping norm.
        dissimilarity_noise: σ2/C2 > 0, the same for ψ; infinite if ψ is not trained.

    Returns:
        What the theorem claims, in nats, shape (m,).
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("orders must be finite numbers above 1")
    inverse = _inverse_noise(global_noise, dissimilarity_noise)
    rate = checks.whole("cohort", cohort) / checks.whole("population", population, at_least=cohort)
    return rate**2 * 6 * checks.num_steps(rounds, name="rounds") * alpha * inverse / cohort


def printed_epsilon(
    *,
    delta: float,
    rounds: int,
    cohort: int,
    population: int,
    global_noise: float,
    dissimilarity_noise: float = math.inf,
) -> float:
    """ε at δ by Theorem 4.5.1 and the thesis's conversion, Lemma 2.1.3. **Not a bound**: see :data:`REASONS`.

    Args:
        rounds, cohort, population, global_noise, dissimilarity_noise: of :func:`printed_rdp`.
    """
    claimed = printed_rdp(
        orders=_ORDERS,
        rounds=rounds,
        cohort=cohort,
        population=population,
        global_noise=global_noise,
        dissimilarity_noise=dissimilarity_noise,
    )
    return epsilon_from_rdp(orders=_ORDERS, rdp=claimed, delta=checks.delta(delta))[0]


def noisy_steps_epsilon(
    *, delta: float, steps: int, global_noise: float, dissimilarity_noise: float = math.inf
) -> float:
    """ε that does hold of the printed algorithm, replace-one: every step is taken for seen.

    A client's steps, each a gradient cut to norm C with noise N(0, σ²), are ``steps`` adaptively composed
    Gaussian mechanisms of sensitivity 2C, for μ and for ψ: 2α·steps·(C1²/σ1² + C2²/σ2²) at every order α
    (Mironov 2017, Proposition 7, and composition). The average and everything the server sees is computed
    from them and from other clients' data, so the bound holds against everybody. The noise of other clients
    does not count: how they move depends on it (the second of :data:`REASONS`).

    Args:
        steps: local steps of one client in the whole run, all rounds together.
        global_noise, dissimilarity_noise: σ1/C1 and σ2/C2, of :func:`printed_rdp`.

    Returns:
        ε in nats, rounded up; of the run, for one client's whole data.
    """
    inverse = _inverse_noise(global_noise, dissimilarity_noise)
    rdp = 2 * checks.num_steps(steps, name="steps") * inverse * _ORDERS
    return epsilon_from_rdp(orders=_ORDERS, rdp=rdp, delta=checks.delta(delta))[0]


def _inverse_noise(global_noise: float, dissimilarity_noise: float) -> float:
    """The sum C1²/σ1² + C2²/σ2² of both squared clipping norms over their noise variances."""
    found = 0.0
    for name, noise in (("global_noise", global_noise), ("dissimilarity_noise", dissimilarity_noise)):
        if not noise > 0:
            raise ValueError(f"{name} must be positive, got {noise!r}")
        found += (1 / noise) * (1 / noise)  # a power would raise where it leaves floats
    if not 0 < found < math.inf:
        raise ValueError("global_noise and dissimilarity_noise must not both be infinite, or tiny")
    return found
