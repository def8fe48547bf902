"""What a run leaves in its directory, and how it goes on from there."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from night import by_night

import protea
from protea import Data, Experiment
from protea.config.experiment import load_experiment
from protea.config.families import Models
from protea.config.sections import Checkpoint, Engine, Evaluation
from protea.core.errors import CheckpointError, ConfigError, DataError, ProteaError
from protea.core.files import unused_path, write_sealed
from protea.core.training import Training
from protea.data import Arrays, PartitionFile
from protea.data.sources.spiral import Spiral
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.fml import FML
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory
from protea.runs.environment import run_path
from protea.runs.run import resume

SMALL = Experiment(
    rounds=5,
    clients=4,
    fraction=0.5,
    data=Data(source=Spiral(classes=3, points=60)),
    models=Models(family="tiny_mlp", dim=16),
    training=Training(batch=64),
    engine=Engine("inline"),
    checkpoint=Checkpoint(every=2),
)


class Interrupted(Exception):  # noqa: N818
    """As if the machine had gone down."""


def at(round: int) -> Callable[[Record], None]:
    def stop(record: Record) -> None:
        if record.round == round:
            raise Interrupted

    return stop


def traces(path: Path) -> dict[str, object]:
    """All that a run left, but for what it cost."""
    found: dict[str, object] = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        content = file.read_text(encoding="utf-8") if file.suffix != ".safetensors" else file.read_bytes()
        if file.name == "metrics.jsonl":
            content = [without_cost(json.loads(line)) for line in str(content).splitlines()]
        elif file.name == "summary.json":
            content = without_cost(json.loads(content))
        elif file.name == "state.json" and content.startswith("{") and content.rstrip().endswith("}"):
            state = json.loads(content)
            content = (state["round"], state["files"])  # the metrics it vouches for have costs in them
        found[str(file.relative_to(path))] = content
    return found


def without_cost(line: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in line.items() if key != "cost"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> protea.Result:
    return protea.run(SMALL, tmp_path_factory.mktemp("runs") / "finished")


# The directory


def test_a_run_leaves_what_is_promised_and_nothing_else(finished: protea.Result):
    path = finished.directory
    assert path is not None
    assert sorted(file.name for file in path.iterdir()) == [
        ".lock", "checkpoints", "config.toml", "environment.json", "metrics.jsonl", "partition.json", "prototypes",
        "summary.json",
    ]  # fmt: skip
    assert load_experiment(path / "config.toml") == finished.experiment
    settled = replace(SMALL.models, channels_last=())
    assert finished.experiment == replace(SMALL, models=settled)
    assert json.loads((path / "summary.json").read_text()) == finished.summary
    environment = json.loads((path / "environment.json").read_text())
    assert environment["versions"]["protea"] == protea.__version__ and environment["device"] in ("cpu", "cuda", "mps")
    last = path / "checkpoints" / "000005"
    assert sorted(file.name for file in last.iterdir()) == [
        "client-000.safetensors", "client-001.safetensors", "client-002.safetensors", "client-003.safetensors",
        "server.safetensors", "state.json",
    ]  # fmt: skip


def test_metrics_are_a_line_for_each_round_and_for_each_client_evaluated(finished: protea.Result):
    first, *lines = [json.loads(line) for line in (finished.directory / "metrics.jsonl").read_text().splitlines()]
    assert first["kind"] == "data" and [client["client"] for client in first["clients"]] == [0, 1, 2, 3]
    assert all(
        sum(client["train"]) > 0 and len(client["train"]) == len(first["classes"]) for client in first["clients"]
    )
    assert [line["kind"] for line in lines] == 5 * ["round", *4 * ["client"]]
    assert [line["round"] for line in lines] == [round for round in range(1, 6) for _ in range(5)]
    assert [line["client"] for line in lines[1:5]] == [0, 1, 2, 3]
    assert Record.read(lines) == finished.records
    hits = sum(line["test/method"] for line in lines[-4:]) / sum(line["test/samples"] for line in lines[-4:])
    assert lines[-5]["accuracy"] == hits == finished.summary["protocols"]["final"]["test"]["method"]["weighted"]
    chosen = finished.summary["made"]["rounds"][0]
    assert finished.records[chosen - 1].accuracy == finished.accuracy == finished.summary["accuracy"]


def test_equal_runs_differ_in_their_cost_and_in_nothing_else(finished: protea.Result, tmp_path: Path):
    protea.run(SMALL, tmp_path / "again")
    assert traces(tmp_path / "again") == traces(finished.directory)
    rounds = [line for line in RunDirectory.open(tmp_path / "again").metrics() if line["kind"] == "round"]
    assert all(line["cost"]["seconds"].keys() == {"train", "server", "evaluate"} for line in rounds)
    assert all(line["cost"]["memory"] > 10**7 for line in rounds)


def test_another_seed_leaves_other_traces(finished: protea.Result, tmp_path: Path):
    protea.run(replace(SMALL, seed=2, data=replace(SMALL.data, seed=1)), tmp_path / "other")
    mine, others = traces(finished.directory), traces(tmp_path / "other")
    same = {name for name in mine if name in others and mine[name] == others[name]}
    assert same == {".lock", "partition.json"}
    told = [json.loads((path / "environment.json").read_text()) for path in (finished.directory, tmp_path / "other")]
    assert {name for name in told[0] if told[0][name] != told[1][name]} == {"config", "sum"}


def test_the_config_alone_runs_it_again_and_so_does_the_partition_it_left(finished: protea.Result, tmp_path: Path):
    protea.run(load_experiment(finished.directory / "config.toml"), tmp_path / "a")
    assert traces(tmp_path / "a") == traces(finished.directory)
    given = replace(SMALL.data, partition=PartitionFile(str(finished.directory / "partition.json")))
    assert without_costs(protea.run(replace(SMALL, data=given))) == without_costs(finished)


def without_costs(result: protea.Result) -> list[Record]:
    return [replace(record, cost=Cost()) for record in result.records]


def test_a_directory_that_holds_something_is_never_written_to(finished: protea.Result, tmp_path: Path):
    before = traces(finished.directory)
    with pytest.raises(
        ConfigError, match=r"exists and is not empty.  Choose another --out, or continue it: protea resu"
    ):
        protea.run(SMALL, finished.directory)
    assert traces(finished.directory) == before
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        protea.run(SMALL, tmp_path / "file")
    with pytest.raises(ConfigError, match=r"cannot be made: .*Choose another --out"):
        protea.run(SMALL, tmp_path / "file" / "below")


def test_an_empty_directory_is_used(tmp_path: Path):
    assert RunDirectory.create(tmp_path, "rounds = 1\n", {}).path == tmp_path
    assert (tmp_path / "config.toml").read_text() == "rounds = 1\n"


def test_what_a_run_left_that_was_killed_before_it_began_is_no_obstacle(finished: protea.Result, tmp_path: Path):
    for name in (".lock", "environment.json", ".environment.json.partial", ".config.toml.partial"):
        (tmp_path / name).write_text("half")
    with pytest.raises(ConfigError, match=r"it has no config\.toml"):
        resume(tmp_path)
    protea.run(SMALL, tmp_path)
    (tmp_path / ".lock").write_text("")
    assert traces(tmp_path) == traces(finished.directory)


def test_two_processes_do_not_make_the_same_run(tmp_path: Path):
    tmp_path.joinpath("run").mkdir()
    with (
        RunDirectory(tmp_path / "run").held(),
        pytest.raises(ConfigError, match=r"run is being written by another process\.  Wait, or stop that one"),
    ):
        protea.run(SMALL, tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_names_of_runs_say_what_was_run_and_are_never_used_twice(tmp_path: Path):
    path = run_path(tmp_path, SMALL)
    assert path.name.startswith("spiral-fedproto-s1-") and len(path.name) == len("spiral-fedproto-s1-4f2a")
    assert run_path(tmp_path, replace(SMALL, rounds=6)) != path == run_path(tmp_path, SMALL)
    variant = replace(SMALL, method=FedProto(**FedProto.variants["htfllib"]))
    assert run_path(tmp_path, variant).name.startswith("spiral-fedproto@htfllib-s1-")
    assert [made(unused_path(tmp_path, "a")).name for _ in range(3)] == ["a", "a-2", "a-3"]


def made(path: Path) -> Path:
    path.mkdir()
    return path


# metrics.jsonl


@pytest.mark.parametrize("half", ["", '{"kind": "round", "rou', '{"kind": "round", "round": 1}'])
def test_cutting_keeps_what_a_checkpoint_vouches_for(half: str, tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", "", {})
    run.append([{"kind": "round", "round": 1}])
    size = run.metrics_path.stat().st_size
    run.append([{"kind": "round", "round": 2}])
    with run.metrics_path.open("a") as file:
        file.write(half)
    for round in (1, 2):
        run.keep_snapshot(round, b"")
    run.cut(size, 1)
    assert list(run.snapshots()) == [1]
    assert list(run.metrics()) == [{"kind": "round", "round": 1}]
    run.cut(0, 0)
    assert list(run.metrics()) == []


# Checkpoints


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (2, [4, 5]), (9, [2, 4, 5])])
def test_the_newest_checkpoints_are_kept_and_the_last_round_always_has_one(keep: int, kept: list[int], tmp_path: Path):
    protea.run(replace(SMALL, checkpoint=Checkpoint(every=2, keep=keep)), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert [int(path.name) for path in checkpoint.complete(folder)] == kept
    assert len(list(folder.iterdir())) == len(kept)


@pytest.mark.parametrize(("last", "first"), [(1, 1), (2, 3), (3, 3), (5, 6)])
def test_an_interrupted_run_ends_as_if_it_had_not_been(last: int, first: int, finished: protea.Result, tmp_path: Path):
    """Interrupted after round ``last``, it goes on with ``first``, the one after the newest checkpoint."""
    with pytest.raises(Interrupted):
        protea.run(SMALL, tmp_path / "run", observers=[at(last)])
    assert not (tmp_path / "run" / "summary.json").exists()
    again: list[int] = []
    result = resume(str(tmp_path / "run"), observers=[lambda record: again.append(record.round)])
    assert again == list(range(first, 6))
    assert traces(tmp_path / "run") == traces(finished.directory)
    assert without_costs(result) == without_costs(finished)


def test_models_that_clients_remember_are_resumed_too(tmp_path: Path):
    experiment = replace(SMALL, method=FML())
    protea.run(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        protea.run(experiment, tmp_path / "broken", observers=[at(3)])
    resume(tmp_path / "broken")
    assert traces(tmp_path / "broken") == traces(tmp_path / "whole")


def test_a_run_may_be_interrupted_again_and_while_it_writes(finished: protea.Result, tmp_path: Path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        protea.run(SMALL, path, observers=[at(3)])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "round", "acc')
    half = path / "checkpoints" / "000004"
    half.mkdir()
    (half / "server.safetensors").write_bytes(b"not yet")
    with pytest.raises(Interrupted):
        resume(path, observers=[at(4)])
    resume(path)
    assert traces(path) == traces(finished.directory)


def test_clients_that_nobody_met_since_the_checkpoint_keep_their_state(tmp_path: Path):
    """Nobody is evaluated before the end, so after the break only those chosen are loaded, some of them late.

    The checkpoint that they would be loaded from has been replaced by then, in round 6.
    """
    experiment = replace(SMALL, rounds=9, clients=6, fraction=1 / 3, evaluation=Evaluation(every=99, snapshots=0))
    whole = protea.run(experiment, tmp_path / "whole")
    early = {client for record in whole.records[:4] for client in record.participants}
    soon = {client for record in whole.records[4:6] for client in record.participants}
    assert early - soon, "with this seed all are met in time"
    with pytest.raises(Interrupted):
        protea.run(experiment, tmp_path / "broken", observers=[at(4)])
    resume(tmp_path / "broken")
    assert traces(tmp_path / "broken") == traces(tmp_path / "whole")


def test_a_run_that_is_going_on_is_not_resumed(tmp_path: Path):
    def intrude(record: Record) -> None:
        with pytest.raises(ConfigError, match="is being written by another process"):
            resume(tmp_path / "run")

    protea.run(replace(SMALL, rounds=1), tmp_path / "run", observers=[intrude])


def test_a_script_gives_what_no_file_can_name_and_other_data_are_noticed(tmp_path: Path):
    x, y = np.random.default_rng(0).normal(size=(90, 4)).astype("float32"), np.arange(90) % 3

    def experiment(x: Any, y: Any) -> protea.Experiment:
        data = replace(SMALL.data, source=Arrays(x, y))
        return replace(SMALL, data=data, models=replace(SMALL.models, family="mlp", members=()))

    whole = protea.run(experiment(x, y), tmp_path / "whole")
    with pytest.raises(Interrupted):
        protea.run(experiment(x, y), tmp_path / "run", observers=[at(2)])
    with pytest.raises(ConfigError, match=r"data\.source\.x is missing"):
        resume(tmp_path / "run")
    with pytest.raises(DataError, match="it was made for other data"):
        resume(tmp_path / "run", experiment(x, (y + 1) % 3))
    other = replace(experiment(x, y), seed=7, training=replace(SMALL.training, lr=0.5))
    with pytest.raises(
        ConfigError, match=r"not the experiment of .*seed is 7, 1 there, training.lr is 0.5, 0.\d+ there"
    ):
        resume(tmp_path / "run", other)
    assert without_costs(resume(tmp_path / "run", experiment(x, y))) == without_costs(whole)


def test_a_run_that_has_ended_is_not_resumed(finished: protea.Result):
    with pytest.raises(
        ConfigError, match=r"has ended: there is nothing to continue.  Its numbers are in summary\.json"
    ):
        resume(finished.directory)


def test_what_is_not_a_run_is_not_resumed(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no config\.toml"):
        resume(tmp_path)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 2."""
    return stopped(tmp_path_factory.mktemp("runs") / "broken", 2)


HARM = {
    "cut short": lambda content: content[:-5],
    "overwritten": lambda content: b"x" * len(content),
    "emptied": lambda content: b"",
    "one bit": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/000002/server.safetensors",
        "checkpoints/000002/client-002.safetensors",
        "checkpoints/000002/state.json",
        "config.toml",
        "partition.json",
        "metrics.jsonl",
    ],
)
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_what_is_damaged_is_named_before_any_work(
    name: str, harm: Callable[[bytes], bytes], broken: Path, tmp_path: Path
):
    path = shutil.copytree(broken, tmp_path / "run")
    (path / name).write_bytes(harm((path / name).read_bytes()))
    before = contents(path)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resume(path)
    assert contents(path) == before


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_a_run_goes_back_to_an_earlier_checkpoint(
    harm: Callable[[bytes], bytes], later: Path, finished: protea.Result, tmp_path: Path
):
    path = shutil.copytree(later, tmp_path / "run")
    file = path / "checkpoints" / "000004" / "server.safetensors"
    file.write_bytes(harm(file.read_bytes()))
    rounds: list[int] = []
    with pytest.warns(UserWarning, match=r"000004.server.safetensors is not as it was .* Going on from 000002"):
        resume(path, observers=[lambda record: rounds.append(record.round)])
    assert rounds == [3, 4, 5]
    shutil.rmtree(path / "checkpoints" / "damaged-000004")
    assert traces(path) == traces(finished.directory)


@pytest.mark.parametrize("change", ["missing", "extra"])
def test_a_file_too_few_or_too_many_is_noticed(change: str, broken: Path, tmp_path: Path):
    path = shutil.copytree(broken, tmp_path / "run")
    folder = path / "checkpoints" / "000002"
    if change == "missing":
        (folder / "client-002.safetensors").unlink()
    else:
        shutil.copyfile(folder / "client-002.safetensors", folder / "client-007.safetensors")
    with pytest.raises(CheckpointError, match=r"client-00\d.safetensors is (missing|not expected)"):
        resume(path)


def test_a_checkpoint_of_another_format_is_refused(broken: Path, tmp_path: Path):
    path = shutil.copytree(broken, tmp_path / "run")
    write_sealed(path / "checkpoints" / "000002" / "state.json", {"format": 9, "round": 2})
    with pytest.raises(CheckpointError, match=r"state\.json has format 9; this version of Protea reads 3"):
        resume(path)


@pytest.mark.parametrize("number", [1e12, 3.0, True])
def test_a_round_that_is_no_whole_number_or_another_one_is_refused(number: float, broken: Path, tmp_path: Path):
    folder = shutil.copytree(broken, tmp_path / "run") / "checkpoints" / "000002"
    state = json.loads((folder / "state.json").read_text())
    write_sealed(folder / "state.json", {**{k: v for k, v in state.items() if k != "sum"}, "round": number})
    with pytest.raises(CheckpointError, match=r"state\.json is (of round|not as it was written: round)"):
        checkpoint.verify(folder)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# Damage of any kind, anywhere

WHOLE_FILE = {
    "removed": None,
    "emptied": lambda content, draw: b"",
    "extended": lambda content, draw: content + draw.randbytes(draw.randint(1, 99)),
}
AT_A_BYTE = {
    "changed": lambda content, at, draw: content[:at] + bytes([content[at] ^ draw.randint(1, 255)]) + content[at + 1 :],
    "cut": lambda content, at, draw: content[:at],
    "zeros": lambda content, at, draw: content[:at] + bytes(len(content) - at),  # a disk that lost power
}
READ_FIRST = ("config.toml", "environment.json", "000004/state.json")  # small, and everything hangs on them


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 1, before its first checkpoint."""
    return stopped(tmp_path_factory.mktemp("runs") / "early", 1)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 4, with two checkpoints."""
    return stopped(tmp_path_factory.mktemp("runs") / "later", 4)


def stopped(path: Path, round: int) -> Path:
    with pytest.raises(Interrupted):
        protea.run(SMALL, path, observers=[at(round)])
    return path


def harms(name: str, content: bytes, draw: random.Random, bytes_: int) -> Iterator[tuple[str, bytes | None]]:
    """What may become of a file; small ones that are read first, at every byte."""
    for kind, harm in WHOLE_FILE.items():
        yield kind, harm(content, draw) if harm else None
    every = name.endswith(READ_FIRST)
    for place in range(len(content)) if every else [draw.randrange(len(content)) for _ in range(bytes_)]:
        for kind in ["changed"] if every and place % 16 else AT_A_BYTE:
            yield f"{kind} at byte {place}", AT_A_BYTE[kind](content, place, draw)


@pytest.mark.parametrize(
    ("which", "every"),  # case is tried; by night all of thousands
    [("early", 19), ("later", 19), *by_night(("early", 1), ("later", 1))],
)
def test_damage_at_any_byte_is_noticed_or_does_not_matter(
    which: str, every: int, request: pytest.FixtureRequest, tmp_path: Path
):
    """What resuming finds is as it was written, or an error names the file."""
    path = shutil.copytree(request.getfixturevalue(which), tmp_path / "run")
    whole, draw, cases = contents(path), random.Random(which), 0
    for name, content in whole.items():
        for kind, harmed in harms(name, content, draw, bytes_=20) if content else ():
            cases += 1
            if cases % every:
                continue
            damage(path / name, harmed)
            try:
                start = sound(path)
            except ProteaError as error:
                assert Path(name).name in str(error), f"{name} {kind}: {error}"
            else:
                assert relied_on(path, start, contents(path)) == relied_on(path, start, whole), f"{name} {kind}"
            for aside in path.glob("checkpoints/damaged-*"):
                aside.rename(aside.with_name(aside.name.removeprefix("damaged-")))
            damage(path / name, content)
    assert contents(path) == whole and cases > (1500 if which == "early" else 3000)


def damage(file: Path, harmed: bytes | None) -> None:
    if harmed is None:
        file.unlink()
        return
    with file.open("r+b" if file.exists() else "wb") as opened:  # in place, which is faster
        opened.write(harmed)
        opened.truncate()


def sound(path: Path) -> Path | None:
    """The checkpoint that resuming would go on from; all checks are made."""
    run = RunDirectory.open(path)
    run.check()
    with warnings.catch_warnings(action="ignore"):
        return checkpoint.newest(path / "checkpoints")


def relied_on(path: Path, start: Path | None, files: dict[str, bytes]) -> dict[str, object]:
    """Of the files of a run, all that going on from there depends on, and that is still there in the end."""
    found: dict[str, object] = {"config.toml": files["config.toml"]}
    if start is None:
        return found
    for name, content in files.items():
        place, _, last = name.rpartition("/")
        mine = place == f"checkpoints/{start.name}" and last != "state.json"
        if mine or (place == "prototypes" and int(Path(last).stem) <= int(start.name)):
            found[name] = content
    size = checkpoint.metrics_size(start)
    return found | {"partition.json": files["partition.json"], "metrics.jsonl": files["metrics.jsonl"][:size]}


@pytest.mark.parametrize("which", ["early", "later"])
@pytest.mark.parametrize("seed", [0, 1, 2, *by_night(*range(3, 12))])
def test_a_damaged_run_is_refused_or_comes_to_the_same_end(
    which: str, seed: int, request: pytest.FixtureRequest, finished: protea.Result, tmp_path: Path
):
    path = shutil.copytree(request.getfixturevalue(which), tmp_path / "run")
    draw = random.Random(f"{which} {seed}")
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    file = files[seed % len(files)] if which == "early" else draw.choice(files)
    kind, harmed = draw.choice(list(harms(file.name, file.read_bytes(), draw, bytes_=3)))
    damage(file, harmed)
    try:
        with warnings.catch_warnings(action="ignore"):
            resume(path)
    except ProteaError as error:
        assert file.name in str(error), f"{file} {kind}"
    else:
        for aside in path.glob("checkpoints/damaged-*"):
            shutil.rmtree(aside)
        assert traces(path) == traces(finished.directory), f"{file} {kind}"


def test_damage_done_while_a_run_goes_on_is_not_vouched_for(tmp_path: Path):
    """Of a client that nobody met since the run was resumed, the next checkpoint takes over the file."""
    experiment = replace(SMALL, clients=6, fraction=1 / 3, evaluation=Evaluation(every=99, snapshots=0), rounds=9)
    path = tmp_path / "run"

    def harm(record: Record) -> None:
        if record.round == 3:
            content = carried.read_bytes()
            carried.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        if record.round == 4:
            raise Interrupted

    records = protea.run(experiment).records
    first, second = ({c for r in records[n : n + 2] for c in r.participants} for n in (0, 2))
    carried = path / "checkpoints" / "000002" / f"client-{min(first - second):03d}.safetensors"
    with pytest.raises(Interrupted):
        protea.run(experiment, path, observers=[at(2)])
    with pytest.raises(Interrupted):
        resume(path, observers=[harm])
    assert (path / "checkpoints" / "000004" / carried.name).is_file()
    with pytest.raises(CheckpointError, match=rf"000004.{carried.name} is not as it was .*\n  No other checkpoint"):
        resume(path)


def test_a_summary_that_cannot_be_written_or_read_is_named_and_made_again(finished: protea.Result, tmp_path: Path):
    path = tmp_path / "run"
    obstacle = path / ".summary.json.partial"

    def hinder(record: Record) -> None:
        if record.round == 5:
            obstacle.mkdir()

    with pytest.raises(
        CheckpointError, match=r"(?s)summary\.json cannot be written: Is a dir.*then: protea resume .*run$"
    ):
        protea.run(SMALL, path, observers=[hinder])
    obstacle.rmdir()
    resume(path)
    assert traces(path) == traces(finished.directory)
    (path / "summary.json").write_text('{"acc')
    with pytest.raises(
        CheckpointError, match=r"summary\.json cannot be read: .*Delete it; protea resume .*run makes it"
    ):
        resume(path)
    (path / "summary.json").unlink()
    resume(path)
    assert traces(path) == traces(finished.directory)
