"""Class vectors in proportion: what is far longer than, or far from, what others send is pulled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protea.filters.base import Gathering
from protea.filters.robust import ENOUGH, RobustFilter, SideBySide, geometric_median, lengths_of, pulled_within

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Bound(RobustFilter):
    """Bounds the influence of a client by what is typical of a round: the median over clients of their median length.

    A client whose median length is beyond ``k`` times the typical one gets the typical one, all its vectors shortened
    alike.  Then every vector is shortened to ``k`` times the typical length at most, and pulled within ``radius``
    typical lengths of the geometric median of its class.  Rounds of fewer than three clients, and for the last step
    classes that fewer than three have, stay as they are.
    """

    k: Factor = 5.0
    radius: Factor = 5.0

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        known = sent.present.any(1)
        own = lengths_of(sent.vectors).masked_fill(~sent.present, torch.nan).nanmedian(1).values.nan_to_num(0.0)
        if int(known.sum()) < ENOUGH or not (typical := float(own[known].median())):
            return sent.vectors
        scale = torch.where(own > self.k * typical, typical / own.clamp(min=typical), 1.0)
        vectors = sent.vectors * scale[:, None, None]
        longest = self.k * typical
        lengths = lengths_of(vectors).unsqueeze(2)
        vectors = torch.where(lengths > longest, vectors * (longest / lengths.clamp(min=typical)), vectors)
        bounded = SideBySide(sent.clients, vectors, sent.present)
        return bounded.each_class(lambda rows: pulled_within(rows, geometric_median(rows), self.radius * typical))
