"""Gains as columns of tables: of methods, with where they come from, and of single clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from protea.runs.compare import Comparison
from protea.runs.gain import ClientGain, Gain
from protea.runs.settings_diff import words_of

Columns = dict[str, list[str]]


def method_columns(found: Comparison) -> Columns:
    """Format a row for each method: its gain, the two parts of it, and how many clients are better or worse."""
    kinds = {"over": f"over {found.against}", "training": "its training", "others": "the others"}
    there = {kind: name for kind, name in kinds.items() if any(kind in each.known for each in found.gains)}
    columns: Columns = {"method": [each.label for each in found.gains]}
    for kind, name in there.items():
        columns[name] = [each.known[kind].in_points() if kind in each.known else "-" for each in found.gains]
    if "over" in there:
        columns["better/worse/neither"] = [clients_told(each.over) for each in found.gains]
    return columns


def client_columns(found: Comparison) -> Columns:
    """Format a row for each client of each method: both accuracies, their difference, and what that means."""
    rows = list(client_rows(found))
    against, seeds = found.against or "reference", any(client.seed is not None for _, client in rows)
    columns: Columns = {
        "method": [label for label, _ in rows],
        "seed": [str(client.seed) for _, client in rows],
        "client": [client.name or str(client.client) for _, client in rows],
        "samples": [str(client.samples) for _, client in rows],
        against: [f"{100 * client.reference:.2f}" for _, client in rows],
        "here": [f"{100 * client.accuracy:.2f}" for _, client in rows],
        "difference": [f"{100 * client.mean:+.2f}" for _, client in rows],
        "95 %": [f"{100 * client.low:+.2f} to {100 * client.high:+.2f}" for _, client in rows],
        "": [client.verdict for _, client in rows],
    }
    return columns if seeds else {name: column for name, column in columns.items() if name != "seed"}


def client_rows(found: Comparison) -> Iterator[tuple[str, ClientGain]]:
    """Yield each row's label with each of its clients, those with the largest gain first."""
    for each in found.gains:
        for client in sorted(each.over.clients if each.over else [], key=lambda client: -client.mean):
            yield each.label, client


def plain_clients(found: Comparison) -> list[dict[str, Any]]:
    """Give the numbers of each client, not rounded, for a file."""
    return [
        {
            "method": label,
            "against": found.against,
            "seed": client.seed,
            "client": client.client,
            "name": client.name,
            "samples": client.samples,
            "reference": client.reference,
            "accuracy": client.accuracy,
            "difference": client.mean,
            "low": client.low,
            "high": client.high,
            "verdict": client.verdict,
        }
        for label, client in client_rows(found)
    ]


def plain_parts(found: Comparison, label: str) -> dict[str, Any]:
    """Give the two parts of a method's gain and its counts of clients, not rounded; None where there are none."""
    gains = {each.label: each for each in found.gains}
    known = gains[label].known if label in gains else {}
    row: dict[str, Any] = {}
    for kind in ("training", "others"):
        one = known.get(kind)
        row |= {kind: one and one.mean, f"{kind}_low": one and one.low, f"{kind}_high": one and one.high}
    over = known.get("over")
    return row | {name: over and getattr(over, name) for name in ("better", "worse", "neither")}


def clients_told(gain: Gain | None) -> str:
    """Format how many clients are better, worse and neither: ``5/2/13``."""
    return "-" if gain is None else f"{gain.better}/{gain.worse}/{gain.neither}"


def explained(found: Comparison) -> list[str]:
    """Say what the columns of gains are, and what their intervals rest on."""
    lines = [
        "In brackets the 95 % interval, by drawing seeds, clients and samples anew, in pairs of runs that answer the "
        "same samples.  better/worse: clients whose own interval lies above or below 0."
    ]
    if any({"training", "others"} & each.known.keys() for each in found.gains):
        lines.append(
            "its training: the method with every client alone, minus local.  the others: the method minus itself alone."
        )
    return lines + notes([gain for each in found.gains for gain in each.known.values()])


def notes(gains: Sequence[Gain]) -> list[str]:
    """Say who is left out of gains, and where their intervals are not of pairs of answers."""
    found = []
    if left_out := sorted({client for gain in gains for client in gain.left_out}):
        found.append(f"Left out, without test samples or not evaluated in both runs: client {words_of(left_out)}.")
    if not all(gain.paired for gain in gains):
        found.append(
            "Some runs do not record which samples were answered right: their intervals are from counts, unpaired, and "
            "wider than need be."
        )
    return found
