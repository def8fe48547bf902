"""A site's model on raw samples: standardised as its own were, answered as it was evaluated, and taken away."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from night import by_night
from sklearn.datasets import load_breast_cancer
from typed import Command
from wanted import extra
from without_protea import run_without_protea

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch

from protea.core.errors import ConfigError, DataError
from protea.core.payload import pack
from protea.core.prototypes import Prototypes
from protea.data import Dataset
from protea.engines.messages import reply_from_bytes
from protea.evaluation.examination import Examination
from protea.evaluation.rules import all_names
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.site.scaling import filling_of, keep_filling
from protea.network.site.service import SiteService

TUMOURS = load_breast_cancer()
NAMES = ("malignant", "benign")
ROWS, TESTS = slice(0, 200), slice(200, 300)
MODEL = "def model():\n    return nn.Sequential(nn.Linear(30, 24), nn.ReLU())\n"
HEAD = "import pathlib\nimport numpy as np\nfrom torch import nn\n\nHERE = pathlib.Path(__file__).parent\n\n\n"
TABLE = (
    "\n\ndef data():\n    from protea.data.sources.csv_table import Csv\n"
    '    return Csv(str(HERE / "patients.csv"), label="diagnosis", split="part")\n'
)
ARRAYS = (
    '\n\ndef data():\n    with np.load(HERE / "data.npz") as a:\n'
    '        return a["x"], a["y"], a["x_test"], a["y_test"]\n'
)
SCALED = ARRAYS.replace('return a["x"]', 'return (a["x"] - a["x"].mean(0)) / a["x"].std(0)').replace(
    'a["x_test"]', '(a["x_test"] - a["x"].mean(0)) / a["x"].std(0)'
)
STANDARDISE = "standardise = true\n[split]\nvalidation = 0.1\n"


def write_patients(folder: Path) -> None:
    """A table and arrays of the same patients as they are measured; and raw test rows alone, to be predicted."""
    x, y = TUMOURS.data, TUMOURS.target
    np.savez(folder / "data.npz", x=x[ROWS], y=y[ROWS], x_test=x[TESTS], y_test=y[TESTS])
    np.savez(folder / "raw.npz", x=x[TESTS], y=y[TESTS])
    for name, parts in (("patients.csv", {"train": ROWS, "test": TESTS}), ("raw.csv", {"test": TESTS})):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow([*TUMOURS.feature_names, "part", "diagnosis"])
            for part, rows in parts.items():
                for values, label in zip(x[rows], y[rows], strict=True):
                    table.writerow([*map(float, values), part, NAMES[label]])


def joined(
    tmp_path: Path, data: str, settings: str, *, model: str = MODEL, **task: object
) -> tuple[Site, SiteService, CoordinatorDirectory]:
    base = places.base(
        tmp_path / "coordinator",
        "training.optimizer=adam",
        "training.lr=0.003",
        "training.epochs=5",
        classes=list(NAMES),
        **task,
    )
    site = places.site(tmp_path / "site", base.invite("north"), HEAD + model + data, settings, places.ALL)
    write_patients(site.path)
    return site, SiteService(site), base


def trained(tmp_path: Path, data: str, settings: str = STANDARDISE) -> tuple[Site, dict[str, float]]:
    """A site after three rounds of FedProto with itself, and the accuracy by rule that it reported."""
    site, service, base = joined(tmp_path, data, settings)
    return site, reported_after_three_rounds(service, base)


def reported_after_three_rounds(service: SiteService, base: CoordinatorDirectory) -> dict[str, float]:
    """Let a site train with itself, and return the accuracy by rule that it reports."""
    down, reply = pack(None), None
    for round in (1, 2, 3):
        answer = service.handle("job", base.signer("job", places.job("train", round, down=down)))
        up = reply_from_bytes(places.only(answer)).up
        down = pack(Prototypes.from_flat(up))
        reply = service.handle("job", base.signer("job", places.job("evaluate", round, down=down)))
    assert reply is not None
    found = Examination.from_flat(reply_from_bytes(places.only(reply)).up).of("test", all_names())
    assert len(found["method"]) == 100
    return {rule: counts.accuracy for rule, counts in found.items()}


def accuracy_in(path: Path) -> float:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 100
    return sum(row["predicted"] == row["true"] for row in rows) / len(rows)


@pytest.mark.parametrize(("data", "raw"), [(TABLE, "raw.csv"), *by_night((ARRAYS, "raw.npz"))], ids=["table", "arrays"])
def test_raw_rows_give_the_accuracy_that_was_reported(tmp_path: Path, typed: Command, data: str, raw: str):
    """By the method's own rule and by the classifier, at the site, in the exported folder, and without Protea."""
    site, reported = trained(tmp_path, data)
    assert reported["method"] > 0.85
    new, out, to = site.path / raw, tmp_path / "out.csv", tmp_path / "model"
    done = typed("site", "predict", new, "--dir", site.path, "--out", out)
    assert (done.code, done.err) == (0, "") and "By this rule the site was evaluated." in done.lines[1]
    assert accuracy_in(out) == reported["method"]
    done = typed("site", "predict", new, "--dir", site.path, "--out", out, "--rule", "head")
    assert done.code == 0 and accuracy_in(out) == reported["head"]

    done = typed("site", "export", "--dir", site.path, "--to", to)
    assert (done.code, done.err) == (0, "")
    assert f"Accuracy {100 * reported['method']:.1f} % on its own 100 test samples." in done.lines
    assert typed("predict", to, new, "--out", out).code == 0
    assert accuracy_in(out) == reported["method"]
    card = (to / "README.md").read_text()
    assert (
        "means and deviations of features" in card and f"| {100 * reported['method']:.1f} % | this folder's |" in card
    )

    if data is ARRAYS:
        return  # what follows starts a process, and has no more to show of arrays
    answers = [line.split()[0] for line in run_without_protea(to / "load.py", new)]
    right = [NAMES[label] for label in TUMOURS.target[TESTS]]
    assert sum(map(str.__eq__, answers, right)) / 100 == reported["method"]


GAPS = (
    "\n\ndef data():\n    from protea.data.sources.csv_table import Csv\n"
    '    return Csv(str(HERE / "gaps.csv"), label="diagnosis", split="part", missing="impute",\n'
    '               categories={"ward": ("A", "B")})\n'
)


def write_gaps(folder: Path) -> list[dict[str, str]]:
    """Patients with four measured values, every fifth of which lacks, and a ward; return the test rows as measured."""
    rows = []
    for place, (values, label) in enumerate(zip(TUMOURS.data[:300, :4], TUMOURS.target[:300], strict=True)):
        cells = [
            ("", "NA", "?")[place % 3] if (place + column) % 5 == 0 else f"{value}"
            for column, value in enumerate(values)
        ]
        ward = "" if place % 11 == 0 else "AB"[(int(label) + (place % 4 == 0)) % 2]
        named = dict(zip(("radius", "texture", "perimeter", "area"), cells, strict=True))
        rows.append({**named, "ward": ward, "part": "train" if place < 200 else "test", "diagnosis": NAMES[label]})
    for name, some in (("gaps.csv", rows), ("raw-gaps.csv", rows[200:])):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(some)
    return rows[200:]


@pytest.mark.parametrize("onnx", [False, *by_night(True)])
def test_raw_rows_with_gaps_give_the_accuracy_that_was_reported(tmp_path: Path, typed: Command, onnx: bool):
    """Missing numbers, words as categories, and a scale: at the site, in the folder, by ONNX and without Protea."""
    if onnx:
        extra("onnx")
    model = MODEL.replace("30", "6")
    site, service, base = joined(tmp_path, GAPS, STANDARDISE, model=model)
    rows = write_gaps(site.path)
    reported = reported_after_three_rounds(service, base)
    assert reported["method"] > 0.7
    new, out, to = site.path / "raw-gaps.csv", tmp_path / "out.csv", tmp_path / "model"
    assert typed("site", "predict", new, "--dir", site.path, "--out", out).code == 0
    assert accuracy_in(out) == reported["method"]
    done = typed("site", "export", "--dir", site.path, "--to", to, *(["--onnx"] if onnx else []))
    assert (done.code, done.err) == (0, "")
    assert typed("predict", to, new, "--out", out).code == 0
    assert accuracy_in(out) == reported["method"]
    right = [row["diagnosis"] for row in rows]
    if not onnx:
        return  # what follows starts a process, and another program
    answers = [line.split()[0] for line in run_without_protea(to / "load.py", new)]
    assert sum(map(str.__eq__, answers, right)) / 100 == reported["method"]
    import onnxruntime

    cells = [[[nan_or(row[name]) for name in ("radius", "texture", "perimeter", "area")], row["ward"]] for row in rows]
    samples = np.array([[*numbers, ward == "A", ward == "B"] for numbers, ward in cells], np.float64)
    session = onnxruntime.InferenceSession(to / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"samples": samples})
    assert (
        sum(NAMES[place] == name for place, name in zip(found.argmax(1), right, strict=True)) / 100
        == reported["method"]
    )


def nan_or(cell: str) -> float:
    return float(cell) if cell not in ("", "NA", "?") else float("nan")


NOTES = (
    "\n\ndef data():\n    from protea.data.sources.csv_table import Csv\n"
    '    return Csv(str(HERE / "notes.csv"), label="diagnosis", text="note", split="part")\n'
)
READER = "def model():\n    from protea.models.text import bag\n    return bag((), buckets=400, width=12, length=16)\n"


def test_a_site_s_model_of_texts_answers_raw_texts(tmp_path: Path, typed: Command):
    """In the folder as at the site, by the rule of which the accuracy was reported."""
    site, service, base = joined(tmp_path, NOTES, "[split]\nvalidation = 0.1\n", model=READER)
    words = (("mass", "firm", "spread"), ("cyst", "soft", "stable"))
    for name, rows in (("notes.csv", range(300)), ("raw-notes.csv", range(200, 300))):
        with (site.path / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["note", "part", "diagnosis"])
            for n in rows:
                kind = n % 2 if n % 9 else 1 - n % 2  # some are wrong, so that not all can be right
                note = f"Scan {n % 7}: {words[kind][n % 3]}, {words[kind][n % 5 % 3]}"
                table.writerow([note, "train" if n < 200 else "test", NAMES[n % 2]])
    reported = reported_after_three_rounds(service, base)
    assert 0.6 < reported["method"] < 1
    new, out, to = site.path / "raw-notes.csv", tmp_path / "out.csv", tmp_path / "model"
    assert typed("site", "predict", new, "--dir", site.path, "--out", out).code == 0
    assert accuracy_in(out) == reported["method"]
    done = typed("site", "export", "--dir", site.path, "--to", to)
    assert (done.code, done.err) == (0, "")
    assert f"Accuracy {100 * reported['method']:.1f} % on its own 100 test samples." in done.lines
    assert typed("predict", to, new, "--out", out).code == 0
    assert accuracy_in(out) == reported["method"]


def test_samples_that_data_scales_itself_are_warned_of(tmp_path: Path, typed: Command):
    """Raw rows then are answered by one class, as nothing knows the scaling; the warning says how to mend it."""
    site, reported = trained(tmp_path, SCALED, "[split]\nvalidation = 0.1\n")
    out = tmp_path / "out.csv"
    done = typed("site", "predict", site.path / "raw.npz", "--dir", site.path, "--out", out)
    assert done.code == 0 and accuracy_in(out) < reported["method"]
    assert "far from those that the model was trained on" in done.err and "standardise = true" in done.err


def test_the_scaling_is_that_of_the_training_samples_and_stays_with_the_state(tmp_path: Path):
    site, service, base = joined(tmp_path, ARRAYS, STANDARDISE)
    rows = site.raw.x[site.share.train].double()
    assert site.scaling is not None
    torch.testing.assert_close(site.scaling.mean, rows.mean(0))
    service.handle("job", base.signer("job", places.job("train", 1)))
    with np.load(site.path / "data.npz") as arrays:
        kept = dict(arrays)
    np.savez(site.path / "data.npz", **{**kept, "x": 2 * kept["x"]})
    later = Site(site.path)
    assert later.scaling is not None and torch.equal(later.scaling.mean, site.scaling.mean)
    assert not torch.equal(later.raw.x, site.raw.x)


def test_a_model_is_never_used_with_another_scaling_than_it_was_trained_with(tmp_path: Path):
    site, service, base = joined(tmp_path, ARRAYS, STANDARDISE)
    service.handle("job", base.signer("job", places.job("train", 1)))
    (site.path / "site.toml").write_text('device = "cpu"\n')
    with pytest.raises(
        ConfigError, match=r"standardise = false, and the model in .* was trained with standardise = true"
    ):
        Site(site.path).trained()
    (site.path / "site.toml").write_text('device = "cpu"\n' + STANDARDISE)
    (site.state / "scaling.json").unlink()
    with pytest.raises(
        ConfigError, match=r"standardise = true, and the model in .* was trained with standardise = fal"
    ):
        Site(site.path).trained()


def test_without_an_evaluation_the_classifier_answers_and_the_card_says_so(tmp_path: Path, typed: Command):
    site, service, base = joined(tmp_path, TABLE, STANDARDISE)
    done = typed("site", "export", "--dir", site.path, "--to", tmp_path / "model")
    assert done.code == 2 and "has not trained yet" in done.err
    service.handle("job", base.signer("job", places.job("train", 1)))
    done = typed("site", "export", "--dir", site.path, "--to", tmp_path / "model")
    assert done.code == 0 and "The classifier answers." in done.out
    assert "Not as in the federation" in (tmp_path / "model" / "README.md").read_text()
    done = typed("site", "export", "--dir", site.path)
    assert done.code == 2 and "--to DIR for a folder" in done.err


def test_what_stands_for_missing_numbers_is_kept_with_the_model(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 5.0], [torch.nan, 7.0], [3.0, 7.0], [torch.nan, 9.0]])
    raw = Dataset(x, torch.tensor([0, 1, 0, 1]), ("ill", "well"), gaps=True)
    first = filling_of(raw, torch.tensor([0, 1, 2]), tmp_path, trained=False)
    assert first is not None and first.tolist() == [1, 7]  # the lower of two in the middle
    keep_filling(first, tmp_path)
    later = filling_of(raw, torch.tensor([3]), tmp_path, trained=True)
    assert later is not None and later.tolist() == [1, 7]
    other = Dataset(x[:, :1], raw.y, raw.names, gaps=True)
    with pytest.raises(DataError, match=r"of samples of shape \(2,\); data\(\) gives samples of shape \(1,\)"):
        filling_of(other, torch.tensor([0]), tmp_path, trained=True)
