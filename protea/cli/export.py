"""``protea export``: all numbers of runs as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.core.errors import ConfigError
from protea.runs.export import entries, write_csv, write_parquet


def export(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.", show_default=False)],
    csv: Annotated[Path | None, typer.Option(help="Write this file.", show_default=False)] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Write this file; needs the extra parquet.", show_default=False)
    ] = None,
) -> None:
    """Write the numbers of all rounds and clients in long form: one line for each number."""
    if csv is None and parquet is None:
        raise ConfigError("There is nothing to write.  Add --csv FILE or --parquet FILE.")
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            try:
                count = write(path, entries(runs))
            except OSError as error:
                raise ConfigError(f"{path} cannot be written: {error.strerror}.  Choose another file.") from error
            Console(stderr=True).print(f"Written: {path}, {count:,} numbers", soft_wrap=True, highlight=False)
