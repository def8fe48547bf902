"""A real browser for tests of pages; they skip where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from wanted import lacking


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Chromium without a window, which asks nobody for anything of its own accord."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        lacking("a browser (chromium with its chromedriver)")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for name in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1200,900", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{name}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def all_of(browser: Any, css: str) -> list[Any]:
    """All elements that a selector finds."""
    found: list[Any] = browser.find_elements("css selector", css)
    return found


def choose(browser: Any, control: str, value: str) -> None:
    """Choose an option of a menu, in one step: a live page may be drawn anew between two."""
    script = "const menu = document.getElementById(arguments[0]); menu.value = arguments[1]; "
    browser.execute_script(script + "menu.dispatchEvent(new Event('change', {bubbles: true}))", control, value)
