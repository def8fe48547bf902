"""The check of uploads: only those that are exactly what a method declares reach its ``aggregate``.

An upload is checked once, whatever engine brought it:
bytes -> well-formed? small enough? -> filters (reversed) -> declared? finite? not too long? -> ``method.check`` ->
not too many samples claimed?
Then filters look at all of a round's uploads together (:meth:`protea.Filter.together`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from protea.config.sections import Limits
from protea.config.units import in_bytes
from protea.core.errors import ClientError, PayloadError, ProteaError
from protea.core.message import Named, refuse_malformed
from protea.core.method import Method, Upload
from protea.core.payload import Payload, count_names, refuse_large, unpack, vector_names
from protea.core.prototypes import Prototypes
from protea.core.rng import draws_given_back
from protea.core.server import Server
from protea.federation.alone import is_alone
from protea.federation.faults import Absence
from protea.federation.jobs import Job, Reply
from protea.filters.base import Filter, Gathering, Passage, Received, arrive_all, together_all
from protea.filters.bound import Bound


@dataclass(frozen=True)
class Accepted:
    """Uploads that passed the check, and for each other client the reason why it has none."""

    uploads: list[Upload[Any]] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)  # clients whose reply is not what the method declares
    short: str = ""  # why there is no secure sum

    @property
    def clients(self) -> int:
        """How many clients' uploads there are: each its own, or one for all."""
        return sum(upload.clients for upload in self.uploads)


@dataclass(frozen=True)
class Inspection:
    """The one check between what clients send and what a method aggregates."""

    method: Method[Any, Any]
    server: Server
    limits: Limits
    filters: Sequence[Filter] = ()

    @property
    def filters_together(self) -> Sequence[Filter]:
        """The filters that look at a round's uploads together: ``limits.bound`` unless listed, and those listed."""
        named = any(isinstance(each, Bound) for each in self.filters)
        return (Bound(), *self.filters) if self.limits.bound and not named else self.filters

    def accept(
        self, jobs: Sequence[Job], answers: Mapping[int, Sequence[Reply]], absent: Mapping[int, Absence]
    ) -> Accepted:
        """Check the reply to each job.  Good uploads of ``absent`` clients came too late and are left out."""
        found = Accepted()
        for job in jobs:
            try:
                reply = the_reply_to(job, answers.get(job.client, []))
                payload = self.payload(reply)
                if job.client not in absent:
                    found.uploads.append(Upload(job.client, payload, reply.samples))
            except PayloadError as error:
                found.failures[job.client] = f"client {job.client}, round {job.round}: {error}"
                found.refused.append(job.client)
            except ClientError as error:
                found.failures[job.client] = str(error)
        return found

    def together(self, uploads: Sequence[Upload[Any]]) -> list[Upload[Any]]:
        """Let the filters look at a round's uploads side by side; clients that play alone are each by themselves."""
        if not self.filters_together or not uploads or not issubclass(self.method.up, Payload):
            return list(uploads)
        server, rng = self.server, self.server.rng.at("round", self.server.round)
        at = Gathering(server.round, self.method.up, server.classes, server.dim, self._last, server.memory, rng)
        groups = [[upload] for upload in uploads] if is_alone(self.method) else [uploads]
        return [upload for group in groups for upload in self._filtered(group, at)]

    def _last(self) -> Prototypes | None:
        """Return the global prototypes before this round's ``aggregate``, which draws as if nobody had asked."""
        with draws_given_back():
            return self.method.global_prototypes(self.server)

    def _filtered(self, uploads: Sequence[Upload[Any]], at: Gathering) -> Iterator[Upload[Any]]:
        before = [Received(upload.client, upload.payload.flat()) for upload in uploads]
        after = together_all(self.filters_together, before, at)
        for upload, old, new in zip(uploads, before, after, strict=True):
            yield upload if new is old else replace(upload, payload=unpack(self.method.up, new.up))

    def payload(self, reply: Reply) -> Any:
        """Return the upload in a reply; raise :class:`PayloadError` if it is not what the method declares."""
        method, server = self.method, self.server
        if reply.size > in_bytes(self.limits.upload):
            raise PayloadError(f"{reply.size:,} bytes arrived; limits.upload is {self.limits.upload}.")
        named = reply.up
        if self.filters:
            refuse_malformed(named)
            rng = server.rng.at("round", reply.round, "client", reply.client)
            at = Passage(reply.client, reply.round, method.up, server.classes, server.dim, rng)
            named = arrive_all(self.filters, named, at)
        payload = self.declared(named)
        if reply.samples < 1:
            raise PayloadError(f"{reply.samples} samples were reported; at least one is needed.")
        if not all(math.isfinite(value) for value in reply.metrics.values()):
            raise PayloadError(f"its loss is not finite: {reply.metrics}.")
        method.check_from(server, reply.client, payload)
        counts = [named[name] for name in count_names(method.up, named)]
        claimed = max([float(reply.samples), *(float(each.max()) for each in counts if each.numel())])
        if claimed > self.limits.samples:
            raise PayloadError(f"{claimed:,.0f} samples were reported; limits.samples is {self.limits.samples:,}.")
        return payload

    def declared(self, named: Named) -> Any:
        """Return the payload that named tensors are; raise :class:`PayloadError` if the method declares another one."""
        method, server = self.method, self.server
        payload = unpack(method.up, {name: tensor.to(server.device) for name, tensor in named.items()})
        refuse_large({name: named[name] for name in vector_names(method.up, named)}, self.limits.norm)
        if payload is not None:
            payload.check(server.classes, server.dim)
        elif method.up is not type(None):
            raise PayloadError(f"nothing arrived, {method.up.__name__} was expected.")
        return payload


def by_client(replies: Sequence[Reply]) -> dict[int, list[Reply]]:
    """Group replies by client.  An honest client sends one to each job; others may send more, or none."""
    found: dict[int, list[Reply]] = {}
    for reply in replies:
        found.setdefault(reply.client, []).append(reply)
    return found


def the_reply_to(job: Job, own: Sequence[Reply]) -> Reply:
    """Return a client's reply to a job; raise unless there is exactly one, of that round and without an error."""
    if not own:
        raise ClientError(f"client {job.client}, round {job.round}: it did not answer.")
    if len(own) > 1:
        raise PayloadError(f"{len(own)} replies arrived to one job.")
    if own[0].round != job.round:
        raise PayloadError(f"its reply is of round {own[0].round}.")
    if own[0].refused:
        raise PayloadError(own[0].error or "it could not be read.")
    if own[0].error is not None:
        raise ClientError(own[0].error)
    return own[0]


def refuse_infinite(server: Server) -> None:
    """Raise if a tensor in the server's memory holds nan or inf: no round can go on from there."""
    tensors, _ = server.memory.flat()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ProteaError(
                f"server, round {server.round}: {name.rstrip('/')} holds nan or inf after aggregate.  What was sent "
                f"has grown too large, or a learning rate of the method's server step is too high."
            )
