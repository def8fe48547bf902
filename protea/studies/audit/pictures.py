"""Reconstructions beside the records they are like: as PNG images, or as texts."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protea.studies.audit.attack import AuditResult

TEXT = 300  # characters of a text that are shown


def pictures(found: AuditResult) -> list[dict[str, Any]]:
    """Return for each class a record behind its vector, the record nearest to it, and what attackers made of it.

    Nothing is returned for records that are neither images nor texts.
    """
    subject = found.subject
    x, _ = subject.records.batch(torch.arange(min(256, len(subject.records))))
    images = x.ndim == 4 and x.shape[1] in (1, 3)
    if subject.text is None and not images:
        return []
    result: list[dict[str, Any]] = []
    for label, nearest in found.retrieved.items():
        behind = bool(subject.inside[nearest]) and int(subject.labels[nearest]) == label
        caption = f"nearest record, {'behind it' if behind else 'not behind it'}"
        title = f"{subject.names[label]}, {int(subject.counts[label])} samples"
        if subject.text is not None:
            result.append({"label": title, "texts": [f"{caption}: {subject.text(nearest)[:TEXT]}"]})
            continue
        own = [each for each in found.reconstructions if each.label == label]
        shown = [(f"{each.knowledge}: {each.likeness:.2f}", each.made) for each in own]
        if own:
            shown.insert(0, ("a record behind it", input_of(found, max(own, key=lambda one: one.likeness).record)))
        shown.append((caption, input_of(found, nearest)))
        low, high = float(x.min()), float(x.max())
        result.append(
            {"label": title, "images": [{"caption": name, "png": png(image, low, high)} for name, image in shown]}
        )
    return result


def input_of(found: AuditResult, row: int) -> Tensor:
    """Return the input of one record, as the model sees it."""
    x, _ = found.subject.records.batch(torch.tensor([row]))
    return x[0].cpu()


def png(image: Tensor, low: float, high: float) -> str:
    """Return an image ``(channels, height, width)`` of values from low to high as a PNG file in base64."""
    grey = ((image.float() - low) / max(high - low, 1e-12) * 255).clamp(0, 255).round().to(torch.uint8)
    pixels: np.ndarray[Any, Any] = grey.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
