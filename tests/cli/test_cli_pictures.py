from collections.abc import Iterable
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from thinning import first_fast

from shuffle_plugins.accounting import Comparison, ShuffleRound, compare
from shuffle_plugins.cli.output import bounds_table, rounds_tables
from shuffle_plugins.cli.plotting import plot_comparisons, plot_plan
from shuffle_plugins.core import rounded
from shuffle_plugins.planning import plan


@pytest.mark.slow
def test_a_plot_shades_the_certified_interval(tmp_path: Path) -> None:
    target = tmp_path / "epsilon.svg"
    plot_comparisons(comparisons=[small(rounds) for rounds in (1, 10)], path=target)
    assert target.read_text().count('<g id="FillBetweenPolyCollection') == 2
    assert "<!-- certified interval -->" in target.read_text()


@pytest.mark.slow
def test_a_picture_names_published_bounds_and_leaves_out_far_ones(tmp_path: Path) -> None:
    target = tmp_path / "epsilon.svg"
    answers = [
        compare(
            shuffle_round=ShuffleRound(local_epsilon=2.0, population=10**6, cohort=1_000, channel_fixed=True),
            num_steps=rounds,
            delta=1e-8,
        )
        for rounds in (100, 10_000)
    ]
    plot_comparisons(comparisons=answers, path=target)
    drawn = target.read_text()
    assert "<!-- privacy blanket, Bennett -->" in drawn
    assert "crowd pair, PLD (upper)" in drawn
    assert "no amplification" not in drawn


@first_fast("width", [60, 80, 110, 160])
def test_tables_fit_their_width_and_lose_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    answers = [small(10**power) for power in range(7)]
    fitted = printed([bounds_table(answers[2])], width=width)
    for bound in answers[2].bounds:
        assert rounded(bound.epsilon, up=bound.kind == "upper") in fitted
        assert all(word in fitted for word in f"{bound.name} {bound.source}".split())
    fitted = printed(rounds_tables(answers), width=width)
    for answer in answers:
        assert f"T={answer.num_steps:,}" in fitted.replace(" = ", "=")
        for bound in answer.bounds:
            assert f" {rounded(bound.epsilon, up=bound.kind == 'upper')} " in fitted
    assert "…" not in fitted


@cache
def small(num_steps: int) -> Comparison:
    return compare(
        shuffle_round=ShuffleRound(local_epsilon=0.5, population=50_000, cohort=5_000, channel_fixed=True),
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


@pytest.mark.slow
def test_a_plan_has_a_picture(tmp_path: Path) -> None:
    found = plan(
        target_epsilon=1.0,
        delta=1e-6,
        population=5_000,
        dim=1,
        mechanism="binary-rr",
        num_steps=(1, 2),
        cohorts=(50, 500),
    )
    path = tmp_path / "plan.png"
    plot_plan(plan=found, path=path)
    assert path.read_bytes().startswith(b"\x89PNG")
