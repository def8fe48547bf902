"""The figures of a report as files for papers: drawn by the page's own JavaScript, which V8 runs in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from protea.core.errors import ConfigError
from protea.core.files import write_bytes
from protea.core.shell import install_hint
from protea.report.content import Plain
from protea.report.page import VENDORED, text

# A document to draw in, the page's own scripts, and what files have beside the page.
SCRIPTS = ("dom.js", *VENDORED, "draw.js", "charts.js", "figures.js", "paper.js")

ACROSS = ("accuracy", "communication", "gain")  # figures of all runs, by the names of their files
SINGLE = (  # of one run
    "clients", "data", "classes", "calibration", "cosines", "margins", "map-pca", "map-tsne", "features-pca",
    "features-tsne", "time",
)  # fmt: skip


def require() -> None:
    """Refuse to draw where what draws is not installed."""
    if find_spec("py_mini_racer") is None or find_spec("vl_convert") is None:
        raise ConfigError(
            "--figures needs mini-racer and vl-convert-python, which are not both installed.  "
            f"Type: {install_hint('plots')}"
        )


def draw(content: Plain, folder: Path, form: str) -> list[Path]:
    """Write every figure that these runs have something for; those of single runs for the first of each group."""
    require()
    folder.mkdir(parents=True, exist_ok=True)
    asked = dict(figures(content))
    drawn = dict(zip(asked, drawings(content, list(asked.values())), strict=True))
    found = {folder / f"{name}.{form}": svg for name, svg in drawn.items() if svg is not None}
    for path, svg in found.items():
        write_bytes(path, rendered(svg, form))
    return list(found)


def figures(content: Plain) -> Iterator[tuple[str, Plain]]:
    """Every figure of a report that can be a file, with the name of the file."""
    for name in ACROSS:
        yield name, on_page(name, 0)
    for group in content["groups"]:
        run = content["runs"][group["runs"][0]]
        for name in SINGLE:
            yield f"{run['name'].replace('/', '-')}-{name}", on_page(name, group["runs"][0])


def on_page(name: str, *runs: int) -> Plain:
    """A figure that the page has too, of the first of these runs that has something for it."""
    return {"chart": "onPage", "name": name, "of": runs}


def drawings(content: Plain, figures: Sequence[Plain]) -> list[str | None]:
    """Draw figures: for each the text of an SVG file, or None where there is nothing to draw."""
    from py_mini_racer import MiniRacer

    asked = {"content": content, "figures": figures, "colours": colours()}
    with MiniRacer() as engine:  # closed again: Python could not end while it is open
        for name in SCRIPTS:
            engine.eval(f"{text(name)}\n0")
        drawn = engine.eval("drawn")  # of paper.js; what it gets is a string, and is never run as a script
        found: list[str | None] = json.loads(drawn(json.dumps(asked, allow_nan=False)))
    return found


@cache
def colours() -> dict[str, str]:
    """The colours that the page is printed in, after Okabe and Ito, by their names in its style sheet."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", text("page.css").partition("@media print")[2].partition("}")[0]))


def rendered(svg: str, form: str) -> bytes:
    """Turn a drawing into the bytes of a file; pixels are 300 to the inch."""
    if form == "svg":
        return svg.encode()
    import vl_convert

    unitless = svg.replace('pt"', '"', 2)  # of its width and height: 72 units are taken for an inch
    if form == "png":
        return bytes(vl_convert.svg_to_png(unitless, ppi=300))
    # Names of resources come in another order each time; in order, equal drawings are equal files.
    names = re.compile(rb"(?<= <<\n)(?: +/\w+ \d+ 0 R\n){2,}")
    return names.sub(lambda found: b"".join(sorted(found[0].splitlines(True))), vl_convert.svg_to_pdf(unitless))
