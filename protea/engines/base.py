"""What every engine has.

An engine of the registry (``engine.name``) is made by ``Kind(plan, settings)``.  The plan is a
:class:`~protea.clients.plan.WorkerPlan`, what a worker needs to know of method and clients; the settings are the
section ``[engine]`` of the experiment.  A plug-in derives from :class:`EngineBase` and takes the same two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from protea.config.sections import Engine
from protea.federation.jobs import Job, Reply, Watch, ignore


class EngineBase(ABC):
    """Carries jobs to clients and replies back.

    An engine changes no number: whichever one runs the clients, records and states are the same to the bit.
    """

    several_jobs: ClassVar[bool] = False  # whether one call of map may have several jobs of a client, done in order

    @classmethod  # noqa: B027  a default that does nothing, as those below
    def warm(cls) -> None:
        """Begin what takes long to start, before the engine itself is made.  Nothing, unless overridden."""

    @classmethod
    def check(cls, settings: Engine) -> None:
        """Raise :class:`ConfigError` for settings that this engine cannot follow; here, those of a cluster."""
        settings.refuse_cluster()

    @abstractmethod
    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        """Run the jobs; one reply each, ordered by client.  ``watch`` sees replies as they come."""

    def save(self, directory: Path) -> None:  # noqa: B027
        """Write the state of every client that has one.  Nothing, where clients keep their own state."""

    def load(self, directory: Path) -> None:  # noqa: B027
        """Let clients go on from what :meth:`save` wrote.  Nothing, where clients keep their own state."""

    def close(self) -> None:  # noqa: B027
        """Give back processes, connections and files."""
