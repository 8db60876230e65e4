"""Errors to compare a plan with: without a shuffler, and with a curator whom everybody trusts."""

from __future__ import annotations

import math

from scipy import special

from shuffle_plugins.accounting import zero_between

_TINY = 1e-300  # in place of a δ that underflows, so that it has a logarithm


def gaussian_mse(*, target_epsilon: float, delta: float, sensitivity: float, dim: int) -> float:
    r"""Mean squared error d·σ² of the analytic Gaussian mechanism, exact to twelve digits.

    σ is the least with :math:`Φ(\frac{Δ}{2σ} - \frac{εσ}{Δ}) - e^{ε} Φ(-\frac{Δ}{2σ} - \frac{εσ}{Δ}) \le δ`
    (Balle and Wang 2018, Theorem 8).

    Args:
        target_epsilon: ε > 0.
        delta: δ in (0, 1).
        sensitivity: Δ, ℓ2 distance between the means of neighbouring datasets.
        dim: d, length of a client's vector.
    """

    def excess(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)  # σ/Δ
        near, far = 0.5 / ratio - target_epsilon * ratio, -0.5 / ratio - target_epsilon * ratio
        first, second = float(special.log_ndtr(near)), target_epsilon + float(special.log_ndtr(far))
        spent = -math.exp(first) * math.expm1(min(second - first, 0.0))
        return math.log(max(spent, _TINY) / delta)

    widest = math.log(math.sqrt(2 * math.log(2.5 / delta)) / target_epsilon + 2)
    narrowest = -0.5 * math.log(target_epsilon + 60 * (1 + math.log(1 / delta))) - 3
    root = zero_between(excess, narrowest, widest + 1, xtol=1e-13)
    return dim * (sensitivity * math.exp(root)) ** 2
