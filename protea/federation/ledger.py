"""What adds up over rounds: bytes that travelled, and uploads in a row that were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protea.core.payload import nbytes
from protea.evaluation.scores import ClientScores, finite
from protea.federation.jobs import Job, Reply
from protea.federation.record import ClientBytes, ClientRecord, Record


@dataclass(frozen=True)
class Strikes:
    """How many uploads in a row of each client were refused."""

    most: int  # refusals in a row, then the client is quarantined; 0 = never
    count: Counter[int] = field(default_factory=Counter)  # refusals in a row, by client

    @classmethod
    def of(cls, records: Iterable[Record], most: int) -> Strikes:
        """The strikes after these rounds."""
        found = cls(most)
        for record in records:
            found.add([c for c in record.participants if c not in record.absent], record.refused)
        return found

    def add(self, asked: Iterable[int], refused: Iterable[int]) -> None:
        """Count a round: one more for a refused upload, none any more for a good one."""
        refused = set(refused)
        for client in asked:
            self.count[client] = self.count[client] + 1 if client in refused else 0

    def out(self, client: int) -> bool:
        """Tell whether the client is in quarantine."""
        return 0 < self.most <= self.count[client]


@dataclass(frozen=True)
class Traffic:
    """Bytes of payload that each client has sent and was sent since the first round."""

    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Traffic:
        """The traffic of these rounds."""
        found = cls()
        for each in (each for record in records for each in record.clients):
            if each.bytes is not None:
                found.add(each.client, each.bytes.up, each.bytes.down)
        return found

    def add(self, client: int, up: int, down: int) -> None:
        """Count bytes that a client sent and was sent."""
        self.up[client] += up
        self.down[client] += down


def client_records(
    jobs: Sequence[Job],
    answers: Mapping[int, Sequence[Reply]],
    traffic: Traffic,
    scores: Mapping[int, ClientScores],
) -> list[ClientRecord]:
    """A record for each client that was asked to train or was evaluated, in their order.

    ``jobs`` are those of training and ``answers`` the replies to them, by client; ``traffic`` has this round in it.
    """
    found = {client: ClientRecord(**vars(each), client=client) for client, each in scores.items()}
    for job in jobs:
        client, replies = job.client, answers.get(job.client, [])
        losses = [finite(reply.metrics["loss"]) for reply in replies if "loss" in reply.metrics]
        up, down = sum(nbytes(reply.up) for reply in replies), nbytes(job.down)
        found[client] = ClientRecord(
            **vars(scores.get(client, ClientScores())),
            client=client,
            bytes=ClientBytes(up, down, traffic.up[client], traffic.down[client]),
            loss=losses[0] if losses else None,
        )
    return [found[client] for client in sorted(found)]
