"""``protea predict``: what a trained client answers for new samples, on the screen and in a file."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from typed import Command

import protea
from protea import Checkpoint, Data, Engine, Evaluation, Experiment, Models
from protea.cli.predict import confusion_table
from protea.data import Arrays
from protea.data.sources.csv_table import Csv
from protea.data.sources.npz import Npz
from protea.federation.record import Record

IMAGES = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
LABELS = load_digits().target
SMALL = Experiment(
    rounds=2,
    clients=3,
    data=Data(samples=300),
    models=Models(family="tiny_mlp", dim=16),
    engine=Engine("inline"),
    evaluation=Evaluation(shared="never", snapshots=0),
    checkpoint=Checkpoint(every=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, three clients, ended."""
    path = tmp_path_factory.mktemp("predict") / "run"
    protea.run(SMALL, path)
    return path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    monkeypatch.chdir(tmp_path)
    np.savez("new.npz", x=IMAGES[:50], y=LABELS[:50])
    np.savez("unlabelled.npz", x=IMAGES[:50])
    return typed


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_file_holds_what_python_gives_for_the_same_samples(command: Command, run: Path):
    done = command("predict", run, "new.npz", "--client", "1", "--out", "out.csv")
    assert (done.code, done.err) == (0, "")
    expected = protea.load(run).predict(IMAGES[:50], client=1)
    rows = table("out.csv")
    assert list(rows[0]) == ["index", "predicted", "probability", *(f"p_{name}" for name in range(10)), "true"]
    found = torch.tensor([[float(row[f"p_{name}"]) for name in range(10)] for row in rows])
    assert torch.equal(found, expected)
    assert [row["predicted"] for row in rows] == [str(place) for place in expected.argmax(1).tolist()]
    assert [row["true"] for row in rows] == [str(label) for label in LABELS[:50]]
    assert [row["index"] for row in rows] == [str(place) for place in range(50)]


def test_scores_and_the_confusion_matrix_are_shown_in_80_columns(command: Command, run: Path):
    done = command("predict", run, "new.npz", "--client", "1", "--out", "out.csv")
    right = sum(row["predicted"] == row["true"] for row in table("out.csv"))
    assert f"Accuracy {100 * right / 50:.1f} %, balanced accuracy" in done.out and "macro F1" in done.out
    assert max(map(len, done.lines)) <= 80 and "True class by row, answer by column" in done.out
    assert done.lines[0] == "Client 1 (tiny_mlp) after round 2: 50 samples."
    assert done.lines[1] == "Answered by rule method (the method's own)."
    assert done.lines[-1] == "Written: out.csv, 50 lines"


def test_without_labels_there_are_no_scores_and_no_column_for_them(command: Command, run: Path):
    done = command("predict", run, "unlabelled.npz", "--client", "1", "--out", "out.csv")
    assert done.code == 0 and "Accuracy" not in done.out and "true" not in table("out.csv")[0]


@pytest.mark.parametrize("out", [[], ["--out", "-"]])
def test_without_a_file_the_first_predictions_are_shown(command: Command, run: Path, out: list[str]):
    done = command("predict", run, "new.npz", "--client", "0", *out)
    assert done.code == 0 and "... 40 more" in done.out and max(map(len, done.lines)) <= 80
    assert not Path("-").exists()


def test_another_rule_answers_if_asked(command: Command, run: Path):
    done = command("predict", run, "new.npz", "--client", "1", "--rule", "head", "--out", "out.csv")
    assert "Answered by rule head (classifier)." in done.lines
    expected = protea.load(run).predict(IMAGES[:50], client=1, rule="head")
    assert [row["predicted"] for row in table("out.csv")] == [str(place) for place in expected.argmax(1).tolist()]
    done = command("predict", run, "new.npz", "--client", "1", "--rule", "haed")
    assert done.code == 2 and "no rule 'haed'.  Did you mean head?" in done.err


def test_a_client_must_be_named_where_there_are_several(command: Command, run: Path):
    done = command("predict", run, "new.npz")
    assert (
        done.code == 2 and "has 3 clients, each with its own model.  Say which: --client 0 to --client 2." in done.err
    )
    done = command("predict", run, "new.npz", "--client", "3")
    assert done.code == 2 and "There is no client 3" in done.err
    done = command("predict", run, "new.npz", "--client", "-1")
    assert done.code == 2 and "There is no client -1" in done.err


def test_images_in_a_folder_are_made_grey_and_scaled_only_if_asked(command: Command, run: Path):
    for place in range(3):
        folder = Path("images") / str(LABELS[place])
        folder.mkdir(parents=True)
        Image.fromarray(IMAGES[place]).convert("RGB").resize((24, 24), Image.Resampling.NEAREST).save(folder / "a.png")
    done = command("predict", run, "images", "--client", "1", "--out", "out.csv")
    assert done.code == 2 and "a.png is 24 x 24 pixels; the run was trained on 8 x 8.  Add --resize" in done.err
    assert not Path("out.csv").exists()
    assert command("predict", run, "images", "--client", "1", "--out", "out.csv", "--resize").code == 0
    assert [row["file"] for row in table("out.csv")] == [str(Path(f"{digit}/a.png")) for digit in range(3)]
    assert [row["true"] for row in table("out.csv")] == ["0", "1", "2"]


def test_wrong_places_are_refused_before_any_work(command: Command, run: Path):
    done = command("predict", run, "new.npz", "--client", "1", "--out", "no/such/out.csv")
    assert done.code == 2 and "there is no folder" in done.err
    done = command("predict", run, "new.npz", "--client", "1", "--out", "new.npz")
    assert done.code == 2 and "where the samples are" in done.err
    done = command("predict", ".", "new.npz", "--client", "1")
    assert done.code == 2 and "is not a run directory" in done.err
    done = command("predict", run, "nothing.npz", "--client", "1")
    assert done.code == 2 and "There is no nothing.npz" in done.err


def test_an_interrupted_run_answers_from_its_newest_checkpoint(command: Command, tmp_path: Path):
    run = protea.Run(replace(SMALL, rounds=3), "stopped")
    run.step()
    run.close()
    done = command("predict", "stopped", "new.npz", "--client", "1", "--out", "out.csv")
    assert done.code == 0 and "after round 1" in done.lines[0]


def test_the_run_of_a_coordinator_says_where_its_models_are(command: Command):
    Path("run").mkdir()
    Path("run/config.toml").write_text("quorum = 2\n")
    done = command("predict", "run", "new.npz", "--client", "0")
    assert done.code == 2 and "protea site predict" in done.err


def test_a_run_on_arrays_of_a_script_says_what_to_do(command: Command):
    source = Arrays(IMAGES[:60], LABELS[:60])
    protea.run(replace(SMALL, rounds=1, clients=1, data=Data(source=source)), "arrays")
    done = command("predict", "arrays", "new.npz")
    assert done.code == 2 and "protea.load(path, experiment)" in done.err


def test_a_table_is_standardised_as_the_training_table_was(command: Command):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    x = rng.normal(100, 5, (120, 2)) + 20 * y[:, None]
    lines = [f"p{i},{a},{b},{('well', 'ill')[c]}" for i, ((a, b), c) in enumerate(zip(x, y, strict=True))]
    Path("train.csv").write_text("\n".join(["patient,a,b,state", *lines]))
    source = Csv("train.csv", "state", key="patient", standardise=True)
    protea.run(replace(SMALL, rounds=3, clients=1, data=Data(source=source)), "run")
    Path("new.csv").write_text("\n".join(["b,a,patient", *(f"{b},{a},new{i}" for i, (a, b) in enumerate(x))]))
    done = command("predict", "run", "new.csv", "--out", "out.csv")  # the only client needs no name
    assert (done.code, done.err) == (0, "")
    rows = table("out.csv")
    assert rows[0]["patient"] == "new0" and set(rows[0]) == {"patient", "predicted", "probability", "p_ill", "p_well"}
    assert np.mean([row["predicted"] == ("well", "ill")[c] for row, c in zip(rows, y, strict=True)]) > 0.9
    Path("new.csv").write_text("a\n1\n")
    done = command("predict", "run", "new.csv")
    assert done.code == 2 and "has no column 'b', which this run was trained on" in done.err


def test_texts_are_answered_by_models_of_texts(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PROTEA_VIEWS", str(tmp_path / "views"))
    words = {"good": "fine nice well", "bad": "poor awful ill"}
    rows = [f"{word} {word} {n},{name}" for n in range(12) for name, text in words.items() for word in text.split()]
    Path("train.csv").write_text("\n".join(["note,mood", *rows]))
    experiment = replace(SMALL, clients=1, data=Data(source=Csv("train.csv", "mood", text="note")))
    protea.run(replace(experiment, models=Models(family="bag", dim=16)), "run")
    Path("new.csv").write_text("note\nnice nice 3\n")
    assert command("predict", "run", "new.csv", "--out", "out.csv").code == 0
    expected = protea.load("run").predict(["nice nice 3"], client=0)
    assert float(table("out.csv")[0]["p_good"]) == pytest.approx(float(expected[0, 1]))


def test_classes_by_number_are_those_of_the_training_file(command: Command):
    np.savez("train.npz", x=IMAGES[LABELS > 6], y=LABELS[LABELS > 6])
    protea.run(replace(SMALL, rounds=1, clients=1, data=Data(source=Npz("train.npz"))), "run")
    np.savez("new.npz", x=IMAGES[LABELS > 6][:5], y=LABELS[LABELS > 6][:5])
    assert command("predict", "run", "new.npz", "--out", "out.csv").code == 0
    assert [row["true"] for row in table("out.csv")] == [str(label) for label in LABELS[LABELS > 6][:5]]


def test_of_many_classes_the_most_confused_pairs_are_shown():
    names = tuple(f"a class with a long name {n}" for n in range(30))
    matrix = torch.zeros(30, 30, dtype=torch.int64)
    matrix[3, 4], matrix[5, 5], matrix[7, 1] = 9, 99, 2
    title, shown = confusion_table(matrix, names)
    assert title == "Classes that are confused most often:"
    assert [list(column.cells) for column in shown.columns[2:]] == [["9", "2"], ["9", "2"]]


def test_the_confusion_matrix_of_a_client_agrees_with_the_records(run: Path):
    """The trace is the number of hits of the last record, by every rule."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = {line["client"]: line for line in lines if line["kind"] == "client" and line["round"] == 2}
    assert Record.read(lines)[-1].round == 2
    loaded = protea.load(run)
    for client in range(3):
        trained = loaded.client(client)
        for rule in ("method", "head", "local_prototypes"):
            matrix = trained.confusion(rule=rule)
            assert int(matrix.trace()) == last[client][f"test/{rule}"]
            assert int(matrix.sum()) == last[client]["test/samples"]


def test_the_samples_are_never_overwritten(run: Path, command: Command, tmp_path: Path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(IMAGES[number]).save(folder / f"{number}.png")
    before = (folder / "0.png").read_bytes()
    said = command("predict", run, folder, "--client", "1", "--out", folder / "0.png")
    assert said.code == 2 and "is where the samples are, which would be overwritten" in said.err
    assert (folder / "0.png").read_bytes() == before
