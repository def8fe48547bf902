"""How many SGD steps clients make: what rounds of unlike lengths are compared by.  Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protea.federation.record import DataRecord, Record


def epoch_steps(samples: int, batch: int, last: str = "keep") -> int:
    """Count the batches of an epoch: a last one that is not full is kept or dropped, one of one sample joins another.

    >>> [epoch_steps(samples, 10) for samples in (7, 20, 21, 25)], epoch_steps(25, 10, "drop")
    ([1, 2, 2, 3], 2)
    """
    full, rest = divmod(samples, batch)
    if not full:
        return 1 if rest else 0
    return full + (rest > (1 if batch > 1 else 0) and last == "keep")


def steps_by_client(config: Mapping[str, Any], data: DataRecord) -> dict[int, int]:
    """Count each client's steps on its own samples in a round that it takes part in; empty where nobody knows."""
    training = config.get("training", {})
    sizes = {client.client: sum(client.train) for client in data.clients}
    if not any(sizes.values()) or not training.get("batch"):
        return {}
    batch, epochs, last = int(training["batch"]), int(training.get("epochs", 1)), str(training.get("last", "keep"))
    return {client: epochs * epoch_steps(size, batch, last) for client, size in sizes.items()}


def mean_steps(by_client: Mapping[int, int], records: Sequence[Record]) -> int | None:
    """Count the steps that a client has made on its own samples in these rounds, mean over clients; None if unknown.

    Steps on public samples, and those of a second model, are beside these.  A client that dropped out made none.
    """
    if not by_client:
        return None
    made = sum(
        by_client.get(client, 0)
        for record in records
        for client in record.participants
        if record.absent.get(client, "late") == "late"
    )
    return int(made / len(by_client) + 0.5)


def rounds_and_steps(rounds: int, steps: int | None) -> str:
    """Say how long clients trained.

    >>> rounds_and_steps(10, 2700), rounds_and_steps(10, None)
    ('10 rounds, 2,700 steps a client', '10 rounds')
    """
    return f"{rounds} rounds" if steps is None else f"{rounds} rounds, {steps:,} steps a client"
