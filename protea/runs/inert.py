"""Pulls that do nothing: runs whose heads answer as those of Local do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from protea.federation.record import ClientRecord
from protea.runs.gain import is_local
from protea.runs.reader import RunReader

NEAR = 0.005  # shares of samples up to which two heads of a client count as equal
MOST = 0.9  # of clients whose heads are equal, from which on a pull is called inert
FAINT = 0.1  # of the gradient of cross entropy, from which on a pull is not


def inert_pulls(runs: Sequence[RunReader]) -> list[str]:
    """Say which methods that pull features have heads equal to those of Local, on the same seed and split."""
    found: dict[str, str] = {}
    for local in (run for run in runs if is_local(run.method) and run.scored):
        for run in runs:
            pull = run.config["method"].get("pull") if isinstance(run.config["method"], dict) else None
            if not pull or run is local or not run.scored or (run.seed, run.split) != (local.seed, local.split):
                continue
            clients = last_clients(run)
            equal, strength = equal_heads(clients, last_clients(local)), pull_of(clients)
            if equal is not None and equal >= MOST and (strength is None or strength < FAINT):
                known = "" if strength is None else f"  Its gradient is {strength:.2g} times that of cross entropy."
                found.setdefault(
                    run.method,
                    f"{run.method}, seed {run.seed}: the heads of {equal:.0%} of the clients are right as often as "
                    f"Local's, so its pull hardly acts.{known}  Features may be short beside the loss: try a larger "
                    f"method.pull than {pull:g}, or another adapter.",
                )
    return list(found.values())


def pull_of(clients: Sequence[ClientRecord]) -> float | None:
    """Return the median over clients of the pull's gradient, in gradients of cross entropy; None where unknown."""
    known = [each.pull for each in clients if each.pull is not None]
    return statistics.median(known) if known else None


def last_clients(run: RunReader) -> list[ClientRecord]:
    """Return the clients of the last evaluation, from disk where they are not in memory."""
    last = run.scored[-1]
    return last.clients or run.clients_in([last.round])


def equal_heads(some: Sequence[ClientRecord], others: Sequence[ClientRecord]) -> float | None:
    """Return the share of clients whose head is right on as many test samples in two rounds; None without any."""
    known = {each.client: each.parts["test"] for each in others if "test" in each.parts}
    pairs = [(each.parts["test"], known[each.client]) for each in some if each.client in known and "test" in each.parts]
    gaps = [
        abs(mine.hits["head"] - his.hits["head"]) / mine.samples
        for mine, his in pairs
        if mine.samples and "head" in mine.hits and "head" in his.hits
    ]
    return sum(gap <= NEAR for gap in gaps) / len(gaps) if gaps else None
