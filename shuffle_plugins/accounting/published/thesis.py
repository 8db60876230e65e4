"""Girgis, "Communication-Efficient and Private Distributed Learning" (thesis, UCLA 2023): its smaller bounds.

They answer other questions than the ε of T rounds of k of n clients.

**DP-AdaPeD** (section 4.5), whose printed accounting **is no bound**: each of K clients adds Gaussian noise
to the clipped gradients of every local step, sends what τ such steps made of the global model and of ψ, and
the server averages. Theorem 4.5.1 claims for the averages

    ε(α) = (K/n)²·6(T/τ)·α·(C1²/(Kσ1²) + C2²/(Kσ2²)),   T steps in T/τ rounds, K of n clients in each.

Four things are wrong with it (:data:`REASONS`). It is here to draw the thesis's columns, and nothing that
gives a guarantee uses it. :func:`noisy_steps_epsilon` is what does hold of that algorithm. Neither concerns
:class:`shuffle_plugins.optim.AdaPeD`, whose rounds are those of the mechanism that randomises its updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from shuffle_plugins.accounting.composition.renyi import epsilon_from_rdp
from shuffle_plugins.accounting.losses import real_orders
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.published.catalogue import amplify_by_sampling, strong_composition
from shuffle_plugins.accounting.published.shuffles import clone_bound
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
) -> Floats:
    """Rényi divergences as Theorem 4.5.1 claims them. **Not a bound**: see :data:`REASONS`.

    Args:
        rounds: T/τ, how often clients send.
        global_noise: σ1/C1 > 0, deviation of a local step's noise over its clipping norm.
        dissimilarity_noise: σ2/C2 > 0, the same for ψ; infinite if ψ is not trained.
    """
    inverse = _inverse_noise(global_noise, dissimilarity_noise)
    rate = checks.whole("cohort", cohort) / checks.whole("population", population, at_least=cohort)
    rounds = checks.num_steps(rounds, name="rounds")
    return rate**2 * 6 * rounds * real_orders(orders) * inverse / cohort


def printed_epsilon(
    *,
    delta: float,
    rounds: int,
    cohort: int,
    population: int,
    global_noise: float,
    dissimilarity_noise: float = math.inf,
) -> float:
    """ε at δ by Theorem 4.5.1, :func:`printed_rdp`, and the thesis's conversion. **Not a bound**."""
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

    A client's ``steps`` in the whole run are adaptively composed Gaussian mechanisms of sensitivity 2C, for μ
    and for ψ: 2α·steps·(C1²/σ1² + C2²/σ2²) at every order α (Mironov 2017, Proposition 7). All that is seen
    is computed from them and from other clients' data, whose noise does not count: how they move depends on
    it (the second of :data:`REASONS`).
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


def sampled_records_bound(
    *,
    local_epsilon: float,
    population: int,
    cohort: int,
    records: int,
    samples: int,
    num_steps: int,
    delta: float,
    shuffled: Callable[..., float] = clone_bound,
) -> float:
    r"""ε of T rounds in which k of n clients report on s of their m records each: Lemma 4.3.1 and C.1.

    The lemma is stated for s = 1; its proof ends in

        ε̄ = log(1 + (s/m)·(e^ε̃ − 1)) for s > 1,   ε̄ = log(1 + (k/(mn))·(e^ε̃ − 1)) for s = 1,   δ̄ = q·δ̃,

    with q = ks/(mn) and ε̃ that of one shuffle of ks reports at δ̃: with s > 1 the sampling of clients does not
    help (Remark C.1.1). T rounds are composed strongly, with δ/2 for that and δ̃ = δ/(2qT), as in the thesis;
    for neighbours that differ in one record. ``shuffled`` is ε of one shuffle, called with ``local_epsilon``,
    ``cohort`` and ``delta``.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    for name, value, most in (
        ("population", population, math.inf),
        ("cohort", cohort, population),
        ("records", records, math.inf),
        ("samples", samples, records),
        ("num_steps", num_steps, math.inf),
    ):
        checks.whole(name, value, at_most=most)
    checks.delta(delta)
    rate = cohort * samples / (records * population)
    point = min(1.0, delta / (2 * rate * num_steps))
    one = shuffled(local_epsilon=local_epsilon, cohort=cohort * samples, delta=point)
    step, _ = amplify_by_sampling(
        epsilon=min(one, local_epsilon), delta=0.0, sampling_rate=rate if samples == 1 else samples / records
    )
    composed = strong_composition(epsilon=step, num_steps=num_steps, delta_slack=delta / 2)
    return min(composed, num_steps * local_epsilon)


def communication_orders(*, epsilon: float, dim: int, cohort: int) -> dict[str, float]:
    """Order of the bits that each of n ≥ 2 clients sends for an error of order d/(nε)², by scheme: Table 3.1.

    **Orders, not numbers of bits**: they have no constants and leave out factors of log(1/δ).
    """
    checks.number("epsilon", epsilon, above=0)
    checks.whole("dim", dim)
    checks.whole("cohort", cohort, at_least=2)
    signal = cohort * epsilon**2
    planes = (
        dim * max(1.0, math.log(signal / dim))
        if dim < signal
        else max(1.0, signal * max(1.0, math.log(dim / signal)))
    )
    summed = dim * math.log(cohort) if dim <= cohort * signal else cohort * signal * math.log(dim)
    return {
        "bit planes": planes,
        "Cheu et al.": dim * math.sqrt(cohort),
        "Chang et al.": dim * math.log(cohort),
        "secure aggregation": summed,
    }
