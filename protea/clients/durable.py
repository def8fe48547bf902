"""Clients whose state is on disk after every round, for engines that may be asked the same thing twice.

    client-003/000012/client-003.safetensors   model and memory after the training of round 12
    client-003/000012/reply                    what was answered
    client-003/000012/job                      a checksum of what was asked

A job to train that was done before is answered from here, and nothing is trained again.  So a
server that was killed may ask again for the round that it lost, and a client that was killed in
the middle of a round begins it anew: both end where they would have ended.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from protea.clients.state_files import name_of, save_client
from protea.clients.worker import Worker
from protea.core.errors import CheckpointError
from protea.core.files import sync_folder, write_bytes, write_text
from protea.engines.messages import job_from_bytes, reply_to_bytes
from protea.federation.jobs import Reply

KEEP = 2  # rounds: with the one before the last, a server that lost a round can have it again


class Station:
    """A worker, and a folder that has its clients' state."""

    def __init__(self, worker: Worker, folder: Path, first: Path | None = None) -> None:
        self.worker, self.folder = worker, folder
        self.first = first  # where clients that have done nothing here may have left their state
        self.rounds: dict[int, int] = {}  # up to which the clients in memory are trained

    def tidy(self) -> None:
        """Clear away what a process left that was killed while it wrote; no other one may be at work here."""
        for left in self.folder.glob("client-*/.*"):
            if left.is_dir():
                shutil.rmtree(left)

    def answer(self, message: bytes, limit: int | None = None) -> bytes:
        """The reply to a job, both as bytes; :class:`PayloadError` for what is no job."""
        job = job_from_bytes(message, limit)
        mark = hashlib.blake2b(message, digest_size=16).hexdigest()
        done = self._home(job.client) / f"{job.round:06d}"
        if job.task == "train" and done.is_dir() and (done / "job").read_text() == mark:
            return (done / "reply").read_bytes()
        try:
            self._have(job.client, job.round if job.task == "train" else job.round + 1)
        except CheckpointError as error:
            return reply_to_bytes(Reply(job.client, job.round, error=str(error)))
        reply = self.worker.run(job)
        answer = reply_to_bytes(reply)
        if job.task == "train" and reply.error is None:
            try:
                self._keep(job.client, job.round, mark, answer)
            except BaseException:  # such as a full disk: nobody will hear of this training, so it has not been
                self.worker.forget(job.client)
                self.rounds.pop(job.client, None)
                raise
        return answer

    def newest(self, client: int) -> Path | None:
        """Where the client's state after its last training is."""
        states = self._states(client)
        return states[-1] if states else self.first

    def _have(self, client: int, round: int) -> None:
        """Have the client in memory as it was before its training in ``round``."""
        states = self._states(client)
        earlier = [path for path in states if int(path.name) < round]
        if states and not earlier:
            raise CheckpointError(
                f"client {client}, round {round}: it has trained up to round {int(states[-1].name)}, and its state "
                f"before round {round} is kept no longer.  The server must go on from a later checkpoint."
            )
        last = int(earlier[-1].name) if earlier else 0
        if states and self.rounds.get(client) == last:
            return
        self.rounds.pop(client, None)
        self.worker.forget(client)
        self.worker.saved = earlier[-1] if earlier else self.first
        self.worker.client(client)
        self.rounds[client] = last
        if not states:
            self._keep(client, 0)  # as it was before it did anything

    def _keep(self, client: int, round: int, mark: str = "", answer: bytes = b"") -> None:
        """Write the client's state and its answer, all or nothing."""
        home = self._home(client)
        new, place = home / f".{round:06d}", home / f"{round:06d}"
        if new.exists():
            shutil.rmtree(new)  # the disk was full, or the like
        new.mkdir(parents=True)
        save_client(self.worker.client(client), new)
        write_bytes(new / "reply", answer)
        write_text(new / "job", mark)
        sync_folder(new)
        for later in [path for path in self._states(client) if path.name >= place.name]:
            self._drop(later)  # the server has gone back
        new.rename(place)
        sync_folder(home)
        self.rounds[client] = round
        for old in self._states(client)[:-KEEP]:
            self._drop(old)

    def _drop(self, state: Path) -> None:
        gone = state.with_name(f".dropped-{state.name}")
        if gone.exists():
            shutil.rmtree(gone)  # what was not cleared away the last time
        state.rename(gone)  # first, or half of it would pass for a state
        shutil.rmtree(gone)

    def _states(self, client: int) -> list[Path]:
        return sorted(self._home(client).glob("[0-9]*"))

    def _home(self, client: int) -> Path:
        return self.folder / name_of(client)
