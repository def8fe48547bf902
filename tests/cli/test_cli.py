"""The command line, as its user meets it: what it prints where, what it leaves, and how it ends."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typed import Command

import protea
from protea import Observer
from protea.cli import display
from protea.cli.listing import LISTS
from protea.cli.run import screen
from protea.config import registry, search_path
from protea.config.experiment import Experiment, experiment_from_table, load_experiment, method_label
from protea.config.families import FAMILIES
from protea.core.shell import install_hint
from protea.federation.jobs import Reply
from protea.methods.local import Local
from protea.runs.progress import client_jobs
from protea.studies import papers

SMALL = """
rounds = 3
clients = 3
method = "fedproto"
engine = "inline"
[data]
source = { kind = "spiral", classes = 3, points = 60 }
[models]
family = "tiny_mlp"
dim = 16
[training]
batch = 64
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    """``command("run", "exp.toml")`` in a folder where exp.toml is a small experiment."""
    (tmp_path / "exp.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return typed


# run


def test_without_a_terminal_each_round_is_a_plain_line(command: Command):
    done = command("run", "exp.toml")
    assert done.code == 0 and done.err == "" and "\x1b" not in done.out
    for round, line in enumerate(done.lines[:3], start=1):
        assert re.fullmatch(
            rf"fedproto  round {round}/3  loss \d+\.\d{{3}}  accuracy \d+\.\d %  \d+ s, about \d+ s left", line
        )


def test_the_final_table_is_whole_in_80_columns(command: Command):
    done = command("run", "exp.toml", "method.name=fedproto@htfllib", "--beside", "local")
    assert "…" not in done.out and max(map(len, done.lines)) <= 80
    accuracy = [line.rpartition("accuracy ")[2].split()[0] for line in done.lines if " round 3/3 " in line]
    table = done.lines[: done.lines.index(next(line for line in done.lines if line.startswith("Gain over")))]
    rows = {line.split()[0]: line.split()[1] for line in table if len(line.split()) > 1}
    assert [rows["fedproto@htfllib"], rows["local"]] == accuracy and "majority" in rows


def test_records_are_kept_in_a_directory_of_their_own(command: Command, tmp_path: Path):
    first, second = command("run", "exp.toml"), command("run", "exp.toml")
    paths = [Path(done.lines[-1].removeprefix("Records of fedproto: ")) for done in (first, second)]
    assert [path.parent for path in paths] == [Path("runs"), Path("runs")]
    assert paths[1].name == f"{paths[0].name}-2"
    assert all((tmp_path / path / "summary.json").is_file() for path in paths)


def test_changes_are_part_of_the_config_that_is_kept(command: Command, tmp_path: Path):
    assert command("run", "exp.toml", "rounds=1", "method.pull=2", "--out", "here").code == 0
    kept = load_experiment(tmp_path / "here" / "config.toml")
    assert (kept.rounds, kept.method.pull, kept.clients) == (1, 2.0, 3)


def test_quiet_says_nothing_and_keeps_the_records(command: Command, tmp_path: Path):
    done = command("run", "exp.toml", "--quiet", "--out", "here")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "here" / "summary.json").is_file()


def test_json_is_the_records_and_the_summaries_and_nothing_else(command: Command, tmp_path: Path):
    done = command("run", "exp.toml", "--json", "--out", "here", "--beside", "local")
    lines = [json.loads(line) for line in done.lines]
    assert [line["kind"] for line in lines] == 6 * ["round", "client", "client", "client"] + 2 * ["summary"]
    kept = [tmp_path / name for name in ("here", "here-local")]
    stored = [line for path in kept for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert done.lines[:24] == [line for line in stored if json.loads(line)["kind"] != "data"]
    for line, path in zip(lines[24:], kept, strict=True):
        assert line == {"kind": "summary", "directory": path.name, **json.loads((path / "summary.json").read_text())}


def test_beside_runs_other_methods_on_the_same_split(command: Command, tmp_path: Path):
    done = command("run", "exp.toml", "rounds=1", "--out", "a", "--beside", "local", "--beside", "fml@htfllib")
    assert done.code == 0
    names = ["a", "a-local", "a-fml@htfllib"]
    assert [method_label(load_experiment(tmp_path / n / "config.toml").method) for n in names] == [
        "fedproto", "local", "fml@htfllib",
    ]  # fmt: skip
    assert len({(tmp_path / name / "partition.json").read_bytes() for name in names}) == 1


def test_beside_alone_runs_the_same_method_with_each_client_alone(command: Command, tmp_path: Path):
    done = command("run", "exp.toml", "rounds=2", "--out", "a", "--beside", "local", "--beside", "alone")
    assert done.code == 0 and "Records of fedproto alone: a-alone" in done.lines
    experiments = [load_experiment(tmp_path / name / "config.toml") for name in ("a", "a-local", "a-alone")]
    assert [experiment.alone for experiment in experiments] == [False, False, True]
    assert experiments[2] == replace(experiments[0], alone=True)
    assert json.loads((tmp_path / "a-alone/summary.json").read_text())["method"] == "fedproto alone"
    compared = command("compare", "a", "a-local", "a-alone")
    assert compared.code == 0 and all(name in compared.out for name in ("fedproto ", "local", "fedproto alone"))
    assert "alone=" not in compared.out  # its name says it
    assert command("report", "a", "a-local", "a-alone", "--out", "page.html").code == 0
    assert "fedproto alone" in (tmp_path / "page.html").read_text()


def test_a_taken_directory_beside_is_refused_before_anything_runs(command: Command, tmp_path: Path):
    (tmp_path / "a-local").mkdir()
    (tmp_path / "a-local" / "notes.txt").write_text("mine")
    done = command("run", "exp.toml", "--out", "a", "--beside", "alone", "--beside", "local")
    assert done.code == 2 and done.err.startswith("ConfigError: a-local exists and is not empty."), done.err
    assert not (tmp_path / "a").exists() and not (tmp_path / "a-alone").exists()


def test_beside_alone_goes_on_where_it_was(command: Command, tmp_path: Path):
    words = ("run", "exp.toml", "rounds=2", "--out", "a", "--beside", "alone")
    assert command(*words).code == 0
    done = command(*words, "--resume")
    assert done.code == 0 and "a-alone has ended" in done.out
    done = command("run", "exp.toml", "alone=true", "--beside", "alone")
    assert done.code == 2 and "the experiment itself has alone = true" in done.err


def test_a_method_beside_a_protected_one_is_protected_but_local_is_local(command: Command, tmp_path: Path):
    words = ("run", "exp.toml", "rounds=1", "protect=true", "data.source.points=200", "--out", "a")
    done = command(*words, "--beside", "local", "--beside", "fedtgp", "--beside", "alone")
    assert done.code == 0, done.err
    found = [json.loads(path.read_text())["method"] for path in sorted(tmp_path.glob("a*/summary.json"))]
    assert sorted(found) == ["fedproto alone protected", "fedproto protected", "fedtgp protected", "local"]


def test_gains_stand_in_a_table_and_in_the_summary(command: Command, tmp_path: Path):
    done = command("run", "exp.toml", "rounds=1", "--out", "a", "--beside", "local")
    assert done.code == 0 and max(map(len, done.lines)) <= 80
    first, local = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "a-local"))
    gain = first["gain"]["local"]
    assert "gain" not in local and gain["mean"] == pytest.approx(first["accuracy"] - local["accuracy"])
    assert gain["better"] + gain["worse"] + gain["neither"] == len(gain["clients"]) == 3
    title = next(place for place, line in enumerate(done.lines) if line.startswith("Gain over training alone"))
    row = next(line for line in done.lines[title:] if line.startswith(" fedproto local"))
    assert (
        f" {100 * gain['mean']:+.2f} {100 * gain['low']:+.2f} to {100 * gain['high']:+.2f} "
        in " ".join(row.split()) + " "
    )
    assert protea.load(tmp_path / "a").result.gain["local"].mean == gain["mean"]
    without = command("run", "exp.toml", "rounds=1", "--out", "b", "data.split.test=0", "--beside", "local")
    assert without.code == 0 and "Gain over" not in without.out


def test_a_run_without_test_samples_has_dashes_for_accuracies(command: Command):
    done = command("run", "exp.toml", "rounds=1", "data.split.test=0")
    assert done.code == 0 and "accuracy - %" in done.lines[0]
    done = command("show", "exp.toml", "data.split.test=0")
    assert "Always answering a client's commonest class: - % accuracy." in done.lines
    assert math.isnan(protea.run(load_experiment(Path("exp.toml"), ["rounds=1", "data.split.test=0"])).accuracy)


# resume


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(command: Command, tmp_path: Path):
    stopped = command("run", "exp.toml", "method=test_cli:Tired", "checkpoint.every=1", "--out", "here")
    assert stopped.code == 130 and stopped.err == "Stopped.  Go on after round 1: protea resume here\n"
    (tmp_path / "rested").touch()
    done = command("resume", "here")
    assert done.code == 0 and [" ".join(line.split()[:3]) for line in done.lines[:2]] == [
        "tired round 2/3", "tired round 3/3",
    ]  # fmt: skip
    lines = map(json.loads, (tmp_path / "here" / "metrics.jsonl").read_text().splitlines())
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2, 3]


@dataclass(frozen=True)
class Tired(Local):
    """Somebody presses Ctrl-C in round 2, unless there is a file called ``rested``."""

    def aggregate(self, server, uploads):
        if server.round == 2 and not Path("rested").exists():
            raise KeyboardInterrupt


def test_only_an_unfinished_run_is_resumed(command: Command):
    command("run", "exp.toml", "rounds=1", "--out", "here", "--quiet")
    done = command("resume", "here")
    assert (done.code, done.out) == (2, "")
    assert done.err == "ConfigError: here has ended: there is nothing to continue.  Its numbers are in summary.json.\n"
    done = command("resume", "nowhere")
    assert (done.code, done.err) == (2, "ConfigError: nowhere is not a run directory: it has no config.toml.\n")


OWN = """
from dataclasses import dataclass
from protea.methods.local import Local


@dataclass(frozen=True)
class Own(Local):
    pass
"""


def test_modules_beside_the_experiment_file_are_found_also_when_the_run_goes_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def forget():
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(there)])
        monkeypatch.delitem(sys.modules, "own_of_study")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(search_path, "_added", [])
    there = tmp_path / "my study"
    there.mkdir()
    (there / "exp.toml").write_text(SMALL.replace('"fedproto"', '"own_of_study:Own"'))
    (there / "own_of_study.py").write_text(OWN)
    assert command("run", "my study/exp.toml", "rounds=1", "--out", "here", "-q").code == 0
    forget()
    assert "has ended" in command("resume", "here").err  # and not that there is no such module
    forget()
    # A directory that comes from elsewhere names a folder that this user has run nothing from.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert "no module 'own_of_study' to import" in command("resume", "here").err


def test_nothing_in_a_runs_directory_is_imported(command: Command, tmp_path: Path):
    command("run", "exp.toml", "rounds=1", "--out", "here", "-q")
    (tmp_path / "here" / "planted.py").write_text("raise SystemExit('it was run')")
    config = (tmp_path / "here" / "config.toml").read_text()
    (tmp_path / "here" / "config.toml").write_text(config.replace('name = "fedproto"', 'name = "planted:Own"'))
    assert "planted" in (tmp_path / "here" / "config.toml").read_text()
    assert "no module 'planted' to import" in command("show", "here/config.toml").err


def test_beside_without_a_name_is_training_alone(command: Command, tmp_path: Path):
    assert command("run", "exp.toml", "rounds=1", "--beside", "--out", "a", "-q").code == 0
    assert command("run", "exp.toml", "rounds=1", "--out", "b", "-q", "--beside").code == 0
    assert all((tmp_path / name / "summary.json").is_file() for name in ("a", "a-local", "b", "b-local"))


# show, list, doctor


def test_show_says_what_would_be_done_and_does_nothing(command: Command, tmp_path: Path):
    done = command("show", "exp.toml", "seed=4")
    assert done.code == 0 and "seed = 4" in done.lines and "…" not in done.out
    for part in ("Settings", "Clients", "Models", "Cost"):
        assert any(part in line and line.startswith("─") for line in done.lines)
    assert [path.name for path in tmp_path.iterdir()] == ["exp.toml"]


def test_show_names_what_differs_from_the_reference_code(command: Command, tmp_path: Path):
    shown = command("show", "exp.toml", "method.name=fedproto@htfllib", "training.last=drop").out
    assert "fedproto@htfllib: these settings are not those of the reference code" in shown
    assert "training.order is shuffled here, fixed there" in shown and "training.last is" not in shown
    assert "Reference" not in command("show", "exp.toml", "method.name=fedgh").out  # nobody spoke of another code
    meant = command("show", "exp.toml", "method.name=fedgh", "training.order=fixed").out
    assert "fedgh@htfllib" in meant and "models.start is not set" in meant
    assert "training.order is fixed, in the order of the partition" in " ".join(meant.split())
    once = command("show", "exp.toml", "method.name=fedproto@htfllib", "training.order=once").out
    assert "training.order" not in once.partition("Reference")[2].partition("Cost")[0]


GROUPS = {"data": "sources"}


@pytest.mark.parametrize("what", LISTS)
def test_lists_name_all_there_is(what: str, command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "250")
    done = command("list", what)
    own = {"families": FAMILIES, "tables": papers.names()}
    names = own.get(what) or registry.table(GROUPS.get(what, what))
    assert done.code == 0
    assert set(names) <= {line.split()[0] for line in done.lines if line.split()}, "Type: make lists"


def test_doctor_says_what_is_here_and_how_to_add_the_rest(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "250")
    done = command("doctor")
    assert done.code == 0
    for line in done.lines:
        if line.split()[:1] == ["extra"]:
            extra = line.split()[1]
            assert (install_hint(extra) in line) == ("missing" in line), line
    assert any("torch" in line for line in done.lines)


def test_help_names_the_commands(command: Command):
    done = command("--help")
    assert done.code == 0
    for name in ("run", "resume", "show", "list", "doctor"):
        assert re.search(rf"^\W*{name}\b", done.out, re.MULTILINE)


# Errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "none.toml"], "ConfigError: none.toml does not exist."),
        (["run", "."], "ConfigError: . cannot be read: Is a directory."),
        (["run", "exp.toml", "rounds"], "ConfigError: 'rounds' changes nothing.  Write setting=value"),
        (
            ["run", "exp.toml", "method.pul=1"],
            "ConfigError: command line: method.pul is not a setting of fedproto.\n  Did you",
        ),
        (["run", "exp.toml", "method=[x]"], "PluginError: command line: method.name: '[x]' is not among the methods."),
        (["run", "exp.toml", "--beside", "lokal"], "PluginError: --beside lokal: method.name: 'lokal' is not among"),
        (["run", "exp.toml", "--beside", "local", "--beside", "local"], "ConfigError: --beside names local 2 times"),
        (["run", "exp.toml", "--beside", "alone", "--beside", "alone"], "ConfigError: --beside names fedproto alone 2"),
        (["run", "exp.toml", "--out", "exp.toml"], "ConfigError: exp.toml exists and is not empty."),
        (["run", "exp.toml", "clients=999"], "ConfigError: partition: 999 clients with at least 1 samples each"),
        (["show", "exp.toml", "models.family=cnn4"], "ConfigError: architecture 'cnn4': it takes images"),
        (["run", "exp.toml", 'data.source={kind="npz", path="none.npz"}'], "DataError: There is no none.npz."),
        (["list", "method"], "ConfigError: There is no list of 'method'.  Did you mean methods?"),
    ],
)
def test_errors_are_messages_on_standard_error(words: list[str], message: str, command: Command, tmp_path: Path):
    done = command(*words)
    assert (done.code, done.out) == (2, "") and done.err.startswith(message), done.err
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["exp.toml"]


def test_a_client_that_fails_is_a_message_too(command: Command):
    done = command("run", "exp.toml", "method=local", "training.lr=1e30", "training.epochs=3")
    assert done.code == 2 and "Traceback" not in done.err
    assert re.match(
        r"ClientError: client 0, round 1: the loss became (nan|inf) at step \d+ \(lr 1e\+30, tiny_mlp\)", done.err
    )


@pytest.mark.parametrize("words", [["run"], ["rum", "exp.toml"], ["run", "exp.toml", "--beyond", "local"]])
def test_wrong_usage_is_explained(words: list[str], command: Command):
    done = command(*words)
    assert done.code == 2 and done.out == "" and "Usage: " in done.err


# Displays


def test_the_display_is_what_fits_the_output():
    experiment = experiment_from_table({"rounds": 7, "clients": 10, "fraction": 0.3})

    def kind(console: Console, quiet: bool = False, as_json: bool = False) -> type[display.Quiet]:
        made = screen(console, experiment, quiet, as_json)
        assert (made.title, made.rounds) == ("fedproto", 7)
        return type(made)

    assert [client_jobs(experiment, round) for round in (1, 7)] == [
        3 + 10,
        3 + 2 * 10,
    ]  # trained, judged, in the end twice
    terminal, pipe = Console(force_terminal=True, file=StringIO()), Console(file=StringIO())
    assert (kind(terminal), kind(pipe)) == (display.Live, display.Lines)
    assert kind(terminal, quiet=True) is display.Quiet and kind(terminal, quiet=True, as_json=True) is display.Json


def test_the_live_display_counts_clients_and_rounds_and_leaves_one_line(tmp_path: Path):
    (tmp_path / "exp.toml").write_text(SMALL)
    console = Console(force_terminal=True, file=StringIO(), width=100)
    with screen(console, load_experiment(tmp_path / "exp.toml"), False, False) as live:

        class Refresh(Observer):
            def replied(self, reply: Reply) -> None:
                live.progress.refresh()

        result = protea.run(load_experiment(tmp_path / "exp.toml"), observers=[live, Refresh()])
    shown = Text.from_ansi(console.file.getvalue()).plain
    for done in range(1, 7):
        assert re.search(rf"this round .* {done}/6 client jobs", shown)
    assert re.search(r"this round .* 9/9 client jobs", shown)  # in the last one they answer the shared test set too
    for round in (1, 2):
        assert re.search(rf"fedproto .* {round}/3 rounds  accuracy \d+\.\d %", shown)
    last = shown.rstrip().splitlines()[-1]
    final = result.records[-1].accuracy
    assert final is not None and re.search(rf"fedproto .* 3/3 rounds  accuracy {100 * final:.1f} %", last)


def test_the_live_display_gives_the_terminal_back_after_an_error():
    console = Console(force_terminal=True, file=StringIO())
    with pytest.raises(RuntimeError), display.Live(console, "fedproto", Experiment()):
        raise RuntimeError
    assert console.file.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


def test_numbers_are_written_for_people():
    assert [display.percent(value) for value in (0.8314, 1.0, 0.0, None, math.nan)] == [
        "83.1",
        "100.0",
        "0.0",
        "-",
        "-",
    ]
    assert [display.format_bytes(count) for count in (0, 999, 1000, 2_540_000, 3e12)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "3000.0 GB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["site", "init", "exp.toml/site"],
        ["federation", "init", "exp.toml/fed", "--classes", "a,b"],
        ["run", "exp.toml", "--out", "exp.toml/run"],
        ["examples", "exp.toml/examples"],
    ],
    ids=" ".join,
)
def test_a_place_where_nothing_can_be_made_is_a_message(words: list[str], command: Command):
    if words[0] == "federation":
        pytest.importorskip("flwr", reason="lacking: extra flower")
    done = command(*words)
    assert done.code == 2 and re.search(r"ConfigError: exp\.toml/\w+.* cannot be", done.err), done.err
