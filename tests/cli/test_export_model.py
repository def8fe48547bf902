"""``protea export-model``, and ``protea predict`` on the folder that it writes."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from digits import load_digits
from safetensors.torch import load_file
from typed import Command
from without_protea import run_without_protea

import protea
from protea import Checkpoint, Data, Engine, Evaluation, Experiment, Models, Split
from protea.core.files import read_sealed, write_sealed
from protea.data.sources.csv_table import Csv
from protea.runs.model_folder.folder import write_folder
from protea.runs.model_folder.of_run import contents_of_run

IMAGES = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
LABELS = load_digits().target
SMALL = Experiment(
    rounds=3,
    clients=3,
    data=Data(samples=300),
    models=Models(family="tiny_mlp", dim=16),
    engine=Engine("inline"),
    evaluation=Evaluation(shared="never", snapshots=0),
    checkpoint=Checkpoint(every=1, keep=2),
)
FILES = {
    "README.md", "constants.safetensors", "load.py", "model.json", "program.json", "program.pt2",
    "prototypes.safetensors", "weights.safetensors",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, three clients, three rounds."""
    path = tmp_path_factory.mktemp("export") / "run"
    protea.run(SMALL, path)
    return path


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of client 1."""
    path = tmp_path_factory.mktemp("model") / "model"
    write_folder(contents_of_run(run, 1), path)
    return path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    monkeypatch.chdir(tmp_path)
    np.savez("new.npz", x=IMAGES[300:350], y=LABELS[300:350])
    return typed


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_a_folder_and_a_zip_of_it_and_says_so(command: Command, run: Path):
    done = command("export-model", run, "--client", "1", "--round", "2", "--to", "model")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "Client 1 of run (tiny_mlp) after round 2."
    assert "Answers by rule method (the method's own, here the same as global_prototypes" in done.lines[1]
    record = next(each for each in protea.load(run).records[1].clients if each.client == 1)
    assert record.accuracy is not None and f"Accuracy {100 * record.accuracy:.1f} %" in done.lines[2]
    assert {path.name for path in Path("model").iterdir()} == FILES
    with zipfile.ZipFile("model.zip") as packed:
        assert {name: packed.read(name) for name in packed.namelist()} == {
            f"model/{path.name}": path.read_bytes() for path in Path("model").iterdir()
        }
    assert not list(Path().glob(".*partial"))
    again = command("export-model", run, "--client", "1", "--to", "model")
    assert again.code == 2 and "model exists already; it is left as it is" in again.err
    shutil.rmtree("model")
    again = command("export-model", run, "--client", "1", "--to", "model")
    assert again.code == 2 and "model.zip exists already" in again.err


def test_the_folder_answers_as_the_run_does(command: Command, run: Path, folder: Path):
    assert command("predict", run, "new.npz", "--client", "1", "--out", "run.csv").code == 0
    done = command("predict", folder, "new.npz", "--out", "folder.csv")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "Client 1 of run (tiny_mlp) after round 3: 50 samples."
    assert "Accuracy" in done.out
    expected, found = table("run.csv"), table("folder.csv")
    assert [row["predicted"] for row in found] == [row["predicted"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert [float(row[f"p_{n}"]) for n in range(10)] == pytest.approx([float(other[f"p_{n}"]) for n in range(10)])


def test_its_lines_load_it_without_protea(command: Command, run: Path, folder: Path):
    lines = run_without_protea(folder / "load.py", Path("new.npz"))
    expected = protea.load(run).predict(IMAGES[300:350], client=1)
    found = torch.tensor([[float(chance) for chance in line.split()[1:]] for line in lines])
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    assert [line.split()[0] for line in lines] == [str(place) for place in expected.argmax(1).tolist()]
    code = (folder / "load.py").read_text().split('"""')[2].split("\n")
    assert sum(bool(line.strip()) for line in code) <= 10 and "protea" not in "".join(code)


def test_nothing_in_the_folder_is_pickled(folder: Path):
    """Of a .pt2 the sample inputs alone would be; they are left out."""
    with zipfile.ZipFile(folder / "program.pt2") as packed:
        contents = {info.filename: packed.read(info) for info in packed.infolist()}
    assert not [name for name, content in contents.items() if name.endswith((".pt", ".pkl")) and content]
    assert not [name for name, content in contents.items() if content[:2] == b"\x80\x02" or b"PK\x03\x04" in content]
    configs = [json.loads(content) for name, content in contents.items() if name.endswith("_config.json")]
    assert len(configs) == 2
    assert not any(each["use_pickle"] for config in configs for each in config["config"].values())


def test_the_weights_are_those_of_the_network(run: Path, folder: Path):
    expected = protea.load(run).client(1).model.state_dict()
    found = load_file(folder / "weights.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_the_card_tells_samples_accuracy_and_privacy(run: Path, folder: Path):
    card = (folder / "README.md").read_text()
    record = next(each for each in protea.load(run).records[-1].clients if each.client == 1)
    for rule in ("method", "head", "local_prototypes"):
        accuracy = record.accuracy_by(rule)
        assert accuracy is not None
        assert re.search(rf"^\| {rule} \(.*\) \| {100 * accuracy:.1f} % \|", card, re.MULTILINE)
    about = read_sealed(folder / "model.json")
    assert f"| all | {sum(about['samples']['train'])} |" in card
    assert "Uploads went through no filter." in card and "mean features of training samples" in card
    assert not [line for line in card.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("name", sorted(FILES))
def test_damage_is_noticed_in_every_file(command: Command, folder: Path, tmp_path: Path, name: str):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-30] + bytes([content[-30] ^ 1]) + content[-29:])
    done = command("predict", copy, "new.npz")
    assert done.code == 2 and "is damaged" in done.err and "Export the model again" in done.err
    if name != "model.json":
        (copy / name).unlink()
        done = command("predict", copy, "new.npz")
        assert done.code == 2 and f"{name} cannot be read" in done.err


def test_a_program_that_was_written_anew_cannot_do_more_than_tensors(command: Command, folder: Path, tmp_path: Path):
    """With checksums that fit: whoever can write the folder can write these too."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    program = json.loads((copy / "program.json").read_text())
    program["steps"][0]["op"] = "aten.from_file.default"
    (copy / "program.json").write_text(json.dumps(program))
    about = read_sealed(copy / "model.json")
    del about["files"]["program.json"]
    write_sealed(copy / "model.json", about)
    done = command("predict", copy, "new.npz")
    assert done.code == 2 and "aten.from_file.default" in done.err


def test_wrong_words_are_answered_by_what_to_type(command: Command, run: Path, folder: Path, tmp_path: Path):
    def refused(*words: str | Path) -> str:
        done = command(*words)
        assert done.code == 2 and not Path("new").exists() and not list(Path().glob(".*partial"))
        return " ".join(done.err.split())

    assert "Say which: --client 0 to --client 2" in refused("export-model", run, "--to", "new")
    assert "There is no client 7" in refused("export-model", run, "--client", "7", "--to", "new")
    why = refused("export-model", run, "--client", "0", "--round", "1", "--to", "new")
    assert "no models of round 1. Checkpoints are kept of these rounds: 2, 3" in why
    assert "Did you mean head?" in refused("export-model", run, "--client", "0", "--rule", "haed", "--to", "new")
    assert "is not a run directory" in refused("export-model", tmp_path, "--client", "0", "--to", "new")
    why = refused("export-model", run, "--client", "0", "--to", "no/such/new")
    assert "there is no folder" in why and "mkdir -p" in why
    why = refused("export-model", run, "--client", "0", "--to", "/proc/new")
    assert "cannot be written" in why and "Choose another place" in why
    assert "Leave out --client" in refused("predict", folder, "new.npz", "--client", "1")
    assert "answers by the rule method only" in refused("predict", folder, "new.npz", "--rule", "head")
    assert "There is no nothing.npz" in refused("predict", folder, "nothing.npz")
    assert "Unpack it first" in refused("predict", folder.with_name("model.zip"), "new.npz")
    np.savez("wide.npz", x=np.zeros((2, 9, 9), np.uint8))
    assert "Add --resize" in refused("predict", folder, "wide.npz")
    np.savez("floats.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    assert "Save them as uint8" in refused("predict", folder, "floats.npz")


def test_a_table_needs_neither_its_training_rows_nor_to_be_scaled(command: Command):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    x = rng.normal(1000, 5, (120, 2)) + 20 * y[:, None]
    lines = [f"p{i};{a};{b};{('well', 'ill')[c]}" for i, ((a, b), c) in enumerate(zip(x, y, strict=True))]
    Path("train.csv").write_text("\n".join(["patient;a;b;state", *lines]))
    source = Csv("train.csv", "state", key="patient", standardise=True, delimiter=";")
    protea.run(
        Experiment(
            rounds=2, clients=1, data=Data(source=source), models=SMALL.models, engine=SMALL.engine,
            evaluation=SMALL.evaluation,
        ),
        "run",
    )  # fmt: skip
    Path("new.csv").write_text("\n".join(["b;a;patient", *(f"{b};{a};new{i}" for i, (a, b) in enumerate(x))]))
    assert command("predict", "run", "new.csv", "--out", "run.csv").code == 0
    assert command("export-model", "run", "--to", "model").code == 0  # the only client needs no name
    shutil.rmtree("run")
    Path("train.csv").unlink()
    assert command("predict", "model", "new.csv", "--out", "folder.csv").code == 0
    expected, found = table("run.csv"), table("folder.csv")
    assert found[0]["patient"] == "new0" and len({row["predicted"] for row in found}) == 2
    for row, other in zip(found, expected, strict=True):
        assert float(row["p_ill"]) == pytest.approx(float(other["p_ill"]), abs=1e-6)
    Path("new.csv").write_text("a;patient\n1;x\n")
    done = command("predict", "model", "new.csv")
    assert done.code == 2 and "has no column 'b', which this run was trained on" in done.err


def test_categories_and_missing_numbers_are_read_as_in_training(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    ages = ["" if i % 7 == 0 else f"{40 + 9 * c + i % 5}" for i, c in enumerate(y)]
    lines = [f"{age},{'AB'[c]},{('well', 'ill')[c]}" for age, c in zip(ages, y, strict=True)]
    Path("train.csv").write_text("\n".join(["age,ward,state", *lines]))
    source = Csv("train.csv", "state", standardise=True, missing="impute")
    protea.run(
        Experiment(
            rounds=1, clients=2, data=Data(source=source), models=SMALL.models, engine=SMALL.engine,
            evaluation=SMALL.evaluation,
        ),
        "run",
    )  # fmt: skip
    Path("new.csv").write_text("ward,age\nA,41\nB,\nC,NA\nA,55\n")
    done = command("predict", "run", "new.csv", "--client", "1", "--out", "run.csv")
    assert done.code == 0 and "Not known from training: 1 values of categories" in done.out
    assert command("export-model", "run", "--client", "1", "--to", "model").code == 0
    shutil.rmtree("run")
    Path("train.csv").unlink()
    assert command("predict", "model", "new.csv", "--out", "folder.csv").code == 0
    expected = [float(row["p_ill"]) for row in table("run.csv")]
    assert [float(row["p_ill"]) for row in table("folder.csv")] == pytest.approx(expected, abs=1e-6)
    monkeypatch.setattr("sys.argv", ["load.py", "new.csv"])
    capsys.readouterr()
    runpy.run_path("model/load.py")
    printed = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert printed == pytest.approx(expected, abs=2e-6)


def test_rows_with_gaps_give_the_accuracy_that_the_run_reported(command: Command):
    """The client's own test rows as they are in the table: numbers that lack, a category, and a scale."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    ages = ["NA" if i % 7 == 0 else f"{40 + 3 * c + rng.integers(0, 6)}" for i, c in enumerate(y)]
    wards = ["" if i % 9 == 0 else "ABC"[(c + i % 3) % 3] for i, c in enumerate(y)]
    lines = [f"{age},{ward},{('well', 'ill')[c]}" for age, ward, c in zip(ages, wards, y, strict=True)]
    Path("train.csv").write_text("\n".join(["age,ward,state", *lines]))
    source = Csv("train.csv", "state", standardise=True, missing="impute")
    split = Split(test=0.4, validation=0)
    protea.run(replace(SMALL, data=Data(source=source, split=split), clients=2), "run")
    run = protea.load("run")
    reported = next(each.accuracy for each in run.records[-1].clients if each.client == 1)
    own = run.setup.factory.data.rows(1, "test").tolist()
    assert len(own) > 10 and {"NA" in lines[row] for row in own} == {True, False}
    Path("new.csv").write_text("\n".join(["age,ward,state", *(lines[row] for row in own)]))
    assert command("export-model", "run", "--client", "1", "--to", "model").code == 0
    shutil.rmtree("run")
    Path("train.csv").unlink()
    assert command("predict", "model", "new.csv", "--out", "out.csv").code == 0
    assert sum(row["predicted"] == row["true"] for row in table("out.csv")) / len(own) == reported
