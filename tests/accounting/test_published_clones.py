import math
from fractions import Fraction

import pytest

from shuffle_plugins.accounting.published import clones
from shuffle_plugins.accounting.published.composition import strong_composition
from shuffle_plugins.accounting.published.subsampling import amplify_by_sampling


@pytest.mark.parametrize(
    ("e0", "n", "delta", "expected"),
    [(0.5, 10**4, 1e-6, 0.09387), (1, 10**4, 1e-6, 0.21403), (2, 10**4, 1e-6, 0.50092),
     (1, 10**6, 1e-8, 0.02678), (2, 10**6, 1e-8, 0.07116), (4, 10**6, 1e-8, 0.22637)],
)  # fmt: skip
def test_closed_form_reference_values(e0: float, n: int, delta: float, expected: float) -> None:
    assert clones.closed_form(local_epsilon=e0, num_reports=n, delta=delta) == pytest.approx(
        expected, abs=6e-6
    )


def test_closed_form_covers_shuffled_binary_rr() -> None:
    """δ of the bound's own ε, for binary RR with everybody else at 0, stays below the δ asked for."""
    n, e0, delta = 2_000, 0.5, 1e-3
    epsilon = clones.closed_form(local_epsilon=e0, num_reports=n, delta=delta)
    p = 1 / (math.exp(e0) + 1)
    hockey = 0.0
    for h in range(n + 1):
        log_pmf = (
            math.lgamma(n + 1) - math.lgamma(h + 1) - math.lgamma(n - h + 1)
            + h * math.log(p) + (n - h) * math.log1p(-p)
        )  # fmt: skip
        ratio = (math.exp(e0) * h + (n - h) * math.exp(-e0)) / n
        hockey += math.exp(log_pmf) * max(0.0, ratio - math.exp(epsilon))
    assert 0 <= hockey <= delta


def test_closed_form_is_refused_outside_its_regime() -> None:
    edge = math.log(1_000 / (16 * math.log(2 / 1e-6)))
    clones.closed_form(local_epsilon=edge, num_reports=1_000, delta=1e-6)
    with pytest.raises(ValueError, match=r"Theorem 3\.1 needs"):
        clones.closed_form(local_epsilon=edge * (1 + 1e-9), num_reports=1_000, delta=1e-6)
    with pytest.raises(ValueError, match=r"Theorem 3\.1 needs"):
        clones.closed_form(local_epsilon=0.1, num_reports=10, delta=1e-6)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"local_epsilon": 0.0}, "local_epsilon"),
        ({"local_epsilon": math.nan}, "local_epsilon"),
        ({"num_reports": 0}, "num_reports"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.1}, "delta"),
    ],
)
def test_closed_form_refuses_bad_arguments(question: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clones.closed_form(**({"local_epsilon": 0.5, "num_reports": 10**4, "delta": 1e-6} | question))


def test_composed_epsilon_grows_with_the_rounds_and_stays_below_pure_composition() -> None:
    question = {"local_epsilon": 1.5, "population": 60_000, "cohort": 10_000, "delta": 1e-5}
    values = [clones.epsilon(**question, num_steps=rounds) for rounds in (1, 10, 100, 1_200)]
    assert values == sorted(values)
    assert all(value <= 1.5 * rounds for value, rounds in zip(values, (1, 10, 100, 1_200), strict=True))


@pytest.mark.parametrize("change", [{"cohort": 70_000}, {"cohort": 0}, {"num_steps": 0}, {"delta": 1.0}])
def test_composed_epsilon_refuses_bad_arguments(change: dict[str, float]) -> None:
    question = {
        "local_epsilon": 1.5, "population": 60_000, "cohort": 10_000, "num_steps": 10, "delta": 1e-5,
    }  # fmt: skip
    with pytest.raises(ValueError, match=next(iter(change))):
        clones.epsilon(**(question | change))


def exact_homogeneous_composition(epsilon: float, rounds: int, delta: float) -> float:
    """The best ε for T pure ε-DP steps at δ (Theorem 3.3 of the same paper), by exact sums."""
    e = Fraction(math.exp(epsilon))
    for i in reversed(range(rounds // 2 + 1)):
        spent = (
            sum(math.comb(rounds, j) * (e ** (rounds - j) - e ** (rounds - 2 * i + j)) for j in range(i))
            / (1 + e) ** rounds
        )
        if spent <= delta:
            return (rounds - 2 * i) * epsilon
    raise AssertionError("i = 0 spends nothing")


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_strong_composition_lies_above_the_exact_optimum(epsilon: float, delta: float) -> None:
    for rounds in (1, 10, 100):
        strong = strong_composition(epsilon=epsilon, num_steps=rounds, delta_slack=delta)
        exact = exact_homogeneous_composition(epsilon, rounds, delta)
        assert exact - 1e-12 <= strong <= rounds * epsilon
    assert strong < 2 * exact + 4 * epsilon


def test_strong_composition_edges() -> None:
    assert strong_composition(epsilon=0.3, num_steps=0, delta_slack=1e-5) == 0.0
    assert strong_composition(epsilon=0.0, num_steps=10, delta_slack=1e-5) == 0.0
    for bad in ({"epsilon": -1.0}, {"epsilon": math.inf}, {"num_steps": -1}, {"delta_slack": 0.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            strong_composition(**({"epsilon": 0.1, "num_steps": 3, "delta_slack": 1e-5} | bad))


def test_sampling_amplification() -> None:
    for epsilon in (1e-9, 0.5, 0.999, 1.0, 3.0):
        amplified, delta = amplify_by_sampling(epsilon=epsilon, delta=1e-5, sampling_rate=0.1)
        assert amplified == pytest.approx(math.log1p(0.1 * math.expm1(epsilon)), rel=1e-12)
        assert delta == pytest.approx(1e-6)
    assert amplify_by_sampling(epsilon=2.0, delta=1e-5, sampling_rate=1.0) == (2.0, 1e-5)
    assert math.isfinite(amplify_by_sampling(epsilon=5_000.0, delta=0.0, sampling_rate=0.1)[0])
    for bad in ({"epsilon": -1.0}, {"delta": 2.0}, {"sampling_rate": 0.0}, {"sampling_rate": 1.1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            amplify_by_sampling(**({"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1} | bad))
