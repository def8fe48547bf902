"""Views of texts: the numbers that a model gets for each text, computed once, kept on disk, mapped into memory."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protea.core.devices import torch_threads
from protea.core.errors import ConfigError
from protea.core.files import cache_folder, replacing
from protea.core.samples import Rows, Samples
from protea.core.split_model import View
from protea.data.dataset import Dataset
from protea.data.texts import Texts

TOGETHER = 64  # texts that a view gets at once
SPARE = 1 << 28  # bytes that stay free on a disk


def view_samples(
    dataset: Dataset, rows: Tensor, view: View | None, *, device: torch.device | str = "cpu", cache: Path | None = None
) -> Samples:
    """Return some rows as samples for a model with this view; ``None`` is for inputs that are numbers already."""
    if isinstance(dataset.x, Texts) and view is not None:
        some = rows if len(rows) else torch.zeros(1, dtype=torch.int64)  # a data set is never empty
        seen = Dataset(view_texts(dataset.x, some, view, cache), dataset.y[some], dataset.names)
        return Samples(seen, torch.arange(len(rows)), device=device)
    refuse_unread(dataset, view)
    return Samples(dataset, rows, device=device)


def refuse_unread(dataset: Rows, view: View | None) -> None:
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


def view_texts(texts: Texts, rows: Tensor, view: View, cache: Path | None = None) -> Tensor:
    """Return the view of these texts, ``(len(rows), *view.shape)``: from disk if it was computed before."""
    name = hashlib.blake2b(f"{view.key}/{texts.digest(rows)}".encode(), digest_size=16).hexdigest()
    path = (cache or views_folder()) / f"{name}.npy"
    found = _mapped(path, len(rows), view)
    if found is None:
        found = _made(texts, rows, view, path)
    return found


def views_folder() -> Path:
    """Return the folder of kept views: ``$PROTEA_VIEWS``, or ``views`` in the user's cache; as private as texts."""
    return cache_folder("PROTEA_VIEWS", "views")


def _mapped(path: Path, count: int, view: View) -> Tensor | None:
    """Map a kept view; ``None`` if there is none, or not one of this shape."""
    try:
        found = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError, EOFError, TypeError):  # not there, or damaged: it is computed again
        return None
    return found if found.shape == (count, *view.shape) else None


def _made(texts: Texts, rows: Tensor, view: View, path: Path) -> Tensor:
    """Compute a view piece by piece, in a mapped file that gets its name at the end.

    If the disk cannot take it, it is in memory for now, and computed again by the next run.
    """
    target: np.ndarray[Any, Any] | None = None
    with ExitStack() as files:
        partial = files.enter_context(replacing(path, shared=True))
        with torch_threads(1):  # whoever makes it, in whatever process, makes the same
            for start in range(0, len(rows), TOGETHER):
                part = view(list(texts.take(rows[start : start + TOGETHER]))).numpy()
                if target is None:
                    target = _room(partial, (len(rows), *view.shape), part.dtype)
                target[start : start + len(part)] = part
        assert target is not None  # a data set is never empty
        with suppress(OSError):
            if isinstance(target, np.memmap):
                target.flush()
            files.close()
    return torch.from_numpy(target)


def _room(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a new array in a file that only its owner can read, or in memory if the disk has no room."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        free = shutil.disk_usage(path.parent).free
        if free > math.prod(shape) * dtype.itemsize + SPARE:
            return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        path.unlink()
    except OSError:
        pass
    return np.empty(shape, dtype)


class Blank:
    """A view that has one zero per text: for a server without a model, which only counts public samples."""

    key: str = "blank"
    shape: tuple[int, ...] = (1,)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.zeros(len(texts), 1)
