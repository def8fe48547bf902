"""The long runs: commands that can be run, a page that is what the results say, claims that choose nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from wanted import extra

from protea.core.errors import ConfigError
from protea.studies.grid import SweepSource, grid
from protea.studies.leaderboard import boards
from protea.studies.result_rows import ResultRow, read_rows

ROOT = Path(__file__).parents[2]
CHOSEN = (
    "method.name=local@cosine fedproto:method.pull=10 fedtgp:method.pull=1 fedsa:method.pull=10 "
    "protonorm:method.scale=100 fedpagr:method.temperature=0.1\n"
)
BASH = shutil.which("bash")


def script(name: str) -> ModuleType:
    """A script of docs/results as a module."""
    path = ROOT / "docs" / "results" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def calls(tmp_path: Path) -> list[list[str]]:
    """The sweeps that all stages of the script would make, as words."""
    here = tmp_path / "examples"
    shutil.copytree(ROOT / "examples" / "long", here / "long")
    (here / "long" / "chosen").mkdir(exist_ok=True)
    for name in ("banking77", "clinc150", "cifar10", "fashion", "mtsamples", "ohsumed"):
        (here / "long" / "chosen" / f"{name}.txt").write_text(CHOSEN)
    found = []
    stages = (
        "choose",
        "distil",
        "many",
        "curves",
        "cifar10",
        "fashion",
        "texts",
        "texts-server",
        "ablations",
        "others",
    )
    for stage in stages:
        said = subprocess.run(
            [str(BASH), "examples/long/long.sh", "runs/long", stage, "1"], cwd=tmp_path, check=True, text=True,
            capture_output=True, env={**os.environ, "PROTEA": "echo protea", "PYTHON": "echo python"},
        )  # fmt: skip
        assert said.stderr == ""
        lines = [line for line in said.stdout.splitlines() if line.startswith("protea sweep ")]
        assert lines, stage
        found += [line.split()[2:] for line in lines]
    return found


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_every_sweep_of_the_script_is_one_that_can_be_run(calls: list[list[str]]):
    runs: dict[str, int] = {}
    for file, option, folder, *changes in calls:
        assert option == "--out" and folder not in runs  # two sweeps never share a folder
        entries = grid(SweepSource.load(ROOT / file), changes)
        runs[folder] = len(entries)
        assert len({entry.experiment.seed for entry in entries}) == 1
    module = script("long")
    planned = module.SEEDS * sum(count for folder, count in runs.items() if "/table/" in folder)
    assert module.state([]).startswith(f"**State: of {planned} planned runs, 0 are made; 0 of 12 settings")


def test_the_page_is_what_the_table_of_results_says():
    extra("parquet")
    module = script("long")
    page = module.PAGE.read_text("utf-8")
    assert module.written(page, read_rows(module.TABLE)) == page
    with pytest.raises(ConfigError, match="lacks the marks of 'state'"):
        module.written("nothing", [])


def rows() -> list[ResultRow]:
    """A setting with servers, a curve and an ablation, two seeds each."""
    found = []
    for seed, shift in ((1, 0.0), (2, 1.0)):
        at = ResultRow("long: cifar10, 50 rounds", "fedprotokd public_epochs=1", seed, 50, own=80.0 + shift)
        found += [
            replace(at, server=30.0 + shift, single=20.0 + shift, teacher=33.0, commit="abc"),
            replace(at, method="fedpkd public_epochs=1", server=25.0, single=20.0),
            replace(at, method="local", own=79.0 + shift),
        ]
        part = ResultRow("ablation: banking77, 300 rounds", "fedtgp pull=1", seed, 300, own=70.0 + shift)
        found += [part, replace(part, method="fedtgp pull=1 margin=none", own=72.0 + shift)]
        curve = ResultRow("curve: banking77, 300 rounds", "protonorm scale=100", seed, 300, own=99.0)
        found += [curve, replace(curve, method="protonorm scale=3"), replace(curve, method="protonorm")]
    return found


def test_tables_are_made_of_their_own_settings():
    module = script("long")
    names = ("state", "settings", "servers", "curves", "ablations")
    page = module.written("".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in names), rows())
    assert "of 486 planned runs, 6 are made; 1 of 12 settings" in page and "Made by `abc`." in page
    assert (
        "| cifar10, 50 rounds | fedprotokd | 2 | 30.5 ± 6.4 | 33.0 ± 0.0 | 20.5 ± 6.4 | - | **+10.0 [10.0, 10.0]** |"
        in page
    )
    assert page.index("protonorm scale=3 ") < page.index("protonorm scale=100 ")
    settings = page.partition("<!-- settings: begin -->")[2].partition("<!-- settings: end -->")[0]
    assert "protonorm" not in settings and "margin=none" not in settings
    assert module.written(page, rows()) == page  # once more is the same


def test_a_claim_takes_no_run_that_was_chosen_by_its_test_accuracy():
    """A curve has higher numbers than the run whose field was chosen beforehand; no claim looks at it."""
    claims = script("claims")
    found = boards(rows())
    told = [line for line in claims.lines(found) if not line.startswith("|---")]
    assert [line.split(" | ")[1] for line in told[1:]] == [
        "has a better server than FedPKD",
        "the adaptive margin (ACL) helps",
    ]
    assert told[2].endswith("| 0, 0, 1 | -2.0 |") and "**refuted**" in told[2]
    assert claims.entry(found[0], "fedtgp").method == "fedtgp pull=1"
    assert claims.entry(found[0], "fedtgp margin=none").method == "fedtgp pull=1 margin=none"
