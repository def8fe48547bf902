"""The numbers of figures that papers of prototype methods have and a report has not; ``paper.js`` draws them.

Each function gives the values of one figure for some runs, or None where these have nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from protea.report.content import Plain
from protea.report.figures import on_page
from protea.report.groups import data_sets
from protea.report.space import MOST, Named, Points, features, project, prototypes, some
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader

Plot = Callable[["Drawn"], Plain | None]  # the figure, if there is something to draw
CURVE = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # steps of an alignment at which distances are drawn


class Drawn:
    """Runs, and what a report says of them: ``content`` has a group for each method, ``runs`` its seeds."""

    def __init__(self, content: Plain, runs: Sequence[RunReader]) -> None:
        self.content, self.runs = content, runs

    @property
    def groups(self) -> list[tuple[str, Plain, list[RunReader]]]:
        """For each method its label, what is known of its first run, and the readers of all its runs."""
        return [
            (group["label"], self.content["runs"][group["runs"][0]], [self.runs[index] for index in group["runs"]])
            for group in self.content["groups"]
        ]

    def title(self, label: str, run: RunReader) -> str:
        """A label with the data of its run, where runs of several data sets or partitions are drawn."""
        found = {index: each["label"] for each in data_sets(self.runs) for index in each["runs"]}
        if len(set(found.values())) < 2:
            return label
        plain = re.sub(r" \(\d+\)$", "", label)  # a label has a number where several settings of the data differ
        return f"{plain}, {found[list(self.runs).index(run)]}"

    @property
    def classes(self) -> list[str]:
        """The names of the classes, of the run that has most."""
        names: list[str] = max((run["details"]["classes"] for _, run, _ in self.groups), key=len)
        return names


def of_page(name: str) -> Plot:
    """Make a plot of a figure that the page has: of all runs, or of the first method that has something for it."""
    return lambda drawn: on_page(name, *(group["runs"][0] for group in drawn.content["groups"]))


def margins_radar(drawn: Drawn) -> Plain | None:
    """The margins of global prototypes and of the widest client, divided by the largest, a panel for each method."""
    panels = []
    for label, run, _ in drawn.groups:
        known = [each for each in run["details"]["geometry"] if each and each["margins"]]
        if known:
            parts = [known[-1]["margins"], known[-1]["widest"]]
            largest = max([*parts[0], *parts[1], 1e-12])
            lines = [[value / largest for value in part] for part in parts]
            panels.append({"title": label, "names": run["details"]["classes"], "lines": lines})
    words = "Margins of each class, divided by the largest"
    return figure("radar", words, panels=panels, legend=["global prototypes", "widest client"]) if panels else None


def figure(chart: str, label: str, **values: Any) -> Plain:
    """A figure: which chart of ``paper.js`` it is, what it shows in words, and its values."""
    return {"chart": chart, "label": label, **values}


def over_rounds(words: str, of: Callable[[Any], float | None]) -> Plot:
    """Make a plot of a number of each round: for each method the mean over seeds, and one standard deviation around."""

    def plot(drawn: Drawn) -> Plain | None:
        series = []
        for label, _, runs in drawn.groups:
            by_round: dict[int, list[float]] = {}
            for record in (record for run in runs for record in run.rounds):
                if (value := of(record)) is not None:
                    by_round.setdefault(record.round, []).append(value)
            series.append(line(label, by_round))
        return lines(f"{words} over rounds", "round", words, series)

    return plot


def line(name: str, found: Mapping[int, Sequence[float]]) -> Plain:
    """The means of some values at each place, and a band of one standard deviation where there are several."""
    rows = [(at, float(np.mean(found[at])), spread(found[at])) for at in sorted(found)]
    band = [[at, middle - around, middle + around] for at, middle, around in rows]
    several = any(around for _, _, around in rows)
    return {"name": name, "points": [[at, middle] for at, middle, _ in rows], "band": band if several else None}


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def lines(
    label: str, x: str, y: str, series: Sequence[Plain], guides: Sequence[Plain] = (), **axis: Any
) -> Plain | None:
    """A figure of lines; None if all are empty."""
    if not any(each["points"] for each in series):
        return None
    return figure("lines", label, x={"name": x, **axis}, y=y, series=series, guides=guides)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean of the margins of classes that are there."""
    found = [value for value in values if value > 0]
    return sum(found) / len(found) if found else None


margins_over_rounds = over_rounds(
    "margin of global prototypes, mean", lambda record: record.geometry and mean_of(record.geometry.margins)
)
alignment_steps = over_rounds("steps of the alignment", lambda record: record.values.get("alignment_steps"))
training_error = over_rounds(
    "error on training samples in %", lambda record: None if record.train is None else 100 * (1 - record.train)
)
server_accuracy = over_rounds(
    "accuracy of the server in %", lambda record: 100 * record.server["head"] if "head" in record.server else None
)
ensemble_accuracy = over_rounds(
    "accuracy of the ensemble in %",
    lambda record: 100 * record.shared["method"].ensemble if "method" in record.shared else None,
)


def snapshot(run: RunReader, *, first: bool = False) -> Named | None:
    """Read the first or last snapshot of a run; None where it has none."""
    found = RunDirectory(run.path).snapshots()
    return load_file(found[(min if first else max)(found)]) if found else None


def distances_while_aligned(drawn: Drawn) -> Plain | None:
    """The distances of all pairs of global prototypes while an alignment of the first snapshot's means goes on."""
    from protea.runs.alignment import alignment_path  # by torch, which nothing else here needs

    series = []
    for label, _, runs in drawn.groups:
        named = snapshot(runs[0], first=True)
        vectors = None if named is None else class_means(prototypes_of_clients(named))
        if vectors is None or len(vectors) < 2:
            continue
        rows = [(at, *spread_of_pairs(each)) for at, each in zip(CURVE, alignment_path(vectors, CURVE), strict=True)]
        points, band = [[at, mean] for at, _, mean, _ in rows], [[at, low, high] for at, low, _, high in rows]
        series.append({"name": label, "points": points, "band": band})
    guides = [{"name": "right angles", "value": 2**0.5}]
    axis = {"type": "symlog", "ticks": [at for at in CURVE if at not in (2, 20, 200)]}
    words = "Distances of prototypes while they are aligned"
    return lines(words, "step of the alignment", "distance of two prototypes", series, guides, **axis)


def prototypes_of_clients(named: Named) -> Points:
    """The clients' prototypes of a snapshot, without the global ones."""
    owners, labels, vectors = prototypes(named)
    kept = [row for row, owner in enumerate(owners) if owner >= 0]
    return [owners[row] for row in kept], [labels[row] for row in kept], vectors[kept] if kept else vectors[:0]


def class_means(points: Points) -> NDArray[np.float32] | None:
    """The mean of each class's prototypes that has a direction; None where there are none."""
    _, labels, vectors = points
    if not labels:
        return None
    which = np.array(labels)
    means = np.stack([vectors[which == label].mean(0) for label in sorted(set(labels))])
    kept: NDArray[np.float32] = means[np.linalg.norm(means, axis=1) > 1e-6]
    return kept


def spread_of_pairs(vectors: NDArray[np.float32]) -> tuple[float, float, float]:
    """The smallest, the mean and the largest distance of two rows."""
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)[np.triu_indices(len(vectors), 1)]
    return float(gaps.min()), float(gaps.mean()), float(gaps.max())


def plane(what: str) -> Plot:
    """Make a plot of prototypes, or of a client's features, that have two dimensions: nothing is projected."""

    def plot(drawn: Drawn) -> Plain | None:
        panels = []
        for label, _, runs in drawn.groups:
            named = snapshot(runs[0])
            if named is None or "global.vectors" not in named or named["global.vectors"].shape[1] != 2:
                continue
            rays = some(named, "global", -1)
            points = prototypes_of_clients(named) if what == "prototypes" else first_features(named)
            reach = float(np.abs(points[2]).max()) if len(points[2]) else 1.0
            ends = [reach * vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in rays[2]]
            ways = [
                {"index": label, "points": [[0, 0], end.tolist()]} for label, end in zip(rays[1], ends, strict=True)
            ]
            kind = "client" if what == "prototypes" else "sample"
            title = drawn.title(label, runs[0])
            panels.append(
                {"title": title, "points": coloured(points[2], points[1], kind), "rays": ways, "numbers": True}
            )
        words = f"{what} in the plane, dashed the directions of global prototypes"
        return figure("maps", words, rows=[panels], classes=drawn.classes) if panels else None

    return plot


def coloured(points: NDArray[Any], labels: Sequence[int], kind: str) -> list[list[Any]]:
    """Points of a map: x, y, class and kind."""
    return [[*map(float, point), int(label), kind] for point, label in zip(points, labels, strict=True)]


def first_features(named: Named) -> Points:
    """The features of the first client of a snapshot that has any."""
    names = sorted(int(name.removesuffix(".features")) for name in named if name.endswith(".features"))
    if not names:
        return [], [], np.zeros((0, 2), np.float32)
    owners, labels, vectors = features(named, names[0])
    kept = [row for row, owner in enumerate(owners) if owner == -2]
    return [owners[row] for row in kept], [labels[row] for row in kept], vectors[kept]


def public_size(drawn: Drawn) -> Plain | None:
    """The server's last accuracy by the number of public samples, for each method."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in drawn.runs:
        scored = [record for record in run.rounds if "head" in record.server]
        if scored and (size := run.config["data"].get("public")):
            found.setdefault(run.method, {}).setdefault(int(size), []).append(100 * scored[-1].server["head"])
    series = [line(method, by_size) for method, by_size in found.items() if len(by_size) > 1]
    words = "accuracy of the server in %"
    return lines(f"{words} by the number of public samples", "public samples", words, series)


def rounds_to_target(drawn: Drawn) -> Plain | None:
    """After how many rounds each method reaches an accuracy that at least two of them reach."""
    courses = {label: own_course(drawn.content, place) for place, (label, _, _) in enumerate(drawn.groups)}
    best = sorted((max(values) for values in courses.values() if values), reverse=True)
    if len(best) < 2:
        return None
    target = 5 * int(best[1] // 5)
    rows = [
        [label, next((number + 1 for number, value in enumerate(values) if value >= target), None)]
        for label, values in courses.items()
    ]
    words = f"evaluated rounds until {target} %"
    return figure("bars", words, x=words, rows=rows, none="not reached")


def own_course(content: Plain, group: int) -> list[float]:
    """The accuracy by the own rule at each evaluation, mean over seeds, in percent."""
    runs = [content["runs"][index] for index in content["groups"][group]["runs"]]
    rows = [[each for each in run["scores"]["test"]["method"]["weighted"] if each is not None] for run in runs]
    shortest = min(map(len, rows), default=0)
    return [100 * float(np.mean([row[place] for row in rows])) for place in range(shortest)]


def public_samples(named: Named | None) -> NDArray[np.float64] | None:
    """Read what a snapshot has of public samples: variance, certainty, pseudo label and distance, a row each."""
    return None if named is None or "server.public" not in named else named["server.public"].astype(np.float64)


def known_public(drawn: Drawn) -> list[tuple[str, NDArray[np.float64]]]:
    """The public samples of the last snapshots that have any, by method."""
    found = [(label, public_samples(snapshot(runs[0]))) for label, _, runs in drawn.groups]
    return [(label, rows) for label, rows in found if rows is not None]


def certainty_by_variance(drawn: Drawn) -> Plain | None:
    """How certain clients are of each public sample, by the variance of their scores."""
    panels = []
    for label, rows in known_public(drawn):
        if len(rows[0]) > 1:
            across = rows[0].std() * rows[1].std()
            same = float(((rows[0] - rows[0].mean()) * (rows[1] - rows[1].mean())).mean() / across) if across else 0.0
            points = [[x, y, 0] for x, y in rows[:2].T.tolist()]
            panels.append({"title": label, "points": points, "more": f", correlation {same:.2f}"})
    axes = {"x": "variance of the scores", "y": "largest probability"}
    return figure("dots", "Certainty of public samples", panels=panels, **axes) if panels else None


def distances_of_public(drawn: Drawn) -> Plain | None:
    """The distances of public samples to the prototype of their pseudo label, of two kinds: those nearer than the
    class's mean distance, and the others; third the means."""
    panels = []
    for label, (_, _, classes, away) in known_public(drawn):
        middles = {float(each): float(away[classes == each].mean()) for each in np.unique(classes)}
        points = [[x, y, int(y > middles[x])] for x, y in zip(classes.tolist(), away.tolist(), strict=True)]
        panels.append({"title": label, "points": points + [[x, y, 2] for x, y in middles.items()]})
    axes = {"whole": True, "x": "pseudo label", "y": "distance to its prototype"}
    legend = ["nearer than the mean", "farther", "mean of the class"]
    return figure("dots", "Distances of public samples", panels=panels, legend=legend, **axes) if panels else None


def features_together(drawn: Drawn) -> Plain | None:
    """One map by t-SNE of the test samples' features of all clients that a snapshot has, a panel for each method."""
    panels = []
    for label, _, runs in drawn.groups:
        named = snapshot(runs[0])
        names = [] if named is None else [name for name in named if name.endswith(".features")]
        if named is None or not names:
            continue
        vectors = np.concatenate([named[name].astype(np.float32) for name in names])
        labels = np.concatenate([named[name.replace(".features", ".labels")] for name in names])
        rows = np.linspace(0, len(labels) - 1, min(len(labels), MOST)).astype(int)
        maps, _ = project(vectors[rows], tsne=True)
        if "tsne" in maps:
            panels.append({"title": label, "points": coloured(maps["tsne"], labels[rows], "sample")})
    words = "t-SNE of the features of test samples of all clients"
    return figure("maps", words, rows=[panels], classes=drawn.classes) if panels else None


def features_of_clients(drawn: Drawn) -> Plain | None:
    """Maps by t-SNE of the test samples' features of several clients, a row of panels for each method."""
    rows = []
    for label, run, _ in drawn.groups:
        panels: list[Plain] = []
        for client, each in (run["details"]["space"] or {"features": {}})["features"].items():
            frame = each["frames"][-1] if each else {}
            if "tsne" in frame and frame["owner"]:
                points = coloured(np.array(frame["tsne"]).reshape(-1, 2), frame["label"], "sample")
                samples = [point for point, owner in zip(points, frame["owner"], strict=True) if owner == -2]
                names = [None, None if panels else label]
                panels.append({"title": f"client {client}", "points": samples, "names": names})
        rows += [panels] if panels else []
    words = "t-SNE of the features of test samples of single clients"
    return figure("maps", words, rows=rows, classes=drawn.classes) if rows else None
