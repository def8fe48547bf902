"""Texts are audited too: gradients cannot move tokens, so of inversion there is retrieval alone."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from protea import Data, Engine, Experiment, Models, Run
from protea.core.training import Training
from protea.data import Iid, Split
from protea.data.sources.csv_table import Csv
from protea.methods.fedloo import FedLOO
from protea.methods.fedproto import FedProto
from protea.report.audit import audit_page
from protea.studies.audit import attack, subject_of_run
from protea.studies.audit.attack import silent
from protea.studies.audit.pictures import pictures

COMPLAINTS = {"heart": ("chest pain", "palpitations"), "bone": ("broken wrist", "swollen knee")}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROTEA_VIEWS", str(tmp_path / "views"))
    rows = [
        (f"Patient {n} came with {what} & <fever>.", label)
        for n, (label, what) in enumerate((k, c) for _ in range(20) for k, cs in COMPLAINTS.items() for c in cs)
    ]
    with (tmp_path / "notes.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(tmp_path / "notes.csv")


@pytest.mark.parametrize("method", [FedProto(), FedLOO(least=3)], ids=["own features", "common map"])
def test_the_text_nearest_to_a_vector_is_shown(notes: str, tmp_path: Path, method: FedProto | FedLOO):
    experiment = Experiment(
        rounds=1,
        clients=2,
        method=method,
        data=Data(source=Csv(notes, "label", text="text"), partition=Iid(), split=Split(0.25, 0.0)),
        models=Models(members=({"name": "bag", "buckets": 300, "width": 8, "length": 16},), dim=8, adapter="linear"),
        training=Training(lr=0.1),
        engine=Engine("inline"),
    )
    Run(experiment, tmp_path / "run").finish()
    found = attack(subject_of_run(tmp_path / "run", 0, 1, silent), shadows=2)

    assert any("retrieval alone" in note for note in found.notes)
    attacks = {each.attack for each in found.findings}
    assert "inversion" not in attacks and {"linkage", "membership", "shadows"} <= attacks
    shown = pictures(found)
    assert {each["label"].partition(",")[0] for each in shown} == {"bone", "heart"}
    assert all("Patient" in each["texts"][0] for each in shown)
    page = audit_page(found.plain(), shown)
    assert "&lt;fever&gt;" in page and "<fever>" not in page
