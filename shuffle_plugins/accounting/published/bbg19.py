r"""Balle, Bell, Gascón, Nissim 2019, "The Privacy Blanket of the Shuffle Model" (CRYPTO 2019).

One randomizer for all clients; replace-one neighbours. Let ω be the part that every R_x shares, γ its mass,
W ~ ω/γ. With independent copies of the *privacy amplification variable*

    L = γ·(R_x(W) − e^ε·R_x'(W))/ω(W),        E[L] = 1 − e^ε,

and M ~ Bin(n, γ), the shuffle's hockey-stick divergence is at most E[(L_1 + … + L_M)₊]/(γ·n) (Lemma 5.3).
The paper bounds it by Hoeffding's or by Bennett's inequality from a few numbers about L. Evaluating it
exactly is what :mod:`~shuffle_plugins.accounting.pairs.slots` does, for a randomizer's own blanket or the
worst one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.core import checks

_LARGEST_LOCAL_EPSILON = 100.0  # e^3ε0 still fits a double
_CERTIFY = 1e-10  # relative step past a root, to where the inequality holds in floating point too
_SMALL = 1e-2  # below it a series keeps the digits that (1 + u)·log(1 + u) − u cancels
_SMALLEST = 1e-290  # below it expm1 of a growth would be subnormal

VariableAt = Callable[[float], "AmplificationVariable"]
Inequality = Callable[["AmplificationVariable", int], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class AmplificationVariable:
    """What the two inequalities need to know of L at one ε.

    Attributes:
        blanket: γ in (0, 1], or less than the blanket's mass: a part of a blanket is one too.
        deficit: −E[L] = e^ε − 1 ≥ 0.
        largest: bound on L, positive.
        spread: bound on max L − min L.
        second_moment: bound on E[L²].
    """

    blanket: float
    deficit: float
    largest: float
    spread: float
    second_moment: float


def generic_variable(epsilon: float, *, local_epsilon: float) -> AmplificationVariable:
    r"""L of any ε0-LDP randomizer (Lemma 5.5): γ ≥ e^−ε0, and at most 1 where more is worse.

    L ≤ e^ε0(1 − e^(ε−2ε0)), range (e^ε + 1)(e^ε0 − e^−ε0), E[L²] ≤ e^ε0(e^2ε + 1) − 2e^(ε−3ε0).

    Args:
        epsilon: ε in [0, ε0), nats.
        local_epsilon: ε0 in (0, 100], nats.
    """
    _check_point(epsilon, local_epsilon)
    e0, e = math.exp(local_epsilon), math.exp(epsilon)
    return AmplificationVariable(
        blanket=1 / e0,
        deficit=math.expm1(epsilon),
        largest=e0 * -math.expm1(epsilon - 2 * local_epsilon),
        spread=(e + 1) * 2 * math.sinh(local_epsilon),
        second_moment=e0 * (e**2 + 1) - 2 * math.exp(epsilon - 3 * local_epsilon),
    )


def k_ary_response_variable(
    epsilon: float, *, local_epsilon: float, categories: int
) -> AmplificationVariable:
    r"""L of K-ary randomized response, exactly: γ(1 − e^ε) + (1 − γ)K·{1, −e^ε, 0}, γ = K/(e^ε0 + K − 1).

    Args:
        epsilon, local_epsilon: as of :func:`generic_variable`.
    """
    _check_point(epsilon, local_epsilon)
    checks.whole("categories", categories, at_least=2)
    e, size = math.exp(epsilon), math.exp(local_epsilon) + categories - 1
    blanket, deficit = categories / size, math.expm1(epsilon)
    telling = math.expm1(local_epsilon) / size * categories
    return AmplificationVariable(
        blanket=blanket,
        deficit=deficit,
        largest=telling - blanket * deficit,
        spread=telling * (e + 1),
        second_moment=blanket * (2 - blanket) * deficit**2 + telling**2 / categories * (e**2 + 1),
    )


def laplace_variable(epsilon: float, *, local_epsilon: float) -> AmplificationVariable:
    r"""L of the Laplace mechanism with scale 1/ε0 on [0, 1], at the records 0 and 1: γ = e^{−ε0/2}.

    Arguments are those of :func:`generic_variable`.
    """
    _check_point(epsilon, local_epsilon)
    e, half = math.exp(epsilon), math.exp(local_epsilon / 2)
    squares = (2 * half + half**-2) / 3
    products = 2 / half - half**-2
    return AmplificationVariable(
        blanket=1 / half,
        deficit=math.expm1(epsilon),
        largest=half * -math.expm1(epsilon - local_epsilon),
        spread=(e + 1) * 2 * math.sinh(local_epsilon / 2),
        second_moment=(e**2 + 1) * squares - 2 * e * products,
    )


def hoeffding(variable: AmplificationVariable, cohort: int) -> float:
    r"""log of a bound on δ by Hoeffding's inequality, b²/(4γna)·(1 − γ(1 − e^{−2a²/b²}))^n.

    a is the deficit, b the spread; infinite at ε = 0.

    Args:
        variable: L at some ε.
    """
    if variable.deficit == 0:
        return math.inf
    square = (variable.deficit / variable.spread) ** 2
    log_factor = 2 * math.log(variable.spread) - math.log(4 * variable.deficit)
    log_power = cohort * math.log1p(variable.blanket * math.expm1(-2 * square))
    return log_factor + log_power - math.log(variable.blanket * cohort)


def bennett(variable: AmplificationVariable, cohort: int) -> float:
    r"""log of a bound on δ by Bennett's inequality, b/(γn·log(1 + u))·((1 − γ + γe^−κ)^n − (1 − γ)^n).

    b is the largest L, c the second moment, u = ab/c, κ = (c/b²)((1 + u)log(1 + u) − u): Chernoff's bound on
    P[ΣL ≥ t], integrated over t ≥ 0 at the exponent that is best for t = 0, and averaged over M. Infinite at
    ε = 0.

    Args:
        variable: L at some ε.
    """
    if variable.deficit == 0:
        return math.inf
    b, c = variable.largest, variable.second_moment
    u = variable.deficit * b / c
    rate = c / b**2 * _bennett_phi(u)
    log_factor = math.log(b) - math.log(math.log1p(u)) - math.log(variable.blanket * cohort)
    log_some = cohort * math.log1p(variable.blanket * math.expm1(-rate))
    if variable.blanket == 1:
        return log_factor + log_some
    # less M = 0, which contributes nothing: the ratio of the two powers is (1 + γe^−κ/(1 − γ))^n
    log_odds = math.log(variable.blanket) - rate - math.log1p(-variable.blanket)
    growth = cohort * math.log1p(math.exp(log_odds))
    share = math.log(-math.expm1(-growth)) if growth > _SMALLEST else math.log(cohort) + log_odds
    return log_factor + log_some + share


def blanket_bound(
    *,
    inequality: Inequality,
    variable_at: VariableAt,
    local_epsilon: float,
    cohort: int,
    delta: float,
) -> float:
    """ε of one shuffle: the smallest at which an inequality's bound on δ is at most δ, or ε0.

    For every ε0-LDP randomizer Bennett's is 3.6 to 5 times the binary blanket pair (ε0 = 0.5…2,
    n = 10⁴…10⁶) and gives nothing where γn = e^−ε0·n is small; Hoeffding's is better at small ε0 and useless
    at large. For 10-ary response and for Laplace's mechanism Bennett's is 12 to 23 % above their own exact
    blanket (ε0 = 0.5…4, n = 10⁴…10⁶).

    Args:
        inequality: :func:`hoeffding` or :func:`bennett`.
        variable_at: gives L as a function of ε in [0, ε0).
        local_epsilon: ε0 in (0, 100], nats.

    Returns:
        ε in nats for replace-one neighbours, at most ε0.
    """
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)
    _check_point(0.0, local_epsilon)
    largest = local_epsilon * (1 - 1e-9)

    def excess(epsilon: float) -> float:
        found = inequality(variable_at(epsilon), cohort) - math.log(delta)
        return min(max(found, -1e6), 1e6)

    if excess(largest) > 0:
        return local_epsilon
    smallest = local_epsilon * 1e-12
    if excess(smallest) <= 0:
        return smallest
    root = zero_between(excess, smallest, largest, xtol=1e-13 * local_epsilon, rtol=1e-12)
    step = _CERTIFY
    while excess(min(root * (1 + step), largest)) > 0:
        step *= 8
    return min(root * (1 + step), largest)


def _bennett_phi(u: float) -> float:
    """(1 + u)·log(1 + u) − u, at least as a bound from below."""
    if u < _SMALL:
        return u**2 / 2 - u**3 / 6 + u**4 / 12 - u**5 / 20
    return (1 + u) * math.log1p(u) - u


def _check_point(epsilon: float, local_epsilon: float) -> None:
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    if not 0 <= epsilon < local_epsilon:
        raise ValueError(f"epsilon must be in [0, local_epsilon), got {epsilon!r}")
