"""Figures of papers, drawn from real runs: those that can be are files, of the others it is said what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import Picture
from typed import Command
from wanted import extra

import protea
from protea import Data, Experiment, Result
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation
from protea.core.training import Training
from protea.data import Iid
from protea.data.sources.spiral import Spiral
from protea.methods.fedproto import FedProto
from protea.methods.fedprotokd import FedProtoKD
from protea.methods.protonorm import ProtoNorm
from protea.report import figures
from protea.report import paper_plots as plots
from protea.report.content import content
from protea.report.paper_figures import PAPERS, traffic
from protea.runs.reader import RunReader
from protea.studies import papers

extra("plots")

PLANE = Experiment(
    rounds=3, clients=3, method=ProtoNorm(), data=Data(source=Spiral(classes=6, points=60)),
    models=Models(family="tiny_mlp", dim=2), training=Training(batch=32, lr=0.05), engine=Engine("inline"),
    evaluation=Evaluation(snapshots=3, features=2),
)  # fmt: skip
KEPT = replace(
    PLANE, method=FedProtoKD(), data=replace(PLANE.data, public=30), models=replace(PLANE.models, server="tiny_mlp")
)
WIDE = replace(
    PLANE, method=FedProto(), models=Models(family="tiny_mlp", dim=4),
    evaluation=Evaluation(snapshots=1, features=2, train=True, shared=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("papers")
    protea.run(PLANE, place / "plane" / "protonorm")
    protea.run(replace(PLANE, method=FedProto()), place / "plane" / "fedproto")
    protea.run(KEPT, place / "server" / "thirty")
    protea.run(replace(KEPT, data=replace(KEPT.data, public=60)), place / "server" / "sixty")
    return place


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return protea.run(WIDE, tmp_path_factory.mktemp("wide") / "fedproto")


def values(asked: dict[str, Any]) -> dict[str, int]:
    """How many marks of each class the values of a figure ask for; only those of the first panel have corners."""
    if asked["chart"] == "lines":
        points = [len(each["points"]) for each in asked["series"]]
        assert max(points) <= 40  # longer lines have no dots
        drawn = [count for count in points if count]
        return {"series": len(drawn), "dots": sum(drawn), "key": len(drawn) + len(asked["guides"])}
    if asked["chart"] == "bars":
        reached = [count for _, count in asked["rows"] if count is not None]
        return {"bars": len(reached), "none": len(asked["rows"]) - len(reached)}
    panels = asked["panels"] if "panels" in asked else [panel for row in asked["rows"] for panel in row]
    if asked["chart"] == "radar":
        drawn = [line for panel in panels for line in panel["lines"] if line]
        return {"series": len(drawn), "dots": sum(map(len, drawn)), "heading": len(panels)}
    rays = {"trails": sum(len({ray["index"] for ray in panel.get("rays", [])}) for panel in panels)}
    return {"points": sum(len(panel["points"]) for panel in panels), "heading": len(panels), **rays}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_figure_has_a_mark_for_each_of_its_numbers(paper: str, folder: Path, wide: Result):
    """In an SVG that parses; the figures of the page are held to that in test_report."""
    places = {"protonorm": folder / "plane", "fedprotokd": folder / "server"}
    runs = [RunReader.read(path) for path in sorted(places.get(paper, wide.directory.parent).iterdir())]
    drawn = plots.Drawn(content(runs), runs)
    asked = [found for each in PAPERS[paper] if (found := each.plot(drawn)) is not None]
    for each, svg in zip(asked, figures.drawings(drawn.content, asked), strict=True):
        if each["chart"] == "onPage":
            assert svg is None or len(list(Picture(svg).root.iter())) > 30
            continue
        assert svg is not None
        picture, expected = Picture(svg), values(each)
        counts = {"key": len(picture.words("key"))} | {
            name: len(picture.marks(name)) for name in expected if name != "key"
        }
        assert {name: counts[name] for name in expected} == expected
        assert svg.count("NaN") == svg.count("undefined") == 0


def test_a_number_over_rounds_is_the_mean_of_seeds_with_their_deviation():
    found = plots.line("one", {1: [2.0, 4.0], 3: [5.0]})
    assert found["points"] == [[1, 3.0], [3, 5.0]]
    assert found["band"] == [[1, pytest.approx(3 - 2**0.5), pytest.approx(3 + 2**0.5)], [3, 5.0, 5.0]]
    assert plots.line("one", {1: [2.0]})["band"] is None


@pytest.mark.parametrize("paper", ["protonorm", "fedprotokd"])
def test_all_figures_of_a_paper_are_drawn_where_runs_have_what_they_need(
    paper: str, folder: Path, tmp_path: Path, typed: Command
):
    runs = folder / ("plane" if paper == "protonorm" else "server")
    said = typed("report", runs, "--paper", paper, "--figures", tmp_path / "out", "--format", "pdf")
    assert said.code == 0
    missing = [line.split()[2] for line in said.lines if line.startswith("Not drawn")]
    maps = ["fedprotokd-fig3-prototypes-tsne", "fedprotokd-fig7-features-tsne"]  # what lies in a plane needs no map
    assert missing == ([] if paper == "protonorm" else maps)  # also those of single public samples are drawn
    files = {path.stem: path.read_bytes() for path in (tmp_path / "out").glob("*.pdf")}
    assert set(files) == {f"{paper}-{each.name}" for each in PAPERS[paper]} - set(missing)
    assert all(each.startswith(b"%PDF-1.") and len(each) > 3000 for each in files.values())


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


def test_public_samples_are_kept_as_the_server_saw_them(folder: Path):
    """Certainty is a probability, labels are classes, distances are not negative; a snapshot has a column for each."""
    rows = plots.public_samples(plots.snapshot(RunReader.read(folder / "server" / "thirty")))
    assert rows is not None and rows.shape == (4, 30)
    variance, certainty, labels, away = rows
    assert (variance >= 0).all() and (away >= 0).all() and ((certainty > 1 / 6 - 1e-3) & (certainty <= 1)).all()
    assert set(labels) <= set(range(6)) and plots.public_samples(None) is None
    assert plots.public_samples(plots.snapshot(RunReader.read(folder / "plane" / "fedproto"))) is None


def test_training_error_is_drawn_where_it_was_asked_for(folder: Path, wide: Result, tmp_path: Path, typed: Command):
    runs = [RunReader.read(wide.directory)]
    last = runs[0].rounds[-1]
    assert last.train is not None and last.train == wide.records[-1].train and 0 < last.train <= 1
    error = plots.training_error(plots.Drawn(content(runs), runs))
    assert error is not None and error["series"][0]["points"][-1] == [3, pytest.approx(100 * (1 - last.train))]
    said = typed("report", runs[0].path, "--paper", "fedtgp", "--figures", tmp_path / "out", "--format", "svg")
    drawn = {path.stem for path in (tmp_path / "out").glob("*.svg")}
    assert {"fedtgp-fig4-training", "fedtgp-fig6-features-tsne", "fedtgp-training-loss"} <= drawn, said.out
    other = typed("report", folder / "plane" / "fedproto", "--paper", "fedtgp", "--figures", tmp_path / "none")
    assert any("fig4-training" in line and "evaluation.train=true" in line for line in other.lines)


def test_panels_of_several_partitions_say_which_is_which(folder: Path, tmp_path: Path):
    protea.run(replace(PLANE, data=replace(PLANE.data, partition=Iid())), tmp_path / "iid")
    paths = [folder / "plane" / "protonorm", tmp_path / "iid"]
    runs = [RunReader.read(path) for path in paths]
    drawn = plots.plane("prototypes")(plots.Drawn(content(runs), runs))
    assert drawn is not None
    assert [panel["title"] for panel in drawn["rows"][0]] == ["protonorm, dirichlet", "protonorm, iid"]
    alone = plots.plane("prototypes")(plots.Drawn(content(runs[:1]), runs[:1]))
    assert alone is not None and alone["rows"][0][0]["title"] == "protonorm"


def test_every_paper_has_runs_for_its_figures():
    """A preset for the figures gives their runs what they need; the numbers beside are dashes."""
    drawn = [papers.preset_of(*name.split("/")) for name in papers.names()]
    found = {each.name.partition("/")[0] for each in drawn if each.draw}
    assert found == {"fedtgp", "protonorm", "fedsa", "fedprotokd"} < set(PAPERS)
    for preset in (each for each in drawn if each.draw and each.name.endswith("figures")):
        experiment = preset.experiment(preset.cells[0], preset.rows[0])
        assert experiment.evaluation.snapshots >= 5 and experiment.evaluation.local_prototypes
    train = papers.preset_of("fedtgp", "figures")
    assert all(train.experiment(cell, row).evaluation.train for cell in train.cells for row in train.rows)
