"""``protea federation ledger``: who took part in which rounds, and whether every signature holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protea.core.errors import ConfigError, ProteaError, nearest
from protea.core.files import write_text
from protea.federation.record import Record
from protea.network.coordinator.directory import CoordinatorDirectory, Invited
from protea.network.coordinator.ledger import (
    NAME,
    UPLOADS,
    LedgerEntry,
    last_of_each,
    outcome,
    read_entries,
    spans,
    used,
)
from protea.network.trust.signatures import fingerprint
from protea.runs.directory import RunDirectory


def show_ledger(console: Console, path: Path, names: Sequence[str], out: Path | None) -> None:
    """Show a table of sites, and of each named site every answer; raise if a signature does not hold."""
    directory = CoordinatorDirectory.open(path)
    guests = directory.guests
    sites = guests.sites
    for name in names:
        if name not in (there := [site.name for site in sites]):
            raise ConfigError(f"There is no site {name!r} in {path}.  {nearest(name, there)}")
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already.  Choose another name.")
    entries = last_of_each(read_entries(path / "run" / NAME))
    metrics = RunDirectory.open(path / "run").metrics() if (path / "run" / "config.toml").is_file() else iter(())
    came = used(Record.read(metrics))
    found = [(entry, outcome(entry, came)) for entry in entries]
    doubtful = [entry for entry in entries if guests.tls and not known(entry, sites)]
    console.print(table_of_sites(sites, found))
    for name in names:
        console.print(table_of_answers([(entry, what) for entry, what in found if entry.site == name]))
    if out is not None:
        write_text(out, "".join(json.dumps({**asdict(entry), "outcome": what}) + "\n" for entry, what in found))
        console.print(f"Written: {out}, {len(found):,} lines", markup=False, highlight=False, soft_wrap=True)
    if doubtful:
        first = doubtful[0]
        raise ProteaError(
            f"{len(doubtful)} of {len(entries)} signatures do not hold; the first is of {first.site}, {first.asked}, "
            f"round {first.round}.  {path / 'run' / NAME} was changed after it was written, or federation.json was."
        )
    words = (
        f"All {len(entries):,} signatures hold." if guests.tls else "Nothing is signed: without TLS sites have no keys."
    )
    console.print(words, markup=False, highlight=False, soft_wrap=True)


def known(entry: LedgerEntry, sites: Sequence[Invited]) -> bool:
    """Whether an answer is signed by a key that its site has, or had."""
    site = sites[entry.client] if entry.client < len(sites) else None
    return site is not None and site.name == entry.site and entry.key in (site.key, *site.former) and entry.holds


def table_of_sites(sites: Sequence[Invited], found: Sequence[tuple[LedgerEntry, str]]) -> Table:
    """Lay out who was invited, and the rounds in which an upload of theirs was accepted."""
    table = Table(box=SIMPLE)
    for column in ("site", "state", "key", "made by", "rounds", "uploads", "bytes"):
        table.add_column(column, justify="right" if column in ("uploads", "bytes") else "left")
    for number, site in enumerate(sites):
        own = [
            entry for entry, what in found if entry.client == number and what == "accepted" and entry.asked in UPLOADS
        ]
        rounds = sorted({entry.round for entry in own})
        row = [
            site.name,
            "withdrawn" if site.removed else "invited",
            "" if site.key is None else fingerprint(site.key.encode()),
            "" if site.key is None else "site" if site.own else "coordinator",
            spans(rounds) or "none",
            f"{len(rounds):,}",
            f"{sum(entry.size for entry in own):,}",
        ]
        table.add_row(*(Text(cell) for cell in row))
    return table


def table_of_answers(found: Sequence[tuple[LedgerEntry, str]]) -> Table:
    """Lay out the answers of one site."""
    table = Table(box=SIMPLE)
    for column in ("round", "site", "what", "bytes", "blake2b (as in audit.jsonl)", "outcome", "signature"):
        table.add_column(column, justify="right" if column in ("round", "bytes") else "left")
    for entry, what in found:
        signature = "none" if not entry.signature else f"{entry.signature[:16]}..." if entry.holds else "DOES NOT HOLD"
        row = [str(entry.round), entry.site, entry.asked, f"{entry.size:,}", entry.blake2b, what, signature]
        table.add_row(*(Text(cell) for cell in row))
    return table
