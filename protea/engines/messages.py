"""Jobs and replies as bytes, for engines whose clients are in other processes or on other machines.

Beside the tensors a message has a few plain values.  They are checked here: every name, and the type of every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from protea.core.errors import PayloadError
from protea.core.message import read_message, shortened, to_bytes
from protea.federation.jobs import Job, JobKind, Reply

WORDS = 10_000  # most characters of an error; of a longer one the end is kept


def readable(text: str) -> str:
    """Give text that may be shown on a terminal or written to a file, whoever sent it."""
    readable = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text[-WORDS:])
    return readable if readable.strip() else "no reason was given."


Count = Annotated[int, Field(ge=0, lt=2**31)]  # what a tensor of counts or a name of a file can hold, with room
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Words = Annotated[str, AfterValidator(readable)]


class AboutJob(TypedDict):
    """The values of a job beside its tensors."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[misc]

    task: JobKind
    round: Count
    client: Count


class AboutReply(TypedDict):
    """The values of a reply beside its tensors."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[misc]

    client: Count
    round: Count
    samples: Count
    metrics: dict[str, float]
    seconds: Measure
    process: Whole
    memory: Whole
    error: Words | None


_JOB, _REPLY = TypeAdapter(AboutJob), TypeAdapter(AboutReply)


def job_to_bytes(job: Job) -> bytes:
    """Encode a job."""
    return to_bytes(job.down, task=job.task, round=job.round, client=job.client)


def job_from_bytes(message: bytes, limit: int | None = None) -> Job:
    """Decode a job; :class:`PayloadError` for anything but a job of ``limit`` bytes at most."""
    down, about = read_message(message, limit)
    return Job(down=down, **_checked(_JOB, about))


def reply_to_bytes(reply: Reply) -> bytes:
    """Encode a reply."""
    return to_bytes(reply.up, **{name: getattr(reply, name) for name in AboutReply.__annotations__})


def reply_from_bytes(message: bytes, limit: int | None = None) -> Reply:
    """Decode a reply; :class:`PayloadError` for anything but a reply of ``limit`` bytes at most."""
    up, about = read_message(message, limit)
    return Reply(up=up, **_checked(_REPLY, about))


def joined(parts: Sequence[bytes]) -> bytes:
    """Join several messages to one: each after its length, in 8 bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def parted(whole: bytes) -> list[bytes]:
    """Take apart what :func:`joined` made; :class:`PayloadError` for anything else."""
    parts, at = [], 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "little")
        if at + 8 + size > len(whole):
            raise PayloadError(f"a message of {len(whole)} bytes arrived that is not whole.")
        parts.append(whole[at + 8 : at + 8 + size])
        at += 8 + size
    return parts


def _checked(kind: TypeAdapter[Any], about: dict[str, Any]) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = kind.validate_python(about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PayloadError(
            f"what is said beside the tensors is not as agreed: {shortened(readable(where))}: {first['msg']}."
        ) from error
    return checked
