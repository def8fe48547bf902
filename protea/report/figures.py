"""The figures of a report as files for papers, drawn by matplotlib from the same content as the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protea.core.errors import ConfigError
from protea.core.files import writing
from protea.core.shell import install_hint
from protea.report.content import Plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]  # Okabe and Ito's
MARKS = ["o", "s", "^"]
GUIDES: list[Any] = ["--", ":", "-.", (0, (1, 4))]  # dashes of lines that stand for no method
NAMED = 20  # most classes that a legend names
STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "protea"}

# Without the date, equal runs give equal files.
UNDATED: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def require() -> None:
    """Refuse to draw where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigError(f"--figures needs matplotlib, which is not installed.  Type: {install_hint('plots')}")


def draw(content: Plain, folder: Path, form: str) -> list[Path]:
    """Write every figure that these runs have something for; those of single runs for the first of each group."""
    require()
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE):
        for name, figure in figures(content):
            paths.append(folder / f"{name}.{form}")
            with writing(paths[-1]) as file:
                figure.savefig(file, format=form, dpi=200, metadata=UNDATED[form])
    return paths


def figures(content: Plain) -> Iterator[tuple[str, Figure]]:
    """Every figure that there is something to draw for, with the name of its file."""
    for name, plot in ACROSS.items():
        if (figure := made(plot, content)) is not None:
            yield name, figure
    for group in content["groups"]:
        run = content["runs"][group["runs"][0]]
        for name, plot in SINGLE.items():
            if (figure := made(plot, run)) is not None:
                yield f"{run['name'].replace('/', '-')}-{name}", figure


def made(plot: Callable[[Any, Any], bool], content: Plain) -> Figure | None:
    """The figure, or None where ``plot`` says that there is nothing to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.5, 2.6), layout="constrained")
    return figure if plot(figure, content) else None


def accuracy(figure: Figure, content: Plain) -> bool:
    """Draw the accuracy of each method over rounds: mean and standard deviation over seeds, test samples, own rule."""
    axes = figure.add_subplot()
    for index, group in enumerate(content["groups"]):
        rounds, middle, spread = over_seeds(content, group)
        band(axes, index, group["label"], rounds, middle, spread)
    for index, floor in enumerate(content["majorities"]):
        name = ", ".join(["majority class"] + [floor["label"]] * bool(floor["label"]))
        axes.axhline(100 * floor["value"], color="0.4", linestyle=GUIDES[index % len(GUIDES)], linewidth=1, label=name)
    axes.set(xlabel="round", ylabel="accuracy (%)")
    return legend(axes)


def communication(figure: Figure, content: Plain) -> bool:
    """Draw accuracy against all bytes sent so far."""
    axes = figure.add_subplot()
    for index, group in enumerate(content["groups"]):
        rounds, middle, spread = over_seeds(content, group)
        sent = [dict(zip(run["rounds"], np.cumsum(run["bytes"]), strict=True)) for run in members(content, group)]
        so_far = np.array([np.mean([each[r] for each in sent if r in each]) for r in rounds]) / 1e6
        band(axes, index, group["label"], so_far, middle, spread)
    axes.set(xlabel="sent so far (MB)", ylabel="accuracy (%)")
    return legend(axes)


def members(content: Plain, group: Plain) -> list[Plain]:
    """The runs of a group."""
    return [content["runs"][index] for index in group["runs"]]


def over_seeds(content: Plain, group: Plain) -> tuple[list[int], Any, Any]:
    """Rounds, and in percent the mean accuracy and its sample standard deviation over the group's runs."""
    by_round: dict[int, list[float]] = {}
    for run in members(content, group):
        for round, value in zip(run["rounds"], run["scores"]["test"]["method"]["weighted"], strict=True):
            if value is not None:
                by_round.setdefault(round, []).append(100 * value)
    rounds = sorted(by_round)
    middle = np.array([np.mean(by_round[round]) for round in rounds])
    spread = np.array([np.std(by_round[round], ddof=1) if len(by_round[round]) > 1 else 0.0 for round in rounds])
    return rounds, middle, spread


def band(axes: Axes, index: int, name: str, x: Any, middle: Any, spread: Any) -> None:
    """Draw a line, and around it a band as wide as the spread."""
    if not len(middle):
        return
    axes.plot(x, middle, label=name, **look(index))
    if spread.any():
        axes.fill_between(x, middle - spread, middle + spread, color=look(index)["color"], alpha=0.2, linewidth=0)


def look(index: int) -> dict[str, Any]:
    """The colour and dashes of the line with this number: first all colours, then other dashes."""
    dashes = ["-", "--", ":", "-."]
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": dashes[index // len(COLOURS) % len(dashes)],
        "linewidth": 1.3,
    }


def legend(axes: Axes) -> bool:
    """Name the lines, if there are any; the answer is whether there are."""
    if not axes.lines:
        return False
    keys(axes)
    return True


def keys(axes: Axes) -> None:
    """Put a legend above the axes, where it covers nothing."""
    figure, names = axes.figure, axes.get_legend_handles_labels()[1]
    columns = max(1, min(len(names), 60 // (6 + max(map(len, names)))))
    figure.legend(loc="outside upper center", frameon=False, fontsize=6, ncols=columns)


def clients(figure: Figure, run: Plain) -> bool:
    """Draw the accuracy of each client over rounds, own rule, test samples."""
    axes, rows = figure.add_subplot(), run["details"]["accuracies"]["test"]["method"]
    for index, values in enumerate(rows):
        axes.plot(run["rounds"], percent(values), label=name_of(run, index), **look(index))
    axes.set(xlabel="round", ylabel="accuracy (%)")
    if rows:
        keys(axes)
    return bool(rows and run["rounds"])


def name_of(run: Plain, index: int) -> str:
    """Name a client: by its site, or by its number."""
    clients = run["details"]["clients"]
    return str((index < len(clients) and clients[index].get("site")) or f"client {index}")


def distribution(figure: Figure, run: Plain) -> bool:
    """Draw the number of training samples by client and class."""
    axes, counts = figure.add_subplot(), np.array([client["train"] for client in run["details"]["clients"]])
    if not counts.size:
        return False
    who, which = np.nonzero(counts)
    axes.scatter(who, which, s=90 * counts[who, which] / counts.max(), color=COLOURS[0], alpha=0.8, linewidths=0)
    axes.set(xlabel="client", ylabel="class")
    name_ticks(axes.set_yticks, run["details"]["classes"])
    return True


def cosines(figure: Figure, run: Plain) -> bool:
    """Draw the cosines of the global prototypes at the last snapshot."""
    space = run["details"]["space"]
    if space is None or space["cosines"][-1] is None:
        return False
    axes, found = figure.add_subplot(), space["cosines"][-1]
    image = axes.imshow(found["rows"], vmin=-1, vmax=1, cmap="PuOr_r")
    figure.colorbar(image, ax=axes, label="cosine")
    names = [run["details"]["classes"][label] for label in found["classes"]]
    name_ticks(axes.set_xticks, names)
    name_ticks(axes.set_yticks, names)
    axes.set(xlabel="class", ylabel="class")
    return True


def name_ticks(place: Callable[..., Any], names: list[str]) -> None:
    """Write at most twenty of the names at an axis, so that they stay apart."""
    every = len(names) // 20 + 1
    place(range(0, len(names), every), names[::every])


def margins(figure: Figure, run: Plain) -> bool:
    """Draw the margin of each class after the last evaluated round: of global prototypes, and the widest client's."""
    known = [each for each in run["details"]["geometry"] if each]
    if not known:
        return False
    axes: Any = figure.add_subplot(projection="polar")
    names = run["details"]["classes"]
    turns = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    lines = (("margins", "global prototypes", "-"), ("widest", "widest client", "--"))
    for index, (part, name, style) in enumerate(lines):
        if known[-1][part]:
            drawn = {**look(index), "linestyle": style, "marker": "o", "markersize": 2.5}
            axes.plot(np.append(turns, turns[0]), [*known[-1][part], known[-1][part][0]], label=name, **drawn)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(turns, names)
    axes.tick_params(labelsize=6)
    keys(axes)
    return True


KINDS: tuple[tuple[str, float, str], ...] = (  # how points of a map are drawn: name, size, face
    ("test sample", 2, ""),
    ("client's prototype", 12, ""),
    ("global prototype", 60, "white"),
)


def mapped(which: str, by: str) -> Callable[[Figure, Plain], bool]:
    """A function that draws a map of the last snapshot: colours and shapes are classes, sizes are kinds of points."""

    def plot(figure: Figure, run: Plain) -> bool:
        frame, shares = last_frame(run["details"]["space"], which)
        if by not in frame:
            return False
        axes, names = figure.add_subplot(), run["details"]["classes"]
        points = np.array(frame[by]).reshape(-1, 2)
        owners, labels = np.array(frame["owner"]), np.array(frame["label"])
        kinds = (owners == -2, owners >= 0, owners == -1)
        for label in np.unique(labels):
            for (_, size, face), kind in zip(KINDS, kinds, strict=True):
                x, y = points[kind & (labels == label)].T
                axes.scatter(x, y, s=size, facecolor=face or hue(label), alpha=0.85, **mark(label))
        for (x, y), label in zip(points[owners == -1], labels[owners == -1], strict=True):
            axes.annotate(names[label][:3], (x, y), ha="center", va="center", fontsize=6)
        words = [f"PCA axis {n + 1} ({shares[n]:.0%} of variance)" for n in (0, 1)]
        if by == "tsne":
            words = ["t-SNE axis 1 (no unit)", "t-SNE axis 2 (no unit)"]
        axes.set(xticks=[], yticks=[], xlabel=words[0], ylabel=words[1])
        axes.set_aspect("equal", adjustable="datalim")
        explain(figure, axes, [each for each, kind in zip(KINDS, kinds, strict=True) if kind.any()], names)
        return True

    return plot


def last_frame(space: Plain | None, which: str) -> tuple[Plain, list[float]]:
    """The last snapshot's points, and the shares of PCA's axes; features are those of the first client that has any."""
    if space is None:
        return {}, []
    maps = [space["prototypes"]] if which == "prototypes" else list(space["features"].values())
    found = next((each for each in maps if each and each["frames"][-1]["owner"]), None)
    return (found["frames"][-1], found["shares"]) if found else ({}, [])


def hue(label: int) -> str:
    """The colour of a class."""
    return COLOURS[label % len(COLOURS)]


def mark(label: int) -> dict[str, Any]:
    """The shape and edge of a class's points."""
    return {"marker": MARKS[label // len(COLOURS) % len(MARKS)], "edgecolor": hue(label), "linewidths": 1}


def explain(figure: Figure, axes: Axes, kinds: list[tuple[str, float, str]], names: list[str]) -> None:
    """Draw the legend of a map: above it the kinds of points, beside it the classes."""

    def key(name: str, size: float, face: str, **look: Any) -> Any:
        return axes.scatter([], [], s=size, facecolor=face, label=name, **look)

    grey = {"marker": "o", "edgecolor": "0.3", "linewidths": 1}
    said = [key(name, size, face or "0.3", **grey) for name, size, face in kinds]
    figure.legend(handles=said, loc="outside upper center", frameon=False, fontsize=6, ncols=len(said))
    shown = [key(name[:12], 12, hue(label), **mark(label)) for label, name in enumerate(names[:NAMED])]
    more = f"\n(first {NAMED})" if len(names) > NAMED else ""
    figure.legend(handles=shown, title=f"class{more}", loc="outside right center", frameon=False, fontsize=6)


def classes(figure: Figure, run: Plain) -> bool:
    """Draw the accuracy on each class over rounds."""
    rows = [
        (round, each) for round, each in zip(run["rounds"], run["details"]["by_class"], strict=True) if each is not None
    ]
    if not rows:
        return False
    axes, values = figure.add_subplot(), np.array([percent(each) for _, each in rows]).T
    image = axes.imshow(values, vmin=0, vmax=100, cmap="cividis", aspect="auto")
    figure.colorbar(image, ax=axes, label="accuracy (%)")
    name_ticks(axes.set_xticks, [str(round) for round, _ in rows])
    name_ticks(axes.set_yticks, run["details"]["classes"])
    axes.set(xlabel="round", ylabel="class")
    return True


def calibration(figure: Figure, run: Plain) -> bool:
    """Draw the calibration error of each rule over rounds."""
    axes = figure.add_subplot()
    for index, rule in enumerate(run["rules"]):
        values = np.array(run["scores"]["test"][rule]["calibration"], float)
        if np.isfinite(values).any():
            axes.plot(run["rounds"], values, label=rule, **look(index))
    axes.set(xlabel="round", ylabel="calibration error")
    return legend(axes)


def time(figure: Figure, run: Plain) -> bool:
    """Draw the seconds of each round by what they were spent on."""
    axes, base = figure.add_subplot(), np.zeros(len(run["rounds"]))
    for index, (name, seconds) in enumerate(run["cost"].items()):
        values = np.array([each or 0.0 for each in seconds])
        axes.bar(run["rounds"], values, bottom=base, label=name, color=COLOURS[index % len(COLOURS)])
        base += values
    axes.set(xlabel="round", ylabel="seconds")
    if run["cost"]:
        keys(axes)
    return bool(run["rounds"])


def gain(figure: Figure, content: Plain) -> bool:
    """Draw each client's accuracy with the first method and with the run compared against, joined, largest gain first.

    Colours say whether the interval of the difference lies above 0, below, or holds it.
    """
    found = [each for each in (content["comparison"] or {}).get("gains", []) if each["clients"]]
    if not found:
        return False
    axes, rows = figure.add_subplot(), found[0]["clients"]
    figure.set_figheight(max(2.6, 0.6 + 0.13 * len(rows)))
    for place, row in enumerate(rows):
        colour = {"better": COLOURS[0], "worse": COLOURS[1], "neither": "0.5"}[row["verdict"]]
        ends = percent([row["reference"], row["accuracy"]])
        axes.plot(ends, [place, place], color=colour, linewidth=1.2, zorder=1)
        axes.scatter(ends, [place, place], s=14, facecolor=["white", colour], edgecolor=colour, linewidths=1, zorder=2)
    names = (content["comparison"]["against"], found[0]["label"])
    grey: Any = {"s": 14, "edgecolor": "0.3", "linewidths": 1}
    axes.scatter([], [], facecolor="white", label=names[0], **grey)
    axes.scatter([], [], facecolor="0.3", label=names[1], **grey)
    axes.set(xlabel="accuracy (%)", ylabel="client")
    axes.set_yticks(range(len(rows)), [str(row["client"]) for row in rows])
    axes.tick_params(axis="y", labelsize=6)
    axes.invert_yaxis()
    keys(axes)
    return True


def percent(values: list[float | None]) -> list[float]:
    """Shares in percent, nan where there is none, which matplotlib leaves out."""
    return [np.nan if value is None else 100 * value for value in values]


ACROSS: dict[str, Callable[[Figure, Plain], bool]] = {
    "accuracy": accuracy,
    "communication": communication,
    "gain": gain,
}
SINGLE: dict[str, Callable[[Figure, Plain], bool]] = {
    "clients": clients,
    "data": distribution,
    "classes": classes,
    "calibration": calibration,
    "cosines": cosines,
    "margins": margins,
    "map-pca": mapped("prototypes", "pca"),
    "map-tsne": mapped("prototypes", "tsne"),
    "features-pca": mapped("features", "pca"),
    "features-tsne": mapped("features", "tsne"),
    "time": time,
}
