"""Class vectors in proportion: what is far longer than, or far from, what others send is pulled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protea.core.ranges import Minority
from protea.filters.base import Gathering
from protea.filters.robust import RobustFilter, geometric_median, lengths_of, pulled_within
from protea.filters.side_by_side import SideBySide

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ENOUGH_CLIENTS = 4  # in a round; of three, two that are alike say nothing about the third


@dataclass(frozen=True)
class Bound(RobustFilter):
    """Bounds the influence of a client by the longest vectors that are not in doubt.

    Up to ``share`` of the clients may be bad, one at least.  Leave out as many of those with the longest vectors: the
    longest vector of the next one has the *usual* length.  (Not the median of all: honest models that differ may be ten
    times as long as others in their first rounds, but are hardly ever alone with it.)

    A client whose vectors are, in the median, beyond ``k`` usual lengths gets the median length of all clients, its
    vectors shortened alike.  Then every vector is shortened to ``k`` usual lengths at most, and pulled within
    ``radius`` of them of the geometric median of its class.  Rounds of fewer than four clients, and for the last step
    classes that fewer than three have, stay as they are.
    """

    k: Factor = 3.0
    radius: Factor = 4.0
    share: Minority = 0.25

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        known = sent.present.any(1)
        clients = int(known.sum())
        if clients < ENOUGH_CLIENTS:
            return sent.vectors
        lengths = lengths_of(sent.vectors)
        in_doubt = min(max(1, int(self.share * clients)), clients - 1)
        usual = float(lengths[known].amax(1).sort(descending=True).values[in_doubt])
        if not usual:
            return sent.vectors
        own = lengths.masked_fill(~sent.present, torch.nan).nanmedian(1).values.nan_to_num(0.0)
        longest = self.k * usual
        scale = torch.where(own > longest, own[known].median() / own.clamp(min=usual), 1.0)
        vectors = sent.vectors * scale[:, None, None]
        lengths = lengths_of(vectors).unsqueeze(2)
        vectors = torch.where(lengths > longest, vectors * (longest / lengths.clamp(min=usual)), vectors)
        bounded = SideBySide(sent.clients, vectors, sent.present)
        return bounded.each_class(lambda rows: pulled_within(rows, geometric_median(rows), self.radius * usual))
