"""``protea report``: runs as one HTML page, and as figures for papers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs.reader import find

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, or folders of runs.")]
Out = Annotated[
    Path | None,
    typer.Option(help="The page; report.html in the run, or here for several, if not given.", show_default=False),
]
Figures = Annotated[
    Path | None, typer.Option(help="Also write every figure to this folder, for papers.", show_default=False)
]
Paper = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Draw the figures of fedtgp, protonorm, fedsa, fedpagr or fedprotokd instead, into the folder --figures.",
        show_default=False,
    ),
]
Format = Annotated[Literal["png", "svg", "pdf"], typer.Option("--format", help="Of the figures.")]


def report(paths: Runs, out: Out = None, figures: Figures = None, form: Format = "pdf", paper: Paper = None) -> None:
    """Show runs, ended or not, in one HTML page that works offline."""
    found = find(paths)
    if paper is not None:
        draw_paper_figures(Console(), paper, found, figures or Path("figures"), form, out)
        return
    target = out or (found[0] / "report.html" if len(found) == 1 else Path("report.html"))
    write_report(Console(), found, target, figures, form)


def draw_paper_figures(
    console: Console, paper: str, runs: list[Path], folder: Path, form: str, out: Path | None
) -> None:
    """Write the figures of a paper that these runs have something for, and say what the others need."""
    from protea.report.paper_figures import draw_paper
    from protea.runs.reader import RunReader

    if out is not None:
        raise ConfigError(
            f"--paper writes figures, no page.  Leave out --out, or type: --figures {shlex.quote(str(out))}"
        )
    with writable("--figures"):
        for line in draw_paper(paper, [RunReader.read(run) for run in runs], folder, form):
            console.print(line, soft_wrap=True, highlight=False, markup=False)


def write_report(
    console: Console, runs: list[Path], out: Path | None = None, figures: Path | None = None, form: str = "pdf"
) -> None:
    """Write the HTML page, and figures if asked for; without ``out``, into the directory of the first run."""
    # Imported here: it takes a second, and no other command needs it.
    from protea.report.content import content, read
    from protea.report.page import page

    target = out or runs[0] / "report.html"
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is no folder.  Make it first, or choose another --out.")
    if target.is_dir():
        raise ConfigError(f"{target} is a folder.  Name a file in it: --out {shlex.quote(str(target / 'report.html'))}")
    if figures is not None:
        from protea.report.figures import draw, require

        require()
    told = content(read(runs), lambda text: console.print(text, soft_wrap=True, highlight=False))
    with writable("--out"):
        write_text(target, page(told))
    console.print(f"Report: {target}", soft_wrap=True, highlight=False)
    if figures is not None:
        with writable("--figures"):
            paths = draw(told, figures, form)
        for path in paths:
            console.print(f"Figure: {path}", soft_wrap=True, highlight=False)


@contextmanager
def writable(option: str) -> Iterator[None]:
    """Turn a failure to write into a :class:`ConfigError` that names the option to change."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}.  Choose another {option}.") from error
