"""The long runs: commands that can be run, a page that is what the results say, claims that choose nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from docs_scripts import script
from wanted import extra

from protea.core.errors import ConfigError
from protea.studies.grid import SweepSource, grid
from protea.studies.leaderboard import ASIDE, boards, markdown
from protea.studies.result_rows import ResultRow, read_rows

ROOT = Path(__file__).parents[2]
CHOSEN = (
    "method.name=local@cosine fedproto:method.pull=10 fedtgp:method.pull=1 fedsa:method.pull=10 "
    "protonorm:method.scale=100 fedpagr:method.temperature=0.1\n"
)
BASH = shutil.which("bash")


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
    module = script("results/long.py")
    planned = module.SEEDS * sum(count for folder, count in runs.items() if "/table/" in folder)
    assert module.state([]).startswith(f"**State: of {planned} planned runs, 0 are made; 0 of 12 settings")


def test_the_page_is_what_the_table_of_results_says():
    extra("parquet")
    module = script("results/long.py")
    page = module.PAGE.read_text("utf-8")
    assert module.written(page, read_rows(module.TABLE)) == page
    with pytest.raises(ConfigError, match="lacks the marks of 'state'"):
        module.written("nothing", [])
    claims = script("results/claims.py")
    page = claims.PAGE.read_text("utf-8")
    found = read_rows(module.TABLE)
    assert claims.written(page, boards(found)) == page
    ranked = boards(row for row in found if not row.setting.startswith(ASIDE))
    command = "protea reproduce --leaderboard --out docs/leaderboard.md"
    assert markdown(ranked, command) == (ROOT / "docs" / "leaderboard.md").read_text("utf-8"), "docs/results/redraw.py"


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
    module = script("results/long.py")
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
    claims = script("results/claims.py")
    found = boards(rows())
    told = [line for line in claims.lines(found) if not line.startswith("|---")]
    assert [line.split(" | ")[1] for line in told[1:]] == [
        "has a better server than FedPKD",
        "the adaptive margin (ACL) helps",
    ]
    assert told[2].endswith("| 0, 0, 1 | -2.0 |") and "**refuted**" in told[2]
    assert claims.entry(found[0], "fedtgp").method == "fedtgp pull=1"
    assert claims.entry(found[0], "fedtgp margin=none").method == "fedtgp pull=1 margin=none"


LONG = "long: banking77, 3,000 samples, 20 clients, dirichlet 0.1, 300 rounds"


def course(method: str, seed: int, values: dict[int, float], setting: str = LONG) -> list[ResultRow]:
    """A run of which some rounds were evaluated."""
    return [ResultRow(setting, method, seed, round, own=own, commit="abc") for round, own in values.items()]


def long_rows() -> list[ResultRow]:
    """Two methods and Local; of the second seed one method is not there yet."""
    return [
        *course("local@cosine", 1, {100: 80.0, 200: 84.0, 300: 83.0}),
        *course("local@cosine", 2, {100: 80.0, 200: 85.0, 300: 86.0}),
        *course("fedproto pull=10", 1, {100: 60.0, 200: 75.0, 300: 74.0}),
        *course("fedproto pull=10", 2, {100: 60.0, 200: 70.0, 300: 76.0}),
        *course("fedproto pull=10 alone", 1, {100: 60.0, 200: 70.0, 300: 79.0}),
        *course("fedtgp", 1, {100: 75.5, 200: 80.0, 300: 85.0}),
    ]


def test_rounds_to_what_another_has_at_its_best_are_told_by_seed():
    courses = script("results/courses.py")
    [board] = boards(long_rows())
    head, table = courses.table_of_rounds(board, ("fedproto", "local", "fedsa"))
    assert head == ["method", "fedproto's best (75.5 %)", "local's best (85.0 %)"]
    assert table == [
        ["fedtgp", "100", "300"],
        ["local@cosine", "100", "250"],
        ["fedproto pull=10", "250", "never"],
    ]
    assert courses.rounds_saved(board, "fedtgp", "fedproto") == {1: 100.0}
    assert courses.rounds_saved(board, "fedproto", "local") == {1: -200.0, 2: -100.0}  # never
    assert courses.rounds_saved(board, "fedsa", "fedproto") == {}


def test_a_page_of_some_of_the_runs_says_which_and_splits_gains():
    module = script("results/long.py")
    page = module.settings_of(boards(long_rows()), module.pictures(long_rows()))
    assert "| fedproto pull=10 | **-9.5 [-15.9, -3.1]** | -4.0 | -5.0 |" in page
    assert "(long/banking77-dirichlet-0.1-300-own.svg)" in page
    assert "Made by `abc`. Command: `bash examples/long/long.sh runs/long many 1 2`." in page
    said = module.state(boards(long_rows()))
    assert "of 486 planned runs, 6 are made; 1 of 12 settings" in said and f"| {LONG[6:]} | 6 | 66 | 1, 2 |" in said


def test_runs_that_have_not_ended_are_not_collected(tmp_path: Path):
    module = script("results/long.py")
    (tmp_path / "table" / "banking77-1" / "local-s1").mkdir(parents=True)
    (tmp_path / "table" / "banking77-1" / "local-s1" / "config.toml").touch()
    assert module.collected(tmp_path) == []
    with pytest.raises(ConfigError, match="is not a folder"):
        module.collected(tmp_path / "nowhere")


def test_a_value_that_a_variant_has_too_is_no_other_method():
    module = script("results/long.py")
    assert module.named("fedpagr@paper-text alone") == "fedpagr temperature=0.5 alone"
    assert module.named("fedpagr@paper-text") == "fedpagr temperature=0.5" and module.named("local") == "local"


def test_curves_are_drawn_of_what_there_is(tmp_path: Path):
    extra("plots")
    module, drawings = script("results/long.py"), script("results/drawings.py")
    found = [*long_rows(), *rows()]
    for value in (1, 30):
        found += course(f"protonorm scale={value}", 1, {300: 70.0 + value}, "curve: banking77, 300 rounds")
    wanted = drawings.figures(module.last_rows(found, "long"), module.last_rows(found, "curve"))
    assert list(wanted) == ["banking77-dirichlet-0.1-300-own", "protonorm-scale"]
    own = {each["name"]: each["points"] for each in wanted["banking77-dirichlet-0.1-300-own"]["series"]}
    assert own["fedproto pull=10"] == [[100, 60.0], [200, 72.5], [300, 75.0]] and "fedproto pull=10 alone" not in own
    assert list(own) == ["local@cosine", "fedproto pull=10", "fedtgp"]
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "of-before.svg").touch()
    drawings.draw(wanted, tmp_path / "long")
    assert {path.name for path in (tmp_path / "long").iterdir()} == {f"{name}.svg" for name in wanted}
    text = (tmp_path / "long" / "protonorm-scale.svg").read_text("utf-8")
    assert "scale of protonorm" in text and "banking77" in text


def test_claims_of_one_seed_are_not_judged_and_stand_by_themselves():
    claims = script("results/claims.py")
    found = boards(long_rows())
    assert [line.split(" | ")[1] for line in claims.lines(found)[2:]] == []  # of fedtgp there is one seed
    told = claims.open_claims(found)
    assert "| FedTGP | is better than FedProto, at length | +11.0, one seed |" in told
    assert "| FedTGP | needs fewer rounds for what FedProto has at its best | +100.0, one seed |" in told
    assert "| FedSA | is better than FedTGP, at length | no runs |" in told
    assert any(line.endswith("| 1 | +100.0 rounds | [longer runs](results/long.md), `abc` |") for line in
               claims.by_setting(found))  # fmt: skip


def test_more_classes_are_compared_between_data_sets_in_pairs_of_seeds():
    claims = script("results/claims.py")
    found = []
    for name, more in (("banking77", 5.0), ("clinc150", 7.0), ("digits", 1.0), ("cifar10", 3.0)):
        for seed in (1, 2):
            found += course("fedproto", seed, {9: 50.0 + seed}, f"fair test: {name}")
            found += course(
                "protonorm", seed, {9: 50.0 + seed + more + seed * (name == "digits")}, f"fair test: {name}"
            )
    [line] = [line for line in claims.lines(boards(found)) if "classes are many" in line]
    assert line.endswith("| **confirmed** | 1, 0, 0 | +3.2 |")  # 6 less 2.5 and less 3: 3.25 +- 3.18
    one = [row for row in found if "clinc150" not in row.setting]
    assert not any("classes are many" in line for line in claims.lines(boards(one)))
    assert any(line.endswith("one data set with many classes |") for line in claims.open_claims(boards(one)))
