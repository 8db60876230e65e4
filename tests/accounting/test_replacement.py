"""What a stand-in's distance is charged, against the inequalities of the proofs, for a law in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from shuffle_plugins.accounting.accountant import _Replacement


class Exponential:
    """A composition with δ(ε) = e^(−ε)/2."""

    def epsilon(self, delta: float) -> float:
        return max(-math.log(2 * delta), 0.0)

    def delta(self, epsilon: float) -> float:
        return math.exp(-epsilon) / 2


@dataclass
class Near:
    """A round whose stand-in is near in total variation alone."""

    replacement_distance: float
    CHARGED_BY_RATIO: ClassVar[bool] = False


@dataclass
class Close:
    """A round within e^η of its stand-in, but for a tail, whose mass it is asked for."""

    ratio: float
    asked: list[float] = field(default_factory=list)
    CHARGED_BY_RATIO: ClassVar[bool] = True

    def replacement_ratio(self, log_tail: float) -> float:
        self.asked.append(log_tail)
        return self.ratio


def replacement(*history: tuple[Any, int], distance: float) -> _Replacement:
    return _Replacement(history=tuple(history), distance=distance)


@pytest.mark.parametrize("distance", [1e-12, 1e-9, 1e-6, 1e-5])
def test_a_distance_costs_one_and_e_to_epsilon_times_as_much(distance: float) -> None:
    found = replacement((Near(distance / 4), 4), distance=distance)
    assert found.charge(1.5) == pytest.approx((1 + math.exp(1.5)) * distance)
    assert found.charge(1e6) == pytest.approx(math.exp(700.0) * distance)
    for delta in (0.3, 0.02):
        epsilon = found.epsilon(Exponential(), delta)
        charged = math.exp(-epsilon) / 2 + (1 + math.exp(epsilon)) * distance
        assert charged <= delta
        less = epsilon * (1 - 1e-4)
        assert math.exp(-less) / 2 + (1 + math.exp(less)) * distance > delta
        assert found.delta(Exponential().delta, epsilon) == pytest.approx(charged, rel=1e-8, abs=0)
        assert found.delta(Exponential().delta, epsilon) >= charged


@pytest.mark.parametrize("others", [0.0, 1e-9])
def test_where_likelihoods_are_close_a_ratio_is_charged_to_epsilon_instead(others: float) -> None:
    delta, eta, steps = 1e-3, 0.01, 7
    close, near = Close(eta / steps), Near(others / 2)
    found = replacement((close, steps), (near, 2), distance=1e-4)  # far too much to be charged to δ
    assert replacement((Near(1e-4), 1), distance=1e-4).epsilon(Exponential(), delta) == math.inf
    epsilon = found.epsilon(Exponential(), delta)
    # e^η·(δ(ε − 2η) + tail + (1 + e^ε)·distance of those without a ratio), with a thousandth for the tail
    alone = epsilon - 2 * eta
    charged = math.exp(eta) * (math.exp(-alone) / 2 + delta / 1000 + (1 + math.exp(alone)) * others)
    assert delta * (1 - 1e-3) <= charged <= delta
    log_tail = close.asked[-1]
    assert steps * (1 + math.exp(alone)) * math.exp(log_tail) <= delta / 1000
    assert steps * (1 + math.exp(alone)) * math.exp(log_tail) >= 0.4 * delta / 1000
    at = found.delta(Exponential().delta, epsilon)
    own = math.exp(-epsilon) / 2
    tail = own / 1000
    set_aside = 1 + 1e-9  # of the composition's δ, and of all
    tail *= set_aside
    expected = math.exp(-alone) / 2 * set_aside + tail + (1 + math.exp(epsilon)) * others
    assert at == pytest.approx(math.exp(eta) * expected * set_aside, rel=1e-12, abs=0)
    assert steps * (1 + math.exp(epsilon)) * math.exp(close.asked[-1]) == pytest.approx(tail, rel=1e-8, abs=0)


def test_a_ratio_that_takes_all_of_epsilon_or_delta_is_of_no_use() -> None:
    for eta in (8.0, 800.0):
        found = replacement((Close(eta), 1), distance=1e-4)
        own = Exponential().delta(3.0)
        assert found.delta(Exponential().delta, 3.0) == pytest.approx(own + found.charge(3.0), rel=1e-8)
    assert replacement((Close(800.0), 1), distance=1e-4).epsilon(Exponential(), 1e-3) == math.inf
    assert replacement((Close(0.01), 1), (Near(1e-4), 1), distance=2e-4).epsilon(
        Exponential(), 1e-3
    ) == pytest.approx(math.inf)
