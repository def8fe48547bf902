"""Clients whose state is on disk after every round, for engines that may be asked the same thing twice.

    client-003/000012/client-003.safetensors   model and memory after the training of round 12
    client-003/000012/reply                    what was answered, as it was sent
    client-003/000012/job                      a checksum of what was asked
    client-003/000012/reply-shares, ...        the same of the steps of a secure sum, if there is one

A job to train that was done before is answered from here, and nothing is trained again.  So a
server that was killed may ask again for the round that it lost, and a client that was killed in
the middle of a round begins it anew: both end where they would have ended.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from protea.clients.plan import WorkerPlan
from protea.clients.state_files import carry_clients, name_of, save_client
from protea.clients.store import ClientStore, MemoryStore
from protea.clients.worker import Worker, open_store
from protea.core.client import Client
from protea.core.errors import CheckpointError
from protea.core.files import sync_folder, write_bytes, write_text
from protea.core.ledger import HISTORY
from protea.federation.jobs import CHANGING, Job, JobKind, Reply

KEEP = 3  # rounds: a server that lost a round, and has asked for the next one already, can have it again

Encode = Callable[[Reply], bytes]  # from a reply to what is sent of it


class DurableStore(ClientStore):
    """Keeps clients in ``inner`` while they work, and their state after each training below ``folder``.

    A client that has done nothing here goes on from its state in the directory ``first``, if it has one there.
    """

    def __init__(
        self, inner: MemoryStore, folder: Path, first: Path | None = None, keeps_spending: bool = False
    ) -> None:
        self.inner, self.folder = inner, folder
        self.keeps_spending = keeps_spending  # of privacy: what was sent stays sent, also if a client goes back
        self._first = first
        self._rounds: dict[int, int] = {}  # the round up to which each client in memory is trained

    @property
    def clients(self) -> Mapping[int, Client]:
        return self.inner.clients

    def get(self, id: int) -> Client:
        if id not in self._rounds:
            self.rewind(id, sys.maxsize)
        return self.inner.get(id)

    def put_back(self, id: int) -> None:
        self.inner.put_back(id)

    def save(self, directory: Path) -> None:
        save_newest(self.folder, directory)

    def load(self, directory: Path) -> None:
        self.inner.clear()
        self._rounds.clear()
        for kept in self.folder.glob("client-*"):
            shutil.rmtree(kept)
        self._first = directory

    def forget(self, id: int) -> None:
        self.inner.forget(id)
        self._rounds.pop(id, None)

    def tidy(self) -> None:
        """Clear away what a process left that was killed while it wrote; no other one may be at work here."""
        for left in self.folder.glob("client-*/.*"):
            if left.is_dir():
                shutil.rmtree(left)

    def rewind(self, id: int, round: int) -> None:
        """Have a client in memory as it was before its training in ``round``.

        :class:`CheckpointError` if that state is kept no longer.
        """
        states = self._states(id)
        earlier = [path for path in states if int(path.name) < round]
        if states and not earlier:
            raise CheckpointError(
                f"client {id}, round {round}: it has trained up to round {int(states[-1].name)}, and its state "
                f"before round {round} is kept no longer.  The server must go on from a later checkpoint."
            )
        last = int(earlier[-1].name) if earlier else 0
        if states and self._rounds.get(id) == last:
            return
        self._rounds.pop(id, None)
        spent = self._spent(id, states[-1]) if self.keeps_spending and states and states[-1:] != earlier[-1:] else None
        self.inner.restore(id, earlier[-1] if earlier else self._first)
        if spent is not None:
            self.inner.clients[id].memory[HISTORY] = spent
        self._rounds[id] = last
        if not states:
            self.keep(id, 0)  # as it was before it did anything

    def _spent(self, id: int, state: Path) -> Tensor | None:
        """Give what a client had spent of its privacy in a state."""
        self.inner.restore(id, state)
        found: Tensor | None = self.inner.clients[id].memory.get(HISTORY)
        return found

    def kept_answer(self, id: int, round: int, mark: str, task: JobKind = "train") -> bytes | None:
        """Give what a client answered to a job of ``round`` with the checksum ``mark``, if it has done that job."""
        done = self._folder_of(id) / f"{round:06d}"
        asked, answer = (done / name for name in _names(task))
        if asked.is_file() and asked.read_text() == mark:
            return answer.read_bytes()
        return None

    def keep(self, id: int, round: int, mark: str = "", answer: bytes = b"", task: JobKind = "train") -> None:
        """Write a client's state after a job of ``round`` and what it answered, all or nothing.

        Of the steps that follow a training, the state is the newest one, and the answers to all of them are kept, until
        fresh keys begin another attempt: what was answered in an earlier one would not fit these.
        """
        folder = self._folder_of(id)
        new, place = folder / f".{round:06d}", folder / f"{round:06d}"
        if new.exists():
            shutil.rmtree(new)  # the disk was full, or the like
        new.mkdir(parents=True)
        if task != "train" and place.is_dir():
            steps = "" if task == "keys" else "*"
            for earlier in [*place.glob(f"job{steps}"), *place.glob(f"reply{steps}")]:
                write_bytes(new / earlier.name, earlier.read_bytes())
        save_client(self.inner.clients[id], new)
        asked, answered = _names(task)
        write_bytes(new / answered, answer)
        write_text(new / asked, mark)
        sync_folder(new)
        for later in [path for path in self._states(id) if path.name >= place.name]:
            _remove(later)  # the server has gone back
        new.rename(place)
        sync_folder(folder)
        self._rounds[id] = round
        for old in self._states(id)[:-KEEP]:
            _remove(old)

    def _states(self, id: int) -> list[Path]:
        return kept_states(self._folder_of(id))

    def _folder_of(self, id: int) -> Path:
        return self.folder / name_of(id)


class DurableWorker:
    """A worker whose clients are on disk after every round, and that answers each training once.

    ``encode`` makes of a reply the bytes that are sent.  These are kept: a job that comes again gets the same ones.
    """

    def __init__(self, plan: WorkerPlan, folder: Path, encode: Encode, first: Path | None = None) -> None:
        self.store = DurableStore(open_store(plan), folder, first, keeps_spending=plan.system_randomness)
        self.worker = Worker(plan, self.store)
        self.encode = encode

    def answer(self, job: Job, message: bytes) -> bytes:
        """Answer a job.  ``message`` is the job as it came, by which it is known if it comes again."""
        mark = hashlib.blake2b(message, digest_size=16).hexdigest()
        changing, again = job.task in CHANGING, job.task != "keys"  # which are always fresh
        if changing and again and (kept := self.store.kept_answer(job.client, job.round, mark, job.task)) is not None:
            return kept
        try:
            self.store.rewind(job.client, job.round if job.task == "train" else job.round + 1)
        except CheckpointError as error:
            return self.encode(Reply(job.client, job.round, error=str(error)))
        reply = self.worker.run(job)
        answer = self.encode(reply)
        if changing and reply.error is None:
            try:
                self.store.keep(job.client, job.round, mark, answer, job.task)
            except BaseException:  # such as a full disk: nobody will hear of this training, so it has not been
                self.store.forget(job.client)
                raise
        return answer


def _names(task: JobKind) -> tuple[str, str]:
    """Give the names of the files that say what was asked, and what was answered."""
    return ("job", "reply") if task == "train" else (f"job-{task}", f"reply-{task}")


def kept_states(folder: Path) -> list[Path]:
    """Give the folders of the states that a client left in its own folder of a durable store, the newest last."""
    return sorted(folder.glob("[0-9]*"))


def newest_state(folder: Path, id: int) -> Path | None:
    """Give the folder of a client's state after its last training, in the folder of a durable store."""
    states = kept_states(folder / name_of(id))
    return states[-1] if states else None


def save_newest(folder: Path, directory: Path) -> None:
    """Give to a directory the newest state of every client in the folder of a durable store."""
    for each in sorted(folder.glob("client-*")):
        if states := kept_states(each):
            carry_clients(states[-1], directory)


def _remove(state: Path) -> None:
    gone = state.with_name(f".dropped-{state.name}")
    if gone.exists():
        shutil.rmtree(gone)  # what was not cleared away the last time
    state.rename(gone)  # first, or half of it would pass for a state
    shutil.rmtree(gone)
