"""Chromium without a window, for pages that are looked at as people do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = [
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
    *("disable-background-networking", "disable-component-update", "disable-extensions"),
]
PATIENCE = 120  # seconds; only a page that hangs needs them


@contextmanager
def opened(profile: Path) -> Iterator[Any]:
    """A browser that logs what it is told and asks for."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"user-data-dir={profile}", "window-size=1400,1000"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    driver.command_executor.client_config.timeout = 10 * PATIENCE  # a busy machine answers late
    yield driver
    driver.quit()
