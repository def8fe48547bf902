"""Grids and searches, as their user meets them: what is run, what is left, and how they go on."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from typed import DIGITS, Command, Said
from wanted import extra

from protea.cli.sweep import SweepLines, SweepLive, SweepQuiet, board, brief
from protea.config.experiment import experiment_from_table, load_experiment
from protea.config.units import format_duration
from protea.core.errors import ConfigError
from protea.core.shell import install_hint
from protea.engines.processes import pool
from protea.federation.record import Cost, Record
from protea.methods.local import Local
from protea.studies import grid, search, sweep
from protea.studies.grid import SweepAxis, SweepRun, SweepSource
from protea.studies.search import ChoiceOf, RangeOf
from protea.studies.sweep import SweepOutcome

SMALL = f"""{DIGITS}
[evaluation]
local_prototypes = false
[checkpoint]
every = 1
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    """``command("seed=1,2")`` sweeps exp.toml, a small experiment, in a folder of its own."""
    (tmp_path / "exp.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return lambda *words, verb="sweep": typed(verb, "exp.toml", *words)


def starts(said: Said) -> list[str]:
    """The runs that were started or gone on with."""
    return re.findall(r"^(\S+)  starts", said.out, re.MULTILINE)


@pytest.fixture
def source() -> SweepSource:
    return SweepSource(Path("exp.toml"), SMALL)


def names(entries: list[SweepRun]) -> list[str]:
    return [entry.name for entry in entries]


def rounds(path: Path) -> list[dict[str, Any]]:
    """What a run recorded of its rounds, but for what it cost."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "cost": None} for line in lines if line["kind"] == "round"]


# Arguments


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2", ["1", "2"]),
        ("1", ["1"]),
        ("", [""]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{kind='iid'},{kind=\"dirichlet\",alpha=1}", ["{kind='iid'}", '{kind="dirichlet",alpha=1}']),
        ('"a,b",c', ['"a,b"', "c"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ("'it,s',x", ["'it,s'", "x"]),
        ("['a]',b],c", ["['a]',b]", "c"]),
        ("it's,b", ["it's,b"]),  # as run takes it
    ],
)
def test_commas_inside_quotes_and_brackets_do_not_part_values(text: str, parts: list[str]):
    assert grid.split(text) == parts


@pytest.mark.parametrize(
    ("argument", "axis"),
    [
        ("seed=1..3", SweepAxis("seed", ("1", "2", "3"))),
        ("seed=-1..1,5", SweepAxis("seed", ("-1", "0", "1", "5"))),
        ("training.lr=1e-3,.1", SweepAxis("training.lr", ("1e-3", ".1"))),
        ("data.source={kind='npz',path='../a..b'}", SweepAxis("data.source", ("{kind='npz',path='../a..b'}",))),
        ("fedtgp@paper:method.threshold=10", SweepAxis("method.threshold", ("10",), "fedtgp@paper")),
        ("my.module:Own:method.pull=2,3", SweepAxis("method.pull", ("2", "3"), "my.module:Own")),
        ("method=my.module:Own,local", SweepAxis("method", ("my.module:Own", "local"))),
    ],
)
def test_an_argument_is_a_setting_with_its_values(argument: str, axis: SweepAxis):
    assert SweepAxis.parse(argument) == axis


# The grid


def test_the_grid_is_all_combinations_with_readable_names(source: SweepSource):
    entries = grid.grid(
        source, ["method.name=fedproto,fedtgp", "seed=1..2", "fedtgp:method.threshold=10,100", "rounds=1"]
    )
    assert names(entries) == [
        "fedproto-s1", "fedproto-s2",
        "fedtgp-threshold=10-s1", "fedtgp-threshold=100-s1", "fedtgp-threshold=10-s2", "fedtgp-threshold=100-s2",
    ]  # fmt: skip
    assert [(e.experiment.seed, getattr(e.experiment.method, "threshold", None)) for e in entries] == [
        (1, None), (2, None), (1, 10.0), (1, 100.0), (2, 10.0), (2, 100.0),
    ]  # fmt: skip
    assert {entry.experiment.rounds for entry in entries} == {1}


def test_an_experiment_that_is_asked_for_twice_is_run_once(source: SweepSource):
    assert names(grid.grid(source, ["seed=1,1,2"])) == ["fedproto-s1", "fedproto-s2"]
    default = experiment_from_table(source.table).training.lr
    assert names(grid.grid(source, [f"training.lr={default},0.5"])) == [
        f"fedproto-lr={default}-s1",
        "fedproto-lr=0.5-s1",
    ]
    once = grid.grid(source, ["method.pull=1,10", "fedproto:method.pull=5"])  # a method's own setting wins
    assert [entry.experiment.method.pull for entry in once] == [5.0]


def test_names_tell_apart_what_differs_and_nothing_else(source: SweepSource):
    found = grid.grid(
        source, ["data.partition={kind='iid'},{kind='dirichlet',alpha=0.5}", "data.seed=1,2", "clients=4"]
    )
    assert names(found) == [
        "fedproto-partition=kind-iid-data.seed=1-s1",
        "fedproto-partition=kind-iid-data.seed=2-s1",
        "fedproto-partition=kind-dirichlet-alpha-0.5-data.seed=1-s1",
        "fedproto-partition=kind-dirichlet-alpha-0.5-data.seed=2-s1",
    ]
    assert names(grid.grid(source, ["clients=3,4", "evaluation.clients=all"])) == [
        "fedproto-clients=3-s1", "fedproto-clients=4-s1",
    ]  # fmt: skip
    both = names(grid.grid(source, ["clients=3,4", "evaluation.clients=all,participants"]))
    assert both[0] == "fedproto-clients=3-evaluation.clients=all-s1"
    long = grid.grid(source, ["models.members=['tiny_mlp','tiny_mlp','tiny_mlp','tiny_mlp'],['tiny_mlp']"])
    assert len({entry.name for entry in long}) == 2 and all(len(entry.name) < 80 for entry in long)
    variants = grid.grid(source, ["method.name=fedproto,fedproto@htfllib"])
    assert names(variants) == ["fedproto-s1", "fedproto@htfllib-s1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed"], "'seed' changes nothing.  Write setting=value"),
        (["seed=1,,2"], "'seed=1,,2' has an empty value between its commas."),
        (["seed=5..1"], "'seed=5..1': the range is empty.  Write the smaller number first: 1..5"),
        (["training.lr=0.1..0.5"], "a range in a grid is of whole numbers"),
        (["method.name=fedproto,fedtgp", "fedtpg:method.threshold=1"], "the method 'fedtpg'.  Did you mean fedtgp?"),
        (["rounds=1,none"], "command line: rounds = 'none'"),
        (["method.name=fedproto,lokal"], "'lokal' is not among the methods.  Did you mean local?"),
    ],
)
def test_what_cannot_be_read_is_refused(source: SweepSource, arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        grid.grid(source, arguments)


def test_a_setting_that_one_method_lacks_is_refused_with_the_way_to_write_it(source: SweepSource):
    with pytest.raises(ConfigError) as error:
        grid.grid(source, ["method.name=fedtgp,fedproto", "method.threshold=10,100"])
    assert "method.threshold is not a setting of fedproto." in str(error.value)
    assert "To give it to runs of fedtgp only, write fedtgp:method.threshold=..." in str(error.value)
    assert "This is the run with method.name=fedproto method.threshold=10." in str(error.value)
    with pytest.raises(ConfigError) as error:  # which no method has
        grid.grid(source, ["method.name=fedtgp,fedproto", "method.treshold=10"])
    assert "only, write" not in str(error.value)


def test_all_is_checked_before_the_first_run_starts(command: Command, tmp_path: Path):
    done = command("seed=1", "method.name=fedproto,lg_fedavg", "models.family=tiny5,htc4", "--out", "here")
    assert done.code == 2 and done.out == "" and "needs heads that are all the same" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["exp.toml"]


# Running, and going on


def test_a_sweep_leaves_the_runs_that_run_would_leave(command: Command, tmp_path: Path):
    done = command("method.name=fedproto,local", "seed=1..2", "rounds=2", "--out", "here")
    assert done.code == 0 and done.err == ""
    content = json.loads((tmp_path / "here" / "sweep.json").read_text())
    assert content["format"] == 1 and content["config"] == {"path": "exp.toml", "content": SMALL}
    assert content["arguments"] == ["method.name=fedproto,local", "seed=1..2", "rounds=2"]
    directories = ["fedproto-s1", "fedproto-s2", "local-s1", "local-s2"]
    assert [each["directory"] for each in content["runs"]] == directories == starts(done)
    for each in content["runs"]:
        kept = (tmp_path / "here" / each["directory"] / "config.toml").read_text()
        assert each["settings"].replace('channels_last = "auto"', "channels_last = []") == kept  # settled by the run
    for name in directories:
        accuracy = 100 * json.loads((tmp_path / "here" / name / "summary.json").read_text())["accuracy"]
        assert re.search(rf"^{name}  accuracy {accuracy:.1f} %", done.out, re.MULTILINE)
    assert done.out.splitlines()[-1] == "Runs are in here.  Compare them: protea compare here"
    assert re.search(r"^ local +2 ", done.out, re.MULTILINE)  # a row over two seeds

    assert command("method.name=local", "seed=2", "rounds=2", "--out", "alone", verb="run").code == 0
    assert rounds(tmp_path / "alone") == rounds(tmp_path / "here" / "local-s2")


def test_the_same_call_again_does_nothing_again(command: Command, tmp_path: Path):
    first = command("seed=1..2", "rounds=1")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.jsonl")}
    again = command("seed=1..2", "rounds=1")
    assert (first.code, again.code, len(before)) == (0, 0, 2) and starts(again) == []
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "exp-sweep").rglob("*.jsonl")}


@dataclass(frozen=True)
class Tired(Local):
    """With seed 2, somebody presses Ctrl-C in round 2, unless there is a file called ``rested``."""

    def aggregate(self, server, uploads):
        if server.rng.root == 2 and server.round == 2 and not Path("rested").exists():
            raise KeyboardInterrupt


def test_an_interrupted_sweep_says_how_to_go_on_and_goes_on(command: Command, tmp_path: Path):
    words = ("method=test_sweep:Tired", "seed=1..3", "--out", "here")
    stopped = command(*words)
    assert stopped.code == 130
    assert stopped.err == "Stopped.  Go on with: protea sweep exp.toml method=test_sweep:Tired seed=1..3 --out here\n"
    assert len(rounds(tmp_path / "here" / "tired-s2")) == 1 and not (tmp_path / "here" / "tired-s3").exists()
    (tmp_path / "rested").touch()
    done = command(*words)
    assert done.code == 0 and starts(done) == ["tired-s2", "tired-s3"]
    assert "tired-s2  round 1/3" not in done.out  # it went on from its checkpoint
    command("method=test_sweep:Tired", "seed=2", "--out", "whole", verb="run")
    assert rounds(tmp_path / "here" / "tired-s2") == rounds(tmp_path / "whole")


def test_a_sweep_may_grow_but_not_lose_runs(command: Command, tmp_path: Path):
    assert command("seed=1..2", "rounds=1", "--out", "here").code == 0
    grown = command("seed=1..2", "rounds=1", "training.lr=0.01,0.1", "--out", "here")
    assert grown.code == 0 and starts(grown) == ["fedproto-lr=0.1-s1", "fedproto-lr=0.1-s2"]
    content = (tmp_path / "here" / "sweep.json").read_text()
    assert [each["directory"] for each in json.loads(content)["runs"]] == [
        "fedproto-s1", "fedproto-s2", "fedproto-lr=0.1-s1", "fedproto-lr=0.1-s2",
    ]  # fmt: skip
    refused = command("seed=1..2", "rounds=1", "--out", "here")
    assert refused.code == 2 and refused.err.startswith(
        "ConfigError: here holds another sweep: 2 of its 4 runs are not in this one, such as fedproto-lr=0.1-s1.\n"
    )
    assert "repeat what it was made with: exp.toml seed=1..2 rounds=1 training.lr=0.01,0.1\n" in refused.err
    assert (tmp_path / "here" / "sweep.json").read_text() == content


@dataclass(frozen=True)
class Fragile(Local):
    """With seed 1, the server fails in round 2, unless there is a file called ``mended``."""

    def aggregate(self, server, uploads):
        if server.rng.root == 1 and server.round == 2 and not Path("mended").exists():
            raise RuntimeError("out of order")


def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(command: Command, tmp_path: Path):
    words = ("method=test_sweep:Fragile", "seed=1..2", "--out", "here")
    done = command(*words)
    assert done.code == 1 and starts(done) == ["fragile-s1", "fragile-s2"]
    assert "fragile-s1  failed: RuntimeError: out of order  (0/2 done, 1 failed)" in done.out
    assert "fragile-s2  accuracy " in done.out
    assert done.err.startswith("1 failed:\n  fragile-s1: RuntimeError: out of order\n")
    kept = (tmp_path / "here" / "fragile-s1" / "error.txt").read_text()
    assert kept.startswith("Traceback") and kept.endswith("RuntimeError: out of order\n")
    (tmp_path / "mended").touch()
    again = command(*words)
    assert again.code == 0 and starts(again) == ["fragile-s1"] and again.err == ""
    assert not (tmp_path / "here" / "fragile-s1" / "error.txt").exists()
    assert len(rounds(tmp_path / "here" / "fragile-s1")) == 3


def test_a_run_that_fails_before_it_has_a_directory_is_tried_again_too(command: Command, tmp_path: Path):
    for _ in range(2):
        done = command("clients=3,999", "rounds=1", "--out", "here")
        assert done.code == 1 and "  fedproto-clients=999-s1: partition: 999 clients" in done.err
        assert [path.name for path in (tmp_path / "here" / "fedproto-clients=999-s1").iterdir()] == ["error.txt"]
    assert starts(done) == ["fedproto-clients=999-s1"]


def test_quiet_says_nothing_but_errors(command: Command):
    done = command("training.lr=0.1,1e30", "method=local", "rounds=1", "training.epochs=3", "--quiet", "--out", "here")
    assert (done.code, done.out) == (1, "")
    assert re.match(r"1 failed:\n  local-lr=1e30-s1: client \d, round 1: the loss became", done.err)


def test_other_directories_are_left_alone(command: Command, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    done = command("seed=1", "--out", "mine")
    assert (done.code, done.err) == (
        2, "ConfigError: mine exists and is not a sweep: it has no sweep.json.  Choose another --out.\n"
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".lock").touch()  # all that a call leaves which was killed at once
    assert command("seed=1", "rounds=1", "--out", "new").code == 0
    assert "exp.toml exists and is not a sweep" in command("seed=1", "--out", "exp.toml").err


def test_two_processes_do_not_work_on_one_sweep(command: Command, tmp_path: Path):
    with sweep.held(tmp_path / "here"):
        (tmp_path / "here" / "sweep.json").touch()
        done = command("seed=1", "--out", "here")
    assert (done.code, done.err) == (
        2, "ConfigError: here is being swept by another process.  Wait, or stop that one.\n"
    )  # fmt: skip


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), ('{"format": 7}', "has format 7; this")])
def test_a_sweep_file_that_is_not_ours_is_refused(command: Command, tmp_path: Path, content: str, message: str):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sweep.json").write_text(content)
    done = command("seed=1", "--out", "here")
    assert done.code == 2 and message in done.err


def test_worker_processes_serve_run_after_run(command: Command, monkeypatch: pytest.MonkeyPatch):
    seen = []
    end = SweepLines.end

    def look(self: SweepLines, outcome: SweepOutcome) -> None:
        seen.append([process.process.pid for process in pool._all if not process.dead])
        end(self, outcome)

    monkeypatch.setattr(SweepLines, "end", look)
    done = command("engine.name=processes", "engine.workers=1", "method.name=fedproto,local", "rounds=1")
    assert done.code == 0 and len(seen) == 2 and seen[0] == seen[1] and len(seen[0]) >= 1


# Displays


def entry(name: str = "fedproto-s1") -> SweepRun:
    return SweepRun(name, (), experiment_from_table({"rounds": 8}))


def ended(seconds: float, accuracy: float = 0.5) -> SweepOutcome:
    return SweepOutcome(entry(), {"accuracy": accuracy, "cost": {"seconds": seconds}})


def record(round: int) -> Record:
    return Record(round, [], None, {}, {}, {}, {}, {}, None, {}, 0, 0, 0, 0, {}, [], {}, Cost(), [])


def test_the_time_left_is_that_of_the_runs_so_far():
    shown = SweepQuiet(Console(file=StringIO()), 6)
    assert shown.state == "0/6 done" and shown.left() is None
    shown.end(ended(10.0))
    shown.end(ended(20.0))
    shown.end(SweepOutcome(entry(), None, "no"))
    assert shown.left() == 45.0  # three runs of 15 s
    assert shown.state == "2/6 done, 1 failed, about 45 s left"
    assert [format_duration(seconds) for seconds in (99, 600, 9000)] == ["99 s", "10 min", "2.5 h"]


def test_a_log_file_gets_a_line_for_each_quarter_and_each_run():
    shown = SweepLines(Console(file=StringIO(), width=40), 2)
    shown.start(entry())
    for round in range(1, 9):
        shown.record(record(round))
    shown.end(ended(4.0, 0.831))
    assert shown.console.file.getvalue().splitlines() == [
        "fedproto-s1  starts  (0/2 done)",
        "fedproto-s1  round 2/8  accuracy - %  (0/2 done)",
        "fedproto-s1  round 4/8  accuracy - %  (0/2 done)",
        "fedproto-s1  round 6/8  accuracy - %  (0/2 done)",
        "fedproto-s1  accuracy 83.1 %  4 s  (1/2 done, about 4 s left)",
    ]


def test_a_terminal_shows_the_sweep_and_the_run_as_bars():
    console = Console(force_terminal=True, file=StringIO(), width=120)
    with board(console, 3, quiet=False) as shown:
        assert isinstance(shown, SweepLive)
        shown.start(entry())
        shown.record(record(5))
        shown.progress.refresh()
        shown.end(ended(60.0, 0.25))
        shown.end(SweepOutcome(entry("local-s1"), None, "ConfigError: no"))
        shown.progress.refresh()
    plain = Text.from_ansi(console.file.getvalue()).plain
    assert re.search(r"fedproto-s1 .* 5/8 rounds", plain) and re.search(r"runs .* 2/3 1/3 done, 1 failed, about", plain)
    assert "fedproto-s1  accuracy 25.0 %  60 s" in plain and "local-s1  failed: ConfigError: no" in plain
    assert type(board(console, 3, quiet=True)) is SweepQuiet


def test_an_error_is_told_in_a_line():
    assert (
        brief("client 1, round 2: the loss became nan.\n  Lower the rate.") == "client 1, round 2: the loss became nan."
    )
    assert brief("Traceback (most recent call last):\n  ...\nKeyError: 'x'\n") == "KeyError: 'x'"


# Searching


def test_a_range_is_logarithmic_if_it_is_wide():
    wide, narrow, zero = (search.dimension(f"training.lr={ends}") for ends in ("0.001..0.1", "1..10", "0..100"))
    assert wide == RangeOf("training.lr", 0.001, 0.1, whole=False) and wide.log
    assert narrow == RangeOf("training.lr", 1, 10, whole=True) and not narrow.log and not zero.log
    assert str(wide) == "training.lr in 0.001..0.1 (log-uniform)"
    assert str(narrow) == "training.lr in 1..10 (uniform, whole)"
    assert search.dimension("method.pull=1,10") == ChoiceOf("method.pull", ("1", "10"))
    assert (wide.text(0.0123456), wide.text(0.0999999), narrow.text(3)) == ("0.01235", "0.1", "3")
    assert RangeOf("a", 0.123446, 1.0, whole=False).text(0.1234461) == "0.123446"  # rounding does not leave the range


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for", "training.lr=0.1..1"], "--search by how many runs.  Add, for example, --search 20."),
        (["--search", "3"], "A search needs something to search."),
        (["--search", "3", "--for", "training.lr=0.1"], "write a range or choices"),
        (["--search", "3", "--for", "training.lr=1..0.1"], "the smaller number"),
        (["--search", "3", "--for", "training.lr=-1..0.1"], "training.lr = -1.0: input should be"),
        (["--search", "3", "--for", "rounds=2..5.5"], "rounds = 2.0: input should be a valid integer"),
        (["--search", "3", "--for", "method.pull=1,x"], "method.pull = 'x'"),
        (
            ["--search", "3", "--for", "rounds=2..5", "seed=1,2"],
            "settings outside --for have one value; seed has 1, 2.",
        ),
        (["--search", "3", "--for", "rounds=2..5", "data.split.validation=0"], "test samples are never searched by."),
    ],
)
def test_a_search_that_cannot_work_is_refused_before_any_work(
    words: list[str], message: str, command: Command, tmp_path: Path
):
    extra("search")
    done = command(*words, "--out", "here")
    assert done.code == 2 and message in done.err, done.err
    assert [path.name for path in tmp_path.iterdir()] == ["exp.toml"]


def test_a_search_without_its_extra_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = command("--search", "3", "--for", "training.lr=0.1..1")
    assert (done.code, done.err) == (
        2, f"ConfigError: --search needs optuna.  Install it: {install_hint('search')}\n"
    )  # fmt: skip


def test_proposals_go_where_values_were_high():
    extra("search")
    space = [RangeOf("a", 0.0, 1.0, whole=False), ChoiceOf("b", ("x", "y"))]
    history = [({"a": i / 20, "b": "xy"[i % 2]}, 1 - abs(i / 20 - 0.8) - 0.5 * (i % 2)) for i in range(20)]
    found = [dict(change.split("=") for change in search.propose(space, history, seed)) for seed in range(20)]
    assert sum(abs(float(place["a"]) - 0.8) < 0.25 for place in found) > 12  # by chance 9 of 20
    assert sum(place["b"] == "x" for place in found) > 12
    assert search.propose(space, history, 3) == search.propose(space, history, 3)


def held_out(path: Path) -> float:
    return max(line["validation"]["method"]["weighted"] for line in rounds(path))


def test_a_search_keeps_the_best_on_validation_samples(command: Command, tmp_path: Path):
    extra("search")
    words = ("method=local", "--for", "training.lr=0.0001..1", "--for", "training.epochs=1,2", "--out", "here")
    done = command("--search", "5", *words)
    assert done.code == 0
    assert done.out.startswith("Searching training.lr in 0.0001..1.0 (log-uniform); training.epochs among 1, 2.\n")
    runs = json.loads((tmp_path / "here" / "sweep.json").read_text())["runs"]
    values = {each["directory"]: held_out(tmp_path / "here" / each["directory"]) for each in runs}
    assert len(values) == 5 and len(set(values.values())) > 1
    best = max(values, key=lambda name: values[name])
    chosen = next(each for each in runs if each["directory"] == best)
    assert (tmp_path / "here" / "best.toml").read_text() == chosen["settings"]
    assert f"  {100 * values[best]:5.1f}  {best}\n" in done.out
    assert f"  protea run exp.toml {' '.join(chosen['changes'])}\n" in done.out
    assert load_experiment(Path("exp.toml"), chosen["changes"]) == experiment_from_table(
        tomllib.loads(chosen["settings"])
    )

    more = command("--search", "6", *words)
    assert more.code == 0 and len(starts(more)) == 1
    assert json.loads((tmp_path / "here" / "sweep.json").read_text())["runs"][:5] == runs
    other = command("--search", "6", *words, "rounds=2")
    assert other.code == 2 and "here holds a search with other settings." in other.err
    assert "here holds a search over training.lr=0.0001..1" in command("seed=1", "--out", "here").err


def test_an_interrupted_search_proposes_what_it_would_have_proposed(command: Command, tmp_path: Path):
    extra("search")
    words = ("method=test_sweep:Tired", "seed=2", "--search", "3", "--for", "training.lr=0.001..0.1")
    assert command(*words, "--out", "a").code == 130
    (tmp_path / "rested").touch()
    assert command(*words, "--out", "a").code == 0
    assert command(*words, "--out", "b").code == 0
    first, second = (json.loads((tmp_path / name / "sweep.json").read_text())["runs"] for name in "ab")
    assert first == second and len(first) == 3


def test_a_search_steers_clear_of_settings_that_fail(command: Command, tmp_path: Path):
    extra("search")
    done = command(
        "method=local", "training.epochs=3", "--search", "4", "--for", "training.lr=0.1,1e30", "--out", "here"
    )
    assert done.code == 1 and "local-lr=1e30-s1: client" in done.err
    assert (tmp_path / "here" / "local-lr=1e30-s1" / "error.txt").is_file()
    assert load_experiment(tmp_path / "here" / "best.toml").training.lr == 0.1
    assert len(starts(done)) == 2 and len(json.loads((tmp_path / "here" / "sweep.json").read_text())["runs"]) == 4
