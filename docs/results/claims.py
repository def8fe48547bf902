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


LONG, PARTS = "long: ", "ablation: "  # how the settings of long.md begin


@dataclass(frozen=True)
class Claim:
    """What a paper says of two methods, in one number of their runs, in settings whose name begins so.

    A method may name fields that were changed: ``fedtgp margin=none``.
    """

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
    Claim("FedTGP", "is better than FedProto, at length", "fedtgp", "fedproto", settings=LONG),
    Claim("ProtoNorm", "is better than FedProto, at length", "protonorm", "fedproto", settings=LONG),
    Claim("ProtoNorm", "is better than FedTGP, at length", "protonorm", "fedtgp", settings=LONG),
    Claim("FedSA", "is better than FedTGP, at length", "fedsa", "fedtgp", settings=LONG),
    Claim("FedPAGR", "has a better ensemble than FedTGP, at length", "fedpagr", "fedtgp", "ensemble", LONG),
    Claim("", "FedTGP is better than training alone, at length", "fedtgp", "local", settings=LONG),
    Claim("ours", "FedLOO is better than training alone, at length", "fedloo", "local", settings=LONG),
    Claim("FedProtoKD", "has a better server than FedPKD", "fedprotokd", "fedpkd", "server", LONG),
    Claim("FedProtoKD", "has a better server than Fed2PKD", "fedprotokd", "fed2pkd@student", "server", LONG),
    Claim("FedProtoKD", "a margin for each class helps its server", "fedprotokd", "fedprotokd@zeta", "server", LONG),
    Claim("FedProtoKD", "importance helps its server", "fedprotokd", "fedprotokd@no_importance", "server", LONG),
    Claim("ours", "a teacher of probabilities helps its server", "fedprotokd@mixture", "fedprotokd", "server", LONG),
    Claim("FedTGP", "the adaptive margin (ACL) helps", "fedtgp", "fedtgp margin=none", settings=PARTS),
    Claim("FedTGP", "the network before the prototypes helps", "fedtgp", "fedtgp mlp=false", settings=PARTS),
    Claim("FedSA", "the contrastive term helps", "fedsa", "fedsa contrast=0", settings=PARTS),
    Claim("FedSA", "calibration helps", "fedsa", "fedsa calibration=0", settings=PARTS),
    Claim("FedPAGR", "alignment helps", "fedpagr", "fedpagr alignment=0", settings=PARTS),
    Claim("FedPAGR", "separation helps the ensemble", "fedpagr", "fedpagr separation=0", "ensemble", PARTS),
    Claim("ProtoNorm", "alignment helps", "protonorm", "protonorm alignment=none", settings=PARTS),
    Claim("ProtoNorm", "scaling FedProto up by 1.1 helps it", "fedproto scale=1.1", "fedproto", settings=PARTS),
    Claim("ProtoNorm", "scaling FedProto up by 1.4 harms it", "fedproto", "fedproto scale=1.4", settings=PARTS),
)


def entry(board: Board, method: str) -> Entry | None:
    """Find a method in a setting: by its name and the fields named, with those that were chosen for it there."""
    if method == "local":
        return board.local
    name, *fields = method.split()
    found = [
        each
        for each in board.entries
        if (words := each.method.split())[0] == name and words[-1] != "alone" and set(fields) <= set(words)
    ]
    return min(found, key=lambda each: len(each.method.split()), default=None)  # nothing else was changed


def differences(claim: Claim, found: Sequence[Board]) -> list[Spread]:
    """Return the difference of the two methods in every setting that has both over several seeds."""
    spreads = []
    for board in found:
        one, other = entry(board, claim.better), entry(board, claim.than)
        if not board.setting.startswith(claim.settings) or one is None or other is None:
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
