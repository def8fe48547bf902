"""``protea export-model``: a client's model as a folder to take away; ``protea site export`` shows it so too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from protea.cli.federation import say
from protea.cli.predict import chosen_client, refuse_without_models
from protea.config.units import format_bytes, percent
from protea.core.shell import quoted

if TYPE_CHECKING:  # imported when the command is called
    from protea.runs.model_folder.contents import Contents

To = Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder; DIR.zip is made too.", show_default=False)]
ExportedRule = Annotated[
    str | None, typer.Option(metavar="RULE", help="How to answer, if not as in the federation.", show_default=False)
]

Onnx = Annotated[bool, typer.Option("--onnx", help="Write model.onnx too, for ONNX Runtime.")]


def export_model(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.", show_default=False)],
    to: To,
    client: Annotated[
        str | None,
        typer.Option(metavar="NUMBER|NAME", help="Whose model; needed if there are several.", show_default=False),
    ] = None,
    round: Annotated[
        int | None, typer.Option(help="After which round; the last one if not given.", show_default=False)
    ] = None,
    rule: ExportedRule = None,
    onnx: Onnx = False,
) -> None:
    """Write a client's trained model as a folder that answers new samples, with Protea or without.

    It has weights, preprocessing, prototypes, the answering rule, a model card, and lines that load it by torch alone.
    """
    refuse_without_models(directory)
    from protea.runs.model_folder.folder import refuse_taken
    from protea.runs.model_folder.of_run import contents_of_run, on_cpu

    refuse_taken(to)
    chosen = chosen_client(on_cpu(directory), client, directory)
    write_and_show(contents_of_run(directory, chosen, round, rule, onnx=onnx), to)


def write_and_show(contents: Contents, to: Path) -> None:
    """Write the folder, and say what is in it and how to use it."""
    from protea.runs.model_folder.card import licence
    from protea.runs.model_folder.folder import write_folder

    packed, console = write_folder(contents, to), Console()
    origin = contents.origin
    say(console, f"{origin.who} ({contents.architecture}) after round {contents.round}.")
    say(console, f"Answers by rule {contents.rule} ({contents.rule_words}).")
    if contents.note:
        say(console, f"Note: {contents.note}")
    if contents.rule in contents.accuracy:
        right, of = contents.accuracy[contents.rule]
        say(console, f"Accuracy {percent(right / of)} % on its own {of:,} test samples.")
    say(console, f"Written: {to} and {packed}, {format_bytes(packed.stat().st_size)}")
    reading = origin.preparation.texts
    if reading is not None and reading.encoder is not None:
        say(console, f"It carries all layers of its encoder.  {licence(reading)}")
    example = "new.csv" if origin.preparation.table is not None else "new.npz"
    say(
        console,
        f"Try: protea predict {quoted(to)} {example}, or without Protea: python {quoted(to / 'load.py')} {example}",
    )
