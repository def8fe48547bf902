"""A federated data set in one file that many processes map, so that it is in memory only once."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from protea.data.dataset import Dataset
from protea.data.federated import Federated
from protea.data.partition.split import Share
from protea.data.texts import Texts


def write_mapped(data: Federated, path: Path) -> None:
    """Write samples, labels and the rows of all clients as one safetensors file."""
    dataset, parts = data.dataset, ("train", "validation", "test")
    named = {"y": dataset.y, "public": data.public, "test": data.test}
    if isinstance(dataset.x, Texts):
        named |= {"texts/blob": dataset.x.blob, "texts/ends": dataset.x.ends}
    else:
        named["x"] = dataset.x
    if dataset.keys is not None:
        named["keys"] = dataset.keys
    for part in parts:
        rows = [getattr(share, part) for share in data.shares]
        named[f"rows/{part}"] = torch.cat(rows)
        named[f"sizes/{part}"] = torch.tensor([len(r) for r in rows])
    about = {"names": dataset.names, "tests": dataset.tests, "mixed": dataset.mixed}
    save_file({name: t.contiguous() for name, t in named.items()}, path, metadata={"about": json.dumps(about)})


def read_mapped(path: Path) -> Federated:
    """Map a file of :func:`write_mapped`; its tensors are views of the file, and must not be written to."""
    with safe_open(path, framework="pt") as file:
        named: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["about"])
    x = named["x"] if "x" in named else Texts(named["texts/blob"], named["texts/ends"])
    dataset = Dataset(x, named["y"], tuple(about["names"]), about["tests"], named.get("keys"), mixed=about["mixed"])
    columns = (named[f"rows/{part}"].split(named[f"sizes/{part}"].tolist()) for part in ("train", "validation", "test"))
    return Federated(
        dataset, tuple(Share(*rows) for rows in zip(*columns, strict=True)), named["public"], named["test"]
    )
