"""``shuffle-plugins app`` in a real browser, without a window."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from anyio import CapacityLimiter, to_process
from browsers import CHROMIUM, DRIVER, PATIENCE, opened

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.cli.output import interval
from shuffle_plugins.cli.page.server import answer_lines

pytestmark = pytest.mark.process
SMALL = {"population": "2000", "cohort": "200", "local-epsilon": "1", "rounds": "20", "delta": "1e-5"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "shuffle_plugins", "app", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", served.stdout.readline())
        try:
            assert found is not None
            yield found[0]
        finally:
            served.terminate()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def expected(rounds: int) -> str:
    accountant = ShuffleAccountant()
    cost = ShuffleRound(local_epsilon=1.0, population=2000, cohort=200, channel_fixed=True)
    accountant.step(cost, num_steps=rounds)
    return interval(accountant.epsilon(1e-5))


@pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)",
)
def test_the_interval_moves_with_a_slider(address: str, browser: Any) -> None:
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def text(css: str) -> str:
        return browser.find_element(By.CSS_SELECTOR, css).text

    def until(condition: Callable[[], bool]) -> None:
        # An answer replaces elements of the page, perhaps between finding one and reading it.
        replaced = [StaleElementReferenceException]
        wait = WebDriverWait(browser, PATIENCE, poll_frequency=0.05, ignored_exceptions=replaced)
        wait.until(lambda _: condition())

    def fresh() -> bool:
        return not browser.find_elements(By.CSS_SELECTOR, ".stale, [aria-busy=true]")

    browser.get(f"{address}?{urlencode(SMALL)}")
    until(fresh)
    assert text("#verdict .interval") == expected(20)
    assert "subsampled shuffle RDP, published" in text("#bounds")
    before = browser.find_element(By.CSS_SELECTOR, "#plot path.upper").get_attribute("d")

    browser.find_element(By.ID, "rounds-slider").send_keys(Keys.ARROW_RIGHT)
    until(lambda: text("#verdict .interval") == expected(25))
    until(fresh)
    assert browser.find_element(By.ID, "rounds").get_property("value") == "25"
    assert parse_qs(urlsplit(browser.current_url).query)["rounds"] == ["25"]
    assert "--rounds 25" in text("#command")
    assert "num_steps=25" in text("#python")
    assert browser.find_element(By.CSS_SELECTOR, "#plot path.upper").get_attribute("d") != before

    field = browser.find_element(By.ID, "cohort")
    field.clear()
    field.send_keys("3000")
    until(lambda: "cohort must be in (0, population], got 3000 of 2000" in text("#cohort-said"))
    assert not fresh(), "the answer to another setting is greyed"
    assert field.get_attribute("aria-invalid") == "true"
    browser.find_element(By.CSS_SELECTOR, "#sampling option[value=full]").click()
    until(fresh)
    assert not field.is_enabled()
    assert text("#cohort-said").endswith("under full everybody's.")

    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")

    assert browser.get_log("browser") == [], "no errors on the console"
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert any("/answer?" in each for each in asked)
    elsewhere = {each for each in asked if not each.startswith((address, "chrome", "data:"))}
    assert elsewhere == set(), "nothing is asked of anybody else"


def test_a_question_that_nobody_waits_for_any_more_is_ended_and_a_crash_is_told() -> None:
    async def ask() -> None:
        one = CapacityLimiter(1)

        def stopped() -> int:
            """A process that does not answer what it is asked; no question is so slow on every machine."""
            (process,) = to_process._process_pool_workers.get()
            os.kill(process.pid, signal.SIGSTOP)
            return process.pid

        answer = answer_lines(SMALL, processes=one)
        assert expected(20) in json.loads(await anext(answer))["html"]
        await answer.aclose()  # its process waits for the next question
        ended = stopped()
        hopeless = anext(answer_lines(SMALL, processes=one, grace=0.1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hopeless, 1.0)
        assert json.loads(await anext(answer_lines({"delta": "2"}, processes=one)))["field"] == "delta"

        killed = stopped()
        assert killed != ended
        answer = answer_lines(SMALL, processes=one)
        asked = asyncio.ensure_future(anext(answer))
        while not one.borrowed_tokens:
            await asyncio.sleep(0)
        os.kill(killed, signal.SIGKILL)
        assert "ended by itself" in json.loads(await asked)["html"]
        assert [each async for each in answer] == []

    asyncio.run(ask())
