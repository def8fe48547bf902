"""What a site answers to a coordinator.

A site does two things for a coordinator: it trains, and tells how accurate it is.  It does them
for jobs that the coordinator has signed, of the task that the site has agreed to.

Every answer takes one way: what the site's policy allows of a reply is made discreet, encoded, kept if it was a
training, looked at once more as the bytes that it is now, written down in the audit, signed by the site, and sent.
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from protea.clients.durable import DurableWorker
from protea.core.errors import ClientError, ConfigError, PayloadError, PolicyError
from protea.core.files import write_text
from protea.core.message import from_bytes, shortened, to_bytes
from protea.core.rng import Streams
from protea.engines.messages import job_from_bytes, joined, parted, readable, reply_from_bytes, reply_to_bytes
from protea.evaluation.rules import all_names
from protea.federation.jobs import SUM_STEPS, Job, JobKind, Reply
from protea.filters.base import Passage
from protea.filters.secure_sum import secure_sum_of
from protea.network.site.audit import Audit
from protea.network.site.beside import Beside
from protea.network.site.broadcast import keep_broadcast
from protea.network.site.directory import Site
from protea.network.site.policy import NAME as POLICY
from protea.network.site.progress import SiteProgress, keep_progress
from protea.network.site.refusals import expiry, refusals
from protea.network.site.scaling import keep_filling, keep_scaling
from protea.network.trust.ends import take_authority
from protea.network.trust.keys import verified
from protea.network.trust.signatures import SignedAnswer, SiteKey

FULL = (errno.ENOSPC, errno.EDQUOT)  # what the operating system says of a disk without room
TRACE = "Traceback (most recent call last):"
SHORT = 1000  # characters; what is longer is not of Protea's own making


class SiteService:
    """Answers a coordinator's messages."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.state.mkdir(exist_ok=True)
        site.state.chmod(0o700)
        self.worker = DurableWorker(site.plan(), site.state, leaving)
        self.audit = Audit(site.path / "audit.jsonl")
        self.beside = Beside(site, self.worker) if site.settings.beside else None
        key = site.bundle.key
        self.key = None if key is None else SiteKey(key.read_bytes())
        self.mark = site.task.mark()

    def handle(self, kind: str, message: bytes) -> bytes:
        """Give the bytes of an answer; they are written down before they leave.

        What is raised instead leaves too, and says nothing of this machine or its data: only a
        :class:`PayloadError`, which is about what was sent to us, and a :class:`PolicyError` keep their words.
        """
        try:
            return self._answer_or_note(kind, message)
        except (PayloadError, PolicyError):
            raise
        except Exception as error:
            traceback.print_exc()  # to this site's own log
            full = isinstance(error, OSError) and error.errno in FULL
            what = "its disk is full" if full else f"{type(error).__name__}; its own log says more"
            why = f"site {self.site.name}: {what}."
            with suppress(OSError):  # a full disk may be what has happened
                self.audit.write_words("failed", why)
            raise ClientError(why) from None

    def _answer_or_note(self, kind: str, message: bytes) -> bytes:
        try:
            return self._answer(kind, message)
        except PayloadError as error:
            self.audit.write_words("refused", str(error))
            raise

    def _answer(self, kind: str, message: bytes) -> bytes:
        message = verified(kind, message, self.site.bundle.coordinator)
        match kind:
            case "hello":
                return self._hello(from_bytes(message)[1])
            case "end":
                return self._end(from_bytes(message)[1])
            case "job":
                return joined([self._job(part) for part in parted(message)])
            case _:
                raise PayloadError(f"a message came that asks for nothing a site does: {shortened(repr(kind))}.")

    def _hello(self, about: dict[str, Any]) -> bytes:
        """Say who this site is, to a coordinator that means the same task."""
        if about.get("task") != self.mark:
            raise PayloadError(
                f"site {self.site.name} was invited to another task than the coordinator has now.  It needs a new "
                f"bundle: protea federation invite --renew"
            )
        authority, newer = self.site.bundle.ca, about.get("ca")
        if authority is not None and isinstance(newer, str):
            with suppress(ConfigError):  # what is not of this authority leaves the old one in place, until it ends
                take_authority(authority, newer.encode())
        return self._noted("hello", 0, to_bytes({}, site=self.site.name, model=self.site.model_name))

    def _end(self, about: dict[str, Any]) -> bytes:
        """End the federation here.  The message names the last round, so that no other one passes for it."""
        if about.get("round") != self.site.task.rounds:
            raise PayloadError("a message came that should be the end, and does not name the last round.")
        write_text(self.site.ended, "The coordinator has ended the federation.\n")
        return self._noted("end", self.site.task.rounds, to_bytes({}))

    def _job(self, message: bytes) -> bytes:
        """Do a job, and write down its answer."""
        job, site = job_from_bytes(message), self.site
        self._refuse(job)
        self._refuse_by_policy(job)
        if job.task == "evaluate" and site.report == "none":
            answer = leaving(Reply(job.client, job.round))
        else:
            if site.filling is not None:
                keep_filling(site.filling, site.state)
            if site.scaling is not None:
                keep_scaling(site.scaling, site.state)  # before the model that it belongs to
            answer = self.worker.answer(job, message)
            self._note_refusals(job)  # of an answer that says so
        if job.task == "evaluate":
            keep_broadcast(job, site.state)
            answer = self._with_gain(job, answer)
            self._keep_progress(job.round)
        try:
            site.release.verify(job, reply_from_bytes(answer), self._passage(job))
        except PolicyError as error:
            self._note_refusals(job, str(error))
            raise
        self._noted(job.task, job.round, answer, site.release.held_names if job.task == "train" else ())
        return self._signed(job, answer)

    def _keep_progress(self, round: int) -> None:
        """Write down for this site's own screen how accurate its model is, whatever others may know of that."""
        found, self.site.release.examined = self.site.release.examined, None
        own = {} if found is None else found.of("test", all_names(self.site.task.evaluation.rules))
        accuracy = own["method"].accuracy if "method" in own else None
        with suppress(OSError):  # a full disk is told of where something is lost by it
            keep_progress(self.site.path, SiteProgress(round, self.site.task.rounds, accuracy))

    def _signed(self, job: Job, answer: bytes) -> bytes:
        """Put this site's signature before an answer.  Without TLS it has no key."""
        if self.key is None:
            return answer
        return self.key.sign(SignedAnswer.of(self.mark, self.site.name, job.task, job.round, answer).text) + answer

    def meanwhile(self) -> None:
        """Train the model that this site would have alone, while nobody asks for anything."""
        if self.beside is not None:
            try:
                self.beside.train_next()
            except Exception:
                self._give_up_beside()

    def _with_gain(self, job: Job, answer: bytes) -> bytes:
        """Compare with the model trained alone; add what may be told of that to an answer."""
        if self.beside is None:
            return answer
        try:
            found = self.beside.compare(job)
        except Exception:
            self._give_up_beside()
            return answer
        reply = reply_from_bytes(answer)
        if found is None or reply.error is not None:
            return answer
        more = self.site.release.gain(found.mean, found.samples)
        return leaving(replace(reply, up={**reply.up, **more})) if more else answer

    def _give_up_beside(self) -> None:
        """Go on without the model trained alone: what goes wrong there must not stop the federation."""
        traceback.print_exc()  # to this site's own log
        sys.stderr.write("beside = true: the model trained alone has failed; the federation goes on without it.\n")
        self.beside = None

    def _passage(self, job: Job) -> Passage:
        task = self.site.task
        rng = Streams(task.seed)  # from which nothing is drawn
        return Passage(job.client, job.round, task.played.up, len(task.classes), task.models.dim, rng)

    def _refuse_by_policy(self, job: Job) -> None:
        """Raise :class:`PolicyError` for a job that the site's policy forbids, whatever it is about."""
        site = self.site
        try:
            site.follow_policy()
        except ConfigError as error:  # nothing leaves by a policy that nobody can read
            words = f"site {site.name}: its policy was changed, and cannot be read."
            self.audit.write_refusal(job.task, job.round, str(site.path / POLICY), str(error), words)
            raise PolicyError(words) from None
        expired = expiry(site.policy)  # anew for each job: the day may be over
        for each in [expired] if expired is not None else refusals(site.policy, site.task, site.class_counts):
            site.release.refusals.append(each)
            words = f"site {site.name}: its policy has {each.said}, and does not allow this task."
            self._note_refusals(job, words)
            raise PolicyError(words)

    def _note_refusals(self, job: Job, words: str = "") -> None:
        """Write down what the policy refused since this was last asked; ``words`` leave instead of an answer."""
        found = self.site.release.refusals
        while found:
            each = found.pop(0)
            sys.stderr.write(f"{each}\n")
            self.audit.write_refusal(job.task, job.round, each.cited, each.why, words)

    def _refuse(self, job: Job) -> None:
        """Raise :class:`PayloadError` for a job that this site does not do."""
        steps = SUM_STEPS if secure_sum_of(self.site.task.filters) is not None else frozenset[JobKind]()
        if job.task not in {"train", "evaluate", *steps}:
            raise PayloadError(f"a site does not do what was asked of it: {job.task}.")
        if job.client != self.site.id:
            raise PayloadError(f"this site is client {self.site.id}; a job for client {job.client} came.")
        if not 0 < job.round <= self.site.task.rounds:
            raise PayloadError(f"a job of round {job.round} came; the task has {self.site.task.rounds}.")

    def _noted(self, task: str, round: int, answer: bytes, held_back: Sequence[str] = ()) -> bytes:
        self.audit.write(task, round, answer, held_back)
        return answer


def leaving(reply: Reply) -> bytes:
    """Encode what leaves of a reply; an error stays here, in this site's own log."""
    if reply.error is not None:
        sys.stderr.write(f"{reply.error}\n")
    return reply_to_bytes(discreet(reply))


def discreet(reply: Reply) -> Reply:
    """Leave out what is of no use to others: of an error all but its kind, and everything about this machine."""
    who = f"client {reply.client}, round {reply.round}"
    error = None if reply.error is None else without_secrets(readable(reply.error), who)
    return Reply(reply.client, reply.round, reply.up, reply.samples, reply.metrics, reply.seconds, error=error)


def without_secrets(error: str, who: str) -> str:
    """Give what others may know of an error.

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
