"""What a site answers, and what it writes down about that.

A site does two things for a coordinator: it trains, and tells how accurate it is.  It does them
for jobs that the coordinator has signed, of the task that the site has agreed to.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from protea.clients.durable import Station
from protea.core.errors import ClientError, PayloadError
from protea.core.files import naming_file, write_text
from protea.core.payload import Named, from_bytes, nbytes, shortened, to_bytes
from protea.engines.messages import job_from_bytes, joined, parted, reply_from_bytes, reply_to_bytes
from protea.federation.jobs import Reply
from protea.network.site.directory import Site
from protea.network.trust.keys import verified

TRACE = "Traceback (most recent call last):"
SHORT = 1000  # characters; what is longer is not of Protea's own making


class Desk:
    """Answers to a coordinator's messages."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.state.mkdir(exist_ok=True)
        site.state.chmod(0o700)
        self.station = Station(site.worker(), site.state)
        self.audit = Audit(site.path / "audit.jsonl")

    def handle(self, kind: str, message: bytes) -> bytes:
        """The bytes of an answer; they are written down before they leave.

        What is raised instead leaves too, and says nothing of this machine or its data: only a
        :class:`PayloadError`, which is about what was sent to us, keeps its words.
        """
        try:
            return self._noted(kind, message)
        except PayloadError:
            raise
        except Exception as error:
            traceback.print_exc()  # to this site's own log
            why = f"site {self.site.name}: {type(error).__name__}; its own log says more."
            with suppress(OSError):  # a full disk may be what has happened
                self.audit.write("failed", 0, {}, why.encode())
            raise ClientError(why) from None

    def _noted(self, kind: str, message: bytes) -> bytes:
        try:
            return self._answer(kind, message)
        except PayloadError as error:
            self.audit.write("refused", 0, {}, str(error).encode())
            raise

    def _answer(self, kind: str, message: bytes) -> bytes:
        message = verified(kind, message, self.site.bundle.coordinator)
        match kind:
            case "hello":
                _, about = from_bytes(message)
                answer = self.hello(about)
                self.audit.write("hello", 0, {}, answer)
                return answer
            case "end":
                _, about = from_bytes(message)
                return self.end(about)
            case "job":
                return joined([self.answer(part) for part in parted(message)])
            case _:
                raise PayloadError(f"a message came that asks for nothing a site does: {shortened(repr(kind))}.")

    def end(self, about: dict[str, Any]) -> bytes:
        """All is done.  The last round is named, so that no other message passes for this one."""
        if about.get("round") != self.site.task.rounds:
            raise PayloadError("a message came that should be the end, and does not name the last round.")
        write_text(self.site.ended, "The coordinator has ended the federation.\n")
        answer = to_bytes({})
        self.audit.write("end", self.site.task.rounds, {}, answer)
        return answer

    def hello(self, about: dict[str, Any]) -> bytes:
        """Who this site is.  The coordinator says which task it means."""
        if about.get("task") != self.site.task.mark():
            raise PayloadError(
                f"site {self.site.name} was invited to another task than the coordinator has now.  It needs a new "
                f"bundle: protea federation invite --renew"
            )
        return to_bytes({}, site=self.site.name, model=self.site.model_name)

    def answer(self, message: bytes) -> bytes:
        job = job_from_bytes(message)
        if job.task not in ("train", "evaluate"):
            raise PayloadError(f"a site does not do what was asked of it: {job.task}.")
        if job.client != self.site.id:
            raise PayloadError(f"this site is client {self.site.id}; a job for client {job.client} came.")
        if not 0 < job.round <= self.site.task.rounds:
            raise PayloadError(f"a job of round {job.round} came; the task has {self.site.task.rounds}.")
        if job.task == "evaluate" and not self.site.settings.report:
            answer = reply_to_bytes(Reply(job.client, job.round))
        else:
            found = self.station.answer(message)
            if (error := reply_from_bytes(found).error) is not None:
                sys.stderr.write(f"{error}\n")  # to this site's own log
            answer = discreet(found)
        self.audit.write(job.task, job.round, reply_from_bytes(answer).up, answer)
        return answer


def discreet(answer: bytes) -> bytes:
    """Without what is of no use to others: of an error only its kind, and nothing of this machine."""
    reply = reply_from_bytes(answer)
    error = None if reply.error is None else without_secrets(reply.error, f"client {reply.client}, round {reply.round}")
    return reply_to_bytes(
        Reply(reply.client, reply.round, reply.up, reply.samples, reply.metrics, reply.seconds, error=error)
    )


def without_secrets(error: str, who: str) -> str:
    """What others may know of an error.

    What a model or a data set of the site raised may hold a patient's name, so of that only its kind.  What
    Protea itself says is kept, but for names of files.
    """
    if TRACE in error or len(error) > SHORT:
        said = error.partition(TRACE)[2].splitlines()[1:]
        kind = next((line for line in said if line[:1].strip()), "").partition(":")[0]  # what follows is indented
        name = kind.rpartition(".")[2]
        return f"{who}: {name if name.isidentifier() else 'an error'}; the site's own log says more."
    words = [word if not re.search(r"[/\\]", word) else "(a file)" for word in error.split(" ")]
    return " ".join(words)


class Audit:
    """Every message that left this site, in one line of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, task: str, round: int, tensors: Named, message: bytes) -> None:
        line = {
            "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "task": task,
            "round": round,
            "tensors": {name: {"shape": list(t.shape), "dtype": str(t.dtype)} for name, t in tensors.items()},
            "numbers": nbytes(tensors),  # bytes of the tensors alone
            "bytes": len(message),
            "blake2b": hashlib.blake2b(message, digest_size=16).hexdigest(),
        }
        with naming_file(self.path), self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")  # a process was killed while it wrote
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> Iterator[dict[str, Any]]:
        yield from noted(self.path.read_bytes())


def noted(lines: bytes) -> Iterator[dict[str, Any]]:
    """What is in lines of an audit; one that was not written to its end says nothing."""
    for line in lines.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
