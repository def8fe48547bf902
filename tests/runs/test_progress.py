"""How far a run is: a bar in a notebook, lines elsewhere; what a notebook's cells define runs by default."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from wanted import extra

import protea
from protea import Data, Engine, Evaluation, Experiment, Models
from protea.core.errors import ProteaError
from protea.runs import progress
from protea.runs.observers import Observer
from protea.runs.progress import client_jobs, in_notebook, why_inline

SMALL = Experiment(
    rounds=3,
    clients=3,
    data=Data(samples=200),
    models=Models(family="tiny_mlp", dim=16),
    engine=Engine("inline"),
    evaluation=Evaluation(shared="never", snapshots=0),
)


class Handle:
    """What ``display(..., display_id=True)`` of a notebook gives; it keeps what was shown."""

    def __init__(self, bundle: dict[str, str]) -> None:
        self.shown = [bundle]

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """As if this were a notebook: a list of its outputs."""
    outputs: list[Handle] = []

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        outputs.append(Handle(bundle))
        return outputs[-1]

    module = ModuleType("IPython.display")
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr("protea.runs.run.in_notebook", lambda: True)
    monkeypatch.setattr(progress, "PAUSE", -1.0)  # every reply is shown
    return outputs


def test_elsewhere_nothing_is_shown_unless_asked(capsys: pytest.CaptureFixture[str]):
    assert not in_notebook()
    protea.Run(SMALL).finish()
    assert capsys.readouterr() == ("", "")
    protea.Run(SMALL, progress=True).finish()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 3
    for round, line in enumerate(lines, start=1):
        assert re.fullmatch(rf"fedproto: round {round}/3, accuracy \d+\.\d %, about \d+ s left", line)


def test_in_a_notebook_one_output_is_updated_in_place(notebook: list[Handle]):
    result = protea.Run(SMALL).finish()
    (output,) = notebook
    assert '<progress value="0" max="3"' in output.shown[0]["text/html"]
    within = [re.search(r"client jobs of the next (\d+)/6", each["text/plain"]) for each in output.shown]
    assert {int(each[1]) for each in within if each} == {1, 2, 3, 4, 5, 6}  # three to train, three to be evaluated
    last = output.shown[-1]
    assert '<progress value="3" max="3"' in last["text/html"] and "ended after" in last["text/plain"]
    assert f"accuracy {100 * (result.records[-1].accuracy or 0):.1f} %" in last["text/plain"]


def test_in_a_notebook_it_can_be_switched_off(notebook: list[Handle]):
    protea.Run(SMALL, progress=False).finish()
    assert notebook == []


def test_a_run_that_goes_on_begins_where_it_was(notebook: list[Handle], tmp_path: Path):
    run = protea.Run(replace(SMALL, checkpoint=protea.Checkpoint(every=1)), tmp_path / "run")
    run.step()
    run.close()
    assert "stopped after" in notebook[0].shown[-1]["text/plain"]
    run.finish()
    assert '<progress value="1" max="3"' in notebook[1].shown[0]["text/html"]


def test_the_number_of_jobs_is_known_before_the_round():
    seen: list[int] = []

    class Count(Observer):
        def replied(self, reply: Any) -> None:
            seen.append(reply.round)

    experiment = replace(SMALL, fraction=0.7, evaluation=Evaluation(every=2, shared="last", snapshots=0))
    protea.Run(experiment, observers=[Count()]).finish()
    assert [seen.count(round) for round in (1, 2, 3)] == [client_jobs(experiment, round) for round in (1, 2, 3)]


def test_the_note_names_what_cannot_be_imported(monkeypatch: pytest.MonkeyPatch):
    main = SimpleNamespace(Net=lambda shape, classes: None)  # as in a notebook, without a file
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    own = replace(SMALL, models=Models(members=("__main__:Net",)), engine=Engine())
    assert "cannot import Net, which this notebook defines" in str(why_inline(own))
    assert why_inline(replace(own, engine=Engine("inline"))) is None  # as asked for
    assert why_inline(replace(own, models=Models())) is None


def test_runs_and_results_are_small_tables_in_a_notebook(tmp_path: Path):
    run = protea.Run(SMALL, tmp_path / "<run>")
    assert "0 of 3" in run._repr_html_() and "&lt;run&gt;" in run._repr_html_()
    result = run.finish()
    assert "3 of 3, ended" in run._repr_html_() and "after round 3" in run._repr_html_()
    assert "fedproto" in result._repr_html_() and "by classifier" in result._repr_html_()
    assert "in memory" in protea.Run(SMALL)._repr_html_()


def test_a_run_whose_method_cannot_be_found_is_shown_too(tmp_path: Path):
    protea.Run(SMALL, tmp_path / "run").finish()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('name = "fedproto"', 'name = "__main__:Gone"'))
    run = protea.load(tmp_path / "run")
    with pytest.raises(ProteaError):
        run.setup
    assert "after round 3" in run._repr_html_()


# A real notebook

CELLS = [
    """
from dataclasses import dataclass
import numpy as np
import torch.nn.functional as F
from torch import nn
import protea
from protea.data import Arrays
""",
    """
@dataclass(frozen=True)
class Means(protea.Method[protea.Prototypes, protea.Prototypes]):
    def broadcast(self, server, client):
        return server.memory.get("prototypes")

    def local_update(self, client, down):
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        return client.prototypes()

    def aggregate(self, server, uploads):
        server.memory["prototypes"] = protea.Prototypes.mean([upload.payload for upload in uploads])
""",
    """
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*shape, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x):
        return self.layers(x)
""",
    """
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 150)
x = (rng.normal(size=(150, 2)) + 3 * np.array([[0, 0], [1, 0], [0, 1]])[y]).astype("float32")
models = protea.Models(members=("__main__:Net",), dim=16)
experiment = protea.Experiment(
    rounds=2, clients=2, method=Means(), data=protea.Data(source=Arrays(x, y)), models=models
)
run = protea.Run(experiment)
run.finish()
""",
    "run.client(0).model",
    "run.table()",
    "run.predict(x[:4], client=0).shape",
]


@pytest.mark.nightly  # a kernel, and processes of its own
def test_what_the_cells_of_a_notebook_define_runs_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbformat = pytest.importorskip("nbformat", reason="of the extra dev")
    nbclient = pytest.importorskip("nbclient", reason="of the extra dev")
    pytest.importorskip("ipykernel", reason="of the extra dev")
    extra("pandas")
    monkeypatch.setenv("PYTHONPATH", str(Path(protea.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3", resources={}).execute()
    outputs = [cell.outputs for cell in book.cells]
    bar, result = outputs[3]
    assert '<progress value="2" max="2"' in bar["data"]["text/html"] and "ended after" in bar["data"]["text/html"]
    assert "cannot import Means and Net, which this notebook defines" in bar["data"]["text/html"]
    assert "<table>" in result["data"]["text/html"]
    assert "Net(" in outputs[4][0]["data"]["text/plain"]
    assert "accuracy" in outputs[5][0]["data"]["text/html"]
    assert outputs[6][0]["data"]["text/plain"] == "torch.Size([4, 3])"
    assert all(output["output_type"] != "stream" for each in outputs for output in each)
