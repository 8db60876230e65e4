"""Recommended settings of a training run: they keep to the target, and the learning rate follows its rule."""

import math

import pytest
from histories import accountant_of, shuffled
from thinning import first_fast

from shuffle_plugins.accounting import PrivacyTarget
from shuffle_plugins.mechanisms import get, registry
from shuffle_plugins.planning import TrainingRecipe, expected_noise, training_recipe

ASKED = {"target_epsilon": 2.0, "delta": 1e-5, "population": 2_000, "dim": 60}


@pytest.fixture(scope="module")
def reports() -> TrainingRecipe:
    return training_recipe(**ASKED)


def moved_by_noise(recipe: TrainingRecipe, noise: float) -> float:
    """Deviation of a weight after all steps of SGD with momentum, given that of the noise in each step."""
    velocity_weights = [0.0] * recipe.num_steps  # of each step's noise in the velocity, and in the weight
    weights = [0.0] * recipe.num_steps
    for step in range(recipe.num_steps):
        velocity_weights = [recipe.momentum * each for each in velocity_weights]
        velocity_weights[step] = 1.0
        weights = [w + recipe.learning_rate * v for w, v in zip(weights, velocity_weights, strict=True)]
    return noise * math.sqrt(sum(w * w for w in weights))


@pytest.mark.slow
def test_all_steps_stay_within_the_target(reports: TrainingRecipe) -> None:
    assert (reports.cohort, reports.num_steps) == (200, 200)
    assert reports.local_epsilon is not None
    who = {"mechanism": reports.mechanism, "dim": 60, "channel_fixed": False}
    step = shuffled(reports.local_epsilon, 2_000, reports.cohort, **who)
    assert 0.97 * 2.0 < accountant_of((step, reports.num_steps)).epsilon(1e-5).upper <= 2.0
    assert reports.epsilon.upper <= 2.0


@pytest.mark.parametrize(("model", "moved"), [("linear", 2.0), ("network", 0.1)])
def test_the_noise_of_the_real_mechanism_moves_the_weights_as_said(model: str, moved: float) -> None:
    recipe = training_recipe(**ASKED, model=model, num_steps=100, mechanism="privunit")
    assert recipe.local_epsilon is not None
    mechanism = registry.get(
        recipe.mechanism, local_epsilon=recipe.local_epsilon, dim=60, radius=recipe.max_grad_norm
    )
    noise = expected_noise(mechanism, cohort=recipe.cohort)
    assert noise.noise == pytest.approx(recipe.expected_noise.noise, rel=1e-6)
    # Less than the rule says by what momentum has not delivered yet, and rounded to two digits.
    assert 0.85 * moved < moved_by_noise(recipe, noise.noise / math.sqrt(60)) < 1.05 * moved


@pytest.mark.slow
def test_a_sum_has_less_noise_and_learns_faster(reports: TrainingRecipe) -> None:
    total = training_recipe(**ASKED, mechanism="vector-sum")
    assert total.local_epsilon is None
    assert total.noise_multiplier is not None
    assert total.expected_noise.noise == pytest.approx(
        total.noise_multiplier * total.max_grad_norm * math.sqrt(60) / total.cohort, rel=0.02
    )
    assert total.epsilon.upper <= 2.0
    less = reports.expected_noise.noise / total.expected_noise.noise
    assert less > 1.2
    assert total.learning_rate / reports.learning_rate == pytest.approx(less, rel=0.1)


@first_fast("mechanism", ["vector-sum", "poisson-binomial"])
def test_what_is_printed_keeps_within_the_target_when_it_is_typed_in(mechanism: str) -> None:
    recipe = training_recipe(
        target_epsilon=2.0, delta=1e-5, population=10_000, dim=1_000, mechanism=mechanism
    )
    printed = next(value for name, value, _ in recipe.settings() if name == "noise_multiplier")
    typed = get(mechanism, dim=1_000, cohort=recipe.cohort, noise_multiplier=float(printed))
    target = PrivacyTarget(epsilon=2.0, delta=1e-5, num_steps=recipe.num_steps)
    assert 1.99 < target.cost(typed.round(population=10_000)) <= recipe.epsilon.upper <= 2.0


@pytest.mark.slow
def test_it_is_printed_with_a_reason_for_every_setting(reports: TrainingRecipe) -> None:
    said = str(reports).splitlines()
    assert said[0] == "linear model with 60 parameters, 2,000 records, epsilon=2 at delta=1e-05"
    assert any(line.startswith(f"learning_rate={reports.learning_rate:g}: ") for line in said)
    assert all(why for _, _, why in reports.settings())
    assert "Warning" not in str(reports)
    drowned = training_recipe(**{**ASKED, "target_epsilon": 0.1, "population": 200}, num_steps=20)
    assert "Warning: the noise will drown" in str(drowned)


@pytest.mark.slow
def test_windows_are_told_of_and_recommended_when_they_are_asked_for() -> None:
    asked = {"target_epsilon": 2.0, "delta": 1e-5, "population": 10_000, "dim": 1_000}
    sums, windows = (training_recipe(**asked, mechanism=name) for name in ("vector-sum", "windowed-sum"))
    assert len(windows.coefficients) == 10
    assert any(name == "coefficients" and "one of any 10 steps" in why for name, _, why in windows.settings())
    assert sums.windows_leave == pytest.approx(
        windows.expected_noise.noise / sums.expected_noise.noise, rel=0.03
    )
    assert sums.windows_leave < 1
    assert "windowed-sum would leave 0." in str(sums)
    assert windows.learning_rate > sums.learning_rate
    typed = get(
        "windowed-sum",
        dim=1_000,
        cohort=windows.cohort,
        noise_multiplier=windows.noise_multiplier,
        coefficients=windows.coefficients,
    )
    participations = windows.num_steps // 10
    assert PrivacyTarget(epsilon=2.0, delta=1e-5, num_steps=participations).cost(typed.round()) <= 2.0
