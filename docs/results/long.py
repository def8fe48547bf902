"""The numbers of long.md: choose fields, collect finished runs, and write the tables of the page.

python docs/results/long.py chosen runs/long/choose/cifar10 examples/long/chosen/cifar10.txt
python docs/results/long.py collect runs/long      # its folders table, curve and ablation -> data/runs.parquet
python docs/results/long.py page                   # data/runs.parquet -> the tables of long.md, and long/*.svg

Both may be called at any time: what has not ended is left out, and the page says how much is there.  ``page`` needs
the extra plots.  All pages at once: docs/results/redraw.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from courses import table_of_rounds
from drawings import NUMBERS, Figure, draw, figures, slug
from marks import filled

from protea.config import registry
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs.reader import RunReader, find
from protea.runs.spread import Spread
from protea.studies.leaderboard import Board, boards
from protea.studies.result_rows import ResultRow, merged, read_rows, rows_of, write_rows

HERE = Path(__file__).parent
PAGE, TABLE, PICTURES = HERE / "long.md", HERE / "data" / "runs.parquet", HERE / "long"
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
SAME = {"fedpagr@paper-text": "fedpagr temperature=0.5"}  # what a choice of values makes of it, and not another method
STAGES = {  # which stage of long.sh makes a setting, by what its name holds
    "samples, 10 clients": "distil", "banking77": "many", "clinc150": "many", "cifar10": "cifar10",
    "fashion-mnist": "fashion", "mtsamples": "texts", "ohsumed": "texts",
}  # fmt: skip
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
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder.  Give the one that examples/long/long.sh wrote.")
    found = []
    for name, kind in KINDS.items():
        ended = [path.parent for path in sorted((folder / name).glob("*/*/summary.json"))]  # others may be begun
        if ended:
            found += [
                replace(row, setting=f"{kind}: {row.setting}", method=named(row.method)) for row in rows_of(ended)
            ]
    return found


def named(method: str) -> str:
    """Name a method with the value that was chosen for it, also where that is what a variant has."""
    first, _, rest = method.partition(" ")
    return " ".join(word for word in (SAME.get(first, first), rest) if word)


def last_rows(rows: Iterable[ResultRow], kind: str) -> list[Board]:
    """Return the boards of the settings of a kind."""
    return boards(row for row in rows if row.setting.startswith(f"{kind}: "))


def planned(name: str) -> tuple[int, int]:
    """Return how many runs of a seed a setting has, and in how many partitions; of a name that PLANNED has."""
    return PLANNED[name], next((times for words, times in HOW_OFTEN.items() if words in name), 1)


def state(found: Sequence[Board]) -> str:
    """Say how many of the planned runs there are, and of which settings."""
    every = sum(count * times * SEEDS for count, times in map(planned, PLANNED))
    made = sum(len(entry.rows) for board in found for entry in board.entries)
    settings = sum(times for _, times in map(planned, PLANNED))  # each partition is one
    line = f"**State: of {every} planned runs, {made} are made; {len(found)} of {settings} settings have some.**"
    rows = []
    for board in found:
        name = next((name for name in PLANNED if board.setting.startswith(name)), None)
        counted = [len(each.rows) for each in board.entries]
        seeds = sorted({row.seed for each in board.entries for row in each.rows})
        wanted = "-" if name is None else str(PLANNED[name] * SEEDS)
        rows.append([title(board), str(sum(counted)), wanted, ", ".join(map(str, seeds))])
    return "\n\n".join([line, *([table(["setting", "runs made", "planned", "seeds"], rows)] if rows else [])])


def title(board: Board) -> str:
    """Return a setting's name without its kind."""
    return board.setting.partition(": ")[2]


def made_by(board: Board, stage: str | None = None) -> str:
    """Say which command and which commits made the runs of a setting."""
    stage = stage or next((stage for words, stage in STAGES.items() if words in board.setting), "STAGE")
    seeds = sorted({row.seed for each in board.entries for row in each.rows})
    commits = sorted({row.commit for each in board.entries for row in each.rows if row.commit})
    command = f"Command: `bash examples/long/long.sh runs/long {stage} {' '.join(map(str, seeds))}`."
    return f"Made by {', '.join(f'`{each}`' for each in commits)}. {command}" if commits else command


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def settings_of(found: Sequence[Board], drawn: Iterable[str] = ()) -> str:
    """Lay out for each setting a table, as the leaderboard has it, its curves, its gains, and rounds to a target."""
    parts = []
    for board in found:
        parts += [f"### {title(board)}", table(*board.table())]
        parts += [picture(name, board) for name in drawn if name.rpartition("-")[0] == slug(board)]
        if rows := gains(board):
            head = ["method", "minus Local", "its training: alone minus Local", "the others: minus alone"]
            parts += ["What is gained, and by what, in points of own accuracy:", table(head, rows)]
        head, rows = table_of_rounds(board, ("fedproto", "local"))
        if rows:
            parts += ["Rounds until a method has what another has at its best, as they were evaluated:"]
            parts += [table(head, rows)]
        parts.append(made_by(board))
    return "\n\n".join(parts) or "None yet."


def picture(name: str, board: Board) -> str:
    """Show a figure of long/."""
    what = NUMBERS[name.rpartition("-")[2]].removesuffix(", %").capitalize()
    return f"![{what} over rounds, {title(board)}.](long/{name}.svg)"


def gains(board: Board) -> list[list[str]]:
    """Split the gain of each method that was also run alone: what its training does, and what the others give."""
    by_name = {each.method: each for each in board.entries}
    local, rows = board.local, []
    for each in board.entries:
        alone = by_name.get(f"{each.method} alone")
        if local is None or alone is None:
            continue
        parts = (each.minus(local), alone.minus(local), each.minus(alone))
        rows.append([each.method, *("-" if part is None else shown(part) for part in parts)])
    return rows


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


def curves(found: Sequence[Board], drawn: Iterable[str] = (), stage: str = "curves") -> str:
    """Show own accuracy, and the server's loss where it trains, for each value of a field."""
    words = {"protonorm-scale": "ProtoNorm's scale", "fedtgp-threshold": "FedTGP's threshold"}
    parts = [
        f"![Accuracy by {words[name]}, a line for each setting.](long/{name}.svg)" for name in drawn if name in words
    ]
    for board in found:
        entries = sorted(board.entries, key=lambda each: natural(each.method))
        head = ["field", "seeds", "own rule", "ensemble"]
        names = [each.method if "=" in each.method else f"{each.method}, its defaults" for each in entries]
        rows = [[name, str(len(each.rows)), plain(each.spread("own")), plain(each.spread("ensemble"))]
                for name, each in zip(names, entries, strict=True)]  # fmt: skip
        if any(each.mean("server_loss") is not None for each in entries):
            head += ["server's loss", "its bound"]
            for row, each in zip(rows, entries, strict=True):
                row += [loss(each.mean("server_loss")), loss(each.mean("loss_bound"))]
        made = "texts-server" if stage == "curves" and STAGES.get(title(board).split(",")[0]) == "texts" else stage
        parts += [f"### {title(board)}", table(head, rows), made_by(board, made)]
    return "\n\n".join(parts) or "None yet."


def loss(value: float | None) -> str:
    """Format a loss."""
    return "-" if value is None else f"{value:.3g}"


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


def pictures(rows: Sequence[ResultRow]) -> dict[str, Figure]:
    """Return the figures of the page, by the names of their files."""
    return figures(last_rows(rows, "long"), last_rows(rows, "curve"))


def written(page: str, rows: Sequence[ResultRow]) -> str:
    """Return the page with what stands between its markers made anew."""
    long, drawn = last_rows(rows, "long"), list(pictures(rows))
    parts = {
        "state": state(long),
        "settings": settings_of(long, drawn),
        "servers": servers(long),
        "curves": curves(last_rows(rows, "curve"), drawn),
        "ablations": curves(last_rows(rows, "ablation"), stage="ablations"),
    }
    return filled(page, parts, PAGE.name)


def main(arguments: Sequence[str]) -> None:
    """Do what the first argument says: chosen, collect or page."""
    match arguments:
        case ["chosen", folder, file]:
            write_text(Path(file), chosen(Path(folder)) + "\n")
        case ["collect", folder]:
            write_rows(TABLE, merged(read_rows(TABLE), collected(Path(folder))))
        case ["page"]:
            rows = read_rows(TABLE)
            draw(pictures(rows), PICTURES)
            write_text(PAGE, written(PAGE.read_text("utf-8"), rows))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
