"""Figures that papers of prototype methods have and a report has not: each draws from finished or running runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from protea.report.content import Plain
from protea.report.figures import band, hue, legend, look, members, percent
from protea.report.space import MOST, Named, Points, features, project, prototypes, some
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plot = Callable[["Figure", "Drawn"], bool]  # says whether there was something to draw
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


def panels(figure: Figure, count: int, **options: Any) -> list[Any]:
    """Return axes side by side, in a figure that is wide enough for them."""
    figure.set_figwidth(max(3.5, 2.3 * count))
    return [figure.add_subplot(1, count, place + 1, **options) for place in range(count)]


def margins_radar(figure: Figure, drawn: Drawn) -> bool:
    """Draw for each method the margins of global prototypes and of the widest client, divided by the largest."""
    found = [
        (label, known[-1], run["details"]["classes"])
        for label, run, _ in drawn.groups
        if (known := [each for each in run["details"]["geometry"] if each and each["margins"]])
    ]
    if not found:
        return False
    for axes, (label, known, names) in zip(panels(figure, len(found), projection="polar"), found, strict=True):
        turns = np.linspace(0, 2 * np.pi, len(names) + 1)
        largest = max([*known["margins"], *known["widest"], 1e-12])
        for index, (part, words) in enumerate((("widest", "widest client"), ("margins", "global"))):
            if known[part]:
                values = np.array([*known[part], known[part][0]]) / largest
                axes.plot(turns, values, label=words, **look(index))
        axes.set_xticks(turns[:-1], [name[:8] for name in names] if len(names) <= 20 else [""] * len(names))
        axes.set_ylim(0, 1.05)
        axes.tick_params(labelsize=5)
        axes.set_title(label, fontsize=8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=6)
    return True


def margins_over_rounds(figure: Figure, drawn: Drawn) -> bool:
    """Draw over rounds the mean margin of the global prototypes of each method."""
    axes = figure.add_subplot()
    for index, (label, _, runs) in enumerate(drawn.groups):
        line(axes, index, label, runs, lambda record: record.geometry and mean_of(record.geometry.margins))
    axes.set(xlabel="round", ylabel="margin of global prototypes, mean")
    return legend(axes)


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of the margins of classes that are there."""
    found = [value for value in values if value > 0]
    return sum(found) / len(found) if found else None


def line(axes: Any, index: int, label: str, runs: Sequence[RunReader], of: Callable[[Any], float | None]) -> None:
    """Draw a number of each round, mean over seeds with a band of one standard deviation."""
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.rounds:
            if (value := of(record)) is not None:
                by_round.setdefault(record.round, []).append(value)
    rounds = sorted(by_round)
    middle = np.array([np.mean(by_round[round]) for round in rounds])
    spread = np.array([np.std(by_round[round], ddof=1) if len(by_round[round]) > 1 else 0.0 for round in rounds])
    band(axes, index, label, rounds, middle, spread)


def over_rounds(words: str, of: Callable[[Any], float | None]) -> Plot:
    """Make a plot of a number of each round, a line for each method."""

    def plot(figure: Figure, drawn: Drawn) -> bool:
        axes = figure.add_subplot()
        for index, (label, _, runs) in enumerate(drawn.groups):
            line(axes, index, label, runs, of)
        axes.set(xlabel="round", ylabel=words)
        return legend(axes)

    return plot


training_loss = over_rounds("training loss", lambda record: record.loss)
alignment_steps = over_rounds("steps of the alignment", lambda record: record.values.get("alignment_steps"))
training_error = over_rounds(
    "error on training samples (%)", lambda record: None if record.train is None else 100 * (1 - record.train)
)
server_accuracy = over_rounds(
    "accuracy of the server (%)", lambda record: 100 * record.server["head"] if "head" in record.server else None
)
ensemble_accuracy = over_rounds(
    "accuracy of the ensemble (%)",
    lambda record: 100 * record.shared["method"].ensemble if "method" in record.shared else None,
)


def snapshot(run: RunReader, *, first: bool = False) -> Named | None:
    """Read the first or last snapshot of a run; None where it has none."""
    found = RunDirectory(run.path).snapshots()
    return load_file(found[(min if first else max)(found)]) if found else None


def distances_while_aligned(figure: Figure, drawn: Drawn) -> bool:
    """Draw the distances of all pairs of global prototypes while an alignment of the first snapshot's means goes on."""
    from protea.runs.alignment import alignment_path  # by torch, which nothing else here needs

    axes = figure.add_subplot()
    for index, (label, _, runs) in enumerate(drawn.groups):
        named = snapshot(runs[0], first=True)
        vectors = None if named is None else class_means(prototypes_of_clients(named))
        if vectors is None or len(vectors) < 2:
            continue
        lows, means, highs = zip(*map(spread_of_pairs, alignment_path(vectors, CURVE)), strict=True)
        axes.plot(CURVE, means, label=label, marker="o", markersize=2.5, **look(index))
        axes.fill_between(CURVE, lows, highs, color=look(index)["color"], alpha=0.15, linewidth=0)
    if not axes.lines:
        return False
    axes.axhline(np.sqrt(2), color="0.4", linestyle=":", linewidth=1, label="right angles")
    axes.set_xscale("symlog")
    axes.set_xlim(left=0)
    axes.set(xlabel="step of the alignment", ylabel="distance of two prototypes")
    return legend(axes)


def prototypes_of_clients(named: Named) -> Points:
    """Return the clients' prototypes of a snapshot, without the global ones."""
    owners, labels, vectors = prototypes(named)
    kept = [row for row, owner in enumerate(owners) if owner >= 0]
    return [owners[row] for row in kept], [labels[row] for row in kept], vectors[kept] if kept else vectors[:0]


def class_means(points: Points) -> NDArray[np.float32] | None:
    """Return the mean of each class's prototypes that has a direction; None where there are none."""
    _, labels, vectors = points
    if not labels:
        return None
    which = np.array(labels)
    means = np.stack([vectors[which == label].mean(0) for label in sorted(set(labels))])
    kept: NDArray[np.float32] = means[np.linalg.norm(means, axis=1) > 1e-6]
    return kept


def spread_of_pairs(vectors: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return the smallest, the mean and the largest distance of two rows."""
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)[np.triu_indices(len(vectors), 1)]
    return float(gaps.min()), float(gaps.mean()), float(gaps.max())


def plane(what: str) -> Plot:
    """Make a plot of prototypes, or of a client's features, that have two dimensions: nothing is projected."""

    def plot(figure: Figure, drawn: Drawn) -> bool:
        found = []
        for label, _, runs in drawn.groups:
            named = snapshot(runs[0])
            if named is not None and "global.vectors" in named and named["global.vectors"].shape[1] == 2:
                found.append((label, named))
        for axes, (label, named) in zip(panels(figure, len(found)) if found else [], found, strict=True):
            rays = some(named, "global", -1)
            points = prototypes_of_clients(named) if what == "prototypes" else first_features(named)
            reach = float(np.abs(points[2]).max()) if len(points[2]) else 1.0
            for klass, vector in zip(rays[1], rays[2], strict=True):
                end = vector / max(float(np.linalg.norm(vector)), 1e-12) * reach
                axes.plot([0, end[0]], [0, end[1]], color=hue(klass), linestyle="--", linewidth=1)
            for klass, vector in zip(points[1], points[2], strict=True):
                axes.scatter(*vector, s=6, color=hue(klass), linewidths=0)
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_title(label, fontsize=8)
            axes.tick_params(labelsize=6)
        return bool(found)

    return plot


def first_features(named: Named) -> Points:
    """Return the features of the first client of a snapshot that has any."""
    names = sorted(int(name.removesuffix(".features")) for name in named if name.endswith(".features"))
    if not names:
        return [], [], np.zeros((0, 2), np.float32)
    owners, labels, vectors = features(named, names[0])
    kept = [row for row, owner in enumerate(owners) if owner == -2]
    return [owners[row] for row in kept], [labels[row] for row in kept], vectors[kept]


def public_size(figure: Figure, drawn: Drawn) -> bool:
    """Draw the server's last accuracy against the number of public samples, a line for each method."""
    axes = figure.add_subplot()
    found: dict[str, dict[int, list[float]]] = {}
    for run in drawn.runs:
        scored = [record for record in run.rounds if "head" in record.server]
        if scored and (size := run.config["data"].get("public")):
            found.setdefault(run.method, {}).setdefault(int(size), []).append(100 * scored[-1].server["head"])
    for index, (method, by_size) in enumerate(found.items()):
        if len(by_size) > 1:
            sizes = sorted(by_size)
            axes.plot(sizes, [np.mean(by_size[size]) for size in sizes], label=method, marker="o", **look(index))
    axes.set(xlabel="public samples", ylabel="accuracy of the server (%)")
    return legend(axes)


def rounds_to_target(figure: Figure, drawn: Drawn) -> bool:
    """Draw after how many rounds each method reaches an accuracy that at least two of them reach."""
    courses = {label: own_course(drawn.content, place) for place, (label, _, _) in enumerate(drawn.groups)}
    best = sorted((max(values) for values in courses.values() if values), reverse=True)
    if len(best) < 2:
        return False
    target = 5 * int(best[1] // 5)
    axes, labels = figure.add_subplot(), list(courses)
    for place, label in enumerate(labels):
        reached = next((number + 1 for number, value in enumerate(courses[label]) if value >= target), None)
        if reached is None:
            axes.text(0, place, "  not reached", va="center", fontsize=6)
        axes.barh(place, reached or 0, color=look(0)["color"])
    axes.set_yticks(range(len(labels)), labels, fontsize=6)
    axes.set(xlabel=f"evaluated rounds until {target} %")
    return True


def own_course(content: Plain, group: int) -> list[float]:
    """Return the accuracy by the own rule at each evaluation, mean over seeds, in percent."""
    rows = [
        percent([each for each in run["scores"]["test"]["method"]["weighted"] if each is not None])
        for run in members(content, content["groups"][group])
    ]
    shortest = min(map(len, rows), default=0)
    return [float(np.mean([row[place] for row in rows])) for place in range(shortest)]


def public_samples(named: Named | None) -> NDArray[np.float64] | None:
    """Read what a snapshot has of public samples: variance, certainty, pseudo label and distance, a row each."""
    return None if named is None or "server.public" not in named else named["server.public"].astype(np.float64)


def certainty_by_variance(figure: Figure, drawn: Drawn) -> bool:
    """Draw for each public sample how certain clients are of it against the variance of their scores."""
    found = [(label, public_samples(snapshot(runs[0]))) for label, _, runs in drawn.groups]
    known = [(label, rows) for label, rows in found if rows is not None and len(rows[0]) > 1]
    for axes, (label, rows) in zip(panels(figure, len(known)) if known else [], known, strict=True):
        axes.scatter(rows[0], rows[1], s=2, color=hue(0), linewidths=0)
        spread = rows[0].std() * rows[1].std()
        same = float(((rows[0] - rows[0].mean()) * (rows[1] - rows[1].mean())).mean() / spread) if spread else 0.0
        axes.set(xlabel="variance of the scores", ylabel="largest probability")
        axes.set_title(f"{label}, correlation {same:.2f}", fontsize=8)
    return bool(known)


def distances_of_public(figure: Figure, drawn: Drawn) -> bool:
    """Draw the distances of public samples to the prototype of their pseudo label: those nearer than the class's mean
    in one colour, the others in another, the means as diamonds."""
    found = [(label, public_samples(snapshot(runs[0]))) for label, _, runs in drawn.groups]
    known = [(label, rows) for label, rows in found if rows is not None]
    for axes, (label, (_, _, classes, away)) in zip(panels(figure, len(known)) if known else [], known, strict=True):
        for klass in np.unique(classes):
            own = away[classes == klass]
            axes.scatter(np.full(len(own), klass), own, s=3, linewidths=0, c=[hue(int(d > own.mean())) for d in own])
            axes.scatter(klass, own.mean(), s=18, marker="D", color="black", zorder=2)
        axes.set(xlabel="pseudo label", ylabel="distance to its prototype")
        axes.set_title(label, fontsize=8)
    return bool(known)


def features_together(figure: Figure, drawn: Drawn) -> bool:
    """Draw one map by t-SNE of the test samples' features of all clients that a snapshot has, a panel each method."""
    found = []
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
            found.append((label, maps["tsne"], labels[rows]))
    for axes, (label, points, labels) in zip(panels(figure, len(found)) if found else [], found, strict=True):
        for klass in np.unique(labels):
            axes.scatter(*points[labels == klass].T, s=2, color=hue(int(klass)), linewidths=0)
        axes.set(xticks=[], yticks=[])
        axes.set_title(label, fontsize=8)
    return bool(found)


def features_of_clients(figure: Figure, drawn: Drawn) -> bool:
    """Draw maps by t-SNE of the test samples' features of several clients together, one panel for each method."""
    found = []
    for label, run, _ in drawn.groups:
        space = run["details"]["space"]
        maps = [each["frames"][-1] for each in (space or {"features": {}})["features"].values() if each]
        maps = [frame for frame in maps if "tsne" in frame and frame["owner"]]
        if maps:
            found.append((label, maps))
    if not found:
        return False
    most = max(len(maps) for _, maps in found)
    figure.set_figheight(2.6 * len(found))
    figure.set_figwidth(2.3 * most)
    for row, (label, maps) in enumerate(found):
        for column, frame in enumerate(maps):
            axes = figure.add_subplot(len(found), most, row * most + column + 1)
            points, labels = np.array(frame["tsne"]).reshape(-1, 2), np.array(frame["label"])
            samples = np.array(frame["owner"]) == -2
            for klass in np.unique(labels[samples]):
                x, y = points[samples & (labels == klass)].T
                axes.scatter(x, y, s=2, color=hue(klass), linewidths=0)
            axes.set(xticks=[], yticks=[])
            axes.set_title(label if column == 0 else "", fontsize=8)
    return True
