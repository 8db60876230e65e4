r"""How much Gaussian noise (ε0, δ0) takes: the analytic calibration. Torch-free.

Balle, Wang 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 8: noise N(0, σ²) on
records at distance Δ is (ε, δ)-private if and only if
:math:`Φ(\frac{Δ}{2σ} - \frac{εσ}{Δ}) - e^ε Φ(-\frac{Δ}{2σ} - \frac{εσ}{Δ}) \le δ`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from shuffle_plugins.accounting import zero_between
from shuffle_plugins.core import checks

_MARGIN = 1e-9  # relative; covers rounding in float64, so that δ0 holds
_SHORT = 0.01  # steps of the Mills ratio, where a difference of two would have lost five digits
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # over so short a step exact to the last digit


def check_local_delta(local_delta: float) -> float:
    """Return δ0 as a float.

    Raises:
        ValueError: unless it is a number in [1e-30, 0.1].
    """
    return checks.number("local_delta", local_delta, at_least=1e-30, at_most=0.1)


def gaussian_delta(ratio: float, *, epsilon: float) -> float:
    """The least δ of noise whose standard deviation is ``ratio`` times the distance of the records.

    With the step μ = 1/ratio and z = ε·ratio − μ/2 the condition above reads φ(z)·(M(z) − M(z + μ)), M the
    Mills ratio. Where μ is small the two Φ agree in nearly all digits, so the difference is taken as the
    integral of M' = z·M − 1 there.
    """
    half, shift = 0.5 / ratio, epsilon * ratio
    if half < _SHORT / 2:
        places = shift - half + half * (1 + _NODES)
        slopes = 1 - places * math.sqrt(math.pi / 2) * special.erfcx(places / math.sqrt(2))
        density = math.exp(-0.5 * (shift - half) ** 2) / math.sqrt(2 * math.pi)
        return density * half * float(_WEIGHTS @ slopes)
    log_first = float(special.log_ndtr(half - shift))
    log_second = epsilon + float(special.log_ndtr(-half - shift))
    return math.exp(log_first) * -math.expm1(log_second - log_first)


@lru_cache(maxsize=256)
def noise_ratio(*, local_epsilon: float, local_delta: float) -> float:
    """Standard deviation of the least noise that is (ε0, δ0)-private, per unit of distance; rounded up.

    Raises:
        ValueError: if ε0 or δ0 is out of range.
    """
    epsilon, delta = checks.local_epsilon(local_epsilon), check_local_delta(local_delta)

    def excess(log_ratio: float) -> float:
        found = gaussian_delta(math.exp(log_ratio), epsilon=epsilon)
        return math.log(max(found, 1e-300) / delta)

    return math.exp(zero_between(excess, -8.0, 72.0, xtol=1e-13, rtol=1e-13)) * (1 + _MARGIN)
