"""The figures: what is committed is what the code draws, and no published bound lies below ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "figures"))

import make  # noqa: E402
from paper_figures import claims, headlines, refinement  # noqa: E402
from paper_figures.data import Role  # noqa: E402

ROLES = {role.value for role in Role}
NO_EPSILON = {
    "thesis-3.2",
    "thesis-7.3",
    "thesis-7.7",
    "thesis-7.9",
    "thesis-table-7.1",
}  # they show errors and bits
NUMERICS = 5e-4  # what the accountant's rounding costs in a single round, at most


def committed(name: str) -> dict[str, Any]:
    return json.loads((make.RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def pairs(panel: dict[str, Any], curve: dict[str, Any]) -> list[tuple[float, float]]:
    """A curve's known values beside the certified ones of its series."""
    (unit,) = (
        other
        for other in panel["curves"]
        if other["role"] == "certified" and other.get("series") == curve.get("series")
    )
    known = zip(curve["values"], unit["values"], strict=True)
    return [(value, certified) for value, certified in known if value is not None]


@pytest.mark.parametrize("name", make.FIGURES)
def test_committed_numbers_are_complete(name):
    figure = committed(name)
    assert figure["figure"] == name
    assert figure["neighbouring_relation"] == "replace-one"
    for panel in figure["panels"]:
        assert panel["parameters"]
        assert panel["parameters_from"] in {"caption", "text", "chosen here"}
        roles = [curve["role"] for curve in panel["curves"]]
        assert set(roles) <= ROLES
        assert ("certified" in roles) is (name not in NO_EPSILON)
        for curve in panel["curves"]:
            assert curve["source"]
            assert len(curve["values"]) == len(curve.get("x", panel["x"]["values"])) > 3
            assert any(value is not None for value in curve["values"])


@pytest.mark.parametrize("name", [name for name in make.FIGURES if name not in NO_EPSILON | {"subsampled-5"}])
def test_certified_lies_between_what_is_attained_and_every_published_bound(name):
    compared = 0
    for panel in committed(name)["panels"]:
        for curve in panel["curves"]:
            for value, certified in pairs(panel, curve):
                if curve["role"] == "upper":
                    assert certified <= value * (1 + NUMERICS), (panel["title"], curve["name"])
                    compared += 1
                elif curve["role"] in {"lower", "attained"}:
                    assert value <= certified * (1 + 1e-5), (panel["title"], curve["name"])
                    compared += 1
    assert compared > 50


@pytest.mark.slow
def test_one_figure_end_to_end(tmp_path):
    make.main(only=["subsampled-5"], results=tmp_path)
    drawn = json.loads((tmp_path / "subsampled-5.json").read_text(encoding="utf-8"))
    for fresh, kept in zip(drawn["panels"], committed("subsampled-5")["panels"], strict=True):
        assert fresh["parameters"] == kept["parameters"]
        for new, old in zip(fresh["curves"], kept["curves"], strict=True):
            assert (new["name"], new["role"]) == (old["name"], old["role"])
            np.testing.assert_allclose(new["values"], old["values"], rtol=1e-2, atol=1e-25)
    with Image.open(tmp_path / "subsampled-5.png") as picture:
        assert 500 < picture.width < 650  # letters are readable on a phone
    assert not (tmp_path / "headlines.json").exists()


@pytest.mark.parametrize("index", range(len(headlines.HEADLINES)))
def test_headlines_are_recomputed(index):
    fresh, kept = headlines.compute(headlines.HEADLINES[index]), committed("headlines")["rows"][index]
    assert fresh.reading == kept["reading"]
    for field in (
        "bound_epsilon",
        "baseline_epsilon",
        "reproduced_ratio",
        "attained_epsilon",
        "certified_epsilon",
        "bound_over_certified",
        "baseline_over_certified",
    ):
        assert getattr(fresh, field) == pytest.approx(kept[field], rel=1e-2), field


def test_documented_table_is_the_committed_one():
    rows = [headlines.HeadlineRow(**row) for row in committed("headlines")["rows"]]
    documentation = (ROOT / "docs" / "reference" / "figures.md").read_text(encoding="utf-8")
    assert headlines.table(rows) in documentation
    assert all(f"results/{name}.png" in documentation for name in make.FIGURES)


def values(figure: str, panel: int, **wanted: str) -> dict[float, float]:
    """One curve's values by abscissa."""
    found = committed(figure)["panels"][panel]
    (curve,) = (c for c in found["curves"] if all(c.get(key) == text for key, text in wanted.items()))
    return dict(zip(found["x"]["values"], curve["values"], strict=True))


def test_chapter_7_meets_the_published_numbers():
    for categories, saving in refinement.SAVINGS.items():
        drawn = values("thesis-7.3", 1, series=f"k = {categories}")
        assert drawn[5.0] == pytest.approx(saving, abs=6e-4)
    for bits, (clients, error) in refinement.ERROR_POINTS.items():
        assert values("thesis-7.7", 0, series=f"R = {bits:g}")[clients] == pytest.approx(error, abs=0.03)
    plenty, scarce = (values("thesis-7.7", 1, series=f"R = {bits}") for bits in ("1", "0.9"))
    assert all((scarce[level] > 1.05 * plenty[level]) is (level < 0.8) for level in plenty)
    joint, separate = (values("thesis-7.9", 1, name=n) for n in (refinement.JOINT, refinement.SEPARATE))
    assert (joint[10.0], separate[10.0]) == pytest.approx((2.127, 6.974), abs=6e-4)
    close = [values("thesis-7.9", 0, name=n)[0.99] for n in (refinement.SEPARATE, refinement.JOINT)]
    assert 1.8 < close[0] / close[1] < 2


def test_the_page_of_claims_is_what_the_committed_results_give():
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(claims.claims())


def test_evaluations_are_recomputed():
    kept = committed("evaluations")["values"]
    assert list(kept) == list(claims.EVALUATIONS)
    for name in list(kept):
        if "certified" in name:  # takes the accountant some seconds
            continue
        assert claims.EVALUATIONS[name]() == pytest.approx(kept[name], rel=1e-4)
