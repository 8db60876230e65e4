"""The built site in a real browser, without a window: wide, and as narrow as a phone.

Give the folder: ``BUILT_SITE=build/site python -m pytest -m process tests/docs/test_site.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import CHROMIUM, DRIVER, PATIENCE, opened

SITE = Path(os.environ.get("BUILT_SITE", "")).resolve()
WIDE, NARROW = 1400, 390

PAGES = [
    "index",  # leads to the next
    "docs/README",
    "docs/start/opacus",
    "docs/start/flower",
    "docs/tutorials/shuffle",
    "docs/guides/mechanisms",  # wide tables, a picture
    "docs/guides/flower",
    "docs/reference/glossary",
    "docs/reference/frontier",
    "docs/api/compressors",  # formulas
    "docs/proofs/sums",
    "CHANGELOG",
]

TOO_WIDE = """
const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
const inside = e => e.tagName !== "HTML" && e.tagName !== "BODY" && scrolls(e);
return [...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .filter(e => !inside(e.parentElement))
    .map(e => `${e.tagName} ${e.textContent.slice(0, 60)}`)
"""
BROKEN_IMAGES = """
return [...document.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src)
"""
FLAT_FORMULAS = """
return [...document.querySelectorAll("math")].filter(each => each.getBoundingClientRect().height < 5).length
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif("BUILT_SITE" not in os.environ, reason="BUILT_SITE names no built site"),
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)",
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def until(browser: Any, condition: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(lambda _: condition())


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_window_and_loads_what_it_shows(browser: Any, page: str, width: int) -> None:
    resize(browser, width)
    browser.get(f"{SITE.as_uri()}/{page}.html")
    if page == "index":
        until(browser, lambda: browser.current_url.endswith("/docs/README.html"))
    until(browser, lambda: browser.execute_script("return document.readyState") == "complete")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(TOO_WIDE) == [], "what is wider than the window can be scrolled to"
    assert browser.execute_script(BROKEN_IMAGES) == []
    assert browser.execute_script(FLAT_FORMULAS) == 0
    assert browser.get_log("browser") == [], "no errors on the console"


def test_a_search_finds_a_page(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    resize(browser, NARROW)
    browser.get(f"{SITE.as_uri()}/search.html?q=self-sampling")
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= NARROW


def test_nothing_is_asked_of_anybody_else(browser: Any) -> None:
    """After all pages above: the site is read without a network."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert any(each.startswith(SITE.as_uri()) for each in asked)
    assert {each for each in asked if not each.startswith(("file:", "chrome", "data:"))} == set()
