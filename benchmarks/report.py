"""How large the report of a long run is, and how long a browser takes to open it.

    python benchmarks/report.py [RUN]

Without a run, one of 100 rounds and 20 clients on the digits is made first.  Needs Chromium and selenium (extra dev).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import Table
from rich.console import Console
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import protea
from protea.cli.report import write_report
from protea.config.experiment import load_experiment
from protea.config.units import format_bytes

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"
LOADED = "return performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"


def main(given: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(given) if given else Path(folder) / "run"
        if not given:
            protea.run(load_experiment(EXAMPLE, ["rounds=100", "clients=20", "models.dim=512"]), run)
        page = Path(folder) / "report.html"
        write_report(Console(quiet=True), [run], page)
        options = webdriver.ChromeOptions()
        for word in ("headless=new", "no-sandbox", f"user-data-dir={folder}/browser"):
            options.add_argument(f"--{word}")
        browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        seconds = []
        for _ in range(5):
            browser.get(page.as_uri())
            seconds.append(float(browser.execute_script(LOADED)))
        browser.quit()
        table = Table(size=10, loaded_s=10)
        table.add(format_bytes(page.stat().st_size), median(seconds))
        table.keep("report", {"run": "given" if given else "digits, 100 rounds, 20 clients"})


if __name__ == "__main__":
    main(*sys.argv[1:])
