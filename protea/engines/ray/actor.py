"""The worker that runs in an actor."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import ray
import torch
from ray import cloudpickle

from protea.clients.plan import WorkerPlan
from protea.clients.state_files import path_of
from protea.clients.store import MemoryStore
from protea.clients.worker import Worker, open_store
from protea.core.files import write_part
from protea.engines.messages import job_from_bytes, reply_to_bytes


def versions() -> dict[str, str]:
    """Give the versions of the packages that results depend on."""
    return {name: version(name) for name in ("protea", "torch")}


class WorkerActor:
    """A worker in an actor of Ray.  Its methods are called from the driver."""

    def __init__(self) -> None:
        import protea.engines.processes.preload  # noqa: F401  before any job is timed

        torch.set_num_threads(1)
        self.worker: Worker | None = None
        self.store: MemoryStore | None = None
        self.folder = Path()

    def move(self, folder: Path, search: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Look for files and modules where the driver does, as far as this node has such a place.

        Give the id of this node, and the versions of the packages here.
        """
        if folder.is_dir():
            os.chdir(folder)
        sys.path += [place for place in search if place not in sys.path]
        return ray.get_runtime_context().get_node_id(), versions()

    def make_folder(self) -> Path:
        """Make a folder for the data and clients of this node."""
        self.folder = Path(tempfile.mkdtemp(prefix="protea-"))
        return self.folder

    def write(self, name: str, part: bytes, last: bool) -> None:
        """Append a part to a file in that folder; the file has its name once the last part is there."""
        write_part(self.folder / name, part, last=last)

    def open(self, plan: bytes, folder: Path) -> str:
        """Make the worker; give what went wrong, or nothing."""
        try:
            found: WorkerPlan = cloudpickle.loads(plan)  # of our own driver; here, so that an error has its message
            found = found.moved(folder)
            self.folder, self.store = folder, open_store(found)
            self.worker = Worker(found, self.store)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def process(self) -> int:
        """Give the id of this process."""
        return os.getpid()

    def job(self, message: bytes) -> bytes:
        """Do a job."""
        assert self.worker is not None
        return reply_to_bytes(self.worker.run(job_from_bytes(message)))

    def bring(self, client: int, state: bytes | None, jobs: Sequence[bytes]) -> None:
        """Bring a client here: read its saved state, and repeat these jobs.  If that fails, the actor is of no use."""
        assert self.worker is not None and self.store is not None
        worker, self.worker = self.worker, None
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            if state is not None:
                path_of(client, Path(place)).write_bytes(state)
            self.store.restore(client, Path(place))
        worker.repeat(client, [job_from_bytes(each) for each in jobs])
        self.worker = worker

    def save(self) -> list[str]:
        """Write all clients here, to be fetched; give the names of their files."""
        assert self.store is not None
        self._saved.mkdir(exist_ok=True)
        self.store.write(self._saved)
        return sorted(path.name for path in self._saved.iterdir())

    def fetch(self, name: str) -> bytes:
        """Give a file of :meth:`save`, and remove it here."""
        path = self._saved / name
        state = path.read_bytes()
        path.unlink()
        return state

    def load(self) -> None:
        """Forget all clients; their saved state comes with :meth:`bring`."""
        assert self.store is not None
        self.store.clear()
        shutil.rmtree(self._saved, ignore_errors=True)

    @property
    def _saved(self) -> Path:
        return self.folder / f"saved-{os.getpid()}"
