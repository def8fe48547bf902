"""What there is: methods, families, data, and what of it is installed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protea.config import registry
from protea.config.families import FAMILIES
from protea.config.sections import participants
from protea.core.errors import ConfigError, nearest
from protea.data.files import data_folders
from protea.studies import papers

PAPER = re.compile(r"(?P<authors>[^.]+)\. (?P<where>.*\b\d{4}\b.*), (?P<link>https://\S+)")
EXTRAS = {
    "vision": ("torchvision", "timm"),
    "text": ("transformers", "tokenizers", "peft"),
    "flower": ("flwr",),
    "ray": ("ray",),
    "search": ("optuna",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "parquet": ("pyarrow",),
    "pandas": ("pandas",),
    "plots": ("matplotlib",),
}


def methods() -> Table:
    """By family; each with its paper, as its file names it."""
    table = _table("name", "paper", "exchanges", "needs", "variants")
    found = [(name, registry.find("methods", name)) for name in registry.table("methods")]
    for family in dict.fromkeys(method.family for _, method in found):
        table.add_row(f"[bold]{escape(family)}[/]")
        for name, method in found:
            if method.family == family:
                needed = asdict(method().needs).items()
                needs = ", ".join(need.replace("_", " ") for need, there in needed if there)
                variants = ", ".join(method.variants)
                table.add_row(f" {name}", paper(method), method.exchanges, needs or "-", variants or "-")
        table.add_section()
    table.caption = "docs/methods/ has a page on each.  A variant is chosen by name@variant."
    table.caption_justify = "left"
    return table


def paper(method: type) -> str:
    """First author, where and when: from the second paragraph of the method's file."""
    said = (import_module(method.__module__).__doc__ or "").split("\n\n")
    cited = PAPER.fullmatch(" ".join(said[1].split())) if len(said) > 1 else None
    if cited is None:
        return "-"
    first, *others = cited["authors"].split(", ")
    authors = f"{first} et al." if len(others) > 1 else cited["authors"]
    return f"{authors}, {cited['where']}"


def families() -> Table:
    table = _table("name", "client i gets member i mod n")
    for name, family in FAMILIES.items():
        heads = ["" if not m.head else f" + head {'-'.join(map(str, m.head))}" for m in family]
        table.add_row(name, ", ".join(m.architecture + head for m, head in zip(family, heads, strict=True)))
    return table


def plugged(group: str) -> Callable[[], Table]:
    def make() -> Table:
        table = _table("name", "settings", "")
        for name in registry.table(group):
            try:
                found = registry.find(group, name)
            except ConfigError as error:  # it needs an extra
                table.add_row(name, "-", escape(str(error)))
                continue
            found = getattr(found, "func", found)  # of a partial, whose own words say nothing
            about = (found.__doc__ or "").strip().splitlines()[:1]
            about = [] if about and about[0].startswith(f"{found.__name__}(") else about  # dataclass's own
            settings = [f.name for f in fields(found)] if hasattr(found, "__dataclass_fields__") else []
            table.add_row(name, ", ".join(settings) or "-", "".join(about))
        return table

    return make


def tables() -> Table:
    """Tables of papers.  Runs are those that are possible here, by all seeds."""
    table = _table("name", "shows", "cells x rows", "runs", "rounds x clients")
    table.padding = (0, 1, 0, 0)
    for name in papers.names():
        preset, cells = papers.find(name)
        possible = [(cell, row) for cell in cells for row in preset.rows if preset.lacking(cell, row) is None]
        each = [preset.table(cell, row) for cell, row in possible]
        sizes = dict.fromkeys(
            f"{one['rounds']} x {participants(one['clients'], one.get('fraction', 1.0))}" for one in each
        )
        count = preset.seeds * len(possible)
        table.add_row(name, preset.shows, f"{len(cells)} x {len(preset.rows)}", str(count), ", ".join(sizes))
    needs = {word: why for paper in papers.papers() for word, why in papers.load(paper).needs.items()}
    table.caption = "\n".join(f"{word} needs: {why}" for word, why in needs.items())
    table.caption_justify = "left"
    return table


LISTS: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "families": families,
    "architectures": plugged("architectures"),
    "data": plugged("sources"),
    "partitions": plugged("partitions"),
    "engines": plugged("engines"),
    "tables": tables,
}


def list_(what: Annotated[str, typer.Argument(help="|".join(LISTS), show_default=False)]) -> None:
    """List methods, families, architectures, data, partitions, engines or tables of papers."""
    if what not in LISTS:
        raise ConfigError(f"There is no list of {what!r}.  {nearest(what, LISTS)}")
    Console().print(LISTS[what]())


def doctor() -> None:
    """Say what is installed, what is missing, and the command that adds it."""
    console = Console()
    table = _table("part", "state", "to add it")
    table.add_row("python", sys.version.split()[0], "")
    table.add_row("torch", f"{torch.__version__}, {os.cpu_count()} cores", "")
    for name, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        table.add_row(name, "available" if there else "not available", "")
    for extra, packages in EXTRAS.items():
        found = {package: _version(package) for package in packages}
        missing = any(v is None for v in found.values())
        state = ", ".join(f"{package} {v or 'missing'}" for package, v in found.items())
        table.add_row(f"extra {extra}", state, f"pip install -e '.\\[{extra}]'" if missing else "")
    for name in registry.table("sources"):
        if (files := getattr(registry.find("sources", name), "files", None)) is not None:
            place = files.folder()
            table.add_row(f"data {name}", str(place or "not here"), "" if place else "downloaded when used")
    console.print(table)
    console.print(f"Data are looked for in {', '.join(map(str, data_folders()))}.", highlight=False, soft_wrap=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE)
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0])
    return table
