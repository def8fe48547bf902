"""Checkpoints: the state of server and clients after a round, complete once ``state.json`` is in place.

``state.json`` has a checksum of every file of the checkpoint, of the run's settings and
split, of the metrics and prototypes up to that round, and of itself.  A checkpoint whose files do not match is not
used.  A file that an earlier checkpoint covers keeps its old checksum: computed anew, it would hide damage done since.

No state of random generators is needed: every draw is a function of seed and name.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from protea.clients.state_files import carry_clients, load_server, save_server
from protea.config.complaints import complaint
from protea.core.errors import CheckpointError
from protea.core.files import FileSum, read_sealed, sync_folder, unused_path, write_sealed
from protea.federation.loop import Federation
from protea.runs.directory import RunDirectory

FORMAT = 3
METRICS = "metrics.jsonl"  # the one file that grows


def save(folder: Path, loop: Federation, keep: int = 2) -> Path:
    """Write the checkpoint of the current round, such as ``folder/000040``, and delete all but the newest ``keep``."""
    server, earlier = loop.server, complete(folder)
    path = folder / f"{server.round:06d}"
    if path.exists():
        shutil.rmtree(path)  # left by a save that was interrupted
    path.mkdir(parents=True)
    save_server(server, path)
    loop.engine.save(path)
    files, known = sums(path, path.iterdir()), dict[str, Any]()
    if earlier and earlier[-1] != path:
        before = read(earlier[-1])
        carry_clients(earlier[-1], path)
        files = dict(sorted((before["files"] | files).items()))
        known = {name: each for name, each in before["run"].items() if name != METRICS}
    run = known | sums(folder.parent, vouched(folder.parent, known))
    sync_folder(path)
    write_sealed(path / "state.json", {"format": FORMAT, "round": server.round, "files": files, "run": run})
    sync_folder(path)
    sync_folder(folder)
    clear(folder, keep)
    return path


def is_of(folder: Path, round: int) -> bool:
    """Return whether the folder has a complete checkpoint of this round."""
    return (folder / f"{round:06d}" / "state.json").is_file()


def sums(folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Compute size and checksum of each file, by its path relative to the folder."""
    return {file.relative_to(folder).as_posix(): asdict(FileSum.of(file)) for file in sorted(files)}


def vouched(run: Path, known: Container[str]) -> list[Path]:
    """List the run's files outside the checkpoint whose checksums it must hold, without those already ``known``."""
    snapshots = [path.relative_to(run).as_posix() for path in RunDirectory(run).snapshots().values()]
    names = ["config.toml", "partition.json", METRICS, *snapshots]
    return [run / name for name in names if name not in known and (run / name).is_file()]


def clear(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what is left of half-written or half-deleted ones."""
    kept = complete(folder)[-keep:]
    for path in folder.glob("[0-9]*"):
        if path not in kept:
            (path / "state.json").unlink(missing_ok=True)  # first, or half a checkpoint would pass for one
            shutil.rmtree(path)


def newest(folder: Path) -> Path | None:
    """Find the newest checkpoint that is not damaged; None where there is none yet.

    Damaged ones are renamed, with a warning, if an earlier one is whole; else :class:`CheckpointError` is raised.
    """
    damaged: list[tuple[Path, CheckpointError]] = []
    for path in reversed(complete(folder)):
        try:
            verify(path)
        except CheckpointError as error:
            damaged.append((path, error))
            continue
        for bad, why in damaged:
            warnings.warn(f"{why}  Going on from {path.name}.", stacklevel=3)
            bad.rename(unused_path(folder, f"damaged-{bad.name}"))
        return path
    if damaged:
        raise CheckpointError(
            f"{damaged[0][1]}\n  No other checkpoint is whole, so this run cannot go on.  Run its config.toml again."
        )
    return None


def load(path: Path, loop: Federation) -> None:
    """Restore server and clients from a checkpoint that :func:`newest` has verified."""
    loop.start()  # makes the modules whose weights are loaded
    load_server(loop.server, path)
    loop.server.round = read(path)["round"]
    loop.engine.load(path)


def metrics_size(path: Path) -> int:
    """Return how many bytes of the run's ``metrics.jsonl`` had been written when the checkpoint was made."""
    known = read(path)["run"].get(METRICS)
    if known is None:
        raise CheckpointError(f"{path / 'state.json'} does not say how long {METRICS} was.")
    return int(known["bytes"])


def verify(path: Path) -> None:
    """Raise :class:`CheckpointError` unless every file is as it was when the checkpoint was written."""
    state = read(path)
    if (there := {file.name for file in path.iterdir()} - {"state.json"}) != state["files"].keys():
        odd = sorted(there ^ state["files"].keys())[0]
        raise CheckpointError(f"{path} is damaged: {odd} is {'not expected' if odd in there else 'missing'}.")
    expected = {path / name: value for name, value in state["files"].items()}
    expected |= {path.parents[1] / name: value for name, value in state["run"].items()}
    for file, known in expected.items():
        size = known["bytes"] if file.name == METRICS else None
        try:
            found = asdict(FileSum.of(file, size))
        except (OSError, ValueError) as error:  # there is no such file, and some names no file can have
            why = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(f"{str(file)!r} cannot be read: {why}.") from error
        if found != known:
            raise CheckpointError(
                f"{file} is not as it was when {path.name} was written ({found['bytes']} bytes, "
                f"{known['bytes']} expected)."
            )


def read(path: Path) -> dict[str, Any]:
    """Read ``state.json`` of a checkpoint, and check its checksum, format and round."""
    file = path / "state.json"
    state = read_sealed(file)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{file} has format {state.get('format')}; this version of Protea reads {FORMAT}.")
    try:
        checked = dict(_STATE.validate_python(state))
    except ValidationError as error:
        raise CheckpointError(f"{file} is not as it was written: {complaint(error)}.") from error
    if f"{checked['round']:06d}" != path.name:
        raise CheckpointError(f"{file} is of round {checked['round']}, as its folder is not.")
    return checked


class _KnownSum(TypedDict):
    """Size and checksum of a file."""

    bytes: NonNegativeInt
    blake2b: str


class _State(TypedDict):
    """The content of ``state.json``."""

    format: Any
    round: NonNegativeInt
    files: dict[str, _KnownSum]
    run: dict[str, _KnownSum]


_STATE = TypeAdapter(_State)


def complete(folder: Path) -> Sequence[Path]:
    """List the checkpoints that were written to their end, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / "state.json").is_file())
