"""The state of a federation over a network, for screens that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from protea.network.task import Task


@dataclass
class Guest:
    """The state of one site."""

    name: str
    connected: bool = False
    model: str = ""
    said: str = ""  # how its last job ended
    accuracy: float | None = None
    gain: float | None = None  # over training alone, if it tells that
    refused: int = 0  # uploads, in all
    removed: bool = False


@dataclass
class Status:
    """The state of a federation."""

    task: Task
    round: int = 0
    doing: str = "starting"  # in plain words
    accuracy: float | None = None
    sites: list[Guest] = field(default_factory=list)
    strangers: dict[int, str] = field(default_factory=dict)  # nodes that are no site, and why


def told(status: Status) -> dict[str, Any]:
    """Return what pages that follow a federation may know: no keys, no addresses."""
    sites = [asdict(site) for site in status.sites]
    return {"round": status.round, "doing": status.doing, "accuracy": status.accuracy, "sites": sites}


Show = Callable[[Status, str | None], None]  # a line of news, if there is some
