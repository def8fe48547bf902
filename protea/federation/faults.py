"""Simulated faults: clients that drop out of a round or reply too late, drawn by chance for every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from protea.config.sections import Faults
from protea.core.rng import Streams

Absence = Literal["dropped out", "late", "quarantined", "spent"]


def draw_absences(faults: Faults, clients: Sequence[int], count: int, rng: Streams) -> dict[int, Absence]:
    """Draw which of the participating ``clients`` drop out of a round or reply too late.

    ``count`` is the number of all clients: one number is drawn for each of them, so that what happens to one client
    does not depend on who else takes part.
    """
    if faults == Faults():
        return {}
    luck = torch.rand(count, generator=rng.generator("faults"), dtype=torch.float64).tolist()
    found: dict[int, Absence] = {}
    for client in clients:
        dropout, late = faults.rates(client)
        if luck[client] < dropout:
            found[client] = "dropped out"
        elif luck[client] < dropout + (1 - dropout) * late:
            found[client] = "late"
    return found
