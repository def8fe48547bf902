"""How soon the live page shows a round after it was written.

    python benchmarks/live.py [RUNS,RUNS,...] [rounds]

`protea watch` follows a folder with so many runs (1 and 200 if not said otherwise), all of them chosen on its page in
Chromium.  One of them goes on: every two to three seconds its next round is written.  Seconds are from the write until
the list of runs says that round, and until the curve of accuracy has been drawn with it; the page is on the screen from
its top.  Both are times at which the browser next draws (its own clock, of the same machine).  In the last column is
the load of the machine over the last minute, as `uptime` says it.

The runs are of one real one on the digits, 40 rounds of 4 clients, each with another seed; the page computes nothing
from seeds.  Needs Chromium and selenium (extra dev).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measure import Table
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

import protea
from protea.config.experiment import load_experiment

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"
BEFORE = 10  # rounds that are written when the page opens
LONGEST = 60  # seconds that a round is waited for

# Of each round, when the list said it and when the curve had it.
WATCHER = """
window.seen = {list: {}, curve: {}};
(function look() {
  const now = performance.timeOrigin + performance.now();
  const said = document.querySelector('tr[data-run="0"]')?.textContent.match(/(\\d+) of \\d+/)?.[1];
  const drawn = document.querySelector('#accuracy .series')?.dataset.points;
  if (said) window.seen.list[said] ??= now;
  if (drawn) window.seen.curve[drawn] ??= now;
  requestAnimationFrame(look);
})();
"""


def main(given: str = "1,200", rounds: str = "9") -> None:
    table = Table(runs=6, rounds=8, list_s=9, longest_s=11, curve_s=10, longest_curve_s=17, load=7)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        words = [f"rounds={BEFORE + 30}", "clients=4", "data.samples=240", "models.family=tiny5", "models.dim=16"]
        protea.run(load_experiment(EXAMPLE, [*words, "evaluation.snapshots=0"]), made)
        for count in map(int, given.split(",")):
            runs = Path(folder) / f"runs-{count}"
            later = copies(made, runs, count)
            lists, curves = delays(runs, later[: int(rounds)], Path(folder) / f"browser-{count}")
            load = round(os.getloadavg()[0], 1)
            table.add(count, len(lists), median(lists), max(lists), median(curves), max(curves), load)
    table.keep("live", {"runs": given, "rounds": int(rounds), "shown before": BEFORE})


def copies(made: Path, to: Path, count: int) -> list[bytes]:
    """Write the run so many times, with its first rounds only, each time with another seed; return its later rounds."""
    config = (made / "config.toml").read_text()
    lines = (made / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if line.startswith(b'{"kind": "round"')]
    for seed in range(count):
        shutil.copytree(
            made, to / str(seed), ignore=shutil.ignore_patterns("checkpoints", "prototypes", "summary.json")
        )
        (to / str(seed) / "metrics.jsonl").write_bytes(b"".join(lines[: starts[BEFORE]]))
        own = [f"seed = {seed + 1}" if line.startswith("seed = ") else line for line in config.splitlines()]
        (to / str(seed) / "config.toml").write_text("\n".join(own) + "\n")
    ends = [*starts[BEFORE + 1 :], len(lines)]
    return [b"".join(lines[start:end]) for start, end in zip(starts[BEFORE:], ends, strict=True)]


def delays(runs: Path, later: list[bytes], profile: Path) -> tuple[list[float], list[float]]:
    """Seconds until each of these rounds of the first run is in the list, and in the figure."""
    lists, curves, draw = [], [], random.Random(0)
    with watched(runs) as url, chromium(profile) as browser:
        browser.get(url)
        wait = WebDriverWait(browser, LONGEST)
        wait.until(lambda page: page.execute_script("return document.querySelector('#accuracy .series')"))
        browser.execute_script("document.getElementById('choose-found').click()")
        everything = f"return content && content.marks.length === {len(list(runs.iterdir()))} && !asking"
        wait.until(lambda page: page.execute_script(everything))
        browser.execute_script(WATCHER)
        for number, lines in enumerate(later, start=BEFORE + 1):
            time.sleep(draw.uniform(2, 3))  # at any time between two looks of the server
            written = time.time()
            with (runs / "0" / "metrics.jsonl").open("ab") as file:
                file.write(lines)
            there = f"return window.seen.list[{number}] && window.seen.curve[{number}]"
            wait.until(lambda page, there=there: page.execute_script(there))
            seen: dict[str, dict[str, float]] = browser.execute_script("return window.seen")
            lists.append(seen["list"][str(number)] / 1000 - written)
            curves.append(seen["curve"][str(number)] / 1000 - written)
    return lists, curves


@contextmanager
def watched(runs: Path) -> Iterator[str]:
    """The address at which `protea watch` serves a folder."""
    command = [sys.executable, "-m", "protea", "watch", str(runs), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
        finally:
            process.terminate()


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for word in ("headless=new", "no-sandbox", "window-size=1200,900", f"user-data-dir={profile}"):
        options.add_argument(f"--{word}")
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


if __name__ == "__main__":
    main(*sys.argv[1:])
