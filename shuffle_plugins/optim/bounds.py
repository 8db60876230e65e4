"""What the theorems promise, with their constants: excess loss as a function of steps and noise.

``reach`` is an upper bound on the distance from the start to the optimum, at most the diameter D of the
domain. ``lipschitz`` is L. ``noise`` is the variance E‖ĝ − ∇‖² that privacy adds to one step's mean gradient.
``population`` is n, the number of clients.
"""

from __future__ import annotations

import math


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
    """2DG(2 + log T)/√T (Shamir and Zhang 2013; Theorem 4.3.1 of the thesis)."""
    return 2 * reach * math.sqrt(second_moment / steps) * (2 + math.log(steps))
