"""Girgis, "Communication-Efficient and Private Distributed Learning" (thesis, UCLA 2023): its smaller bounds.

They answer other questions than the ε of T rounds of k of n clients. Three functions are orders: the thesis
gives no constants for them, so they say how an error or a cost grows, not how large it is.

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
from dataclasses import dataclass

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


def linear_rdp_epsilon(*, rho: float, delta: float, largest_order: float = math.inf) -> float:
    r"""ε at δ of a mechanism whose Rényi divergence of order α is at most α·ρ: Lemma 2.1.5.

        ε ≤ 3·max(ρ·log(1/δ), √(ρ·log(1/δ)))

    Its proof takes α = 1 + √(log(1/δ)/ρ), where ε ≤ ρ + 2·√(ρ·log(1/δ)). That is at most the stated value
    only where log(1/δ) ≥ 1, and only if the Rényi bound holds at this order, up to ``largest_order``; the
    lemma mentions neither. At δ = 10⁻⁵ it is 1.8 to 2.5 times the best conversion for ε up to 3.5.
    """
    checks.number("rho", rho, above=0)
    checks.number("delta", delta, above=0, at_most=1 / math.e)
    logarithm = math.log(1 / delta)
    order = 1 + math.sqrt(logarithm / rho)
    if not order <= largest_order:
        raise ValueError(
            f"Lemma 2.1.5 needs the Rényi bound at order {order:.6g}, it holds up to {largest_order:.6g} only"
        )
    return 3 * max(rho * logarithm, math.sqrt(rho * logarithm)) * (1 + 1e-12)


def self_sampling_bound(
    *,
    local_epsilon: float,
    population: int,
    participation: float,
    num_steps: int,
    delta: float,
    records: int = 1,
    shuffled: Callable[..., float] = clone_bound,
) -> float:
    r"""ε of T rounds in which every client joins with probability q by itself: Theorem 4.4.1 (DSS-SGD).

    The theorem is stated up to constants. This is its proof with the terms that it names: in a round the
    number of reports is within [qn/2, 3qn/2] but for a probability of 2·exp(−qn/12), so with one of a
    client's m records in a report

        ε̄ = log(1 + (3q/2m)·(e^ε̃ − 1)),   ε̃ = ε of one shuffle of ⌈qn/2⌉ reports at δ'·m/(qT),
        ε = √(2T·log(1/δ'))·ε̄ + T·ε̄·(e^ε̄ − 1),   δ = 2δ' + 2T·e^ε0·exp(−qn/12).

    for neighbours that differ in one record. The server may see how many reports came. 65 to 80 times the
    accountant's Poisson rounds at n = 20,000, q = 0.2, ε0 = 0.5 and 1, δ = 10⁻⁶.

    Args:
        records: m ≥ 1, records of a client, of which a report uses one at random.
        shuffled: ε of one shuffle, called with ``local_epsilon``, ``cohort`` and ``delta``. The thesis takes
            a result of Balle et al. 2019 without its constant.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    for name, value in (("population", population), ("num_steps", num_steps), ("records", records)):
        checks.whole(name, value)
    checks.number("participation", participation, above=0, at_most=1)
    checks.delta(delta)
    expected = participation * population
    log_tail = math.log(2 * num_steps) + local_epsilon - expected / 12
    if log_tail >= math.log(delta):
        raise ValueError(
            f"Theorem 4.4.1 needs more reports a round: {expected:.6g} are expected, and T·2·e^local_epsilon·"
            f"exp(-participation·population/12) is not below delta={delta:.3g}"
        )
    half = (delta - math.exp(log_tail)) / 2
    point = min(1.0, half * records / (participation * num_steps))
    one = shuffled(local_epsilon=local_epsilon, cohort=math.ceil(expected / 2), delta=point)
    step, _ = amplify_by_sampling(
        epsilon=min(one, local_epsilon), delta=0.0, sampling_rate=min(1.0, 1.5 * participation / records)
    )
    deviation = math.sqrt(2 * num_steps * math.log(1 / half)) * step
    return min(deviation + num_steps * step * math.expm1(step), num_steps * local_epsilon)


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
    for neighbours that differ in one record. ``shuffled`` is as in :func:`self_sampling_bound`.
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


def frequency_error_bound(*, local_epsilon: float, categories: int, reports: int) -> float:
    r"""Least worst-case E‖p̂ − p‖² of a distribution of K categories from n ε0-LDP reports: Theorem 7.3.1.

    The half for clients with as much randomness as they want,

        K(e^ε0 + 1)²/(16·n·e^ε0·(e^ε0 − 1)²).

    The other half, for little randomness, is wrong (docs/reference/claims.md). With t = tanh(ε0/2), for even
    K: where p is uniform but for what K/2 pairs of categories exchange, the Fisher information of a report
    about each exchange is at most 4·e^ε0·t², and van Trees' inequality with the prior cos²(πKθ/2) on
    \|θ\| ≤ 1/K gives K/(4·n·e^ε0·t² + π²K²). That is at least the theorem's where 12·n·e^ε0·t² ≥ π²K², a
    condition that the theorem does not have. An odd K counts as K − 1.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    even = checks.whole("categories", categories, at_least=2) // 2 * 2
    checks.whole("reports", reports)
    information = math.exp(local_epsilon) * math.tanh(local_epsilon / 2) ** 2
    if 12 * reports * information < (math.pi * even) ** 2:
        needed = math.ceil((math.pi * even) ** 2 / (12 * information))
        raise ValueError(f"the proof needs {needed} reports of {categories} categories, got {reports}")
    return even / (16 * reports * information) * (1 - 1e-12)


def local_error_order(
    *, local_epsilon: float, dim: int, cohort: int, norm: float, radius: float = 1.0
) -> float:
    r"""Order of the least squared error of an ε0-LDP mean in an ℓp ball of radius r: Theorems 3.4.3, 3.6.3.

        r²·min(1, d/(n·ε0²)) for 1 ≤ p < 2,   r²·d^(2 − 2/p)/(n·min(ε0, ε0²)) for p ≥ 2

    **An order, not a bound**. The first is as its proof ends; its statement has no minimum. Stated for
    ε0 = O(1); p may be infinite.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("dim", dim)
    checks.whole("cohort", cohort)
    checks.radius(radius)
    if not norm >= 1:
        raise ValueError(f"norm must be at least 1, got {norm!r}")
    if norm < 2:
        return radius**2 * min(1.0, dim / (cohort * local_epsilon**2))
    return float(radius**2 * dim ** (2 - 2 / norm) / (cohort * min(local_epsilon, local_epsilon**2)))


def central_error_order(
    *, epsilon: float, delta: float, dim: int, cohort: int, bits: float, radius: float = 1.0
) -> float:
    r"""Order of the least squared error of an (ε, δ)-DP mean in the ℓ2 ball from b bits each: Theorem 3.6.4.

        (r²·d/n²)·max(log(1/δ)/ε², n/(d·4^(b/d))) for b ≥ d,   n/b in place of the second term for b < d

    **An order, not a bound**. It is stated for ε = O(1) and δ = o(1/n).
    """
    checks.number("epsilon", epsilon, above=0)
    checks.whole("dim", dim)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, below=1 / cohort)
    checks.number("bits", bits, above=0)
    checks.radius(radius)
    quantised = cohort / (dim * 4 ** (bits / dim)) if bits >= dim else cohort / bits
    return float(radius**2 * dim / cohort**2 * max(math.log(1 / delta) / epsilon**2, quantised))


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedClaim:
    """A published answer to another question than the catalogue's.

    Nothing that gives a guarantee may use one that is not ``valid``.
    """

    name: str
    source: str
    epsilon: Callable[..., float]
    valid: bool
    note: str


PUBLISHED_CLAIMS: tuple[PublishedClaim, ...] = (
    PublishedClaim(
        name="DP-AdaPeD, as printed",
        source="Girgis 2023 (thesis), Thm 4.5.1, RDP",
        epsilon=printed_epsilon,
        valid=False,
        note="Gaussian noise in the local steps of federated clients. No bound: " + "; ".join(REASONS),
    ),
)
