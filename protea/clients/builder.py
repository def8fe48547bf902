"""What makes clients: the one interface between the data of a federation and the processes that train on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protea.core.client import Client
from protea.core.rng import Streams


class Builder(ABC):
    """Makes any client of a federation, in any process.

    Only ``__call__`` must be written.  The rest has defaults for builders whose clients are all of one size and whose
    data need no file: override what differs.
    """

    @abstractmethod
    def __call__(self, id: int, streams: Streams) -> Client:
        """Make client ``id``; all its draws come from ``streams``."""

    def started(self, client: Client) -> None:  # noqa: B027  most builders have nothing to do here
        """Do what is left once the method has prepared a client's memory."""

    @property
    def device(self) -> str:
        """The device that clients train on, by torch's name: ``"cpu"``, ``"cuda"`` or ``"mps"``."""
        return "cpu"

    def size(self, client: int) -> int:
        """Give the number of training samples of a client.  Engines begin with the largest clients."""
        return 1

    def lend(self, folder: Path) -> Builder:
        """Give the same builder for other processes on this machine, its data in a file that they map, not copy.

        The file is written to ``folder``.
        """
        return self

    def moved(self, folder: Path) -> Builder:
        """Give a lent builder for a machine that has the file of :meth:`lend` in another folder."""
        return self


@dataclass(frozen=True)
class FunctionBuilder(Builder):
    """Makes clients by a plain function ``(id, streams) -> Client``, as tests and scripts have it.

    For engines with other processes the function must be one that they can import.
    """

    function: Callable[[int, Streams], Client]

    def __call__(self, id: int, streams: Streams) -> Client:
        return self.function(id, streams)
