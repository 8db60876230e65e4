"""Numbers on the pages are those of the committed result files, and every result file has its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from example_scripts import ROOT, script

tables = script("docs/tables.py")
TABLES, SENTENCES = tables.tables(), tables.sentences()


PLANS = "docs/start/fit.md"  # plans six runs


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page == PLANS)) for page in TABLES]
)
def test_the_tables_are_those_of_the_results(page: str) -> None:
    """If this fails, run ``python docs/tables.py``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tables.with_tables(text, TABLES[page]) == text


@pytest.mark.parametrize("page", SENTENCES)
def test_the_sentences_are_those_of_the_results(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for piece in SENTENCES[page]:
        assert piece in text


def test_the_table_of_intervals_is_that_of_the_results(tmp_path: Path) -> None:
    """If this fails, run ``python benchmarks/intervals.py --page docs/reference/benchmarks.md``."""
    page = tmp_path / "benchmarks.md"
    text = (ROOT / "docs/reference/benchmarks.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    script("benchmarks/intervals.py").write_table(page)
    assert page.read_text(encoding="utf-8") == text


def test_the_table_of_versions_is_that_of_the_results() -> None:
    """``benchmarks/versions.py`` writes both whenever it has run a set."""
    program = script("benchmarks/versions.py")
    found = json.loads((ROOT / "benchmarks/results/versions.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/reference/versions.md").read_text(encoding="utf-8")
    assert program.TABLE.findall(page) == [program.table(found)]


@pytest.mark.slow
def test_plans_are_those_of_the_results() -> None:
    """If this fails, run ``python benchmarks/plans.py`` and ``python docs/tables.py``."""
    kept = json.loads((ROOT / "benchmarks/results/plans.json").read_text(encoding="utf-8"))
    program = script("benchmarks/plans.py")
    found = program.planned(num_steps=1, cohort=10**6)
    assert found["local_epsilon"] == pytest.approx(kept["rounds"][0]["local_epsilon"], rel=1e-3)
    assert found["epsilon"] == pytest.approx(kept["rounds"][0]["epsilon"], rel=1e-4)
    assert found["error"] == pytest.approx(kept["rounds"][0]["error"], rel=2e-3)
    assert found["baselines"] == pytest.approx(kept["rounds"][0]["baselines"], rel=2e-3)
    assert program.thrifty() == pytest.approx(kept["thrifty"], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts", "rel"),
    [
        ("certified", ("pairs",), 1e-3),
        ("protocols", ("small", "thesis", "coins"), 2e-3),
    ],
)
def test_what_is_computed_is_that_of_the_results(name: str, parts: tuple[str, ...], rel: float) -> None:
    """If this fails, run the benchmark of that name and ``python docs/tables.py``."""
    kept = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    program = script(f"benchmarks/{name}.py")
    for part in parts:
        for found, held in zip(_numbers(getattr(program, part)()), _numbers(kept[part]), strict=True):
            assert found == pytest.approx(held, rel=rel)


@pytest.mark.slow
def test_the_noise_of_windows_is_that_of_the_results() -> None:
    """If this fails, delete the results, run ``python benchmarks/window_noise.py`` and ``docs/tables.py``."""
    kept = json.loads((ROOT / "benchmarks/results/window_noise.json").read_text(encoding="utf-8"))
    program = script("benchmarks/window_noise.py")
    assert set(kept) == {f"{rounds},{band}" for band in program.BANDS for rounds in program.ROUNDS}
    assert program.measured(30, 14) == pytest.approx(kept["30,14"], rel=3e-3)


def _numbers(part: object) -> list[float]:
    """All numbers of a part of a result file, in its order."""
    if isinstance(part, dict):
        return [number for each in part.values() for number in _numbers(each)]
    if isinstance(part, list | tuple):
        return [number for each in part for number in _numbers(each)]
    return [float(part)] if isinstance(part, int | float) else []


def test_every_result_and_every_benchmark_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*/*.md"))
    results = [*ROOT.glob("examples/results/*.json"), *ROOT.glob("benchmarks/results/*.json")]
    assert len(results) > 40
    missing = [path.name for path in results if path.name not in pages and f"{path.stem}.py" not in pages]
    assert not missing


def test_what_the_page_of_reproduction_names_is_there() -> None:
    """Scripts, result files and options."""
    text = (ROOT / "docs/reference/reproduction.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w.-]+\.json)`", text):
        assert (ROOT / "examples/results" / name).exists(), name
        json.loads((ROOT / "examples/results" / name).read_text(encoding="utf-8"))
    for name in re.findall(r"`([\w.-]+\.py)`", text):
        assert (ROOT / "benchmarks" / name).exists(), name
    commands = re.findall(r"`python (\S+\.py)((?: [^`]*)?)`", text)
    assert len(commands) > 12
    for path, arguments in commands:
        source = (ROOT / path.replace("benchmarks/NAME.py", "benchmarks/intervals.py")).read_text(
            encoding="utf-8"
        )
        for option in re.findall(r"--[\w-]+", arguments):
            assert f'"{option}"' in source, f"{path} has no option {option}"
