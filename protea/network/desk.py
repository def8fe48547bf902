"""What a site answers, and what it writes down about that.

A site does two things for a coordinator: it trains, and tells how accurate it is.  It does them
for jobs that the coordinator has signed, of the task that the site has agreed to.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protea.engines import Job, Reply
from protea.engines.station import Station
from protea.engines.wire import job_from_bytes, joined, parted, reply_from_bytes, reply_to_bytes
from protea.errors import PayloadError
from protea.network.keys import opened
from protea.network.site import Site
from protea.payload import Named, from_bytes, nbytes, to_bytes
from protea.runs.store import named, write_text


class Desk:
    """Answers to a coordinator's messages."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.station = Station(site.worker(), site.path / "state")
        self.audit = Audit(site.path / "audit.jsonl")

    def handle(self, kind: str, message: bytes) -> bytes:
        """The bytes of an answer; they are written down before they leave."""
        message = opened(message, self.site.bundle.coordinator)
        if kind == "hello":
            _, about = from_bytes(message)
            answer = self.hello(about)
            self.audit.write("hello", 0, {}, answer)
            return answer
        if kind == "end":
            write_text(self.site.ended, "The coordinator has ended the federation.\n")
            return to_bytes({})
        return joined([self.answer(part) for part in parted(message)])

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
            answer = discreet(self.station.answer(message))
        self.audit.write(job.task, job.round, reply_from_bytes(answer).up, answer)
        return answer


def discreet(answer: bytes) -> bytes:
    """Without what is of no use to others: of an error only its last line, and nothing of this machine."""
    reply = reply_from_bytes(answer)
    error = None if reply.error is None else reply.error.strip().splitlines()[-1]
    return reply_to_bytes(
        Reply(reply.client, reply.round, reply.up, reply.samples, reply.metrics, reply.seconds, error=error)
    )


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
        with named(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))


def first_job(site: Site) -> Job:
    """The job with which a coordinator begins: nothing is known yet."""
    return Job("train", 1, site.id)
