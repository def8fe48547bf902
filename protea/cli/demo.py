"""``protea demo`` and ``protea examples``: what comes with the package, to look at and to begin with."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.core.errors import ConfigError
from protea.core.shell import quoted

BESIDE = ["fedproto", "local", "alone"]


def demo(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A.B=C]...", help="Changes, such as rounds=4 seed=2.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Run directory; others lie beside it.")] = Path("runs/demo"),
) -> None:
    """Play a small federation of ten clients with few handwritten digits each, and show who gains by it."""
    # Imported here: they need torch, and protea examples does not.
    from protea.cli.compare import compare
    from protea.cli.run import run

    run(examples_folder() / "demo.toml", changes, out=out, beside=BESIDE, again=True, with_report=True)
    compare([out, *(out.with_name(f"{out.name}-{name}") for name in BESIDE)], clients=True)
    console = Console(stderr=True)
    console.print(
        f"\nLook at it: open {quoted(out / 'report.html')}, or protea watch {quoted(out.parent)}",
        soft_wrap=True,
        highlight=False,
    )
    console.print("To go on: protea examples DIR copies this experiment and others.", soft_wrap=True, highlight=False)


def examples(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
) -> None:
    """Copy the examples that come with Protea into a folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder.  Choose another one: protea examples DIR")
    try:
        left_out = shutil.ignore_patterns("__pycache__", "*.pyc", "runs", ".ipynb_checkpoints")
        shutil.copytree(examples_folder(), folder, dirs_exist_ok=True, ignore=left_out)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}.  Choose another folder.") from error
    count = sum(path.is_file() for path in folder.rglob("*"))
    Console().print(
        f"{count} files in {folder}.  Try: protea run {quoted(folder / 'digits.toml')}", soft_wrap=True, highlight=False
    )


def examples_folder() -> Path:
    """The folder of examples: in the package of a wheel, else beside it, as in a clone."""
    package = Path(str(files("protea")))
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / "demo.toml").is_file():
            return folder
    raise ConfigError(f"There are no examples in {package / 'examples'}: install Protea again, or clone it.")
