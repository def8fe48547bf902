"""What runs in an actor."""

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

from protea.clients.state_files import path_of
from protea.clients.worker import Worker
from protea.core.files import write_part
from protea.engines.messages import job_from_bytes, reply_to_bytes


def versions() -> dict[str, str]:
    """Of what results depend on."""
    return {name: version(name) for name in ("protea", "torch")}


class Seat:
    """A worker that is told from afar what to do."""

    def __init__(self) -> None:
        import protea.engines.processes.preload  # noqa: F401  before any job is timed

        torch.set_num_threads(1)
        self.worker: Worker | None = None
        self.folder = Path()

    def move(self, folder: Path, search: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Look for files and modules where the driver does, as far as there is such a place; what node this is."""
        if folder.is_dir():
            os.chdir(folder)
        sys.path += [place for place in search if place not in sys.path]
        return ray.get_runtime_context().get_node_id(), versions()

    def make_folder(self) -> Path:
        """For data and clients of this node."""
        self.folder = Path(tempfile.mkdtemp(prefix="protea-"))
        return self.folder

    def write(self, name: str, part: bytes, last: bool) -> None:
        """One more part of a file in that folder."""
        write_part(self.folder / name, part, last=last)

    def open(self, plan: bytes, folder: Path) -> str:
        """Make the worker; what went wrong, if anything did."""
        try:
            options = cloudpickle.loads(plan)  # of our own driver; here, so that what cannot be read has its message
            moved = getattr(options["build"], "moved", None)
            if moved is not None:
                options["build"] = moved(folder)
            self.folder = folder
            self.worker = Worker(**options | {"spill": folder})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def process(self) -> int:
        return os.getpid()

    def job(self, message: bytes) -> bytes:
        assert self.worker is not None
        return reply_to_bytes(self.worker.run(job_from_bytes(message)))

    def bring(self, client: int, state: bytes | None, jobs: Sequence[bytes]) -> None:
        """Have a client here, as it was saved and after these jobs; the actor is of no use if that fails."""
        assert self.worker is not None
        worker, self.worker = self.worker, None
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            if state is not None:
                path_of(client, Path(place)).write_bytes(state)
            worker.saved = Path(place)
            worker.repeat(client, [job_from_bytes(each) for each in jobs])
            worker.saved = None
        self.worker = worker

    def save(self) -> list[str]:
        """Write all clients here, to be fetched; the names of their files."""
        assert self.worker is not None
        self._saved.mkdir(exist_ok=True)
        self.worker.save(self._saved)
        self.worker.saved = None
        return sorted(path.name for path in self._saved.iterdir())

    def fetch(self, name: str) -> bytes:
        path = self._saved / name
        state = path.read_bytes()
        path.unlink()
        return state

    def load(self) -> None:
        """Forget all clients; what was saved of them comes with them."""
        assert self.worker is not None
        self.worker.load(self._saved)
        self.worker.saved = None
        shutil.rmtree(self._saved, ignore_errors=True)

    @property
    def _saved(self) -> Path:
        return self.folder / f"saved-{os.getpid()}"
