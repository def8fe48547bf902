"""Figures of papers, drawn from real runs: those that can be are files, of the others it is said what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typed import Command
from wanted import extra

import protea
from protea import Data, Experiment
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation
from protea.core.training import Training
from protea.data.sources.spiral import Spiral
from protea.methods.fedproto import FedProto
from protea.methods.fedprotokd import FedProtoKD
from protea.methods.protonorm import ProtoNorm
from protea.report import paper_plots as plots
from protea.report.content import content
from protea.report.paper_figures import PAPERS, traffic
from protea.runs.reader import RunReader

extra("plots")

PLANE = Experiment(
    rounds=3, clients=3, method=ProtoNorm(), data=Data(source=Spiral(classes=6, points=60)),
    models=Models(family="tiny_mlp", dim=2), training=Training(batch=32, lr=0.05), engine=Engine("inline"),
    evaluation=Evaluation(snapshots=3, features=2),
)  # fmt: skip
KEPT = replace(
    PLANE, method=FedProtoKD(), data=replace(PLANE.data, public=30), models=replace(PLANE.models, server="tiny_mlp")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("papers")
    protea.run(PLANE, place / "plane" / "protonorm")
    protea.run(replace(PLANE, method=FedProto()), place / "plane" / "fedproto")
    protea.run(KEPT, place / "server" / "thirty")
    protea.run(replace(KEPT, data=replace(KEPT.data, public=60)), place / "server" / "sixty")
    return place


@pytest.mark.parametrize("paper", ["protonorm", "fedprotokd"])
def test_all_figures_of_a_paper_are_drawn_where_runs_have_what_they_need(
    paper: str, folder: Path, tmp_path: Path, typed: Command
):
    runs = folder / ("plane" if paper == "protonorm" else "server")
    said = typed("report", runs, "--paper", paper, "--figures", tmp_path / "out", "--format", "png")
    assert said.code == 0
    missing = [line.split()[2] for line in said.lines if line.startswith("Not drawn")]
    maps = ["fedprotokd-fig3-prototypes-tsne", "fedprotokd-fig7-features-tsne"]  # what lies in a plane needs no map
    assert missing == ([] if paper == "protonorm" else maps)
    files = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert files == {f"{paper}-{each.name}" for each in PAPERS[paper]} - set(missing)
    assert all(path.stat().st_size > 3000 for path in (tmp_path / "out").glob("*.png"))


def test_a_figure_that_cannot_be_drawn_says_what_it_needs(folder: Path, tmp_path: Path, typed: Command):
    said = typed("report", folder / "server" / "thirty", "--paper", "protonorm", "--figures", tmp_path)
    told = [line for line in said.lines if "fig3a" in line]
    assert told == [
        "Not drawn: protonorm-fig3a-alignment (Steps of the alignment over rounds).  It needs a run of protonorm."
    ]


def test_the_alignment_ends_where_the_method_ends(folder: Path):
    """Six directions in the plane at rest are 60 degrees apart: their distances are 1, the root of 3, and 2."""
    named = plots.snapshot(RunReader.read(folder / "plane" / "protonorm"), first=True)
    assert named is not None
    means = plots.class_means(plots.prototypes_of_clients(named))
    assert means is not None and means.shape == (6, 2)
    low, mean, high = plots.spread_of_pairs(named["global.vectors"].astype(np.float32))
    assert (low, high) == pytest.approx((1, 2), abs=0.02)
    assert mean == pytest.approx((6 * 1 + 6 * 3**0.5 + 3 * 2) / 15, abs=0.02)


def test_the_table_of_traffic_has_the_bytes_of_the_records(folder: Path):
    runs = [RunReader.read(folder / "plane" / "fedproto")]
    line = traffic(plots.Drawn(content(runs), runs)).splitlines()[2].split("|")
    whole = runs[0].rounds[-1].total_up + runs[0].rounds[-1].total_down
    assert float(line[4]) == pytest.approx(whole / 1e6, abs=0.01)


def test_snapshots_hold_the_features_of_so_many_clients(folder: Path):
    named = plots.snapshot(RunReader.read(folder / "plane" / "protonorm"))
    assert named is not None and sorted(name for name in named if name.endswith(".features")) == [
        "0.features",
        "1.features",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--paper", "fedtpg"], "Did you mean fedtgp"), (["--paper", "fedsa", "--out", "x.html"], "Leave out --out")],
)
def test_mistakes_are_named(words: list[str], expected: str, folder: Path, typed: Command):
    said = typed("report", folder / "plane" / "fedproto", *words)
    assert said.code != 0 and expected in said.err.replace("\n", " ")
