"""What a federation goes by: the settings of an experiment or of a task that the round loop needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from protea.config.sections import Evaluation, Faults, Limits
from protea.federation.sampling import Sampler, Uniform
from protea.filters.base import Filter


@dataclass(frozen=True)
class FederationPlan:
    """What a federation goes by, from its first round to its last."""

    clients: int
    rounds: int
    fraction: float = 1.0  # of the clients take part in a round
    sampler: Sampler = field(default_factory=Uniform)
    evaluation: Evaluation = field(default_factory=Evaluation)
    failures: Literal["stop", "skip"] = "stop"
    min_replies: int = 1
    quota: str = "min_replies; with 0 the round passes without them"  # what that setting is called, for a message
    filters: tuple[Filter, ...] = ()
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    threads: int = 1
