import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference

from shuffle_plugins.accounting.composition.renyi import delta_from_rdp, epsilon_from_rdp

ORDERS = np.concatenate([np.linspace(1.1, 10, 90), np.geomspace(10.5, 2000, 60)])


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_epsilon_agrees_with_an_independent_implementation(sigma: float, delta: float) -> None:
    rdp = ORDERS / (2 * sigma**2)
    expected, order = reference.compute_epsilon(ORDERS, rdp, delta)
    epsilon, best = epsilon_from_rdp(orders=ORDERS, rdp=rdp, delta=delta)
    assert expected <= epsilon <= expected * (1 + 1e-12)
    assert best == order


def test_both_conversions_are_rounded_up_and_by_little() -> None:
    """One order at a time, to forty digits: what is said is above, by a few units of roundoff."""
    generator = np.random.default_rng(11)
    with mpmath.workdps(40):
        for _ in range(200):
            order, rho = 1 + math.exp(generator.uniform(-4, 6)), math.exp(generator.uniform(-9, 2))
            alpha, exact_rho = mpmath.mpf(order), mpmath.mpf(rho)
            delta = math.exp(generator.uniform(-40, -1))
            exact = exact_rho + mpmath.log(1 - 1 / alpha)
            exact -= (mpmath.log(mpmath.mpf(delta)) + mpmath.log(alpha)) / (alpha - 1)
            found = epsilon_from_rdp(orders=[order], rdp=[rho], delta=delta)[0]
            scale = rho + abs(math.log1p(-1 / order)) + abs(math.log(delta) + math.log(order)) / (order - 1)
            assert max(exact, 0) <= found <= max(exact + 20 * 2.0**-52 * scale, 0)
            epsilon = rho + math.exp(generator.uniform(-9, 2))
            log_exact = (alpha - 1) * (exact_rho - mpmath.mpf(epsilon)) + alpha * mpmath.log(1 - 1 / alpha)
            log_exact -= mpmath.log(alpha - 1)
            found = delta_from_rdp(orders=[order], rdp=[rho], epsilon=epsilon)[0]
            scale = (order - 1) * (rho + epsilon) + abs(math.log(order - 1)) + 1
            scale -= order * math.log1p(-1 / order)
            if found >= 1e-300:
                log_found = mpmath.log(mpmath.mpf(found))
                assert min(log_exact, 0) <= log_found <= min(log_exact + 20 * 2.0**-52 * scale, 0)


def test_infinite_divergences_and_none() -> None:
    assert epsilon_from_rdp(orders=[2.0], rdp=[0.0], delta=0.9)[0] == 0.0
    epsilon, order = epsilon_from_rdp(orders=[2.0, 3.0], rdp=[math.inf, 1.0], delta=1e-5)
    assert math.isfinite(epsilon)
    assert order == 3.0
    assert epsilon_from_rdp(orders=[2.0, 3.0], rdp=[math.inf, math.inf], delta=1e-5)[0] == math.inf
    assert delta_from_rdp(orders=[2.0, 3.0], rdp=[math.inf, math.inf], epsilon=1.0)[0] == 1.0
