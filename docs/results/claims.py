"""The table "claims of the papers" of results.md, from the table of results:  python docs/results/claims.py

A claim that one method is better than another is looked at in every setting that has both, in pairs of equal seeds.
It is *confirmed* where the 95 % interval of the difference is above zero in at least half of the settings and below
zero in none, *refuted* the other way round, and *not decided* otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protea.core.files import write_text
from protea.runs.spread import Spread
from protea.studies.leaderboard import Board, Entry, boards
from protea.studies.result_rows import read_rows

HERE = Path(__file__).parent
PAGE = HERE.parent / "results.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"


@dataclass(frozen=True)
class Claim:
    """What a paper says of two methods, in one number of their runs, in settings whose name begins so."""

    paper: str
    says: str
    better: str
    than: str
    number: str = "own"
    settings: str = "fair test"


CLAIMS = (
    Claim("FedTGP", "is better than FedProto", "fedtgp", "fedproto"),
    Claim("ProtoNorm", "is better than FedProto", "protonorm", "fedproto"),
    Claim("ProtoNorm", "is better than FedTGP", "protonorm", "fedtgp"),
    Claim("FedSA", "is better than FedProto", "fedsa", "fedproto"),
    Claim("FedSA", "is better than FedTGP", "fedsa", "fedtgp"),
    Claim("FedPAGR", "is better than FedProto, on own data", "fedpagr", "fedproto"),
    Claim("FedPAGR", "is better than FedTGP, on own data", "fedpagr", "fedtgp"),
    Claim("FedPAGR", "has a better ensemble than FedProto", "fedpagr", "fedproto", "ensemble"),
    Claim("FedPAGR", "has a better ensemble than FedTGP", "fedpagr", "fedtgp", "ensemble"),
    Claim("", "FedProto is better than training alone", "fedproto", "local"),
    Claim("", "FedTGP is better than training alone", "fedtgp", "local"),
    Claim("", "ProtoNorm is better than training alone", "protonorm", "local"),
    Claim("", "FedSA is better than training alone", "fedsa", "local"),
    Claim("", "FedPAGR is better than training alone", "fedpagr", "local"),
    Claim("ours", "FedLOO is better than training alone", "fedloo", "local"),
    Claim("FedTGP", "is better than FedProto, after 300 rounds", "fedtgp", "fedproto", settings="300 rounds"),
    Claim("ProtoNorm", "is better than FedTGP, after 300 rounds", "protonorm", "fedtgp", settings="300 rounds"),
    Claim("FedSA", "is better than FedTGP, after 300 rounds", "fedsa", "fedtgp", settings="300 rounds"),
    Claim("ours", "FedLOO is better than training alone, after 300 rounds", "fedloo", "local", settings="300 rounds"),
)


def entry(board: Board, method: str) -> Entry | None:
    """Find a method in a setting: by its name, with the fields that were chosen for it there."""
    if method == "local":
        return board.local
    found = [each for each in board.entries if each.method.split()[0] == method and not each.method.endswith("alone")]
    return found[0] if found else None


def differences(claim: Claim, found: Sequence[Board]) -> list[Spread]:
    """Return the difference of the two methods in every setting that has both over several seeds."""
    spreads = []
    for board in found:
        one, other = entry(board, claim.better), entry(board, claim.than)
        if claim.settings not in board.setting or one is None or other is None:
            continue
        known = {row.seed: getattr(row, claim.number) for row in other.rows}
        pairs = [
            value - known[row.seed]
            for row in one.rows
            if (value := getattr(row, claim.number)) is not None and known.get(row.seed) is not None
        ]
        if len(pairs) > 1:
            spreads.append(Spread.of(pairs))
    return spreads


def verdict(found: Sequence[Spread]) -> str:
    """Judge a claim by the rule that stands at the top of this file."""
    above = sum(each.low is not None and each.low > 0 for each in found)
    below = sum(each.high is not None and each.high < 0 for each in found)
    if 2 * above >= len(found) and not below:
        return "**confirmed**"
    return "**refuted**" if 2 * below >= len(found) and not above else "not decided"


def lines(found: Sequence[Board]) -> list[str]:
    """Return the lines of the table."""
    told = ["| paper | claim | verdict | above, level, below | mean differences, in points |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        spreads = differences(claim, found)
        if not spreads:
            continue
        above = sum(each.low is not None and each.low > 0 for each in spreads)
        below = sum(each.high is not None and each.high < 0 for each in spreads)
        counts = f"{above}, {len(spreads) - above - below}, {below}"
        means = " ".join(f"{each.mean:+.1f}" for each in sorted(spreads, key=lambda each: each.mean))
        told.append(f"| {claim.paper} | {claim.says} | {verdict(spreads)} | {counts} | {means} |")
    return told


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = "\n".join(lines(boards(read_rows(HERE / "data" / "runs.parquet"))))
    write_text(PAGE, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
