from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleRound
from shuffle_plugins.accounting.comparison import Comparison, compare
from shuffle_plugins.accounting.published.catalogue import PUBLISHED_BOUNDS, published_bound
from shuffle_plugins.cli.plotting import line_styles, plot_comparisons
from shuffle_plugins.cli.tables import bounds_table, rounds_tables
from shuffle_plugins.core import rounded

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


def test_every_published_bound_is_listed_or_says_why_not() -> None:
    found = compare(
        shuffle_round=ShuffleRound(local_epsilon=0.5, population=50_000, cohort=5_000),
        num_steps=50,
        delta=1e-5,
    )
    listed = {bound.name: bound for bound in found.bounds}
    left = {each.name: each.reason for each in found.out_of_range}
    assert listed.keys() & left.keys() == set()
    assert {bound.name for bound in PUBLISHED_BOUNDS} <= listed.keys() | left.keys()
    assert left == {bound.name: bound.note for bound in PUBLISHED_BOUNDS if not bound.valid}
    question = {"local_epsilon": 0.5, "population": 50_000, "cohort": 5_000, "num_steps": 50, "delta": 1e-5}
    for bound in PUBLISHED_BOUNDS:
        if bound.valid:
            assert listed[bound.name].kind == "upper"
            assert listed[bound.name].source == bound.source
            assert listed[bound.name].epsilon == bound.epsilon(**question)


def test_one_full_round_is_known_as_well_from_the_binary_pair() -> None:
    """The published pair is this package's own there; they differ by the numerics alone."""
    found = compare(
        shuffle_round=ShuffleRound(local_epsilon=1.0, population=5_000, cohort=5_000), num_steps=1, delta=1e-6
    )
    epsilons = {bound.name: bound.epsilon for bound in found.bounds}
    assert epsilons["stronger clones, numerical"] == pytest.approx(found.interval.upper, rel=1e-3)


@first_fast(
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
    assert epsilons[GIRGIS] == published_bound(GIRGIS).epsilon(**question, num_steps=7, delta=1e-5)
    assert epsilons[CLONES] == published_bound(CLONES).epsilon(**question, num_steps=7, delta=1e-5)


def test_bounds_out_of_their_range_say_why() -> None:
    poisson = compare(
        shuffle_round=ShuffleRound(
            local_epsilon=0.5, population=2_000, cohort=200.5, sampling=Sampling.POISSON
        ),
        num_steps=7,
        delta=1e-5,
    )
    assert {each.name for each in poisson.out_of_range} == {bound.name for bound in PUBLISHED_BOUNDS}
    assert all("Poisson" in each.reason for each in poisson.out_of_range)
    small = compare(
        shuffle_round=ShuffleRound(local_epsilon=2.0, population=2_000, cohort=200), num_steps=7, delta=1e-5
    )
    reasons = {each.name: each.reason for each in small.out_of_range}
    assert "Theorem 3.1 needs" in reasons[CLONES]
    assert "Theorem 7 needs" in reasons["amplification by shuffling"]
    assert GIRGIS not in reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"local_delta": 1e-12}, "(ε0, δ0)"), ({"sampling": Sampling.CHECK_IN}, "check-ins")],
)
def test_rounds_that_the_theorems_do_not_treat_get_no_published_bound(
    change: dict[str, object], reason: str
) -> None:
    question = {"local_epsilon": 0.5, "population": 2_000, "cohort": 200} | change
    found = compare(shuffle_round=ShuffleRound(**question), num_steps=7, delta=1e-5)
    valid = {bound.name for bound in PUBLISHED_BOUNDS if bound.valid}
    assert valid <= {each.name for each in found.out_of_range if reason in each.reason}
    assert not {bound.name for bound in found.bounds} & valid


def test_an_epoch_gets_the_bounds_that_allow_inputs_to_follow_earlier_reports() -> None:
    common = {"local_epsilon": 0.4, "population": 2_000}
    epoch = ShuffleRound(**common, cohort=100, sampling="epoch")
    everybody = compare(
        shuffle_round=ShuffleRound(**common, cohort=2_000, sampling="full"), num_steps=7, delta=1e-5
    )
    found = compare(shuffle_round=epoch, num_steps=7, delta=1e-5)
    assert found.interval == everybody.interval
    theirs = {bound.name: bound.epsilon for bound in everybody.bounds}
    adaptive = {bound.name for bound in PUBLISHED_BOUNDS if bound.adaptive}
    listed = {bound.name: bound.epsilon for bound in found.bounds if bound.name in adaptive}
    assert {CLONES, "clones, numerical", "amplification by shuffling"} <= set(listed)
    assert all(listed[name] == theirs[name] >= found.interval.upper for name in listed)
    reasons = {each.name: each.reason for each in found.out_of_range}
    assert "inputs fixed before the round" in reasons[GIRGIS]
    assert "privacy blanket, Bennett" in reasons


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
    assert drawn.count('<g id="axes_') == 4, "the bounds, and their multiples of the certified one"


def test_a_plot_shades_the_certified_interval(tmp_path: Path) -> None:
    target = tmp_path / "epsilon.svg"
    plot_comparisons(comparisons=[small(rounds) for rounds in (1, 10)], path=target)
    assert target.read_text().count('<g id="FillBetweenPolyCollection') == 2
    assert "<!-- certified interval -->" in target.read_text()


def test_a_plot_of_nothing_but_zeros_is_drawn(tmp_path: Path) -> None:
    free = compare(
        shuffle_round=ShuffleRound(local_epsilon=0.1, population=100, cohort=50), num_steps=1, delta=0.9
    )
    assert free.interval.upper == 0
    plot_comparisons(comparisons=[free], path=tmp_path / "zeros.png")
    assert (tmp_path / "zeros.png").stat().st_size > 0


def test_a_bound_keeps_its_line_in_every_picture_and_shares_it_with_none() -> None:
    names = [bound.name for bound in small(10).bounds]
    every = {bound.name for bound in PUBLISHED_BOUNDS} | {*names, "privunit instance"}
    styles = line_styles(every)
    assert len({tuple(sorted(style.items())) for style in styles.values()}) == len(every)
    for name in names:
        assert line_styles([name]) == {name: styles[name]}


def test_own_lines_stand_out_from_published_ones() -> None:
    published = {bound.name for bound in PUBLISHED_BOUNDS}
    styles = line_styles({bound.name for bound in small(10).bounds} | published)
    greys = {styles[name]["color"] for name in published}
    thickest = max(styles[name]["linewidth"] for name in published)
    for name in ("blanket pair, PLD", "blanket pair, RDP", "3-RR instance", "binary-RR instance"):
        assert styles[name]["color"] not in greys
        assert styles[name]["linewidth"] > 2 * thickest


@pytest.mark.slow
def test_a_picture_names_published_bounds_that_agree_once_and_leaves_out_far_ones(tmp_path: Path) -> None:
    target = tmp_path / "epsilon.svg"
    answers = [
        compare(
            shuffle_round=ShuffleRound(local_epsilon=2.0, population=10**6, cohort=1_000),
            num_steps=rounds,
            delta=1e-8,
        )
        for rounds in (100, 10_000)
    ]
    plot_comparisons(comparisons=answers, path=target)
    drawn = target.read_text()
    assert "<!-- privacy blanket, Bennett -->" in drawn
    assert "<!-- = privacy blanket, Hoeffding -->" in drawn
    assert "blanket pair, PLD (upper)" in drawn
    assert "no amplification" not in drawn


@first_fast("width", [60, 80, 110, 160])
def test_tables_fit_their_width_and_lose_nothing(width: int) -> None:
    answers = [small(10**power) for power in range(7)]
    fitted = printed([bounds_table(answers[2], width=width)], width=width)
    for bound in answers[2].bounds:
        assert rounded(bound.epsilon, up=bound.kind == "upper") in fitted
        assert all(word in fitted for word in f"{bound.name} {bound.source}".split())
    fitted = printed(rounds_tables(answers, width=width), width=width)
    for answer in answers:
        assert f"T={answer.num_steps:,}" in fitted.replace(" = ", "=")
        for bound in answer.bounds:
            assert f" {rounded(bound.epsilon, up=bound.kind == 'upper')} " in fitted
    assert "…" not in fitted


def small(num_steps: int) -> Comparison:
    return compare(
        shuffle_round=ShuffleRound(local_epsilon=0.5, population=50_000, cohort=5_000),
        num_steps=num_steps,
        delta=1e-5,
    )


def printed(tables: Iterable[Table], *, width: int) -> str:
    console = Console(width=width, record=True, file=StringIO())
    for table in tables:
        assert Measurement.get(console, console.options, table).minimum <= width
        console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize(
    ("value", "up", "shown"),
    [
        (0.420801, True, "0.4209"),
        (0.420899, False, "0.4208"),
        (0.5, True, "0.5"),
        (99.991, True, "100"),
        (123_456.0, True, "123,500"),
        (1800.0, True, "1,800"),
        (1234.56, False, "1,234"),
        (999.96, True, "1,000"),
        (9_999_999.0, False, "9,999,000"),
        (2e10, True, "2e+10"),
        (5.1481e-05, True, "5.149e-05"),
        (0.0, False, "0"),
        (float("inf"), True, "inf"),
    ],
)
def test_rounding_goes_one_way(value: float, up: bool, shown: str) -> None:
    assert rounded(value, up=up) == shown
