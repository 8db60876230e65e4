"""Builds the site of the working tree and of every tag ``v*`` side by side, with a page that lists them.

``python docs/versions.py [FOLDER]``, in any folder of the repository; by default into ``build/versions``.
"""

from __future__ import annotations

import html
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

UNRELEASED = "unreleased"


def sphinx(root: Path, output: Path) -> None:
    """Build the site of the tree at ``root`` with the packages that are installed now."""
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-c", "docs", ".", output], cwd=root, check=True)


def git(root: Path, *arguments: str) -> bytes:
    """What a git command prints."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE).stdout


def list_page(versions: list[str]) -> str:
    """The page that leads to all versions."""
    lines = "\n".join(f'<li><a href="{each}/index.html">{each}</a>' for each in map(html.escape, versions))
    return f"""<!doctype html>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>All versions</title>
<h1>All versions</h1>
<ul>
{lines}
</ul>
"""


def build(root: Path, output: Path, *, builder: Callable[[Path, Path], None] = sphinx) -> list[str]:
    """Build ``output/unreleased``, ``output/VERSION`` for every tag ``vVERSION``, and ``output/index.html``.

    A tag's site that is there already is left as it is. A site stands in its place only once it is whole.

    Returns:
        The versions, the working tree first, then tags from the newest down.

    Raises:
        subprocess.CalledProcessError: if git fails, or a site cannot be built; nothing is listed anew then.
    """
    tags = git(root, "tag", "--list", "v[0-9]*", "--sort=-version:refname").decode().split()
    versions = [UNRELEASED, *(tag.removeprefix("v") for tag in tags)]
    output.mkdir(parents=True, exist_ok=True)
    for version in versions:
        place = output / version
        if version != UNRELEASED and place.exists():
            continue
        with tempfile.TemporaryDirectory(dir=output) as folder:
            tree, site = root, Path(folder) / "site"
            if version != UNRELEASED:
                tree = Path(folder) / "tree"
                packed = git(root, "archive", "--format=tar", f"refs/tags/v{version}")
                with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                    archive.extractall(tree, filter="data")
            builder(tree, site)
            shutil.rmtree(place, ignore_errors=True)
            site.rename(place)
    (output / "index.html").write_text(list_page(versions), encoding="utf-8")
    return versions


if __name__ == "__main__":
    repository = Path(__file__).resolve().parents[1]
    target = Path(sys.argv[1]).resolve() if sys.argv[1:] else repository / "build" / "versions"
    print(f"{target / 'index.html'}: {', '.join(build(repository, target))}")
