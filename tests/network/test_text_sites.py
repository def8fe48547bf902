"""Sites whose samples are texts, each with a model and tokens of its own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import grid
import places
from parties import alone, over_network

from protea.network.coordinator.service import Coordinator
from protea.network.site.check import trial
from protea.network.site.directory import Site
from protea.network.site.service import SiteService

DATA = """
    return Csv(str(pathlib.Path(__file__).parent / "notes.csv"), label="kind", text="note", key="patient")
"""
MODELS = {"north": "'bag'", "south": "textcnn((), buckets=500, width=16, length=12)", "east": "'bilstm'"}
COMPLAINTS = {"heart": "chest pain and palpitations", "bone": "broken wrist, swollen knee", "skin": "itching rash"}


def sites(folder: Path, base: places.Home) -> list[Site]:
    found = []
    for number, (name, model) in enumerate(MODELS.items()):
        path = folder / name
        path.mkdir()
        rows = [(f"Visit {n}: {said}.", kind, n) for n in range(number, 12) for kind, said in COMPLAINTS.items()]
        with (path / "notes.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("note", "kind", "patient"), *rows])
        code = "import pathlib\nfrom protea.data.sources.csv_table import Csv\nfrom protea.models.text import textcnn\n"
        code += f"\n\ndef model():\n    return {model}\n\n\ndef data():{DATA}"
        found.append(places.site(path, base.invite(name), code, 'seed = "task"\n[split]\nby_key = true\n', places.ALL))
    return found


@pytest.mark.parametrize("method", ["fedproto", "fedloo"])  # fedloo has a second view that all sites share
def test_texts_federate_as_without_a_network_and_never_leave(method: str, tmp_path: Path) -> None:
    settings = ("rounds=2", "patience=0.1", "training.lr=0.1", f"method.name={method}")
    base = places.base(tmp_path / "base", *settings, tls=False, classes=list(COMPLAINTS))
    parties = sites(tmp_path, base)
    wire = grid.Wire([SiteService(site).handle for site in parties])
    Coordinator(base, lambda status, news: None, carrier=wire).serve()
    assert over_network(base, parties) == alone(base.task, parties, tmp_path / "alone")
    for path in (tmp_path / "base").rglob("*"):
        assert not path.is_file() or b"palpitations" not in path.read_bytes(), path
    assert all(list((site.path / "views").iterdir()) for site in parties)  # what tokens are kept stays with the site


def test_a_check_of_a_site_with_texts_lists_what_would_leave(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", "rounds=2", tls=False, classes=list(COMPLAINTS))
    north, *_ = sites(tmp_path, base)
    assert {leaving.name for leaving in trial(north.path).leaving} >= {"vectors", "counts"}
