"""The state of a federation over a network, for screens that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protea.network.task import Task  # which needs torch; a site's launcher has a screen and no torch


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
    late: bool = False  # it has not answered for longer than usual


@dataclass
class Status:
    """The state of a federation."""

    task: Task
    round: int = 0
    doing: str = "starting"  # in plain words
    accuracy: float | None = None
    loss: float | None = None
    bytes_up: int = 0  # of payloads, since the first round
    bytes_down: int = 0
    seconds: float | None = None  # that the latest round took
    ended: float | None = None  # when it was over, as time.time() tells
    tries: int = 0  # of the present round, which had too few replies each time
    sites: list[Guest] = field(default_factory=list)
    strangers: dict[int, str] = field(default_factory=dict)  # nodes that are no site, and why
    warnings: list[str] = field(default_factory=list)  # such as of a certificate that ends soon


def told(status: Status) -> dict[str, Any]:
    """Return what pages that follow a federation may know: no keys, no addresses."""
    sites = [asdict(site) for site in status.sites]
    return {"round": status.round, "doing": status.doing, "accuracy": status.accuracy, "sites": sites}


Show = Callable[[Status, str | None], None]  # a line of news, if there is some
