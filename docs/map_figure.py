"""The moving map of the README:  python docs/map_figure.py RUN docs/map.svg

All prototypes of a run on one map, from round to round: small circles are clients' own, large ones with a letter are
the server's, colours are classes.  The map is that of the report (t-SNE, of all rounds together).  The picture moves by
itself in a browser; where pictures do not move, it shows the last round.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

from protea.report.space import GLOBAL, space
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader

WIDTH, HEIGHT, EDGE, TOP = 760, 430, 30, 46
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"]
EACH, LAST = 0.6, 2.4  # seconds of a round, and of the last one before all begins again

Place = tuple[float, float]
Frame = dict[tuple[int, int], Place]  # by owner and class


def frames_of(found: dict[str, Any], name: str) -> list[Frame]:
    """Read where each point is in each round."""
    frames = []
    for frame in found["prototypes"]["frames"]:
        flat = frame[name]
        places = list(zip(flat[::2], flat[1::2], strict=True))
        keys = zip(frame["owner"], frame["label"], strict=True)
        frames.append({key: at(*each) for key, each in zip(keys, places, strict=True)})
    return frames


def at(x: float, y: float) -> Place:
    """Turn a place on the map, from -1 to 1, into one of the picture."""
    return (
        round(EDGE + (x + 1) / 2 * (WIDTH - 2 * EDGE), 1),
        round(TOP + EDGE + (1 - y) / 2 * (HEIGHT - TOP - 2 * EDGE), 1),
    )


def moving(attribute: str, values: list[str], times: str, seconds: float, mode: str = "linear") -> str:
    return (
        f'<animate attributeName="{attribute}" values="{";".join(values)}" keyTimes="{times}" dur="{seconds:g}s" '
        f'calcMode="{mode}" repeatCount="indefinite"/>'
    )


def drawn(run: RunReader, found: dict[str, Any], name: str) -> str:
    """Draw the picture as SVG."""
    frames, rounds, classes = frames_of(found, name), found["rounds"], run.data.classes
    seconds = EACH * (len(frames) - 1) + LAST
    stops = [*(EACH * place / seconds for place in range(len(frames))), 1.0]
    times = ";".join(f"{stop:.3f}" for stop in stops)
    shapes = []
    for key in sorted({key for frame in frames for key in frame}, key=lambda key: (key[0] == GLOBAL, key)):
        owner, label = key
        known = [frame.get(key) for frame in frames]
        first = next(place for place in known if place is not None)
        path: list[Place] = []
        for place in known:
            path.append(place or (path[-1] if path else first))
        path.append(path[-1])
        there = ["1" if place else "0" for place in (*known, known[-1])]
        hidden = moving("opacity", there, times, seconds, "discrete") if "0" in there else ""
        xs, ys = ([f"{place[axis]:g}" for place in path] for axis in (0, 1))
        colour, (x, y) = COLOURS[label % len(COLOURS)], path[-1]
        if owner == GLOBAL:
            shapes.append(
                f'<g opacity="{there[-1]}">{hidden}<circle r="11" cx="{x:g}" cy="{y:g}" fill="{colour}" '
                f'stroke="#1b1e23" stroke-width="1.5">{moving("cx", xs, times, seconds)}'
                f"{moving('cy', ys, times, seconds)}</circle>"
                f'<text x="{x:g}" y="{y:g}" dy="4.2" fill="#1b1e23">{escape(classes[label])}'
                f"{moving('x', xs, times, seconds)}{moving('y', ys, times, seconds)}</text></g>"
            )
        else:
            shapes.append(
                f'<circle r="4.5" cx="{x:g}" cy="{y:g}" fill="{colour}" fill-opacity="0.75" opacity="{there[-1]}">'
                f"{moving('cx', xs, times, seconds)}{moving('cy', ys, times, seconds)}{hidden}</circle>"
            )
    accuracy = {record.round: record.accuracy for record in run.rounds}
    heads = []
    for place, round in enumerate(rounds):
        shown = ["1" if each == place else "0" for each in [*range(len(rounds)), len(rounds) - 1]]
        words = f"{run.method}, round {round} of {run.config['rounds']}"
        if accuracy.get(round) is not None:
            words += f": {100 * (accuracy[round] or 0):.1f} %"
        heads.append(
            f'<text class="head" x="{EDGE}" y="32" opacity="{shown[-1]}">{escape(words)}'
            f"{moving('opacity', shown, times, seconds, 'discrete')}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="Prototypes of clients and of the server over {run.config["rounds"]} rounds">\n'
        "<style>text{font:600 12px system-ui,sans-serif;text-anchor:middle}"
        ".head{font-size:17px;text-anchor:start;fill:#1b1e23}.note{font-weight:400;text-anchor:end;fill:#59636e}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fbfcfd"/>\n'
        f'<text class="note" x="{WIDTH - EDGE}" y="32">small: clients; large: the server; colours: classes</text>\n'
        + "\n".join([*heads, *shapes])
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    found = space(RunDirectory(folder).snapshots())
    if found is None or found["prototypes"] is None:
        sys.exit(f"{folder} has kept no prototypes: evaluation.snapshots is 0.")
    projection = "tsne" if "tsne" in found["prototypes"]["frames"][0] else "pca"
    target.write_text(drawn(RunReader.read(folder), found, projection), encoding="utf-8")
    sys.stdout.write(f"{target}: {target.stat().st_size / 1000:.0f} kB\n")
