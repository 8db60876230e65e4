"""Sums of slots of any law against enumeration and against counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_force import generic_delta
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shuffle_plugins.accounting.pairs import slots as slot_sums
from shuffle_plugins.accounting.pairs.slots import SlotPair, slot_losses

TOLERANCE = 5e-4


def corner_slots(local_epsilon: float, *, population: int, slots: int) -> SlotPair:
    gain = math.expm1(local_epsilon)
    mass = 1 / (gain + 2)
    return SlotPair(
        population=population,
        slots=slots,
        atoms=((gain, 0.0, mass), (0.0, gain, mass), (-1.0, -1.0, 1 - 2 * mass)),
    )


def enumerated(pair: SlotPair) -> tuple[np.ndarray, np.ndarray]:
    """P and Q masses of all ordered outcomes."""
    u, v, mass = map(np.array, zip(*pair.atoms, strict=True))
    sum_u, sum_v, weight = np.zeros(1), np.zeros(1), np.ones(1)
    for _ in range(pair.slots):
        sum_u, sum_v = (sum_u[:, None] + u).ravel(), (sum_v[:, None] + v).ravel()
        weight = (weight[:, None] * mass).ravel()
    return weight * (1 + sum_u / pair.population), weight * (1 + sum_v / pair.population)


def sticks(p: np.ndarray, q: np.ndarray, losses: np.ndarray) -> np.ndarray:
    return np.maximum(p - np.exp(losses)[:, None] * q, 0.0).sum(axis=1)


def epsilon_of(outcomes: tuple[np.ndarray, np.ndarray, float], delta: float) -> float:
    p, q, missing = outcomes
    keep = (p > 0) & (q > 0)
    p, q = p[keep], q[keep]
    low, high = 0.0, float(np.log(p / q).max())
    for _ in range(50):
        middle = (low + high) / 2
        above = sticks(p, q, np.array([middle]))[0] + missing > delta
        low, high = (middle, high) if above else (low, middle)
    return high


@st.composite
def symmetric_pairs(draw: st.DrawFn, *, most_slots: int = 5) -> SlotPair:
    """Blanket laws of a few random atoms inside the square, with or without sampling."""
    e = math.exp(draw(st.floats(0.05, 6.0)))
    atoms = []
    for _ in range(draw(st.integers(1, 2))):
        r0 = 1 + (e - 1) * draw(st.floats(0.0, 1.0))
        r1 = draw(st.sampled_from([1.0, 1 + (e - 1) * 0.1, r0]))
        mass = draw(st.floats(1e-5, 1.0))
        atoms += [(r0, r1, mass), (r1, r0, mass)]
    mean = math.fsum(r0 * mass for r0, _, mass in atoms)
    participation = draw(st.sampled_from([1.0, 0.5, 0.02]))
    law = [(r0 - 1, r1 - 1, participation * mass / mean) for r0, r1, mass in atoms]
    null = participation - math.fsum(mass for _, _, mass in law)
    law += [(-1.0, -1.0, max(null, 0.0)), (0.0, 0.0, 1 - participation)]
    population = draw(st.integers(1, 8))
    slots = draw(st.integers(1, min(population, most_slots)))
    return SlotPair(population=population, slots=slots, atoms=tuple(a for a in law if a[2] > 0))


GRID = np.concatenate([np.linspace(-4, 4, 33), np.linspace(-0.3, 0.3, 25)])


@settings(max_examples=60, deadline=None)
@given(pair=symmetric_pairs())
def test_few_outcomes_are_enumerated_exactly(pair):
    _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    assert missing == 0.0
    np.testing.assert_allclose(sticks(p, q, GRID), sticks(*enumerated(pair), GRID), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pair=symmetric_pairs())
def test_the_contour_is_never_below_enumeration(pair):
    assume(pair.information > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_sums, "_FEW_OUTCOMES", 0)
        _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    exact = sticks(*enumerated(pair), GRID)
    assert np.all(sticks(p, q, GRID) + missing >= exact * (1 - 1e-12) - 1e-15)
    assert np.all(sticks(q, p, GRID) + missing >= exact * (1 - 1e-12) - 1e-15)


@pytest.mark.parametrize("swap", [False, True])
def test_a_pair_that_is_not_symmetric_is_bounded_both_ways(swap, monkeypatch):
    atoms = ((2.0, 0.0, 0.2), (0.5, 0.0, 0.16), (-0.75, 0.0, 0.64))
    pair = SlotPair(population=9, slots=8, atoms=tuple((v, u, m) for u, v, m in atoms) if swap else atoms)
    assert pair.one_sided
    exact_p, exact_q = enumerated(pair)
    monkeypatch.setattr(slot_sums, "_FEW_OUTCOMES", 0)
    _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    for found, exact in (
        (sticks(p, q, GRID), sticks(exact_p, exact_q, GRID)),
        (sticks(q, p, GRID), sticks(exact_q, exact_p, GRID)),
    ):
        assert np.all(found + missing >= exact - 1e-15)
        assert np.all(found <= exact + 0.02 * exact.max())
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert q.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("population", "slots", "atoms", "deltas", "within"),
    [
        (
            40, 24, [(1.2, 0.0, 0.11), (0.0, 1.2, 0.11), (0.4, 0.1, 0.2), (0.1, 0.4, 0.2)],
            (1e-2, 1e-4, 1e-6, 1e-8, 1e-10), 1.001,
        ),
        (  # a weight of 75 in one round of seven hundred, one of 164 in one of forty thousand
            15, 12, [(163.0, 3.4, 2.2e-6), (3.4, 163.0, 2.2e-6), (74.0, 0.0, 1.26e-4), (0.0, 74.0, 1.26e-4)],
            (1e-3, 1e-5, 1e-7, 1e-9), 1.08,
        ),
    ],
)  # fmt: skip
def test_within_tolerance_of_enumeration(population, slots, atoms, deltas, within, monkeypatch):
    null = math.fsum(u * m for u, _, m in atoms)
    law = [*atoms, (-1.0, -1.0, null), (0.0, 0.0, 1 - null - math.fsum(m for *_, m in atoms))]
    pair = SlotPair(population=population, slots=slots, atoms=tuple(law))
    monkeypatch.setattr(slot_sums, "_FEW_OUTCOMES", 10**6)
    exact = slot_losses(pair, tolerance=TOLERANCE)[1:]
    monkeypatch.setattr(slot_sums, "_FEW_OUTCOMES", 0)
    found = slot_losses(pair, tolerance=TOLERANCE)[1:]
    assert len(exact[0]) > 10 * len(found[0])
    for delta in deltas:
        assert 1.0 <= epsilon_of(found, delta) / epsilon_of(exact, delta) <= within


@pytest.mark.parametrize(("local_epsilon", "reports"), [(1.0, 300), (2.0, 10**4), (0.1, 10**6)])
def test_corners_agree_with_binomial_tails(local_epsilon, reports, monkeypatch):
    monkeypatch.setattr(slot_sums, "_FEW_OUTCOMES", 0)
    pair = corner_slots(local_epsilon, population=reports, slots=reports)
    found = slot_losses(pair, tolerance=TOLERANCE)[1:]
    asked = {"local_epsilon": local_epsilon, "population": reports, "cohort": reports}
    assert len(found[0]) < 3000
    for delta in (1e-4, 1e-7, 1e-10):
        epsilon = epsilon_of(found, delta)
        assert generic_delta(**asked, epsilon=epsilon) <= delta * (1 + 1e-6)
        assert epsilon < 1e-9 or generic_delta(**asked, epsilon=0.998 * epsilon) > delta


def test_small_losses_have_the_variance_of_the_pair():
    pair = corner_slots(2.0, population=10**9, slots=10**8)
    _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    keep = p > 0
    variance = (p[keep] * np.log(p[keep] / q[keep]) ** 2).sum()
    assert missing < 1e-39
    assert pair.information <= variance <= pair.information * (1 + 1.1 * TOLERANCE)


def test_lost_mass_is_missing():
    cut = 0.001
    atoms = ((1.0, 0.0, 0.2), (0.0, 1.0, 0.2), (-1.0, -1.0, 0.2 + cut), (0.0, 0.0, 0.4 - cut))
    pair = SlotPair(population=50, slots=30, atoms=atoms, lost=cut)
    whole = SlotPair(population=50, slots=30, atoms=(*atoms[:2], (-1.0, -1.0, 0.2), (0.0, 0.0, 0.4)))
    _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    assert missing == pytest.approx(30 * cut / 50, rel=1e-9)
    assert p.sum() + missing == pytest.approx(1.0, abs=1e-9)
    _, full_p, full_q, _ = slot_losses(whole, tolerance=TOLERANCE)
    assert np.all(sticks(p, q, GRID) + missing >= sticks(full_p, full_q, GRID) - 1e-12)


def test_a_pair_without_information_has_one_outcome():
    pair = SlotPair(population=10**6, slots=10**6, atoms=((1.0, 1.0, 0.5), (-1.0, -1.0, 0.5)))
    _, p, q, missing = slot_losses(pair, tolerance=TOLERANCE)
    np.testing.assert_allclose(p, q)
    assert p.sum() == pytest.approx(1.0)
    assert missing == 0.0


@pytest.mark.parametrize("gain", [1e-12, 1e-160])
def test_gains_whose_squares_are_no_floats_are_bounded_all_the_same(gain):
    """Their sum is nearly normal, and E|P − Q| the mean size of a normal variable."""
    kinds = ((gain, -gain), (2 * gain, -2 * gain))
    law = tuple((*(sign * each for each in kind), 0.25) for kind in kinds for sign in (1, -1))
    pair = SlotPair(population=10**5, slots=10**5, atoms=law)
    with np.errstate(all="ignore"):
        loss, p, _, missing = slot_sums.slot_losses(pair, tolerance=TOLERANCE)
    assert p.sum() == pytest.approx(1)
    distance = math.sqrt(10 / 10**5 / (2 * math.pi)) * gain
    found = p @ -np.expm1(-np.maximum(loss, 0)) + missing
    assert distance * (1 - 1e-4) <= found <= 1.3 * distance


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 11}, "slots must be"),
        ({"atoms": ((1.0, 0.0, 0.4), (0.0, 1.0, 0.4))}, "sum to 1"),
        ({"atoms": ((1.0, 0.0, 0.5), (0.0, 1.0, 0.5))}, "must have mean"),
        ({"atoms": ((1.0, 0.0, 0.5), (-1.5, 0.0, 0.5))}, "at least -1"),
    ],
)
def test_laws_that_are_none_are_refused(changed, message):
    good = {"population": 10, "slots": 10, "atoms": corner_slots(1.0, population=10, slots=10).atoms}
    SlotPair(**good)
    with pytest.raises(ValueError, match=message):
        SlotPair(**(good | changed))
