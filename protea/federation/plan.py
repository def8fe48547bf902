"""The settings of an experiment, or of a task, that the round loop needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from protea.config.sections import Evaluation, Faults, Limits
from protea.federation.sampling import Sampler, Uniform
from protea.filters.base import Filter


@dataclass(frozen=True)
class FederationPlan:
    """Settings of the round loop, fixed from the first round to the last."""

    clients: int
    rounds: int
    fraction: float = 1.0  # of the clients take part in a round
    sampler: Sampler = field(default_factory=Uniform)
    evaluation: Evaluation = field(default_factory=Evaluation)
    failures: Literal["stop", "skip"] = "stop"
    min_replies: int = 1
    quota: str = "min_replies; with 0 the round passes without them"  # how min_replies is named in error messages
    filters: tuple[Filter, ...] = ()
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    attackers: tuple[int, ...] = ()  # clients whose accuracy is left out of that of honest ones
    threads: int = 1  # of torch, for the server's work
    single_answers: bool = False  # clients tell which test samples they answered right; refused otherwise
