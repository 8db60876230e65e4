"""Links to other sites are https and well formed; whether they are alive, ``sphinx -b linkcheck`` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
        *ROOT.glob("docs/**/*.ipynb"),
    ]
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*([a-z][a-z0-9+.-]*:[^)]*)\)|<([a-z][a-z0-9+.-]*://[^>]*)>", re.IGNORECASE)
HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")


def prose(page: Path) -> str:
    """What a page says, without its code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCED.sub("", text)


def links(text: str) -> list[str]:
    return [inside or bare for inside, bare in LINK.findall(text)]


def wrong(link: str) -> str | None:
    """What is wrong with a link to another site; None if nothing is."""
    parts = urlsplit(link)
    if parts.scheme != "https":
        return "not https"
    if re.search(r"[\s\"'<>\\^`{|}]", link) or not link.isascii():
        return "a character that must be escaped"
    if parts.netloc != parts.hostname or not HOST.fullmatch(parts.netloc):
        return "no name of a host"
    return "a dot or comma at its end" if link[-1] in ".,;:" else None


def test_links_to_other_sites_are_https_and_well_formed() -> None:
    found = {
        f"{page.relative_to(ROOT)}: {link}": wrong(link) for page in PAGES for link in links(prose(page))
    }
    assert len(found) >= 5
    assert {link: why for link, why in found.items() if why} == {}
