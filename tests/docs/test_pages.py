"""What the pages promise: links that lead somewhere, tutorials that run, a README that fits two screens."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib
import pytest
import yaml
from code_blocks import PAGES, ROOT
from PIL import Image

from shuffle_plugins import __version__, accounting
from shuffle_plugins.mechanisms import available, summary

LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
NUMBER = re.compile(r"\d+\.\d+")
TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.ipynb"))
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = (re.sub(r"[`*]", "", text).strip().lower() for text in HEADING.findall(page.read_text()))
    return {"#" + re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def _numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def _names(pages: Iterable[Path]) -> set[str]:
    """Pages as ``docs/_toc.yml`` names them."""
    return {str(page.relative_to(ROOT).with_suffix("")) for page in pages}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target).resolve()
        assert found.exists(), f"{target} is not there"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{target} has no heading for {anchor}"


@pytest.fixture
def quiet_flower() -> Iterator[None]:
    """A page may change Flower's logging, and the tests after it must not notice."""
    level = logging.getLogger("flwr").level
    yield
    logging.getLogger("flwr").setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_flower")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_has_recorded(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    for cell in json.loads(page.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        exec(compile("".join(cell["source"]), page.name, "exec"), names)
        printed = capsys.readouterr().out
        streams = [output["text"] for output in cell["outputs"] if output.get("name") == "stdout"]
        recorded = "".join(text for stream in streams for text in stream)
        if "random" in cell["metadata"].get("tags", []):
            assert bool(printed) == bool(recorded)
        else:
            assert _numbers(printed) == pytest.approx(_numbers(recorded), rel=0.05)


def test_every_page_has_its_place_in_the_site() -> None:
    """If this fails, add the page to ``docs/_toc.yml``."""
    contents = yaml.safe_load((ROOT / "docs/_toc.yml").read_text())
    entries = [entry for part in contents["subtrees"] for entry in part["entries"]]
    placed = {contents["root"], *(entry["file"] for entry in entries if "file" in entry)}
    for entry in entries:
        if "glob" in entry:
            placed |= _names(ROOT.glob(entry["glob"] + ".md"))
    assert placed == _names((*PAGES, *TUTORIALS))


def test_letters_of_figures_are_readable_on_a_phone() -> None:
    """Ten points are of a figure of five inches as ten pixels are of a phone's page, 350 wide."""
    shown = {
        page.parent / picture
        for page in PAGES
        for picture in re.findall(r"\]\((\S+\.png)\)", page.read_text())
    }
    assert len(shown) > 20
    wide = {}
    for path in shown:
        with Image.open(path) as picture:
            inches = picture.width / picture.info["dpi"][0]
        if inches > 5:
            wide[path.name] = inches
    assert wide == {}


def test_the_citation_is_of_this_version_and_licence() -> None:
    cited = dict(re.findall(r"^(version|license): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited == {"version": __version__, "license": declared["license"]}


def test_every_face_is_on_a_page_of_the_reference() -> None:
    pages = "".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
    documented = set(re.findall(r"^\.\. automodule:: (\S+)$", pages, re.MULTILINE))
    packages = [*ROOT.glob("shuffle_plugins/*/__init__.pyi"), *ROOT.glob("integrations/*/__init__.pyi")]
    faces = {".".join(stub.parent.relative_to(ROOT).parts).removeprefix("integrations.") for stub in packages}
    assert faces - documented == {"shuffle_plugins.cli"}


def test_every_name_of_accounting_is_on_one_of_its_pages() -> None:
    pages = {page.stem: page.read_text() for page in ROOT.glob("docs/api/accounting-*.md")}
    named = re.findall(r"^\.\. auto(?:class|function|data):: (\w+)$", "".join(pages.values()), re.MULTILINE)
    left = (ROOT / "docs/api/accounting.md").read_text().partition(":exclude-members:")[2]
    assert len(named) == len(set(named)) > 30
    assert set(re.findall(r"\w+", left)) == set(named) <= set(accounting.__all__)


def test_every_registered_mechanism_is_on_the_page_of_mechanisms() -> None:
    page = (ROOT / "docs" / "guides" / "mechanisms.md").read_text()
    built_in = {name for name in available() if not summary(name).startswith("from ")}
    assert len(built_in) > 20
    assert {name for name in built_in if f"`{name}`" not in page} == set()
