"""The sites of all versions, of a repository with tags, side by side."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from example_scripts import script

versions = script("docs/versions.py")
CONF = 'project = "tiny"\nmaster_doc = "index"\nexclude_patterns = ["build"]\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three tags, of which ``v0.9.0`` was set last, another that is no version, and an uncommitted change."""
    root = tmp_path / "repository"
    (root / "docs").mkdir(parents=True)
    (root / "docs/conf.py").write_text(CONF)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=root, check=True)

    git("init", "--quiet")
    for tag in ("v0.2.0", "v0.10.0", "v0.9.0", "very-old"):
        (root / "index.rst").write_text(f"{tag}\n{'=' * len(tag)}\n")
        git("add", ".")
        git("commit", "--quiet", "--no-verify", "--message", tag)
        git("tag", tag)
    (root / "index.rst").write_text("not yet\n=======\n")
    return root


def copied(tree: Path, output: Path) -> None:
    """In the place of Sphinx."""
    output.mkdir()
    (output / "index.html").write_text((tree / "index.rst").read_text())


def test_every_version_has_its_site_and_is_listed(repository: Path, tmp_path: Path) -> None:
    output = tmp_path / "sites"
    assert versions.build(repository, output, builder=copied) == ["unreleased", "0.10.0", "0.9.0", "0.2.0"]
    shown = {each.parent.name: each.read_text().split("\n")[0] for each in output.glob("*/index.html")}
    assert shown == {"unreleased": "not yet", "0.10.0": "v0.10.0", "0.9.0": "v0.9.0", "0.2.0": "v0.2.0"}
    page = (output / "index.html").read_text()
    places = [page.index(f'href="{each}/index.html"') for each in ("unreleased", "0.10.0", "0.9.0", "0.2.0")]
    assert places == sorted(places)
    assert sorted(each.name for each in output.iterdir()) == sorted([*shown, "index.html"])


def test_a_site_that_cannot_be_built_leaves_what_was_there(repository: Path, tmp_path: Path) -> None:
    def broken(tree: Path, output: Path) -> None:
        output.mkdir()
        raise subprocess.CalledProcessError(2, "sphinx")

    versions.build(repository, tmp_path / "sites", builder=copied)
    before = sorted((tmp_path / "sites").rglob("*"))
    with pytest.raises(subprocess.CalledProcessError):
        versions.build(repository, tmp_path / "sites", builder=broken)
    assert sorted((tmp_path / "sites").rglob("*")) == before
