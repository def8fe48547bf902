"""The ledger: what each site has sent, with its signature, so that it can be shown later who said what.

A line is written as soon as an answer has come and its signature holds, before anything is made of it.  Which of them
were used is said by the run's records.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter

from protea.config.complaints import complaint
from protea.core.errors import ConfigError
from protea.core.files import naming_file
from protea.federation.record import Record
from protea.network.trust.signatures import SignedAnswer, holds

NAME = "ledger.jsonl"
UPLOADS = ("train", "masked")  # what is aggregated: a site's own upload, or what it adds to a secure sum


@dataclass(frozen=True)
class LedgerEntry:
    """One answer of a site.  Without TLS sites have no keys, and ``signature`` and ``key`` are empty."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    time: str  # when it came, by the coordinator's clock
    task: str  # checksum of the task
    site: str
    client: NonNegativeInt  # the site's number
    asked: str  # train, evaluate, or a step of a secure sum
    round: NonNegativeInt
    size: NonNegativeInt  # of the answer, in bytes
    blake2b: str  # as in the site's own audit.jsonl
    sha256: str  # as in what is signed
    signature: str  # in hexadecimal digits
    key: str  # public, PEM, by which the signature holds

    @classmethod
    def of(cls, statement: SignedAnswer, client: int, answer: bytes, signature: bytes, key: str) -> LedgerEntry:
        """Make the entry of an answer that has just come."""
        return cls(
            dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            statement.task,
            statement.site,
            client,
            statement.asked,
            statement.round,
            len(answer),
            hashlib.blake2b(answer, digest_size=16).hexdigest(),
            statement.sha256,
            signature.hex(),
            key,
        )

    @property
    def statement(self) -> SignedAnswer:
        """What the site has signed."""
        return SignedAnswer(self.task, self.site, self.asked, self.round, self.sha256)

    @property
    def holds(self) -> bool:
        """Whether the signature is the site's, of just this answer."""
        try:
            return holds(self.statement.text, bytes.fromhex(self.signature), self.key.encode())
        except (ValueError, ConfigError):
            return False


_ENTRY = TypeAdapter(LedgerEntry)


def add_entry(path: Path, entry: LedgerEntry) -> None:
    """Append a line; it is with the operating system when this returns."""
    with naming_file(path), path.open("ab") as file:
        file.write(json.dumps(asdict(entry)).encode() + b"\n")


def read_entries(path: Path) -> Iterator[LedgerEntry]:
    """Yield the entries of a ledger; raise :class:`ConfigError` for a line that is none.

    A last line that was not written to its end is left out.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _ENTRY.validate_json(line)
            except ValueError as error:
                what = complaint(error, "it")
                raise ConfigError(f"{path}, line {number} is no entry of a ledger: {what}.") from error


def used(records: Iterable[Record]) -> dict[tuple[int, int], str]:
    """Return by round and client what came of an upload: ``accepted``, ``refused``, or ``not used``."""
    found = {}
    for record in records:
        for client in record.participants:
            out = client in record.failures or client in record.absent
            found[record.round, client] = "refused" if client in record.refused else "not used" if out else "accepted"
    return found


def last_of_each(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Drop all but the last answer to the same job: a job that came again was answered again, by another signature."""
    found = {(entry.round, entry.client, entry.asked): entry for entry in entries}
    return sorted(found.values(), key=lambda entry: (entry.round, entry.client, entry.time))


def outcome(entry: LedgerEntry, came: Mapping[tuple[int, int], str]) -> str:
    """Return what came of an answer, by the records of rounds."""
    if (entry.round, entry.client) not in came:
        return "in no record"
    return came[entry.round, entry.client] if entry.asked in UPLOADS else "noted"


def spans(rounds: Sequence[int]) -> str:
    """Write ascending rounds in short.

    >>> spans([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    parts: list[list[int]] = []
    for each in rounds:
        if parts and parts[-1][-1] == each - 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
