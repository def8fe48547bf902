"""Class vectors of bounded length: what a client may say loudly is limited, whatever it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from protea.core.clusters import Clusters
from protea.core.message import Named
from protea.core.payload import places_of
from protea.core.prototypes import Prototypes, shortened
from protea.filters.base import Filter, Passage


@dataclass(frozen=True)
class Clip(Filter):
    """Shortens prototypes, and other vectors of a class, that are longer than ``norm``; the server does so too."""

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    summable = True

    def leave(self, up: Named, at: Passage) -> Named:
        places = {
            f"{place}.vectors".lstrip(".") for kind in (Prototypes, Clusters) for place in places_of(kind, at.kind, up)
        }
        return {name: shortened(t, self.norm) if name in places and t.ndim == 2 else t for name, t in up.items()}

    def arrive(self, up: Named, at: Passage) -> Named:
        return self.leave(up, at)
