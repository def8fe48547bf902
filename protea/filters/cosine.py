"""Class vectors against what was there before: for federations of two to five sites, where medians mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from protea.core.prototypes import Prototypes
from protea.filters.base import Gathering
from protea.filters.robust import RobustFilter, lengths_of
from protea.filters.side_by_side import SideBySide


@dataclass(frozen=True)
class Cosine(RobustFilter):
    """Replaces vectors that turn away from the last global prototype of their class, or from the site's last vector.

    A vector is doubted if its cosine to either is below ``least``, or if its cosine to the global prototype of another
    class is higher than to its own by more than ``margin``.  A doubted vector is replaced by the last global prototype.
    Others are shortened to ``longest`` times its length.  In the first round, and for classes and methods without a
    global prototype of the same width, there is nothing to compare with.
    """

    least: Annotated[float, Field(ge=-1, le=1)] = 0.0
    margin: Annotated[float, Field(ge=0, le=2)] = 0.2
    longest: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        last, found = at.last(), sent.vectors.clone()
        for row, client in enumerate(sent.clients):
            name = f"{place}.{client}".lstrip(".")
            earlier: Prototypes | None = at.memory.get(name)
            if last is not None and last.vectors.shape == sent.vectors.shape[1:]:
                found[row] = self.accepted(sent.vectors[row], sent.present[row], last, earlier)
            kept = Prototypes(found[row].float(), sent.present[row].float())
            at.memory[name] = kept.filled(earlier)
        return found

    def accepted(self, vectors: Tensor, present: Tensor, last: Prototypes, earlier: Prototypes | None) -> Tensor:
        """Return a client's vectors ``(classes, dim)``, the doubted ones replaced and the long ones shortened."""
        known = (last.present & present).unsqueeze(1)
        centre = last.vectors.to(vectors)
        own, length = lengths_of(vectors).unsqueeze(1), self.longest * lengths_of(centre).unsqueeze(1)
        shortened = torch.where(own > length, vectors * (length / own.clamp(min=torch.finfo(own.dtype).tiny)), vectors)
        cosines = F.normalize(vectors, dim=1) @ F.normalize(centre, dim=1).T  # (classes sent, classes known)
        same, other = cosines.diagonal(), cosines.masked_fill(~last.present, -torch.inf).amax(1)
        doubted = (same < self.least) | (other > same + self.margin)
        if earlier is not None:
            turned = F.cosine_similarity(vectors, earlier.vectors.to(vectors), dim=1) < self.least
            doubted |= turned & earlier.present
        found = torch.where(doubted.unsqueeze(1), centre, shortened)
        return torch.where(known, found, vectors)
