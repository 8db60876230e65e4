"""Privacy loss laws and their composition against independent routes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from brute_force import generic_delta
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, stats

from shuffle_plugins.accounting import ShuffleRound, pair_losses
from shuffle_plugins.accounting.composition import pld
from shuffle_plugins.accounting.composition.pld import LossComposition, LossHistory
from shuffle_plugins.accounting.composition.renyi import RenyiComposition, renyi_divergence
from shuffle_plugins.accounting.losses import (
    COARSE,
    FINE,
    LOSS_ERROR,
    MASS_ERROR,
    RATIO_ERROR,
    BoundKind,
    PrivacyLossDistribution,
    discounted,
    finite_losses,
    growth_of,
    log_mass_ratio,
    spread_to_grid,
    tighter,
)


@pytest.mark.parametrize("resolution", [FINE, COARSE])
@pytest.mark.parametrize(
    ("local_epsilon", "population", "cohort"),
    [
        (0.5, 300, 100),
        (1.0, 5_000, 5_000),
        (2.0, 100_000, 3_000),
        (4.0, 40_000, 40_000),
        (1.5, 60_000, 10_000),
    ],
)
def test_laws_bracket_the_exact_profile(resolution, local_epsilon, population, cohort) -> None:
    shuffle_round = ShuffleRound(local_epsilon=local_epsilon, population=population, cohort=cohort)
    laws = {
        kind: pair_losses(shuffle_round.dominating_pair(), kind=kind, resolution=resolution)
        for kind in ("upper", "lower")
    }
    for multiple in (0.0, 0.5, 1.0, 2.0, 3.5):
        epsilon = multiple * laws["upper"].deviation
        exact = generic_delta(
            local_epsilon=local_epsilon, population=population, cohort=cohort, epsilon=epsilon
        )
        above = LossComposition([laws["upper"]], [1]).delta(epsilon)
        below = LossComposition([laws["lower"]], [1]).delta(epsilon)
        assert below <= exact * (1 + 1e-9)
        assert above >= exact * (1 - 1e-9)
        scale = 0.006 if resolution is FINE else 0.04
        assert above - below <= scale * exact * (1 + multiple**2)


def test_powers_of_a_transform_are_off_by_no_more_than_is_charged() -> None:
    law = np.exp(-(np.linspace(-4, 6, 300) ** 2))
    spectrum = np.fft.rfft(law / law.sum(), n=1_000)[:60]
    for exponent in (1, 2, 3, 100, 3_001):
        exact = np.exp(exponent * np.log(spectrum.astype(np.clongdouble)))
        error = np.abs(pld._power(spectrum, exponent) - exact)
        assert np.all(error <= exponent * math.sqrt(5) * 2.0**-53 * np.abs(exact) + 1e-300)
    assert np.all(pld._power(np.zeros(3, dtype=np.complex128), 7) == 0)


@pytest.mark.parametrize("steps", [2, 3])
def test_small_compositions_bracket_the_product_of_outcomes(steps: int) -> None:
    shuffle_round = ShuffleRound(local_epsilon=1.0, population=4, cohort=3)
    law = pair_losses(shuffle_round.dominating_pair(), kind="upper")
    products = list(itertools.product(range(len(law.loss)), repeat=steps))
    index = np.array(products)
    p, q = law.p[index].prod(axis=1), law.q[index].prod(axis=1)
    lower_law = pair_losses(shuffle_round.dominating_pair(), kind="lower")
    for epsilon in (0.0, 0.2, 0.7, 1.3):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        above = LossComposition([law], [steps]).delta(epsilon)
        below = LossComposition([lower_law], [steps]).delta(epsilon)
        assert below <= exact + 1e-12
        assert above >= exact - 1e-12
        assert above == pytest.approx(exact, rel=0.01, abs=1e-9)


@pytest.mark.slow
def test_composition_agrees_with_dp_accounting() -> None:
    """Row 3 of the reference table by another library's transform, on the exact profile."""
    steps, delta, cell = 1200, 1e-5, 4e-4
    top = 0.25
    grid = np.arange(-round(top / cell), round(top / cell) + 1) * cell
    deltas = [
        max(0.0, generic_delta(local_epsilon=1.5, population=60_000, cohort=10_000, epsilon=x)) for x in grid
    ]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        cell, np.rint(grid / cell).astype(int), np.array(deltas)
    )
    composed = privacy_loss_distribution.PrivacyLossDistribution(pmf).self_compose(steps)
    theirs = composed.get_epsilon_for_delta(delta)
    shuffle_round = ShuffleRound(local_epsilon=1.5, population=60_000, cohort=10_000)
    ours = {
        kind: LossComposition([pair_losses(shuffle_round.dominating_pair(), kind=kind)], [steps]).epsilon(
            delta
        )
        for kind in ("upper", "lower")
    }
    assert ours["lower"] <= theirs * (1 + 1e-6)
    assert ours["upper"] == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("local_epsilon", "steps"), [(0.01, 10_000), (1.0, 500), (3.0, 2_000), (0.1, 10**6)])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-14])
def test_one_client_is_binary_response_composed(local_epsilon: float, steps: int, delta: float) -> None:
    """Nobody to hide among: the total loss is ε0·(2A − T), A binomial. Its ε runs from 0.1 to thousands."""
    heads = np.arange(steps + 1)
    law = stats.binom(steps, 1 / (1 + math.exp(-local_epsilon)))
    losses, masses = local_epsilon * (2.0 * heads - steps), law.pmf(heads)

    def exact_delta_at(epsilon: float) -> float:
        above = losses > epsilon
        return float((-masses[above] * np.expm1(epsilon - losses[above])).sum())

    shuffle_round = ShuffleRound(local_epsilon=local_epsilon, population=1, cohort=1)
    mixture = shuffle_round.dominating_pair()
    above, below = (
        LossComposition([pair_losses(mixture, kind=kind)], [steps]).epsilon(delta)
        for kind in ("upper", "lower")
    )
    assert exact_delta_at(above) <= delta * (1 + 1e-9)
    assert below == 0 or exact_delta_at(below) >= delta * (1 - 1e-9)
    assert above - below <= 0.02 * above + 1e-6


def test_delta_and_epsilon_are_inverse() -> None:
    law = pair_losses(
        ShuffleRound(local_epsilon=1.0, population=10_000, cohort=1_000).dominating_pair(), kind="upper"
    )
    for steps, delta in itertools.product((1, 2, 50, 10_000), (1e-3, 1e-6, 1e-12)):
        composition = LossComposition([law], [steps])
        epsilon = composition.epsilon(delta)
        assert composition.delta(epsilon) <= delta * (1 + 1e-6)
        assert composition.delta(0.99 * epsilon) > delta


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(1e-6, 1)), min_size=1, max_size=30), st.floats(1e-3, 0.3)
)
@settings(max_examples=60, deadline=None)
def test_spreading_keeps_masses_and_raises_every_hockey_stick(outcomes, cell: float) -> None:
    loss, q = (np.array(column) for column in zip(*outcomes, strict=True))
    first, spread = spread_to_grid(loss, q, cell=cell)
    points = (first + np.arange(len(spread))) * cell
    assert spread.sum() == pytest.approx(q.sum(), rel=1e-9)
    assert (spread * np.exp(points)).sum() == pytest.approx((q * np.exp(loss)).sum(), rel=1e-9)
    for epsilon in np.linspace(-2, 2, 11):
        before = np.maximum(q * np.exp(loss) - math.exp(epsilon) * q, 0).sum()
        after = np.maximum(spread * np.exp(points) - math.exp(epsilon) * spread, 0).sum()
        assert after >= before - 1e-9


def test_renyi_divergence_of_binary_response_at_real_orders() -> None:
    """One client, no sampling: the pair is binary randomized response itself."""
    law = pair_losses(ShuffleRound(local_epsilon=1.0, population=1, cohort=1).dominating_pair(), kind="upper")
    e = math.e
    orders = np.array([1.001, 1.5, 2.0, 7.3, 64.0, 500.0])
    p, q = np.array([e, 1]) / (e + 1), np.array([1, e]) / (e + 1)
    exact = [math.log((p**a * q ** (1 - a)).sum()) / (a - 1) for a in orders]
    np.testing.assert_allclose(renyi_divergence(law, orders), exact, rtol=1e-9)
    with pytest.raises(ValueError, match="above 1"):
        renyi_divergence(law, 1.0)


@pytest.mark.parametrize("steps", [1, 30, 10_000])
def test_renyi_route_is_never_below_the_loss_route(steps: int) -> None:
    """At δ = 1e-15 too, far below what an untilted transform resolves."""
    for cohort in (50, 400, 4_000):
        law = pair_losses(
            ShuffleRound(local_epsilon=1.0, population=4_000, cohort=cohort).dominating_pair(), kind="upper"
        )
        for delta in (1e-4, 1e-8, 1e-15):
            rdp = RenyiComposition([law], [steps])
            assert (
                0.7 * rdp.epsilon(delta)
                < LossComposition([law], [steps]).epsilon(delta)
                <= rdp.epsilon(delta)
            )
            assert rdp.delta(rdp.epsilon(delta)) == pytest.approx(delta, rel=0.05)


def test_mixed_kinds_are_refused() -> None:
    mixture = ShuffleRound(local_epsilon=1.0, population=10, cohort=5).dominating_pair()
    upper, lower = (pair_losses(mixture, kind=kind) for kind in ("upper", "lower"))
    with pytest.raises(ValueError, match="cannot be composed together"):
        LossComposition([upper, lower], [1, 1])
    for laws, steps in (([], []), ([upper], []), ([upper], [1, 1])):
        for composition in (LossComposition, RenyiComposition):
            with pytest.raises(ValueError, match="give every law its number of steps"):
                composition(laws, steps)
    for steps in ([0], [-1], [0.5]):
        with pytest.raises(ValueError, match="at least one step"):
            LossComposition([upper], steps)
    with pytest.raises(ValueError, match="upper laws"):
        RenyiComposition([upper, lower], [1, 1])


@pytest.mark.parametrize("distance", [1e-4, 0.02, 0.15, 0.9])
def test_a_discounted_law_is_below_all_pairs_that_are_so_near(distance: float) -> None:
    """Such a pair has at least δ(E) − (1 + E)·distance, 1 − E and 0; the law has the most of these."""
    generator = np.random.default_rng(8)
    p, q = generator.dirichlet(np.full(7, 0.7), size=2)
    law = finite_losses(None, p, q, missing=0.0, kind="lower", resolution=FINE, symmetric=False)
    found = discounted(law, distance)
    assert found.p.sum() == pytest.approx(1)
    assert found.q.sum() == pytest.approx(1)
    assert np.all(np.diff(found.loss) > 0)
    np.testing.assert_allclose(found.loss, np.log(found.p / found.q), rtol=1e-9, atol=1e-12)
    for bound in np.exp(np.linspace(-4, 4, 33)):
        for mine, first, second in ((found, p, q), (found.reversed(), q, p)):
            profile = np.maximum(mine.p - bound * mine.q, 0).sum()
            exact = np.maximum(first - bound * second, 0).sum()
            least = max(exact - (1 + bound) * distance, 1 - bound, 0)
            assert profile == pytest.approx(least, abs=1e-12)
    turned = found.reversed()
    np.testing.assert_allclose(turned.loss, np.log(turned.p / turned.q), rtol=1e-9, atol=1e-12)
    mean = turned.p @ turned.loss
    assert turned.deviation == pytest.approx(math.sqrt(turned.p @ (turned.loss - mean) ** 2))


def test_what_is_charged_for_rounding_is_what_rounding_takes() -> None:
    """Losses read off two masses are off by up to eight roundings, those given by sixteen of the largest."""
    unit = 2.0**-53
    charged = {"ratio": RATIO_ERROR, "loss": LOSS_ERROR, "mass": MASS_ERROR}
    assert charged == {"ratio": 8 * unit, "loss": 16 * unit, "mass": 2.0**13 * unit}
    generator = np.random.default_rng(5)
    p, q = generator.dirichlet(np.ones(400), size=2)
    with mpmath.workdps(40):
        worst = max(
            abs(mpmath.log(mpmath.mpf(a) / mpmath.mpf(b)) - mpmath.mpf(found))
            for a, b, found in zip(p.tolist(), q.tolist(), log_mass_ratio(p, q).tolist(), strict=True)
        )
    assert unit / 8 < worst < RATIO_ERROR
    loss = np.log(p / q)
    for known, expected in ((None, RATIO_ERROR), (loss, LOSS_ERROR * np.abs(loss).max())):
        law = finite_losses(known, p, q, missing=0.0, kind="upper", resolution=FINE, symmetric=False)
        assert (law.loss_error, law.mass_error) == (expected, MASS_ERROR)
    # So much is set aside wherever a δ enters or leaves.
    assert growth_of(1e-9) == growth_of(0.0) == 1.0
    assert growth_of(3e-9) == pytest.approx(math.exp(2e-9), rel=1e-13)
    assert growth_of(1e9) == pytest.approx(math.exp(700.0))


def test_a_pair_without_a_common_outcome_has_no_law() -> None:
    with pytest.raises(ArithmeticError, match="no outcome"):
        finite_losses(
            None, np.eye(2)[0], np.eye(2)[1], missing=1.0, kind="upper", resolution=FINE, symmetric=False
        )


def test_the_tighter_of_two_bounds_is_below_both_and_above_the_pair_that_both_bound() -> None:
    pair, more = [0.1, 0.2, 0.3, 0.4], [0.45, 0.55]

    def law(
        *parts: list[float], kind: BoundKind = "upper", symmetric: bool = True
    ) -> PrivacyLossDistribution:
        p, q = np.ones(1), np.ones(1)
        for part in parts:
            p, q = np.outer(p, part).ravel(), np.outer(q, part[::-1]).ravel()
        return finite_losses(None, p, q, missing=0.0, kind=kind, resolution=FINE, symmetric=symmetric)

    def profile(one: PrivacyLossDistribution, bound: float) -> float:
        return one.missing + float(np.maximum(one.p - bound * one.q, 0).sum())

    # What is composed with something more is a bound on the pair alone.
    first, second = law(pair, more), law(pair, [0.02, 0.97, 0.01])
    found = tighter(first, second)
    np.testing.assert_allclose(found.loss, np.log(found.p / found.q), rtol=1e-9, atol=1e-12)
    gains = {profile(first, bound) > profile(second, bound) for bound in (1.1, 2.0, 4.5, 6.0)}
    assert gains == {True, False}, "each of the two must be the smaller one somewhere"
    for lacks in ((0.0, 0.0), (0.02, 0.005), (0.001, 0.03)):
        one, other = (
            dataclasses.replace(each, p=each.p * (1 - lack), q=each.q * (1 - lack), missing=lack)
            for each, lack in zip((first, second), lacks, strict=True)
        )
        found = tighter(one, other)
        for bound in np.exp(np.linspace(-3, 3, 41)):
            assert profile(law(pair), bound) <= profile(found, bound) * (1 + 1e-9)
            if bound >= 1 or not any(lacks):  # left of 1 what both leave out is counted twice: that is above
                assert profile(found, bound) <= min(profile(one, bound), profile(other, bound)) + 1e-12
    for wrong in (law(pair, kind="lower"), law(pair, symmetric=False)):
        with pytest.raises(ValueError, match="only symmetric distributions that bound from above"):
            tighter(first, wrong)


@pytest.mark.parametrize("kind", ["upper", "lower"])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-25])
def test_an_epsilon_next_to_the_largest_loss_is_known_from_its_mass(delta: float, kind: BoundKind) -> None:
    """Of T binary responses ε is T·ε0 + log(1 − δ/p^T) as long as only the largest loss exceeds it."""
    level, steps = 3.0, 4
    pair = ShuffleRound(local_epsilon=level, population=1, cohort=1).dominating_pair()
    composed = LossComposition([pair_losses(pair, kind=kind)], [steps])
    most, found = steps * level, composed.epsilon(delta)
    exact = most + math.log1p(-delta * (1 + math.exp(-level)) ** steps)
    assert found == pytest.approx(exact, rel=1e-4)
    assert exact * (1 - 1e-12) <= found <= most * (1 + 1e-9) if kind == "upper" else found <= exact
    assert composed.delta(most * (1 + 1e-11)) == 0.0


def test_a_composition_answers_no_more_once_its_history_went_on() -> None:
    """What is kept is for the last one: an answer of an earlier one would mix two histories."""
    history = LossHistory(
        lambda level: pair_losses(
            ShuffleRound(local_epsilon=level, population=50, cohort=50).dominating_pair(), kind="upper"
        )
    )
    earlier = LossComposition([1.0, 0.5], [3, 30], history=history)
    later = LossComposition([1.0, 0.5], [3, 31], history=history)
    assert later.epsilon(1e-5) > 0
    for ask in (lambda: earlier.epsilon(1e-5), lambda: earlier.delta(0.3)):
        with pytest.raises(RuntimeError, match="the history went on"):
            ask()


def test_a_history_that_was_replaced_is_composed_anew() -> None:
    """What two histories have in common is kept, and nothing else, wherever they begin to differ."""

    def law(level: float) -> PrivacyLossDistribution:
        return pair_losses(
            ShuffleRound(local_epsilon=level, population=50, cohort=50).dominating_pair(), kind="upper"
        )

    kept = LossHistory(law)
    for levels, steps in (
        ([1.0, 0.5, 0.25], [3, 5, 7]),
        ([1.0, 0.5], [3, 5]),
        ([1.0, 0.5], [3, 6]),
        ([1.0, 0.5, 0.5, 0.25], [3, 6, 2, 9]),
        ([2.0, 0.5, 0.25, 1.0], [3, 6, 2, 9]),
        ([2.0], [3]),
    ):
        found, anew = (LossComposition(levels, steps, history=each) for each in (kept, LossHistory(law)))
        assert found.epsilon(1e-5) == pytest.approx(anew.epsilon(1e-5), rel=1e-12)


def test_many_laws_have_the_transform_that_they_have_one_by_one() -> None:
    chances = np.random.default_rng(1).uniform(0.1, 0.9, size=(200, 1))
    weights = stats.binom.pmf(np.arange(12), 11, chances)
    weights /= weights.sum(axis=1, keepdims=True)
    steps = np.where(np.arange(200) % 3, 1, 4)
    exact = np.exp(steps @ np.log(fft.fft(weights.astype(np.clongdouble), n=1024)[:, :513]))
    found = pld.Spectrum.of_nothing(1024)
    for weight, step in zip(weights, steps.tolist(), strict=True):
        found = found.including(weight, first=5, step=step)
    assert found.shift == 5 * steps.sum()
    assert 0 < len(found.left) < 513
    gone = np.setdiff1d(np.arange(513), found.left)
    assert abs(found.product - exact[found.left]).sum() + abs(exact[gone]).sum() <= found.noise() < 1e-9


def two_outcomes(kind: BoundKind, **errors: float) -> PrivacyLossDistribution:
    """Two outcomes of unequal losses, as exact as if nothing were rounded but for what is given."""
    law = finite_losses(
        None,
        np.array([0.6, 0.4]),
        np.array([0.35, 0.65]),
        missing=0.0,
        kind=kind,
        resolution=FINE,
        symmetric=False,
        mass_error=0.0,
        loss_error=0.0,
    )
    return dataclasses.replace(law, **errors)


def compositions(law: PrivacyLossDistribution, steps: int) -> list[LossComposition]:
    """At once, where the outcomes of few steps are listed, and as a history that grows."""
    found = [LossComposition([law], [steps])]
    if steps > 1:
        found.append(LossComposition([0, 1], [steps - 1, 1], history=LossHistory(lambda _: law)))
    return found


@pytest.mark.parametrize("steps", [1, 3, 60])
@pytest.mark.parametrize("kind", ["upper", "lower"])
def test_what_losses_and_masses_may_be_off_is_charged_for_every_step(kind: BoundKind, steps: int) -> None:
    plain = two_outcomes(kind)
    wrong = dataclasses.replace(plain, loss_error=0.004, mass_error=0.003)
    upper = kind == "upper"
    moved, growth = 0.004 * steps, math.exp(0.003 * steps - 1e-9)
    pairs = list(zip(compositions(plain, steps), compositions(wrong, steps), strict=True))
    for exact, charged in pairs:
        close = {"rel": 1e-9 if steps == 1 else 2e-3, "abs": 1e-12}
        for epsilon in (0.1, 0.35, 2.0):
            if upper:
                expected = exact.delta(max(epsilon - moved, 0.0)) * growth
            else:
                expected = exact.delta(epsilon + moved) / growth
            assert charged.delta(epsilon) == pytest.approx(min(expected, 1.0), **close)
        if upper:  # at ε = 0 there is nothing to the left to begin with
            at_zero = (exact.delta(0.0) + moved) * growth
            assert charged.delta(0.0) == pytest.approx(min(at_zero, 1.0), **close)
        for delta in (0.02, 1e-3, 1e-7):
            if upper:
                expected = exact.epsilon(delta / growth) + moved
            else:
                expected = max(exact.epsilon(delta * growth) - moved, 0.0)
            assert charged.epsilon(delta) == pytest.approx(expected, **close)
    if not upper:
        assert LossComposition([wrong], [steps]).epsilon(0.9999 / growth + 1e-3) == 0.0


@pytest.mark.parametrize("steps", [1, 3, 60])
def test_what_laws_leave_out_is_charged_to_delta_from_above_alone(steps: int) -> None:
    for kind in ("upper", "lower"):
        plain = two_outcomes(kind)
        lacking = dataclasses.replace(plain, missing=1e-4)
        pairs = zip(compositions(plain, steps), compositions(lacking, steps), strict=True)
        for exact, charged in pairs:
            close = {"rel": 1e-9 if steps == 1 else 2e-3, "abs": 1e-12}
            more = 1e-4 * steps if kind == "upper" else 0.0
            for epsilon in (0.0, 0.3, 2.0):
                assert charged.delta(epsilon) == pytest.approx(exact.delta(epsilon) + more, **close)
            for delta in (0.02, 7e-3):
                assert charged.epsilon(delta) == pytest.approx(exact.epsilon(delta - more), **close)
            if kind == "upper":
                assert charged.epsilon(0.99 * more) == math.inf
                assert math.isfinite(charged.epsilon(1.5 * more))


def test_laws_without_a_loss_cost_what_they_leave_out_and_may_be_off() -> None:
    law = PrivacyLossDistribution(
        loss=np.zeros(1),
        p=np.ones(1),
        q=np.ones(1),
        missing=1e-4,
        deviation=0.0,
        kind="upper",
        loss_error=1e-3,
        mass_error=0.0,
    )
    composed = LossComposition([law], [30])
    assert composed.epsilon(2.9e-3) == composed.epsilon(3e-3 * (1 - 1e-9)) == math.inf
    assert 0.03 <= composed.epsilon(3.1e-3) <= 0.06 * (1 + 1e-9)
    for epsilon in (0.0, 0.01, 0.02):
        least = -math.expm1(epsilon - 0.03) + 3e-3
        assert least * (1 - 1e-9) <= composed.delta(epsilon) <= least + 0.03 * (1 + 1e-9)
    assert composed.delta(0.031) == pytest.approx(3e-3)
    below = LossComposition([dataclasses.replace(law, kind="lower")], [30])
    assert below.epsilon(1e-9) == below.delta(0.0) == 0.0


@pytest.mark.parametrize("kind", ["upper", "lower"])
def test_a_window_reads_its_masses_exactly_and_charges_what_it_lacks(kind: BoundKind) -> None:
    generator = np.random.default_rng(3)
    cell, tilt, centre, log_scale = 0.05, 1.7, 0.32, -2.5
    loss = cell * np.arange(-12, 20)
    mass = generator.dirichlet(np.full(len(loss), 0.8))
    lacks = {"noise": 3e-3, "wrapped": 2e-3, "farthest": 0.7}
    sign = 1 if kind == "upper" else -1
    p = mass * np.exp(log_scale - tilt * (loss - centre))
    for errors in ({"noise": 0.0, "wrapped": 0.0, "farthest": 0.7}, lacks):
        window = pld.Window(loss, mass, tilt, centre, log_scale, **errors, sign=sign)
        epsilons = np.concatenate([loss[13:], loss[13:-1] + 0.3 * cell, [loss[-1] + 0.01]])
        found = window.deltas(epsilons)
        for epsilon, value in zip(epsilons.tolist(), found.tolist(), strict=True):
            above = loss > epsilon
            exact = float((-p[above] * np.expm1(epsilon - loss[above])).sum())
            reach = max(-math.expm1(epsilon - loss[-1]), 0.0)
            slack = (errors["noise"] * reach + errors["wrapped"] * 0.7) * math.exp(
                log_scale - tilt * (epsilon - centre)
            )
            assert value == pytest.approx(max(exact + sign * slack, 0.0), rel=1e-9, abs=1e-15)
            assert sign * (value - exact - sign * slack) >= -1e-13 * exact or value == 0
        for delta in (0.5, 0.9):
            wanted = delta * float(window.deltas(loss[14:15])[0])
            epsilon = window.epsilon(wanted)
            there = float(window.deltas(np.array([epsilon]))[0])
            assert sign * (wanted - there) >= -1e-12 * wanted
            assert there == pytest.approx(wanted, rel=1e-6 if errors["noise"] == 0 else 0.05)


def test_the_noise_of_a_transform_is_what_the_proof_says() -> None:
    """Section 5 of the proofs, frequency by frequency; of many steps most transforms have died out."""
    size, unit = 16, 2.0**-53
    rounding = 4 * (math.log2(size) + 4) * unit
    laws = [(np.array([0.5, 0.5]), 40), (np.array([0.25, 0.5, 0.25]), 30), (np.array([1.0]), 7)]
    for more in (0, 2_000):
        spectrum = pld.Spectrum.of_nothing(size)
        for weight, step in laws:
            spectrum = spectrum.including(weight, first=-1, step=step + more)
        assert spectrum.shift == -sum(step + more for _, step in laws)
        error = total = 0.0
        for frequency in range(size // 2 + 1):
            product, relative, log_bound = 1.0 + 0j, 0.0, 0.0
            for weight, step in laws:
                turns = np.exp(-2j * math.pi * frequency * np.arange(len(weight)) / size)
                size_here = abs(complex(weight @ turns))
                size_here = 0.0 if size_here < 1e-15 else size_here
                product *= complex(weight @ turns) ** (step + more) if size_here else 0.0
                relative += (step + more) * (rounding / max(size_here, 1e-300) + 8 * unit)
                log_bound += (step + more) * math.log(size_here + rounding)
            if log_bound > -746:
                known = relative < 0.5
                error += abs(product) * math.expm1(relative) if known else abs(product) + math.exp(log_bound)
            total += abs(product)
        assert spectrum.noise() == pytest.approx(2 * (error + rounding * total), rel=1e-6, abs=0)


@pytest.mark.parametrize("steps", [2, 5, 40])
def test_what_lies_outside_of_a_window_is_bounded(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Of windows so narrow that much does: its tilted mass, summed exactly, is no more than is charged."""
    monkeypatch.setattr(pld, "_product", lambda *_: None)
    law = two_outcomes("upper")
    for width in (0.5, 1.0, 2.0):
        monkeypatch.setattr(pld, "_SIGMAS", width)
        monkeypatch.setattr(pld, "_NEGLIGIBLE_OUTSIDE", 0.7)
        composed = LossComposition([law], [steps])
        heads = np.arange(steps + 1)
        losses = heads * law.loss[1] + (steps - heads) * law.loss[0]
        charged = []
        for tilt in (0.0, 0.7, 3.0):
            cumulant, centre, variance = composed._cumulant(tilt)
            reach, outside = composed._reach(tilt, cumulant, centre, math.sqrt(variance) + composed._cell)
            weight = stats.binom.logpmf(heads, steps, law.p[1]) + tilt * losses
            weight = np.exp(weight - weight.max())
            beyond = weight[np.abs(losses - centre) > reach + steps * composed._cell].sum() / weight.sum()
            assert beyond <= outside <= 0.7
            charged.append(outside)
            window = composed._window(tilt)
            assert window.wrapped == outside
            farthest = min(1.0, 2 * len(window.loss) * composed._cell + composed._largest_step)
            assert window.farthest == pytest.approx(farthest)
    assert steps == 2 or max(charged) > 0


@pytest.mark.parametrize("steps", [1, 40])
def test_a_law_of_which_one_loss_is_left_has_no_answer(steps: int) -> None:
    """A single loss would be taken for none, and cost nothing."""
    law = PrivacyLossDistribution(
        loss=np.array([2.0]), p=np.array([0.9]), q=np.array([0.12]), missing=0.1, deviation=0.0, kind="upper"
    )
    with pytest.raises(ArithmeticError, match="one loss is all that is left"):
        LossComposition([law], [steps])
    with pytest.raises(ArithmeticError, match="one loss is all that is left"):
        LossComposition([0], [steps], history=LossHistory(lambda _: law))


@pytest.mark.parametrize("kind", ["upper", "lower"])
def test_many_deltas_of_one_law_are_those_of_each_by_itself(kind: BoundKind) -> None:
    pair = ShuffleRound(local_epsilon=2.0, population=90, cohort=90).dominating_pair()
    law, sign = pair_losses(pair, kind=kind), 1 if kind == "upper" else -1
    composed = LossComposition([law], [1])
    epsilons = np.concatenate([np.linspace(0.0, 1.5, 40), law.loss[-4:], [2.5]])
    epsilons.sort()
    one_by_one = composed.deltas(epsilons)
    for epsilon, found in zip((epsilons - sign * law.loss_error).tolist(), one_by_one.tolist(), strict=True):
        above = law.loss > max(epsilon, 0.0)
        exact = math.fsum(-law.p[above] * np.expm1(max(epsilon, 0.0) - law.loss[above]))
        assert found == pytest.approx(
            exact * (1 + sign * 1e-10) + (sign > 0) * law.missing, rel=2e-11, abs=1e-25
        )


def test_outcomes_are_listed_of_laws_from_below_alone() -> None:
    for steps in (1, 3, 60):
        with pytest.raises(ValueError, match="that bound from below"):
            LossComposition([two_outcomes("upper")], [steps]).outcomes()
        loss, p = LossComposition([two_outcomes("lower")], [steps]).outcomes()
        exact = LossComposition([two_outcomes("upper")], [steps])
        assert 0.999 < p.sum() <= 1 + 1e-12
        for epsilon in (0.0, 0.5, 3.0):
            found = float((-p * np.expm1(np.minimum(epsilon - loss, 0.0))).sum())
            assert found <= exact.delta(epsilon) * (1 + 1e-9)


def test_grids_beyond_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, rare = (
        finite_losses(
            None, np.array(p), np.array(q), missing=0.0, kind="upper", resolution=FINE, symmetric=False
        )
        for p, q in (([0.5 + 2e-7, 0.5 - 2e-7], [0.5, 0.5]), ([1 - 1e-10, 1e-10], [1 - 1e-14, 1e-14]))
    )
    with pytest.raises(ArithmeticError, match="share no grid"):
        LossComposition([fine, rare], [10**9, 1])
    composed = LossComposition([two_outcomes("upper")], [1_000])
    monkeypatch.setattr(pld, "_MOST_GRID", 100)
    with pytest.raises(ArithmeticError, match="grid points, more than 100"):
        composed.epsilon(1e-3)


def test_renyi_orders_are_charged_for_what_laws_leave_out_and_may_be_off() -> None:
    plain, steps = two_outcomes("upper"), 60
    exact = RenyiComposition([plain], [steps])
    orders = np.array([1.01, 2.0, 9.5])
    off = RenyiComposition([dataclasses.replace(plain, loss_error=0.004)], [steps])
    np.testing.assert_allclose(off.rdp(orders), exact.rdp(orders) + steps * 0.004 * orders / (orders - 1))
    charged = RenyiComposition([dataclasses.replace(plain, missing=1e-4, mass_error=0.003)], [steps])
    growth, more = math.exp(0.003 * steps - 1e-9), 1e-4 * steps
    for delta in (0.1, 0.02, 0.007):
        expected = exact.epsilon((delta - more) / growth)
        assert charged.epsilon(delta) == pytest.approx(expected, rel=1e-13, abs=0)
        at = charged.delta(expected)
        assert at == pytest.approx(exact.delta(expected) * growth + more, rel=1e-13, abs=0)
    assert charged.epsilon(more) == math.inf
