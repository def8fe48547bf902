"""What of the replies reaches a method's ``aggregate``: nothing that is not as it was declared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from protea.config.sections import Limits
from protea.config.units import in_bytes
from protea.core.errors import ClientError, PayloadError, ProteaError
from protea.core.method import Method, Upload
from protea.core.payload import nbytes, refuse_large, unpack
from protea.core.server import Server
from protea.federation.faults import Absence
from protea.federation.jobs import Job, Reply


@dataclass(frozen=True)
class Accepted:
    """Uploads that may be used, and why others may not."""

    uploads: list[Upload[Any]] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)  # clients whose reply was not as declared


def accept(
    method: Method[Any, Any],
    server: Server,
    limits: Limits,
    jobs: Sequence[Job],
    answers: Mapping[int, Sequence[Reply]],
    absent: Mapping[int, Absence],
) -> Accepted:
    """The good uploads among the ``answers`` of each client to its job; those of ``absent`` clients came too late."""
    found = Accepted()
    for job in jobs:
        try:
            reply = the_one_to(job, answers.get(job.client, []))
            payload = checked(method, server, limits, reply)
            if job.client not in absent:
                found.uploads.append(Upload(job.client, payload, reply.samples))
        except PayloadError as error:
            found.failures[job.client] = f"client {job.client}, round {job.round}: {error}"
            found.refused.append(job.client)
        except ClientError as error:
            found.failures[job.client] = str(error)
    return found


def by_client(replies: Sequence[Reply]) -> dict[int, list[Reply]]:
    found: dict[int, list[Reply]] = {}
    for reply in replies:
        found.setdefault(reply.client, []).append(reply)
    return found


def the_one_to(job: Job, own: Sequence[Reply]) -> Reply:
    """The client's reply to a job, if there is one, only one, and it is of that round."""
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


def checked(method: Method[Any, Any], server: Server, limits: Limits, reply: Reply) -> Any:
    """The upload in a reply, if it is as declared."""
    if (size := nbytes(reply.up)) > in_bytes(limits.upload):
        raise PayloadError(f"{size:,} bytes arrived; limits.upload is {limits.upload}.")
    refuse_large(reply.up, limits.norm)
    payload = unpack(method.up, {name: t.to(server.device) for name, t in reply.up.items()})
    if payload is not None:
        payload.check(server.classes, server.dim)
    elif method.up is not type(None):
        raise PayloadError(f"nothing arrived, {method.up.__name__} was expected.")
    if reply.samples < 1:
        raise PayloadError(f"{reply.samples} samples were reported; at least one is needed.")
    if not all(math.isfinite(value) for value in reply.metrics.values()):
        raise PayloadError(f"its loss is not finite: {reply.metrics}.")
    method.check(server, payload)
    return payload


def refuse_infinite(server: Server) -> None:
    """Raise if what the server remembers is not finite: a round must not go on from there."""
    tensors, _ = server.memory.flat()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ProteaError(
                f"server, round {server.round}: {name.rstrip('/')} holds nan or inf after aggregate.  What was sent "
                f"has grown too large, or a learning rate of the method's server step is too high."
            )
