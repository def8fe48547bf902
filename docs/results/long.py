"""The numbers of long.md: choose fields, collect finished runs, and write the tables of the page.

python docs/results/long.py chosen runs/long/choose/cifar10 examples/long/chosen/cifar10.txt
python docs/results/long.py collect runs/long      # its folders table, curve and ablation -> data/runs.parquet
python docs/results/long.py page                   # data/runs.parquet -> the tables of long.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from protea.config import registry
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs.reader import RunReader, find
from protea.runs.spread import Spread
from protea.studies.leaderboard import Board, Entry, boards
from protea.studies.result_rows import ResultRow, merged, read_rows, rows_of, write_rows

HERE = Path(__file__).parent
PAGE, TABLE = HERE / "long.md", HERE / "data" / "runs.parquet"
KINDS = {"table": "long", "curve": "curve", "ablation": "ablation"}  # folders of long.sh, and how settings begin
CHOICES = {  # the field that is chosen for each method
    "fedproto": "pull", "fedtgp": "pull", "fedsa": "pull", "protonorm": "scale", "fedpagr": "temperature",
}  # fmt: skip
PLANNED = {  # runs of a seed, by what a setting's name holds: Local and seven methods; seven alone; others
    "long: banking77": 7 + 6 + 9, "long: clinc150": 7 + 6 + 9, "long: cifar10, 10,000 samples, 20": 7 + 6 + 1,
    "long: fashion-mnist, 7,000": 7 + 6 + 1, "long: cifar10, 10,000 samples, 10": 8, "long: fashion-mnist, 10,000": 8,
    "long: mtsamples": 7, "long: ohsumed": 7,
}  # fmt: skip
HOW_OFTEN = {"banking77": 2, "clinc150": 2, "samples, 10": 2, "fashion-mnist, 10,000": 2}  # partitions of a setting
SEEDS = 3
SERVERS = ("fedprotokd", "fedpkd", "fed2pkd")


def chosen(folder: Path) -> str:
    """Say what is best on validation samples in the last round, as arguments of a sweep; of equal ones, the default."""
    best: dict[str, tuple[float, bool, str]] = {}
    for path in find([folder]):
        run = RunReader.read(path, clients=False)
        if run.summary is None:
            raise ConfigError(f"{path} has not ended, so there is nothing to choose among yet.  Call the stage again.")
        name = run.method.partition("@")[0]
        field = CHOICES.get(name, "")
        value = run.config["method"].get(field)
        usual = run.method == "local" or value == getattr(registry.find("methods", name)(), field, None)
        words = f"method.name={run.method}" if name == "local" else f"{name}:method.{field}={value:g}"
        score = (run.rounds[-1].validation["method"].weighted, usual, words)
        best[name] = max(score, best.get(name, score))
    return " ".join(words for _, _, words in best.values())


def collected(folder: Path) -> list[ResultRow]:
    """Read the finished runs of long.sh; the name of a setting begins with the kind of its folder."""
    found = []
    for name, kind in KINDS.items():
        if (folder / name).is_dir():
            found += [replace(row, setting=f"{kind}: {row.setting}") for row in rows_of([folder / name])]
    return found


def last_rows(rows: Iterable[ResultRow], kind: str) -> list[Board]:
    """Return the boards of the settings of a kind."""
    return boards(row for row in rows if row.setting.startswith(f"{kind}: "))


def state(found: Sequence[Board]) -> str:
    """Say how many of the planned runs there are."""
    planned = sum(
        count * next((times for words, times in HOW_OFTEN.items() if words in name), 1) * SEEDS
        for name, count in PLANNED.items()
    )
    made = sum(len(entry.rows) for board in found for entry in board.entries)
    settings = sum(
        next((times for words, times in HOW_OFTEN.items() if words in name), 1) for name in PLANNED
    )  # each partition is one
    return f"**State: of {planned} planned runs, {made} are made; {len(found)} of {settings} settings have some.**"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def settings_of(found: Sequence[Board]) -> str:
    """Lay out a table for each setting, as the leaderboard has them; those of servers have their own below."""
    parts = []
    for board in found:
        commits = sorted({row.commit for entry in board.entries for row in entry.rows if row.commit})
        parts += [f"### {board.setting.partition(': ')[2]}", table(*board.table())]
        parts += [f"Made by {', '.join(f'`{each}`' for each in commits)}."] if commits else []
    return "\n\n".join(parts) or "None yet."


def entry(board: Board, method: str) -> Entry | None:
    """Find a method by its name and variant, whatever was chosen for it."""
    return next((each for each in board.entries if each.method.split()[0] == method), None)


def servers(found: Sequence[Board]) -> str:
    """Compare the server's model with its teacher and with single clients, on the shared test set, by setting."""
    rows = []
    for board in found:
        for each in board.entries:
            if each.method.split("@")[0].split()[0] not in SERVERS or each.mean("server") is None:
                continue
            pairs = [row.server - row.single for row in each.rows if None not in (row.server, row.single)]
            numbers = [each.spread(name) for name in ("server", "teacher", "single", "ensemble")]
            over = shown(Spread.of(pairs)) if pairs else "-"
            name = board.setting.partition(": ")[2]
            rows.append([name, each.method.split()[0], str(len(each.rows)), *map(plain, numbers), over])
    head = ["setting", "method", "seeds", "server", "teacher", "a client", "ensemble", "server minus a client"]
    return table(head, rows) if rows else "None yet."


def curves(found: Sequence[Board]) -> str:
    """Show own accuracy, and the server's loss where it is the question, for each value of a field."""
    parts = []
    for board in found:
        rows = [[each.method, str(len(each.rows)), plain(each.spread("own")), plain(each.spread("ensemble"))]
                for each in sorted(board.entries, key=lambda each: natural(each.method))]  # fmt: skip
        parts += [f"### {board.setting.partition(': ')[2]}", table(["field", "seeds", "own rule", "ensemble"], rows)]
    return "\n\n".join(parts) or "None yet."


def natural(words: str) -> list[tuple[int, float, str]]:
    """Return a key by which 3 stands before 10."""
    return [
        (0, float(each), "") if re.fullmatch(r"[\d.]+", each) else (1, 0.0, each) for each in re.split(r"[ =]", words)
    ]


def plain(found: Spread | None) -> str:
    """Format a mean with half its interval."""
    if found is None:
        return "-"
    return f"{found.mean:.1f}" + ("" if found.margin is None else f" ± {found.margin:.1f}")


def shown(found: Spread) -> str:
    """Format a difference with its interval, bold where that leaves out zero."""
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f}"
    text = f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def written(page: str, rows: Sequence[ResultRow]) -> str:
    """Return the page with what stands between its markers made anew."""
    long = last_rows(rows, "long")
    parts = {
        "state": state(long),
        "settings": settings_of(long),
        "servers": servers(long),
        "curves": curves(last_rows(rows, "curve")),
        "ablations": curves(last_rows(rows, "ablation")),
    }
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not begin or not end:
            raise ConfigError(f"{PAGE.name} lacks the marks of {name!r}, between which a table should stand.")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def main(arguments: Sequence[str]) -> None:
    """Do what the first argument says: chosen, collect or page."""
    match arguments:
        case ["chosen", folder, file]:
            write_text(Path(file), chosen(Path(folder)) + "\n")
        case ["collect", folder]:
            write_rows(TABLE, merged(read_rows(TABLE), collected(Path(folder))))
        case ["page"]:
            write_text(PAGE, written(PAGE.read_text("utf-8"), read_rows(TABLE)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
