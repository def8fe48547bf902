"""From an upload to the sums that its method needs of it, and from the sum over all clients to one upload.

Class vectors become ``n * vector`` (or just ``vector``) with ``n`` and, where the method counts clients, a 1 for each
class that is there; other tensors are multiplied by the number of samples, or added up as they are.  Two numbers go
with them that otherwise would be told in the clear: how many samples the client has, and its loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protea.core.errors import ClientError, PayloadError
from protea.core.message import Named
from protea.core.method import SummedBy
from protea.core.payload import places_of
from protea.core.prototypes import Prototypes

SAMPLES, LOSS, PRESENT = "~samples", "~loss", "present"


@dataclass(frozen=True)
class SummedUploads:
    """What all clients' uploads are together: their mean as one upload would have it, and how it came about."""

    mean: Named  # as the method's own payload packs it
    samples: int  # of all clients
    loss: float  # mean over clients


def to_sums(kind: type[Any], up: Named, by: SummedBy, samples: int, loss: float) -> Named:
    """Return what is to be added up of one upload, packed from a payload of type ``kind``, in float64."""
    found = {SAMPLES: torch.tensor([float(samples)]).double(), LOSS: torch.tensor([loss]).double()}
    taken = set()
    for place in places_of(Prototypes, kind, up):
        names = {part: _below(place, part) for part in ("vectors", "counts", PRESENT)}
        own = Prototypes.from_flat({part: up[names[part]] for part in ("vectors", "counts")})
        counts, present = own.counts.double(), own.present.double()
        weights = present if by in ("uniform", "samples") else counts
        found[names["vectors"]] = weights.unsqueeze(1) * own.vectors.double()
        found[names["counts"]] = counts
        if by != "count":
            found[names[PRESENT]] = present
        taken |= {names["vectors"], names["counts"]}
    for name in up.keys() - taken:
        if up[name].dtype != torch.float32:
            raise ClientError(
                f"{name} of an upload is of {up[name].dtype}, and secure_sum adds up float32 only: whole numbers, as "
                f"the step counter of BatchNorm, have no mean.  Use models without them in what is sent."
            )
        found[name] = up[name].double() * (samples if by == "samples" else 1)
    return found


def from_sums(kind: type[Any], sums: Named, by: SummedBy, clients: int) -> SummedUploads:
    """Return what the sums over ``clients`` clients say; :class:`PayloadError` for what no clients can have added."""
    rest = dict(sums)
    try:
        samples, loss = round(float(rest.pop(SAMPLES).reshape(()))), float(rest.pop(LOSS).reshape(())) / clients
    except (KeyError, RuntimeError) as error:
        raise PayloadError("the sum does not say how many samples and which loss all clients have.") from error
    if samples < clients:
        raise PayloadError(f"{clients} clients have {samples} samples by their sum; each has at least one.")
    mean: Named = {}
    for place in places_of(Prototypes, kind, rest):
        names = {part: _below(place, part) for part in ("vectors", "counts", PRESENT)}
        vectors, counts = rest.pop(names["vectors"]), rest.pop(names["counts"])
        present = rest.pop(names[PRESENT], None)
        here = counts.round() > 0
        divisor = _divisor(by, counts, present)[here].unsqueeze(1)
        mean[names["vectors"]] = (vectors[here] / divisor).float()
        mean[names["counts"]] = (counts * here).float()
    total = samples if by == "samples" else clients
    mean |= {name: (tensor / total).float() for name, tensor in rest.items()}
    return SummedUploads(mean, samples, loss)


def _divisor(by: SummedBy, counts: Tensor, present: Tensor | None) -> Tensor:
    """Return by what each class's sum is divided: as :meth:`Prototypes.mean` does."""
    if by == "count":
        return counts
    if present is None:
        raise PayloadError("the sum does not say how many clients have each class.")
    return (counts * present if by == "literal" else present).clamp(min=1)


def _below(place: str, part: str) -> str:
    return f"{place}.{part}".lstrip(".")
