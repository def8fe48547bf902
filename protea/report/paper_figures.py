"""The figures of five papers, drawn again from runs: which there are, what each needs, and files with their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protea.core.errors import ConfigError, nearest
from protea.core.files import write_bytes, write_text
from protea.report import figures
from protea.report import paper_plots as plots
from protea.report.content import content
from protea.report.paper_plots import Drawn, Plot
from protea.runs.reader import RunReader


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper: its number there, what it shows, where its numbers are from, and what it needs of runs."""

    name: str  # of the file: fig1-margins
    shows: str
    plot: Plot
    needs: str


SNAPSHOTS = "snapshots of prototypes: run with evaluation.snapshots=5"
EVALUATED = "rounds that were evaluated, by a method with global prototypes"
PLANE = "two-dimensional features: run with data.source.kind=spiral models.dim=2 evaluation.snapshots=5"
SERVER = "a server model: run fedprotokd or fedpkd with models.server and data.public"

ACCURACY = PaperFigure("accuracy", "Accuracy over rounds", plots.of_page("accuracy"), "rounds that were evaluated")
DATA = PaperFigure("data", "Samples by client and class", plots.of_page("data"), "a simulation")
RADAR = PaperFigure("margins", "Margins of global prototypes and of the widest client", plots.margins_radar, EVALUATED)
TSNE = PaperFigure("prototypes-tsne", "t-SNE of prototypes", plots.of_page("map-tsne"), SNAPSHOTS)
FEATURES = PaperFigure(
    "features-tsne",
    "t-SNE of the features of test samples, a panel for each client",
    plots.features_of_clients,
    f"{SNAPSHOTS} evaluation.features=4",
)
COMMUNICATION = PaperFigure(
    "communication", "Accuracy against bytes", plots.of_page("communication"), "rounds that were evaluated"
)
TARGET = PaperFigure(
    "rounds-to-target", "Rounds until an accuracy", plots.rounds_to_target, "two methods, evaluated several times"
)


def numbered(number: str, figure: PaperFigure) -> PaperFigure:
    """Give a figure the number that it has in a paper."""
    return PaperFigure(f"{number}-{figure.name}", figure.shows, figure.plot, figure.needs)


PAPERS: dict[str, Sequence[PaperFigure]] = {
    "fedtgp": (
        numbered("fig1", RADAR),
        PaperFigure(
            "fig4-training",
            "Error on training samples over rounds",
            plots.training_error,
            "the accuracy on training samples: run with evaluation.train=true",
        ),
        PaperFigure("training-loss", "Training loss over rounds", plots.of_page("loss"), "rounds with training"),
        numbered("fig5", TSNE),
        PaperFigure(
            "fig6-features-tsne",
            "t-SNE of the features of all clients' test samples together",
            plots.features_together,
            f"{SNAPSHOTS} evaluation.features=20",
        ),
        numbered("fig7", DATA),
        numbered("table3", COMMUNICATION),
    ),
    "protonorm": (
        numbered("fig1", DATA),
        PaperFigure("fig2-plane", "Global and local prototypes in the plane", plots.plane("prototypes"), PLANE),
        PaperFigure(
            "fig3a-alignment", "Steps of the alignment over rounds", plots.alignment_steps, "a run of protonorm"
        ),
        numbered("fig3b", ACCURACY),
        PaperFigure(
            "fig4-distances",
            "Distances of prototypes while they are aligned",
            plots.distances_while_aligned,
            SNAPSHOTS,
        ),
        numbered("fig5", RADAR),
        PaperFigure("fig6-plane", "Features of a client in the plane", plots.plane("features"), PLANE),
        numbered("table7", COMMUNICATION),
    ),
    "fedsa": (numbered("fig3", ACCURACY), RADAR, TSNE, COMMUNICATION),
    "fedpagr": (
        ACCURACY,
        PaperFigure(
            "ensemble",
            "Accuracy of the ensemble over rounds",
            plots.ensemble_accuracy,
            "a shared test set in several rounds: run with evaluation.shared=5",
        ),
        RADAR,
        TSNE,
        COMMUNICATION,
    ),
    "fedprotokd": (
        numbered("fig1", RADAR),
        numbered("fig3", TSNE),
        PaperFigure(
            "fig4-certainty",
            "Certainty of public samples by the variance of their scores",
            plots.certainty_by_variance,
            f"{SERVER}; {SNAPSHOTS}",
        ),
        PaperFigure(
            "fig5-distances",
            "Distances of public samples to the prototype of their pseudo label",
            plots.distances_of_public,
            f"{SERVER}; {SNAPSHOTS}",
        ),
        PaperFigure("fig6-margins", "Margins over rounds", plots.margins_over_rounds, EVALUATED),
        numbered("fig7", FEATURES),
        PaperFigure(
            "fig8-public",
            "Accuracy of the server by the number of public samples",
            plots.public_size,
            f"{SERVER}, with at least two values of data.public: protea sweep ... data.public=500,2500",
        ),
        PaperFigure("server", "Accuracy of the server over rounds", plots.server_accuracy, SERVER),
        numbered("table8", TARGET),
    ),
}


def draw_paper(paper: str, runs: Sequence[RunReader], folder: Path, form: str) -> Iterator[str]:
    """Write the figures of a paper that these runs have something for; say of each what was written or is missing."""
    if paper not in PAPERS:
        raise ConfigError(f"--paper is {paper!r}, of which there are no figures.  {nearest(paper, PAPERS)}")
    figures.require()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = Drawn(content(runs), runs)
    found = [each.plot(drawn) for each in PAPERS[paper]]
    svgs = iter(figures.drawings(drawn.content, [each for each in found if each is not None]))
    for each, asked in zip(PAPERS[paper], found, strict=True):
        name, svg = f"{paper}-{each.name}", None if asked is None else next(svgs)
        if svg is None:
            yield f"Not drawn: {name} ({each.shows}).  It needs {each.needs}."
        else:
            write_bytes(folder / f"{name}.{form}", figures.rendered(svg, form))
            yield f"Figure: {folder / f'{name}.{form}'} ({each.shows})"
    table = folder / f"{paper}-communication.md"
    write_text(table, traffic(drawn))
    yield f"Table: {table}"


def traffic(drawn: Drawn) -> str:
    """Write a Markdown table of what travels: bytes of a round and of the run, and numbers of four bytes in a round."""
    lines = ["| method | kB up, a round | kB down, a round | MB in all | thousands of numbers, a round |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for label, _, runs in drawn.groups:
        rounds = [record for run in runs for record in run.rounds]
        if not rounds:
            continue
        up, down = (sum(getattr(each, f"bytes_{way}") for each in rounds) / len(rounds) for way in ("up", "down"))
        whole = sum(run.rounds[-1].total_up + run.rounds[-1].total_down for run in runs if run.rounds) / len(runs)
        lines.append(f"| {label} | {up / 1e3:.1f} | {down / 1e3:.1f} | {whole / 1e6:.2f} | {(up + down) / 4e3:.1f} |")
    return "\n".join(lines) + "\n"
