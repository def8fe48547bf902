"""Records as flat rows, for tables, and small tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from protea.federation.record import Record


def round_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each round: accuracies by rule, loss, bytes, seconds."""
    return [
        {
            "round": record.round,
            "accuracy": record.accuracy,
            "loss": record.loss,
            **({} if record.train is None else {"train": record.train}),
            **{f"test_{rule}": score.weighted for rule, score in record.test.items()},
            **{f"validation_{rule}": score.weighted for rule, score in record.validation.items()},
            **{f"ensemble_{rule}": score.ensemble for rule, score in record.shared.items()},
            **{f"server_{rule}": accuracy for rule, accuracy in record.server.items()},
            **{name: score.weighted for name, score in record.metrics.items()},
            **record.values,
            "participants": len(record.participants),
            "failures": len(record.failures),
            "bytes_up": record.bytes_up,
            "bytes_down": record.bytes_down,
            "seconds": sum(record.cost.seconds.values()),
        }
        for record in records
    ]


def client_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each client of each round that trained or was evaluated in it."""
    return [
        {
            "round": record.round,
            "client": client.client,
            "accuracy": client.accuracy,
            "loss": client.loss,
            **{f"test_{rule}": client.accuracy_by(rule, "test") for rule in record.test},
            **client.metrics,
            "bytes_up": None if client.bytes is None else client.bytes.up,
            "bytes_down": None if client.bytes is None else client.bytes.down,
        }
        for record in records
        for client in record.clients
    ]


def html_table(rows: Iterable[tuple[str, object]]) -> str:
    """Lay out names and values in two columns, for a notebook."""
    left = 'style="text-align: left"'  # notebooks put cells to the right
    cells = (f"<th {left}>{html.escape(name)}</th><td {left}>{html.escape(str(value))}</td>" for name, value in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
