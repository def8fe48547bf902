"""The table "claims of the papers" of results.md, from the table of results:  python docs/results/claims.py

A claim that one method is better than another is looked at in every setting that has both, in pairs of equal seeds.
It is *confirmed* where the 95 % interval of the difference is above zero in at least half of the settings and below
zero in none, *refuted* the other way round, and *not decided* otherwise.  A claim for which there are no runs, or one
seed alone, is listed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from courses import entry, rounds_saved
from marks import filled

from protea.core.files import write_text
from protea.runs.spread import Spread
from protea.studies.leaderboard import Board, boards
from protea.studies.result_rows import read_rows

HERE = Path(__file__).parent
PAGE = HERE.parent / "results.md"

FAIR, LONG, PARTS = "fair test", "long: ", "ablation: "  # how settings begin
MADE_BY = {  # where the runs of a kind of settings, and their commands, are described
    FAIR: "[the fair test](results/gain.md)",
    LONG: "[longer runs](results/long.md)",
    PARTS: "[longer runs](results/long.md#ablations)",
}
MANY = ("banking77", "clinc150")  # data sets with 77 and 150 classes; the others have 10 to 26


@dataclass(frozen=True)
class Claim:
    """What a paper says of two methods, in one number of their runs, in settings whose name begins so.

    A method may name fields that were changed: ``fedtgp margin=none``.  The number ``rounds`` is how many rounds sooner
    the one has what the other has at its best.  With ``by_classes`` the difference of the two is compared between data
    sets with many classes and the others.
    """

    paper: str
    says: str
    better: str
    than: str
    number: str = "own"
    settings: str = FAIR
    by_classes: bool = False


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
    Claim("ProtoNorm", "gains most over FedProto where classes are many", "protonorm", "fedproto", by_classes=True),
    Claim("ProtoNorm", "gains most over training alone where classes are many", "protonorm", "local", by_classes=True),
    Claim(
        "ProtoNorm",
        "gains most over FedProto where classes are many, at length",
        "protonorm",
        "fedproto",
        settings=LONG,
        by_classes=True,
    ),
    Claim("FedTGP", "needs fewer rounds for what FedProto has at its best", "fedtgp", "fedproto", "rounds", LONG),
    Claim("ProtoNorm", "needs fewer rounds for what FedProto has at its best", "protonorm", "fedproto", "rounds", LONG),
    Claim("FedTGP", "keeps larger margins than FedProto", "fedtgp", "fedproto", "margin", LONG),
    Claim("FedTGP", "the adaptive margin (ACL) helps", "fedtgp", "fedtgp margin=none", settings=PARTS),
    Claim("FedTGP", "the network before the prototypes helps", "fedtgp", "fedtgp mlp=false", settings=PARTS),
    Claim("FedSA", "the contrastive term helps", "fedsa", "fedsa contrast=0", settings=PARTS),
    Claim("FedSA", "calibration helps", "fedsa", "fedsa calibration=0", settings=PARTS),
    Claim("FedSA", "both together help", "fedsa", "fedsa contrast=0 calibration=0", settings=PARTS),
    Claim("FedPAGR", "alignment helps", "fedpagr", "fedpagr alignment=0", settings=PARTS),
    Claim(
        "FedPAGR",
        "the loss with the temperature is the critical part",
        "fedpagr separation=0",
        "fedpagr alignment=0",
        settings=PARTS,
    ),
    Claim("FedPAGR", "separation helps the ensemble", "fedpagr", "fedpagr separation=0", "ensemble", PARTS),
    Claim("ProtoNorm", "alignment helps", "protonorm", "protonorm alignment=none", settings=PARTS),
    Claim("ProtoNorm", "scaling FedProto up by 1.1 helps it", "fedproto scale=1.1", "fedproto", settings=PARTS),
    Claim("ProtoNorm", "scaling FedProto up by 1.4 harms it", "fedproto", "fedproto scale=1.4", settings=PARTS),
)


@dataclass(frozen=True)
class Effect:
    """The difference of the two methods of a claim in a setting: over seeds, and by which commits."""

    setting: str
    spread: Spread
    commits: Sequence[str]
    lacks: str = ""  # what there is too little of to judge by it


def effects(claim: Claim, found: Sequence[Board]) -> list[Effect]:
    """Return the difference of the two methods in every setting that has both."""
    known = [(board, pairs(claim, board)) for board in found if board.setting.startswith(claim.settings)]
    known = [(board, values) for board, values in known if values]
    if claim.by_classes:
        return by_classes(known)
    found = []
    for board, values in known:
        spread = Spread.of(list(values.values()))
        found.append(Effect(board.setting, spread, commits(board), "" if spread.count > 1 else "one seed"))
    return found


def pairs(claim: Claim, board: Board) -> dict[int, float]:
    """Return the difference of the two methods for each seed that both have."""
    if claim.number == "rounds":
        return rounds_saved(board, claim.better, claim.than)
    one, other = entry(board, claim.better), entry(board, claim.than)
    if one is None or other is None:
        return {}
    known = {row.seed: getattr(row, claim.number) for row in other.rows}
    return {
        row.seed: value - known[row.seed]
        for row in one.rows
        if (value := getattr(row, claim.number)) is not None and known.get(row.seed) is not None
    }


def by_classes(known: Sequence[tuple[Board, dict[int, float]]]) -> list[Effect]:
    """Return how much larger a difference is on data with many classes, mean over data sets, in pairs of seeds."""
    sides: tuple[list[dict[int, float]], list[dict[int, float]]] = ([], [])
    for board, values in known:
        sides[any(name in board.setting for name in MANY)].append(values)
    if not all(sides):
        return []
    seeds = sorted(set.intersection(*(set(values) for side in sides for values in side)))
    few, many = ([sum(values[seed] for values in side) / len(side) for seed in seeds] for side in sides)
    if not seeds:
        return []
    spread = Spread.of([high - low for high, low in zip(many, few, strict=True)])
    found = sorted({commit for board, _ in known for commit in commits(board)})
    kind, (others, classes) = known[0][0].setting.partition(":")[0], map(len, sides)
    lacks = "one data set with many classes" if classes < 2 else "one seed" if spread.count < 2 else ""
    return [Effect(f"{kind}: {classes} with many classes less {others} others", spread, found, lacks)]


def commits(board: Board) -> list[str]:
    """Return the commits that made the runs of a setting, where they are known."""
    return sorted({row.commit for each in board.entries for row in each.rows if row.commit})


def differences(claim: Claim, found: Sequence[Board]) -> list[Spread]:
    """Return the differences of a claim that can be judged."""
    return [each.spread for each in effects(claim, found) if not each.lacks]


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
        means += " rounds" if claim.number == "rounds" else ""
        told.append(f"| {claim.paper} | {claim.says} | {verdict(spreads)} | {counts} | {means} |")
    return told


def open_claims(found: Sequence[Board]) -> list[str]:
    """List the claims that no runs can decide yet, with what there is."""
    told = ["| paper | claim | so far |", "|---|---|---|"]
    for claim in CLAIMS:
        if differences(claim, found):
            continue
        some = "; ".join(f"{each.spread.mean:+.1f}, {each.lacks}" for each in effects(claim, found))
        told.append(f"| {claim.paper} | {claim.says} | {some or 'no runs'} |")
    return told if len(told) > 2 else ["None."]


def by_setting(found: Sequence[Board]) -> list[str]:
    """Lay out every difference with its interval, its setting, and where its command is."""
    told = ["| claim | setting | seeds | difference | made by |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        for each in effects(claim, found):
            low, high = each.spread.low, each.spread.high
            interval = "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"
            unit = " rounds" if claim.number == "rounds" else ""
            said = " ".join(word for word in (claim.paper, claim.says) if word)
            made = next(words for kind, words in MADE_BY.items() if each.setting.startswith(kind))
            made += "".join(f", `{commit}`" for commit in each.commits)
            cells = [said, each.setting, str(each.spread.count), f"{each.spread.mean:+.1f}{interval}{unit}", made]
            told.append(f"| {' | '.join(cells)} |")
    return told


def written(page: str, found: Sequence[Board]) -> str:
    """Return the page with what stands between its markers made anew."""
    parts = {"claims": lines(found), "open claims": open_claims(found), "claims by setting": by_setting(found)}
    return filled(page, {name: "\n".join(rows) for name, rows in parts.items()}, PAGE.name)


if __name__ == "__main__":
    results = boards(read_rows(HERE / "data" / "runs.parquet"))
    write_text(PAGE, written(PAGE.read_text("utf-8"), results))
