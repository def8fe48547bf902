"""What goes on in a federation, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protea.network.task import Task


@dataclass
class Guest:
    """What is known of a site."""

    name: str
    connected: bool = False
    model: str = ""
    said: str = ""  # what came of the last thing that it was asked
    accuracy: float | None = None
    refused: int = 0
    removed: bool = False


@dataclass
class Status:
    """What goes on, for whoever shows it."""

    task: Task
    round: int = 0
    doing: str = "starting"
    accuracy: float | None = None
    sites: list[Guest] = field(default_factory=list)
    strangers: dict[int, str] = field(default_factory=dict)


Show = Callable[[Status, str | None], None]  # a line of news, if there is some
