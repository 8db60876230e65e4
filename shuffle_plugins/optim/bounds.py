"""What the theorems promise, with their constants: excess loss as a function of steps and noise.

``reach`` is an upper bound on the distance from the start to the optimum, at most the diameter D of the
domain. ``lipschitz`` is L. ``noise`` is the variance E‖ĝ − ∇‖² that privacy adds to one step's mean gradient.
``population`` is n, the number of clients.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

LAST_ITERATE_ROOM = 1.05
"""By so much :func:`last_iterate_loss` is above what its proof needs."""


def averaged_step(*, reach: float, second_moment: float, steps: int) -> float:
    """η that minimises :func:`averaged_loss`."""
    return reach / math.sqrt(second_moment * steps)


def averaged_loss(*, reach: float, second_moment: float, steps: int) -> float:
    """D²/(2ηT) + ηG²/2 at the best η: ``second_moment`` G² bounds E‖ĝ‖² (Lemma 4.2)."""
    return reach * math.sqrt(second_moment / steps)


def accelerated_curvature(*, reach: float, smoothness: float, variance: float, steps: int) -> float:
    """c of AC-SA that minimises :func:`accelerated_loss`."""
    return 2 * smoothness + math.sqrt(variance * steps * (steps + 1) * (2 * steps + 1) / 6) / reach


def accelerated_loss(*, reach: float, smoothness: float, variance: float, steps: int) -> float:
    """Excess loss of AC-SA when gradients have this variance (Lemma 4.4, with its constants).

    With Γ_t = 2/(t(t + 1)), L_t = c/t and c = 2β + s, a step gives
    (f(θ^ag_{t+1}) − f*)/Γ_t ≤ (f(θ^ag_t) − f*)/Γ_{t−1} + c/2·(‖θ_t − θ*‖² − ‖θ_{t+1} − θ*‖²) + t²σ²/(2s)
    in expectation, as L_t − α_tβ ≥ s/t. The sum, at the best s, is
    2βD²/(T(T + 1)) + 2Dσ·√((2T + 1)/(6T(T + 1))).
    """
    bias = 2 * smoothness * reach**2 / (steps * (steps + 1))
    return bias + 2 * reach * math.sqrt(variance * (2 * steps + 1) / (6 * steps * (steps + 1)))


def repeated_step(
    *, reach: float, lipschitz: float, smoothness: float, noise: float, steps: int, population: int
) -> float:
    """η that minimises :func:`repeated_loss`, at most 1/(2β)."""
    spread, slope = _repeated(lipschitz, smoothness, noise=noise, steps=steps, population=population)
    best = reach * math.sqrt(spread / (slope * steps)) if slope else math.inf
    return min(best, 1 / (2 * smoothness)) if smoothness < math.inf else best


def repeated_loss(
    *, reach: float, lipschitz: float, smoothness: float, noise: float, steps: int, population: int
) -> float:
    """Excess population loss of gradient descent on the same n clients (Lemmas B.4 and B.5).

    D²/(2ηT) + η(L² + σ²)/2 + ηTL²/n. Where the loss is β-smooth and η ≤ 1/(2β), the descent lemma gives
    3D²/(4ηT) + ησ² in place of the first two, the mean being that of θ_0 … θ_{T−1}.
    """
    eta = repeated_step(
        reach=reach,
        lipschitz=lipschitz,
        smoothness=smoothness,
        noise=noise,
        steps=steps,
        population=population,
    )
    spread, slope = _repeated(lipschitz, smoothness, noise=noise, steps=steps, population=population)
    return spread * reach**2 / (eta * steps) + slope * eta


def _repeated(
    lipschitz: float, smoothness: float, *, noise: float, steps: int, population: int
) -> tuple[float, float]:
    """Factors of D²/(ηT) and of η."""
    unstable = lipschitz**2 * steps / population
    if smoothness == math.inf:
        return 0.5, (lipschitz**2 + noise) / 2 + unstable
    return 0.75, noise + unstable


def last_iterate_scale(*, reach: float, second_moment: float) -> float:
    """D/G of η_t = D/(G√t)."""
    return reach / math.sqrt(second_moment)


def last_iterate_loss(*, reach: float, second_moment: float, steps: int) -> float:
    """2DG(2 + log T)/√T with η_t = D/(G√t) (Shamir and Zhang 2013; Theorems 4.3.1 and 5.4.3 of the thesis).

    There D is the diameter of the domain. It holds with the distance R = ``reach`` from the start to the
    farthest point in place of D, with some room, although iterates may be D ≤ 2R from one another: their
    proof gives, at R = G = 1 and with S the sum over k < T of (2 + 1/2)·(√T − √(T − k − 1))/(k(k + 1))
    or less, 3/√T + S ≤ (3 + 1.5·(H + 1 + H/T))/√T, H = 1 + 1/2 + … + 1/(T − 1), as √T − √(T − j) is at most
    j(1 + j/T)/(2√T). That is 1.05 times smaller than the bound for T ≥ 100; for less T a test adds up the
    terms, with the length of the path between two iterates where that is less than 2R.
    """
    return 2 * reach * math.sqrt(second_moment / steps) * (2 + math.log(steps))


def random_cohort(*, population: int, expected: float) -> tuple[float, float]:
    """P[K > 0] and E[expected/K; K > 0] for K ~ Bin(n, expected/n) clients who sample themselves.

    A step without reports changes nothing. So the estimate, 0 in such a step, has the mean P[K > 0]·∇F, and
    the noise of the mean of K reports is E[1/K; K > 0] times that of one report. The bound on the excess loss
    is their ratio, or 1/P[K > 0] if that is more, times that of cohorts of exactly the expected size.
    """
    rate = expected / population
    width = 12 * math.sqrt(expected) + 40  # what is left out has less probability than a float can add to 1
    sizes = np.arange(max(1, math.floor(expected - width)), min(population, math.ceil(expected + width)) + 1)
    masses = stats.binom.pmf(sizes, population, rate)
    return -math.expm1(population * math.log1p(-rate)) if rate < 1 else 1.0, float(
        (masses * expected / sizes).sum()
    )


def expected_bits(*, bits: int, rate: float, samples: int) -> float:
    """(k/n)·s·b: what a client sends in a step, in expectation over the draw of clients (Theorem 4.3.1)."""
    return rate * samples * bits


def histogram_bits(*, bits: int, rate: float, samples: int) -> float:
    """(k/n)·min{s·(log₂e + log₂((s + 2^b − 1)/s)), s·b}: a client's s reports as counts of 2^b kinds.

    The order of a client's own reports says nothing, and of C(s + 2^b − 1, s) histograms one is named
    (thesis, Section 4.3.1.2, after Mayekar and Tyagi 2020). It pays where s is several times 2^b.
    """
    kinds = bits + math.log2(1 + (samples - 1) * 2.0**-bits)  # log₂(s + 2^b − 1), of any b
    return rate * samples * min(math.log2(math.e) + kinds - math.log2(samples), bits)
