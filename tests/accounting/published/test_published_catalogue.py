"""Every published bound as an answer to the package's question."""

import itertools
import math

import pytest

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound, pair_epsilon_interval
from shuffle_plugins.accounting.published.catalogue import (
    PUBLISHED_BOUNDS,
    PublishedBound,
    amplify_by_sampling,
    compose_points,
    published_bound,
    strong_composition,
)

Question = dict[str, float]

QUICK_BOUNDS = pytest.mark.parametrize(
    "bound",
    [
        pytest.param(bound, id=bound.name, marks=pytest.mark.slow if "RDP" in bound.name else [])
        for bound in PUBLISHED_BOUNDS
    ],
)
"""For many questions: the bounds that compose Rényi divergences are slow."""


def question(e0: float, n: int, k: int, steps: int, delta: float) -> Question:
    return {"local_epsilon": e0, "population": n, "cohort": k, "num_steps": steps, "delta": delta}


SETTINGS = [
    question(0.5, 5_000, 5_000, 1, 1e-5),
    question(0.5, 5_000, 1_000, 20, 1e-6),
    question(2.0, 10**6, 1_000, 10**5, 1e-8),
    question(1.5, 60_000, 10_000, 1_200, 1e-5),
    question(0.2, 10**6, 10**6, 50, 1e-10),
    question(4.0, 10**5, 10**4, 10, 1e-7),
    question(1.0, 300, 30, 100, 1e-4),
    question(0.3, 2_000, 3, 5, 1e-3),
]


def value(bound: PublishedBound, asked: Question) -> float | None:
    """ε, or None where the bound is not stated."""
    try:
        return bound.epsilon(**asked)
    except ValueError as error:
        if "needs" not in str(error):
            raise
        return None


def test_names_are_unique_and_say_where_they_come_from() -> None:
    assert len({bound.name for bound in PUBLISHED_BOUNDS}) == len(PUBLISHED_BOUNDS) >= 15
    assert all("20" in bound.source for bound in PUBLISHED_BOUNDS)
    invalid = {bound.name: bound.note for bound in PUBLISHED_BOUNDS if not bound.valid}
    assert "add/remove" in invalid["shuffle RDP, Poisson sampling"]
    assert "binary randomized response alone" in invalid["binary response, closed form"]


@pytest.mark.parametrize("delta", [1e-8, 1e-3, 0.3])
def test_one_shuffle_of_everybody_has_the_papers_closed_forms(delta: float) -> None:
    """Nothing is sampled or composed, so each entry is its theorem as it is printed."""
    e0, n = 0.4, 10**6
    e, log4, log2, log1 = math.exp(e0), math.log(4 / delta), math.log(2 / delta), math.log(1 / delta)
    fair = 2 * n / (e + 1)
    kept = fair - math.sqrt(2 * fair * log2)
    printed = {
        "clones, closed form": math.log(
            1 + (e - 1) / (e + 1) * (8 * math.sqrt(e * log4) / math.sqrt(n) + 8 * e / n)
        ),
        "stronger clones, closed form": math.log(
            1 + (e - 1) * (4 * math.sqrt(2 * log4 / ((e + 1) * n)) + 4 / n)
        ),
        "random check-ins, shuffling": e**3 * (e - 1) ** 2 / (2 * n)
        + e**1.5 * (e - 1) * math.sqrt(2 * log1 / n),
        "amplification by shuffling": 12 * e0 * math.sqrt(max(log1, math.log(100)) / n),
        "binary response, closed form": math.sqrt(32 * log4 / kept) * (1 - kept / n),
    }
    for name, epsilon in printed.items():
        found = published_bound(name).epsilon(**question(e0, n, n, 1, delta))
        assert found == pytest.approx(epsilon, rel=1e-12), name


@pytest.mark.slow
@pytest.mark.parametrize("asked", SETTINGS[::3], ids=lambda asked: "-".join(map(str, asked.values())))
def test_valid_bounds_lie_above_what_real_mechanisms_leak(asked: Question) -> None:
    accountant = ShuffleAccountant()
    kind = ShuffleRound(**{k: asked[k] for k in ("local_epsilon", "population", "cohort")})
    accountant.step(kind, num_steps=int(asked["num_steps"]))
    interval = accountant.epsilon(asked["delta"])
    exact, _ = pair_epsilon_interval(accountant, asked["delta"])
    stated = 0
    for bound in PUBLISHED_BOUNDS:
        found = value(bound, asked)
        if found is None or not bound.valid:
            continue
        stated += 1
        assert found >= interval.lower
        assert found >= exact * (1 - 1e-3), "none of them beats the pair that dominates"
        assert found <= asked["num_steps"] * asked["local_epsilon"]
    assert stated >= 9


@QUICK_BOUNDS
def test_bounds_are_monotone(bound: PublishedBound) -> None:
    base = question(0.4, 10**5, 10**4, 100, 1e-6)
    for changes, rises in (
        ([{"num_steps": steps} for steps in (1, 2, 10, 100, 10**4, 10**6)], True),
        ([{"local_epsilon": e0} for e0 in (0.01, 0.1, 0.4, 0.5)], True),
        ([{"delta": delta} for delta in (1e-15, 1e-10, 1e-5, 1e-2)], False),
        ([{"population": n, "cohort": n} for n in (2_000, 10**4, 10**6)], False),
        ([{"population": n} for n in (10**4, 10**5, 10**7)], False),
    ):
        found = [value(bound, base | change) for change in changes]
        stated = [epsilon for epsilon in found if epsilon is not None]
        assert len(stated) >= 2
        for first, second in itertools.pairwise(stated):
            lower, upper = (first, second) if rises else (second, first)
            assert lower <= upper * (1 + 2e-3)


@QUICK_BOUNDS
def test_extremes_give_numbers(bound: PublishedBound) -> None:
    for asked in (
        question(8.0, 10**9, 10**8, 10**6, 1e-15),
        question(8.0, 10, 1, 10**6, 1e-15),
        question(1e-4, 10**9, 10**9, 10**6, 1e-15),
        question(1e-4, 10**9, 1_000, 10, 0.5),
        question(5.0, 1, 1, 1, 1e-9),
    ):
        found = value(bound, asked)
        if found is not None:
            assert 0 <= found <= asked["num_steps"] * asked["local_epsilon"]
            assert math.isfinite(found)


def test_a_useless_shuffle_bound_is_capped_at_the_local_epsilon() -> None:
    capped = amplify_by_sampling(epsilon=0.5, delta=0.0, sampling_rate=1e-3)[0]
    for steps in (1, 10**5):
        alone = strong_composition(epsilon=capped, num_steps=steps, delta_slack=1e-6)
        asked = question(0.5, 10**5, 100, steps, 1e-6)
        assert compose_points(shuffled=lambda delta: 99.0, **asked) == pytest.approx(alone)
    for local_epsilon, steps in ((3.0, 2), (0.5, 3)):  # everybody takes part: nothing helps
        asked = question(local_epsilon, 100, 100, steps, 1e-6)
        found = compose_points(shuffled=lambda delta: 99.0, **asked)
        assert found == pytest.approx(steps * local_epsilon, rel=1e-12)
