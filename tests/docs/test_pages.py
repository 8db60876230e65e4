"""What the pages promise: links that lead somewhere, code that runs, a README that fits two screens."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from shuffle_plugins import __version__

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if ".venv" not in path.parts
)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = (re.sub(r"[`*]", "", text).strip().lower() for text in HEADING.findall(page.read_text()))
    return {"#" + re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target).resolve()
        assert found.exists(), f"{target} is not there"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{target} has no heading for {anchor}"


@pytest.mark.parametrize("name", ["README.md", "docs/guides/accounting.md"])
def test_the_code_runs_and_prints_what_the_page_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = PYTHON.findall((ROOT / name).read_text())
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})
    assert capsys.readouterr().out.startswith("ε ∈ [0.3841, 0.3845] at δ = 1e-05 (replace-one neighbours, ")


def test_the_citation_is_of_this_version_and_licence() -> None:
    cited = dict(re.findall(r"^(version|license): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited == {"version": __version__, "license": declared["license"]}


def test_the_readme_needs_two_screens() -> None:
    before = (ROOT / "README.md").read_text().split("## Read on")[0].splitlines()
    assert len(before) <= 110  # of 55 lines each
    assert max(map(len, before)) <= 250  # the two commands are the longest lines


def test_every_face_is_on_a_page_of_the_reference() -> None:
    pages = "".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
    documented = set(re.findall(r"^\.\. automodule:: (\S+)$", pages, re.MULTILINE))
    packages = [*ROOT.glob("shuffle_plugins/*/__init__.pyi"), *ROOT.glob("integrations/*/__init__.pyi")]
    faces = {".".join(stub.parent.relative_to(ROOT).parts).removeprefix("integrations.") for stub in packages}
    assert faces - documented == {"shuffle_plugins.cli"}
