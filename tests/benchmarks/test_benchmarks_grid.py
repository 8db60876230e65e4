"""The grid's own code on eight of its settings, and on made-up answers that must be called violations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from example_scripts import ROOT, importable


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """(grid_settings, grid_report, published_grid): the scripts lie beside each other, not in a package."""
    with importable(ROOT / "benchmarks"):
        yield tuple(
            importlib.import_module(name) for name in ("grid_settings", "grid_report", "published_grid")
        )


@pytest.fixture(scope="module")
def cells(modules: Any) -> list[Any]:
    grid_settings, _, published_grid = modules
    chosen = grid_settings.space_filling(power=8)[5:225:56]
    chosen += grid_settings.corners()[2::28] + grid_settings.lines()[3::30]
    return [
        published_grid.evaluate(setting, laws=("3-RR", "10-RR") if i < 2 else ())
        for i, setting in enumerate(chosen)
    ]


def test_the_grid_covers_what_it_promises(modules: Any) -> None:
    grid_settings, _, _ = modules
    settings = grid_settings.grid()
    assert len(settings) >= 300
    assert settings == grid_settings.grid()
    for setting in settings:
        assert 1e3 <= setting.population <= 1e9
        assert 1 <= setting.cohort <= setting.population
        assert 0.1 <= setting.local_epsilon <= 8
        assert 1 <= setting.num_steps <= 10**6
        assert 0.99e-12 <= setting.delta <= 1.01e-5
    assert sum(setting.cohort < 10 for setting in settings) <= 20
    assert sum(setting.num_steps == 1 for setting in settings) >= 50
    assert sum(setting.sampling_rate == 1 for setting in settings) >= 50
    for low, high in ((1e3, 1e5), (1e5, 1e7), (1e7, 1e9)):
        assert sum(low <= setting.population <= high for setting in settings) >= 60


@pytest.mark.slow
def test_no_published_bound_is_below_ours_on_eight_settings(modules: Any, cells: list[Any]) -> None:
    _, grid_report, _ = modules
    assert len(cells) == 8
    for cell in cells:
        assert 0 < cell.own.lower <= cell.own.upper
        assert grid_report.violations(cell) == []


@pytest.mark.slow
def test_three_and_ten_categories_are_known_to_two_per_cent(cells: list[Any]) -> None:
    known = [own for cell in cells for own in cell.mechanisms.values()]
    assert len(known) == 4
    for own in known:
        assert own.upper <= 1.02 * own.lower
