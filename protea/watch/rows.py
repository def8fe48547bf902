"""A run in one line of the live page, and what it refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from protea.federation.record import Record
from protea.report.content import majority, rounded
from protea.runs.reader import RunReader
from protea.runs.warnings import warnings

Plain = dict[str, Any]

QUIET = 60.0  # seconds without news, at least, after which a run counts as stopped
ROUNDS = 10  # so many times its usual round must pass too
PACE = 5  # rounds, the latest, whose time says how long the others will take
REFUSALS = 200  # lines of the log that a page shows, the latest


def row(run: RunReader, touched: float, failed: str | None, now: float | None = None) -> Plain:
    """How far a run is, what it reached, what it cost and what is wrong with it.

    ``touched`` is when its files were last written, ``failed`` the error that ended it.
    """
    last = run.rounds[-1] if run.rounds else None
    planned, done = run.config.get("rounds"), last.round if last else 0
    scored = run.scored
    reached = run.ended.get("accuracy", scored[-1].accuracy if scored else None)
    pace = seconds_of(run.rounds[-PACE:]) / len(run.rounds[-PACE:]) if run.rounds else 0.0
    state = state_of(run, failed, (time.time() if now is None else now) - touched, pace)
    return {
        "method": run.method,
        "seed": run.seed,
        "state": state,
        "touched": int(touched),
        "round": done,
        "planned": planned,
        "accuracy": rounded(reached),
        "loss": rounded(next((record.loss for record in reversed(run.rounds) if record.loss is not None), None)),
        "sent": last.total_up + last.total_down if last else 0,
        "seconds": round(seconds_of(run.rounds), 1),
        "left": round(pace * max(0, planned - done), 1) if state == "running" and pace and planned else None,
        "warnings": doubts(run),
        "error": failed,
        "refused": sum(len(record.refused) for record in run.rounds),
        "failures": sum(len(record.failures) for record in run.rounds),
    }


def seconds_of(records: Sequence[Record]) -> float:
    """The time of some rounds."""
    return sum(sum(record.cost.seconds.values()) for record in records)


def state_of(run: RunReader, failed: str | None, quiet: float, pace: float) -> str:
    """``ended``, ``failed``, ``running``, or ``stopped`` if nothing was written for long.

    Nobody asks the process, which may be on another machine.
    """
    if run.summary is not None:
        return "ended"
    if failed is not None:
        return "failed"
    return "running" if quiet < max(QUIET, ROUNDS * pace) else "stopped"


def doubts(run: RunReader) -> list[str]:
    """What looks wrong: as the run said at its end, or as its rounds so far would say."""
    if run.summary is not None:
        return [str(text) for text in run.summary.get("warnings", {}).values()]
    return list(warnings(run.rounds, majority(run), run.data.classes).values())


def refusals(run: RunReader) -> list[Plain]:
    """Clients whose work is not in a round, and why, the latest first: refused, failed, or absent."""
    sites = {each.client: each.site for each in run.data.clients}
    found = []
    for record in reversed(run.rounds):
        for why, kind in ((record.failures, "failed"), (record.absent, "absent")):
            for client, text in why.items():
                refused = kind == "failed" and client in record.refused
                found.append(
                    {
                        "round": record.round,
                        "client": sites.get(client) or f"client {client}",
                        "kind": "refused" if refused else kind,
                        "why": (text.strip().splitlines() or [""])[0][:300],
                    }
                )
        if len(found) >= REFUSALS:
            break
    return found[:REFUSALS]
