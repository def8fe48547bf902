"""Models of texts to take away: raw texts in, class probabilities out, with Protea or without."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from night import by_night
from typed import Command
from wanted import encoder, extra
from without_protea import run_without_protea

import protea
from protea import Data, Engine, Evaluation, Experiment, Models, Split, Training
from protea.config.units import percent
from protea.core.errors import ConfigError
from protea.core.files import read_sealed, write_sealed
from protea.data.sources.csv_table import Csv
from protea.methods.fedloo import FedLOO
from protea.methods.fedproto import FedProto
from protea.models.hf import transformers
from protea.models.text import Bag, HashedWords
from protea.runs.model_folder.contents import Origin, contents_of
from protea.runs.model_folder.folder import ModelFolder
from protea.runs.model_folder.preparation import Preparation
from protea.runs.model_folder.reading import Reading

GOOD, BAD = ("fine", "calm", "well", "better"), ("awful", "pain", "worse", "fever")
ODD = ["", "Awful.", "fine " * 100, "größe, PAIN; 急性 👩‍⚕️", 'she said "well"']
SMALL: dict[str, Any] = {"buckets": 400, "width": 12, "length": 16}


def notes() -> list[tuple[str, str]]:
    """Ninety short notes with their mood; a few say both."""
    found = []
    for n in range(90):
        bad = n % 2
        words = (BAD if bad else GOOD)[n % 4], (GOOD if n % 7 == 0 else ("day", "night", "ward"))[n % 3], f"no {n % 5}"
        found.append((", ".join(words).capitalize() + ".", ("good", "bad")[bad]))
    return found


def write_notes(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter=";")
        table.writerows([("note", "mood"), *rows])


def experiment(architecture: str, settings: dict[str, Any], method: Any = None) -> Experiment:
    return Experiment(
        rounds=2,
        clients=2,
        method=method or FedProto(),
        data=Data(source=Csv("train.csv", "mood", text="note"), split=Split(test=0.3)),
        models=Models(members=[{"name": architecture, **settings}], dim=16),
        training=Training(lr=0.01, optimizer="adam", epochs=5, batch=16),
        engine=Engine("inline"),
        evaluation=Evaluation(shared="never", snapshots=0),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the notes lie."""
    monkeypatch.setenv("PROTEA_VIEWS", str(tmp_path / "views"))
    monkeypatch.chdir(tmp_path)
    write_notes(Path("train.csv"), notes())
    return tmp_path


@pytest.fixture
def small_encoder(folder: Path) -> str:
    """An encoder of BERT's kind with two layers and a few words, as transformers writes it."""
    extra("text")
    transformers()
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,;", *GOOD, *BAD, "day", "night", "ward", "no", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder / "encoder")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **shape)).save_pretrained(
            folder / "encoder"
        )
    (folder / "encoder" / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Small\n")
    return f"hf:{folder / 'encoder'}"


def check(command: Command, architecture: str, settings: dict[str, Any], print_of: Callable[..., list[str]]) -> Path:
    """Train, export, and answer the client's own test notes and odd texts by the folder alone; return the folder."""
    protea.run(experiment(architecture, settings), "run")
    run = protea.load("run")
    reported = next(each.accuracy for each in run.records[-1].clients if each.client == 1)
    expected = run.predict(ODD, client=1)
    own = run.setup.factory.data.rows(1, "test").tolist()
    write_notes(Path("new.csv"), [notes()[row] for row in own])
    done = command("export-model", "run", "--client", "1", "--to", "model")
    assert (done.code, done.err) == (0, "") and reported is not None and reported > 0.5 and len(own) > 8
    assert f"Accuracy {percent(reported)} % on its own {len(own)} test samples." in done.lines
    assert "Note:" not in done.out  # it answers by the rule of the federation
    for gone in ("run", "views"):
        shutil.rmtree(gone)
    Path("train.csv").unlink()

    done = command("predict", "model", "new.csv", "--out", "out.csv")
    assert (done.code, done.err) == (0, "")
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["predicted"] == row["true"] for row in rows) / len(own) == reported
    torch.testing.assert_close(ModelFolder.open(Path("model")).predict(ODD), expected, atol=1e-5, rtol=0)

    code = Path("model/load.py").read_text().split('"""')[2]
    assert "protea" not in code and "transformers" not in code
    lines = print_of(Path("model/load.py"), Path("new.csv"))
    assert [line.split()[0] for line in lines] == [row["predicted"] for row in rows]
    assert [float(line.split()[1]) for line in lines] == pytest.approx([float(row["p_bad"]) for row in rows], abs=2e-6)
    lines = print_of(Path("model/load.py"), *ODD)
    found = torch.tensor([[float(chance) for chance in line.split()[1:]] for line in lines])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    return Path("model")


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What a script prints, run in this process."""

    def run(script: Path, *arguments: Any) -> list[str]:
        monkeypatch.setattr("sys.argv", [str(script), *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(script))
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("architecture", ["bag", *by_night("textcnn", "bilstm")])
def test_a_small_model_of_texts_answers_raw_texts(
    folder: Path, typed: Command, printed: Callable[..., list[str]], architecture: str
):
    made = check(typed, architecture, SMALL, printed)
    rule = read_sealed(made / "model.json")["preparation"]["texts"]
    assert (rule["kind"], rule["length"], rule["size"], rule["padding"]) == ("words", 16, 400, 0)
    assert re.findall(rule["word"], "don't, do") == ["don't", ",", "do"]
    card = (made / "README.md").read_text()
    assert "column `note`" in card and "its CRC-32 modulo 399" in " ".join(card.split())
    assert "needs torch only" in card


@pytest.mark.parametrize("layers", by_night(0, 1, 2, "all"))
def test_an_encoder_comes_with_its_frozen_layers_and_its_tokenizer(
    small_encoder: str, folder: Path, typed: Command, printed: Callable[..., list[str]], layers: Any
):
    """Its own folder is gone when the model answers, and transformers is not asked for."""
    made = check(typed, small_encoder, {"length": 16, "train_layers": layers}, printed)
    about = read_sealed(made / "model.json")
    assert about["preparation"]["texts"]["encoder"]["licence"] == "cc0-1.0"
    shutil.rmtree("encoder")
    assert typed("predict", made, "new.csv").code == 0
    card = " ".join((made / "README.md").read_text().split())
    assert "The licence of that encoder is cc0-1.0" in card and "needs torch and tokenizers only" in card


@pytest.mark.parametrize("layers", by_night(0, 2))
def test_minilm_is_taken_away_and_runs_without_protea(folder: Path, typed: Command, layers: int):
    encoder()
    made = check(typed, "hf:minilm", {"length": 16, "train_layers": layers}, run_without_protea)
    assert read_sealed(made / "model.json")["preparation"]["texts"]["encoder"]["licence"] == "apache-2.0"


@pytest.mark.parametrize("architecture", by_night("bag", "textcnn", "bilstm"))
def test_onnx_answers_the_same_numbers_of_texts(folder: Path, typed: Command, architecture: str):
    extra("onnx")
    import onnxruntime

    protea.run(experiment(architecture, SMALL), "run")
    expected = protea.load("run").predict(ODD, client=0)
    assert typed("export-model", "run", "--client", "0", "--to", "model", "--onnx").code == 0
    session = onnxruntime.InferenceSession("model/model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"samples": ModelFolder.open(Path("model")).preparation.texts(ODD).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)


def test_what_cannot_be_taken_away_is_said_with_its_reason(folder: Path, typed: Command, monkeypatch: Any):
    """A view of the user's own is refused; a rule that reads what all clients share gives way, with a note."""

    class Letters(HashedWords):
        """A reading that only its own code can do."""

    protea.run(experiment("bag", SMALL, FedLOO()), "run")
    done = typed("export-model", "run", "--client", "0", "--to", "model")
    words = " ".join(done.out.split())
    assert done.code == 0 and "cannot be exported: it needs what all clients see of a text alike" in words
    assert "The classifier answers." in words
    found = ModelFolder.open(Path("model"))
    run = protea.load("run")
    torch.testing.assert_close(found.predict(ODD), run.predict(ODD, client=0, rule="head"), atol=1e-5, rtol=0)
    done = typed("export-model", "run", "--client", "0", "--to", "other", "--rule", "method")
    assert done.code == 2 and "protea predict run DATA --client 0" in " ".join(done.err.split())
    done = typed("predict", "model", "train.npz")
    assert done.code == 2 and "There is no train.npz" in done.err
    Path("bare.csv").write_text("text\nfine\n")
    done = typed("predict", "model", "bare.csv")
    assert done.code == 2 and "has no column 'note'" in done.err

    about = read_sealed(Path("model/model.json"))
    about["preparation"]["texts"]["word"] = "(a+)+$"  # a rule that would never end is not run
    write_sealed(Path("model/model.json"), about)
    done = typed("predict", "model", "train.csv")
    assert done.code == 2 and "a rule that this version of Protea does not know" in " ".join(done.err.split())

    trained = run.client(0)
    body = trained.model.body.body
    assert isinstance(body, Bag)
    monkeypatch.setattr(trained.model.body.view, "own", Letters(400, 16))
    floats = Preparation((16,), torch.int64)
    with pytest.raises(ConfigError, match=r"bag cannot be exported: it reads texts by Letters(.|\n)*Do it so"):
        contents_of(trained, Origin("x", "m", ("bad", "good"), floats, instead="Do it so."))


def test_a_reading_survives_json():
    reading = Reading(16, 400)
    assert Reading.from_table(json.loads(json.dumps(reading.to_table()))) == reading
    numbers = reading.drawn(64, torch.Generator().manual_seed(0))
    sizes = (numbers > 0).sum(1)
    assert sizes.min() == 0 and sizes.max() == 16 and numbers.max() < 400
    assert ((numbers > 0) == (torch.arange(16) < sizes[:, None])).all()  # padding is at the end alone
    with pytest.raises(ConfigError, match="make no sense"):
        Reading.from_table(Reading(0, 400).to_table())
