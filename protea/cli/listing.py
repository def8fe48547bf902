"""``protea list`` and ``protea doctor``: what Protea offers, and which optional packages are installed.

Both answer without torch, whose import takes seconds: of what comes with Protea, ``lists.json`` has all that is shown
(``described.py`` writes it).  Only plug-ins of other packages are imported.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protea.config import registry
from protea.core.data_places import complete_folder, data_places
from protea.core.errors import ConfigError, nearest
from protea.core.shell import install_hint

EXTRAS = {
    "vision": ("torchvision", "timm"),
    "text": ("transformers", "tokenizers", "peft"),
    "flower": ("flwr",),
    "ray": ("ray",),
    "search": ("optuna",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "parquet": ("pyarrow",),
    "datasets": ("datasets",),
    "flwr-datasets": ("flwr_datasets",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "pandas": ("pandas",),
    "plots": ("mini-racer", "vl-convert-python"),
    "privacy": ("opacus",),
}


@cache
def stored() -> dict[str, Any]:
    """Read the lists of what comes with Protea."""
    lists: dict[str, Any] = json.loads((Path(__file__).parent / "lists.json").read_text(encoding="utf-8"))
    return lists


def row_of(group: str, name: str) -> dict[str, Any]:
    """Give what is listed of a plug-in: from the file if it comes with Protea, else from itself."""
    if name in registry.BUILT_IN[group] and name in stored()["plug-ins"].get(group, {}):
        found: dict[str, Any] = stored()["plug-ins"][group][name]
        return found
    from protea.cli.described import described

    return described(group, name)


def methods() -> Table:
    """List the methods by family, each with the paper that its file names."""
    table = _table("name", "paper", "exchanges", "needs", "variants")
    found = {name: row_of("methods", name) for name in registry.table("methods")}
    for family in dict.fromkeys(row["family"] for row in found.values()):
        table.add_row(f"[bold]{escape(family)}[/]")
        for name, row in found.items():
            if row["family"] == family:
                table.add_row(f" {name}", row["paper"], row["exchanges"], row["needs"] or "-", row["variants"] or "-")
        table.add_section()
    table.caption = "docs/methods/ has a page on each.  A variant is chosen by name@variant."
    table.caption_justify = "left"
    return table


def families() -> Table:
    """List the model families with their architectures."""
    table = _table("name", "client i gets member i mod n")
    for name, members in stored()["families"].items():
        table.add_row(name, members)
    return table


def plugged(group: str) -> Callable[[], Table]:
    """Return a function that lists a registry group: names, settings, and first lines of docstrings."""

    def make() -> Table:
        table = _table("name", "settings", "")
        for name in registry.table(group):
            try:
                row = row_of(group, name)
            except ConfigError as error:  # a plug-in of another package that cannot be imported
                table.add_row(name, "-", escape(str(error)))
                continue
            table.add_row(name, row["settings"] or "-", escape(f"{row['about']}{_lacking(row)}"))
        return table

    return make


def _lacking(row: dict[str, Any]) -> str:
    """Say how to install the package that a plug-in needs, where it is missing."""
    package = row.get("package")
    return "" if not package or find_spec(package) else f"  Not installed.  Type: {install_hint(package)}"


def tables() -> Table:
    """List the tables of papers; the runs counted are those that Protea can do, over all seeds."""
    table = _table("name", "shows", "cells x rows", "runs", "rounds x clients")
    table.padding = (0, 1, 0, 0)
    for name, row in stored()["tables"].items():
        table.add_row(name, row["shows"], row["cells"], row["runs"], row["sizes"])
    table.caption = "\n".join(f"{word} needs: {why}" for word, why in stored()["table needs"].items())
    table.caption_justify = "left"
    return table


LISTS: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "families": families,
    "architectures": plugged("architectures"),
    "data": plugged("sources"),
    "partitions": plugged("partitions"),
    "optimizers": plugged("optimizers"),
    "samplers": plugged("samplers"),
    "filters": plugged("filters"),
    "rules": plugged("rules"),
    "metrics": plugged("metrics"),
    "trackers": plugged("trackers"),
    "engines": plugged("engines"),
    "tables": tables,
}


def list_(what: Annotated[str, typer.Argument(help="|".join(LISTS), show_default=False)] = "") -> None:
    """List methods, families, architectures, data, partitions, engines or tables of papers."""
    if not what:
        Console().print(
            f"There are lists of {', '.join(LISTS)}.\nType, for example: protea list methods", highlight=False
        )
        return
    if what not in LISTS:
        raise ConfigError(f"There is no list of {what!r}.  {nearest(what, LISTS)}")
    Console().print(LISTS[what]())


def doctor() -> None:
    """Say what is installed, what is missing, and the command that adds it."""
    console = Console()
    table = _table("part", "state", "to add it")
    table.add_row("python", sys.version.split()[0], "")
    table.add_row("torch", f"{_version('torch') or 'missing'}, {os.cpu_count()} cores", "")
    for name, there in accelerators().items():
        table.add_row(name, "available" if there else "not available", "")
    for extra, packages in EXTRAS.items():
        found = {package: _version(package) for package in packages}
        missing = any(v is None for v in found.values())
        state = ", ".join(f"{package} {v or 'missing'}" for package, v in found.items())
        table.add_row(f"extra {extra}", state, escape(install_hint(extra)) if missing else "")
    for name in registry.table("sources"):
        if (files := row_of("sources", name).get("files")) is not None:
            places = [root / folder for root in data_places() for folder in files["folders"]]
            place = complete_folder(places, files["files"])
            table.add_row(f"data {name}", str(place or "not here"), "" if place else "downloaded when used")
    console.print(table)
    console.print(f"Data are looked for in {', '.join(map(str, data_places()))}.", highlight=False, soft_wrap=True)


def accelerators() -> dict[str, bool]:
    """Tell whether torch can use a graphics card; it is imported only where its build could."""
    if not _built_for_cuda() and sys.platform != "darwin":
        return {"cuda": False, "mps": False}
    import torch

    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def _built_for_cuda() -> bool:
    """Tell whether torch's build knows CUDA or ROCm, by its own ``version.py``, which is read and not run."""
    found = find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return False
    try:
        text = (Path(found.submodule_search_locations[0]) / "version.py").read_text(encoding="utf-8")
    except OSError:
        return True  # torch itself will know
    said = re.findall(r"^(?:cuda|hip)\b.*=\s*(\S+)", text, re.MULTILINE)
    return not said or any(value != "None" for value in said)


def _version(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE)
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0], overflow="fold")  # whole words and addresses
    return table
