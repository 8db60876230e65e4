"""The searches on functions of many shapes, and how few calls of the accountant calibration takes."""

import math

import pytest
from thinning import first_fast

from shuffle_plugins.accounting import (
    EpsilonInterval,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_local_epsilon,
)
from shuffle_plugins.accounting.numerics.search import largest_within, zero_between

RANGE = {"lowest": 1e-4, "highest": 20.0, "precision": 2e-4}


@pytest.mark.parametrize("start", [1e-4, 1.0, 20.0])
@pytest.mark.parametrize("root", [2e-4, 0.03, 1.0, 6.0, 19.0])
@pytest.mark.parametrize("kind", ["line", "exponential", "cliff", "silent"])
def test_the_search_finds_the_largest_level_that_fits(kind: str, root: float, start: float) -> None:
    def cost(level: float) -> float:
        match kind:
            case "line":
                return level / root
            case "exponential":
                return math.expm1(level) / math.expm1(root)
            case "cliff":
                return 0.4 * level / root if level <= root else 7 * level / root
            case _:
                return max(level - root / 2, 0.0) / (root / 2)

    calls = 0

    def counted(level: float) -> float:
        nonlocal calls
        calls += 1
        return cost(level)

    found = largest_within(counted, target=1.0, start=start, **RANGE)
    assert found is not None
    assert cost(found) <= 1
    assert found == pytest.approx(root, rel=2 * RANGE["precision"])
    assert calls < 32


def test_the_search_knows_its_ends() -> None:
    assert largest_within(lambda level: 1.0, target=1.0, start=1.0, **RANGE) == RANGE["highest"]
    assert largest_within(lambda level: 1.1, target=1.0, start=1.0, **RANGE) is None
    assert largest_within(lambda level: 0.0, target=1.0, start=1.0, **RANGE) == RANGE["highest"]
    assert largest_within(lambda level: level, target=RANGE["lowest"], start=5.0, **RANGE) == pytest.approx(
        RANGE["lowest"], rel=1e-9
    )


@pytest.mark.parametrize("start", [1e-5, 1e-4, 1.0])
def test_the_search_ends_at_a_least_level_that_uses_the_target(start: float) -> None:
    """Every step from there wants to go further down, below the range."""
    ends = {"lowest": 1e-4, "highest": 20.0, "precision": 2e-4}
    found = largest_within(lambda level: level / 1e-4, target=1.0, start=start, **ends)
    assert found == pytest.approx(1e-4, rel=1e-9)


@pytest.mark.parametrize("start", [1e-3, 1.0, 20.0])
def test_the_search_crosses_plateaus_just_above_and_just_below_the_target(start: float) -> None:
    def cost(level: float) -> float:
        return 1 - 1e-9 if level <= 0.01 else 1 + 1e-9

    assert largest_within(cost, target=1.0, start=start, **RANGE) == pytest.approx(0.01, rel=2e-4)
    assert largest_within(lambda level: 1 + 1e-9, target=1.0, start=start, **RANGE) is None
    assert largest_within(lambda level: 1 - 1e-9, target=1.0, start=start, **RANGE) == RANGE["highest"]
    assert largest_within(lambda level: math.inf, target=1.0, start=start, **RANGE) is None


@pytest.mark.parametrize(("start", "spent"), [(1.0, 2.0), (1.0, 0.5)])
def test_a_cost_that_does_not_rise_on_all_the_way_is_refused(start: float, spent: float) -> None:
    far = {"lowest": 1e-300, "highest": 1e300, "precision": 2e-4}
    with pytest.raises(ArithmeticError, match="does not rise steadily"):
        largest_within(lambda level: spent, target=1.0, start=start, **far)


@first_fast(
    ("target", "rounds", "change", "calls"),
    [
        (1.0, 300, {}, 6),
        (1.0, 300, {"sampling": "poisson"}, 6),
        (0.01, 2, {"population": 10**6}, 6),
        (4.0, 3, {"adversary": "server"}, 6),
        (0.1, 1, {"sampling": "single-pass"}, 6),
        (0.5, 100, {"population": 500, "sampling": "full"}, 6),
        (8.0, 2, {"population": 500}, 16),  # past a kink and a jump
    ],
    fast=1,
)
def test_calibration_takes_few_calls_and_every_answer_fits(
    target: float, rounds: int, change: dict[str, object], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = {"population": 5_000, "cohort": 500} | change
    spent: list[float] = []
    bound = ShuffleAccountant.epsilon

    def counted(self: ShuffleAccountant, delta: float, *, lower: bool = True) -> EpsilonInterval:
        found = bound(self, delta, lower=lower)
        spent.append(found.upper)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ShuffleAccountant, "epsilon", counted)
        found = calibrate_local_epsilon(target_epsilon=target, delta=1e-6, num_steps=rounds, **question)
    assert len(spent) <= calls
    for level, fits in ((found, True), (found * 1.0002, False)):
        accountant = ShuffleAccountant()
        accountant.step(ShuffleRound(local_epsilon=level, **question), num_steps=rounds)
        assert (accountant.epsilon(1e-6, lower=False).upper <= target) == fits


def test_a_zero_is_found_where_signs_differ() -> None:
    for function in (lambda x: x**3 - 2, lambda x: math.copysign(1.0, x - 2 ** (1 / 3))):
        assert zero_between(function, 0.0, 3.0) == pytest.approx(2 ** (1 / 3), rel=1e-11)
    for function in (lambda x: x - 4.0, lambda _: math.nan):
        with pytest.raises(ValueError, match=r"\w"):
            zero_between(function, 0.0, 3.0)
