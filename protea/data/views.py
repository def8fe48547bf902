"""What a model sees of a text: made once for each text, kept on disk, mapped into memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protea.data.dataset import Dataset
from protea.data.samples import Samples
from protea.data.texts import Texts
from protea.devices import threads
from protea.errors import ConfigError

TOGETHER = 64  # texts that are looked at in one go


class View(Protocol):
    """Numbers for texts: tokens, or what the frozen layers of a model make of them.

    ``key`` names all that these depend on.  ``shape`` is that of one text's numbers.
    """

    key: str
    shape: tuple[int, ...]

    def __call__(self, texts: Sequence[str]) -> Tensor: ...


def samples(
    dataset: Dataset, rows: Tensor, view: View | None, *, device: torch.device | str = "cpu", cache: Path | None = None
) -> Samples:
    """The rows as a client with this view sees them; data that are numbers already need none."""
    if isinstance(dataset.x, Texts) and view is not None:
        some = rows if len(rows) else torch.zeros(1, dtype=torch.int64)  # a data set is never empty
        seen = Dataset(look(dataset.x, some, view, cache), dataset.y[some], dataset.names)
        return Samples(seen, torch.arange(len(rows)), device=device)
    refuse_unread(dataset, view)
    return Samples(dataset, rows, device=device)


def refuse_unread(dataset: Dataset, view: View | None) -> None:
    """Raise :class:`ConfigError` for a model of texts and samples that are numbers, or the other way round."""
    if isinstance(dataset.x, Texts) and view is None:
        raise ConfigError(
            "the samples are texts, and this model takes numbers.  Choose models for texts, such as textcnn or "
            "hf:minilm (protea list architectures)."
        )
    if view is not None and not isinstance(dataset.x, Texts):
        raise ConfigError(
            f"this model reads texts, and the samples are numbers of shape {dataset.shape}.  Choose other models."
        )


def look(texts: Texts, rows: Tensor, view: View, cache: Path | None = None) -> Tensor:
    """What the view makes of these texts: from disk where it was made before."""
    name = hashlib.blake2b(f"{view.key}/{texts.digest(rows)}".encode(), digest_size=16).hexdigest()
    path = (cache or folder()) / f"{name}.safetensors"
    found = _mapped(path, len(rows), view)
    if found is not None:
        return found
    with threads(1):  # whoever makes it, in whatever process, makes the same
        made = torch.cat([view(list(texts.take(part))) for part in rows.split(TOGETHER)])
    _keep(made, path)
    found = _mapped(path, len(rows), view)
    return made if found is None else found


def folder() -> Path:
    """Where views are kept: ``$PROTEA_VIEWS``, or below ``~/.cache/protea``.  Theirs alone whose texts they are of."""
    own = os.environ.get("PROTEA_VIEWS")
    return Path(own).expanduser() if own else Path.home() / ".cache" / "protea" / "views"


def _mapped(path: Path, count: int, view: View) -> Tensor | None:
    try:
        with safe_open(path, framework="pt") as file:
            found: Tensor = file.get_tensor("x")
    except (OSError, SafetensorError):  # not there, or damaged: it is made anew
        return None
    return found if found.shape == (count, *view.shape) else None


def _keep(x: Tensor, path: Path) -> None:
    """Write it under another name first; a disk that cannot take it costs time later, and nothing else."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_file({"x": x.contiguous()}, partial)
        partial.chmod(0o600)
        partial.replace(path)
    with contextlib.suppress(OSError):
        partial.unlink()


class Blank:
    """Nothing of a text: for a server without a model, which only counts public samples."""

    key: str = "blank"
    shape: tuple[int, ...] = (1,)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.zeros(len(texts), 1)
