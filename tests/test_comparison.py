from pathlib import Path

import pytest

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleRound
from shuffle_plugins.accounting.published import clones, subsampled_rdp
from shuffle_plugins.comparison import compare
from shuffle_plugins.plotting import plot_comparisons
from shuffle_plugins.tables import rounded

GIRGIS, CLONES = "subsampled shuffle RDP, published", "clones, closed form"


def test_bounds_are_ordered_and_bracket_the_interval() -> None:
    found = compare(
        shuffle_round=ShuffleRound(local_epsilon=0.5, population=50_000, cohort=5_000),
        num_steps=50,
        delta=1e-5,
    )
    uppers = [bound.epsilon for bound in found.bounds if bound.kind == "upper"]
    lowers = [bound.epsilon for bound in found.bounds if bound.kind == "lower"]
    assert uppers == sorted(uppers)
    assert lowers == sorted(lowers, reverse=True)
    assert lowers[0] <= uppers[0] == found.interval.upper
    assert len({bound.name for bound in found.bounds}) == len(found.bounds)
    assert found.out_of_range == ()


@pytest.mark.parametrize(
    ("sampling", "adversary", "population"),
    [
        (Sampling.WITHOUT_REPLACEMENT, Adversary.MODEL_OBSERVER, 20_000),
        (Sampling.WITHOUT_REPLACEMENT, Adversary.SERVER, 5_000),
        (Sampling.SINGLE_PASS, Adversary.MODEL_OBSERVER, 5_000),
    ],
)
def test_published_bounds_see_the_population_that_hides_the_sample(
    sampling: Sampling, adversary: Adversary, population: int
) -> None:
    found = compare(
        shuffle_round=ShuffleRound(
            local_epsilon=0.5, population=20_000, cohort=5_000, sampling=sampling, adversary=adversary
        ),
        num_steps=7,
        delta=1e-5,
    )
    epsilons = {bound.name: bound.epsilon for bound in found.bounds}
    question = {"local_epsilon": 0.5, "population": population, "cohort": 5_000}
    assert epsilons[GIRGIS] == subsampled_rdp.epsilon(**question, num_steps=7, delta=1e-5)
    assert epsilons[CLONES] == clones.epsilon(**question, num_steps=7, delta=1e-5)


def test_bounds_out_of_their_range_say_why() -> None:
    poisson = compare(
        shuffle_round=ShuffleRound(
            local_epsilon=0.5, population=2_000, cohort=200.5, sampling=Sampling.POISSON
        ),
        num_steps=7,
        delta=1e-5,
    )
    assert {each.name for each in poisson.out_of_range} == {GIRGIS, CLONES}
    assert all("Poisson" in each.reason for each in poisson.out_of_range)
    small = compare(
        shuffle_round=ShuffleRound(local_epsilon=2.0, population=2_000, cohort=200), num_steps=7, delta=1e-5
    )
    (missing,) = small.out_of_range
    assert missing.name == CLONES
    assert "Theorem 3.1 needs" in missing.reason


def test_a_plot_needs_something_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_comparisons(comparisons=[], path=tmp_path / "empty.png")


def test_a_plot_has_one_panel_per_local_epsilon(tmp_path: Path) -> None:
    answers = [
        compare(
            shuffle_round=ShuffleRound(local_epsilon=e0, population=2_000, cohort=200),
            num_steps=rounds,
            delta=1e-5,
        )
        for e0 in (0.5, 1.0)
        for rounds in (10, 1)
    ]
    target = tmp_path / "epsilon.svg"
    plot_comparisons(comparisons=answers, path=target)
    drawn = target.read_text()
    assert drawn.count('<g id="axes_') == 2


@pytest.mark.parametrize(
    ("value", "up", "shown"),
    [
        (0.420801, True, "0.4209"),
        (0.420899, False, "0.4208"),
        (0.5, True, "0.5"),
        (99.991, True, "100"),
        (123_456.0, True, "123,500"),
        (1800.0, True, "1800"),
        (5.1481e-05, True, "5.149e-05"),
        (0.0, False, "0"),
        (float("inf"), True, "inf"),
    ],
)
def test_rounding_goes_one_way(value: float, up: bool, shown: str) -> None:
    assert rounded(value, up=up) == shown
