"""``protea predict``: predictions of a trained client for new samples; ``protea site predict`` shows them so too."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from protea.cli.federation import say
from protea.config.units import percent
from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.runs.directory import RunDirectory
from protea.runs.reader import client_number, client_words, names_in

if TYPE_CHECKING:  # imported when the command is called
    from torch import Tensor

    from protea.runs.predictions import Predictions
    from protea.runs.run import Run

SHOWN = 10  # at most so many rows of predictions, and pairs of confused classes
NARROW = 6  # up to so many classes, the probability of each has a column on the screen
WIDTH = 80  # columns of a screen

SamplesPath = Annotated[
    Path, typer.Argument(metavar="DATA", help="A .csv table, an .npz file, or a folder of images.", show_default=False)
]
Out = Annotated[str, typer.Option(help="A .csv file for all predictions; - shows the first ones.", metavar="FILE.csv")]
RuleName = Annotated[str, typer.Option(metavar="RULE", help="How to answer: " + ", ".join(RULES) + ".")]
Resize = Annotated[bool, typer.Option("--resize", help="Scale images that have another size than those of the run.")]


def predict(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run directory, or a folder of protea export-model.", show_default=False),
    ],
    data: SamplesPath,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|NAME", help="Whose model answers; needed if there are several.", show_default=False
        ),
    ] = None,
    out: Out = "-",
    rule: RuleName = "method",
    resize: Resize = False,
) -> None:
    """Predict the classes of new samples by the trained model of a client.

    Labels are optional: a label column, y in the .npz file, or one folder per class.  With them, scores are shown.
    """
    refuse_out(out, data)
    if (directory / "model.json").is_file() or directory.suffix == ".zip":
        predict_by_folder(directory, data, client, out, rule, resize)
        return
    refuse_without_models(directory)
    from protea.data.new_samples import read_new_samples
    from protea.runs.predictions import form_of, predict_samples
    from protea.runs.run import load

    run = load(directory)
    chosen = chosen_client(run, client, directory)
    names = tuple(next(iter(RunDirectory.open(directory).metrics()))["classes"])
    trained = run.client(chosen)
    form = form_of(trained, names, resize=resize, fill=run.setup.fill(chosen))
    samples = read_new_samples(data, run.experiment.data.source, form)
    with progress(len(samples)) as told:
        found = predict_samples(trained, samples, names, rule, told)
    rule = run.experiment.evaluation.answer if rule == "method" else rule
    show_predictions(
        found, out, f"{client_words(directory, chosen)} ({trained.model.name}) after round {trained.client.round}", rule
    )


def predict_by_folder(directory: Path, data: Path, client: str | None, out: str, rule: str, resize: bool) -> None:
    """Predict by a model that was exported: the run and the training samples are not needed."""
    from protea.runs.model_folder.folder import ModelFolder

    folder = ModelFolder.open(directory)
    about = folder.about
    if client is not None:
        raise ConfigError(f"{directory} holds one model, of {about['who']}.  Leave out --client.")
    if rule not in ("method", folder.rule):
        raise ConfigError(
            f"{directory} answers by the rule {folder.rule} only.  Leave out --rule, or export the model with "
            f"--rule {rule}."
        )
    samples = folder.preparation.read(data, folder.classes, resize=resize)
    with progress(len(samples)) as told:
        found = folder.predictions(samples, told)
    who = f"{about['who']} ({about['architecture']['name']}) after round {about['round']}"
    show_predictions(found, out, who, folder.rule, about["rule"]["note"])


def chosen_client(run: Run, client: str | None, directory: Path) -> int:
    """Choose the client whose model answers: the one with this number or name, or the only one."""
    count = run.experiment.clients
    if client is not None:
        return client_number(directory, client)
    if count > 1:
        named = ", ".join(names_in(directory).values())
        raise ConfigError(
            f"This run has {count} clients, each with its own model.  Say which: --client 0 to --client {count - 1}"
            f"{f', or by name: {named}' if named else ''}."
        )
    return 0


def refuse_out(out: str, data: Path) -> None:
    """Refuse, before any work, a file that cannot be written or that holds the samples."""
    if out == "-":
        return
    path = Path(out)
    if path.is_dir():
        raise ConfigError(f"--out {out} is a folder.  Name a file in it, such as {path / 'predictions.csv'}.")
    if data.exists() and path.resolve().is_relative_to(data.resolve()):
        raise ConfigError(f"--out {out} is where the samples are, which would be overwritten.  Choose another name.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {path.absolute().parent}.")


def refuse_without_models(directory: Path) -> None:
    """Refuse runs whose models cannot be had from the directory alone, and say where they can."""
    config = tomllib.loads(RunDirectory.open(directory).config_path.read_text("utf-8"))
    if "quorum" in config:
        raise ConfigError(
            f"{directory} is of a federation over a network, whose models are at its sites.  "
            f"There: protea site predict DATA"
        )
    source = config.get("data", {}).get("source")
    if isinstance(source, dict) and source.get("kind") == "arrays":
        raise ConfigError(
            f"{directory} was trained on arrays of a script, which are not kept in it.  Predict in that script: "
            f"protea.load(path, experiment).predict(x, client=0)"
        )


@contextmanager
def progress(samples: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar on a terminal, removed at the end; yield a function that takes the samples done so far."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("samples", total=samples)
        yield lambda done: bar.update(task, completed=done)


def show_predictions(found: Predictions, out: str, who: str, rule: str, note: str = "") -> None:
    """Write the table of predictions, or show its beginning; and show the scores if there are labels."""
    if out != "-":
        try:
            found.write(Path(out))
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error.strerror}.  Choose another file.") from error
    console = Console()
    say(console, f"{who}: {len(found):,} samples.")
    meaning = f" ({RULES[rule]})" if rule in RULES else ""
    say(console, f"Answered by rule {rule}{meaning}.  {note}".rstrip())
    if found.samples.left_out:
        say(console, f"Left out: {found.samples.left_out:,} rows in which something is missing.")
    if found.samples.unseen:
        say(console, f"Not known from training: {found.samples.unseen:,} values of categories; they count as none.")
    if out == "-":
        console.print(first_rows(found))
    counts, matrix = found.counts, found.confusion()
    if counts is not None and matrix is not None:
        say(
            console,
            f"Accuracy {percent(counts.accuracy)} %, balanced accuracy {percent(counts.balanced)} %, "
            f"macro F1 {percent(counts.macro_f1)} %.",
        )
        title, table = confusion_table(matrix, found.names)
        say(console, title)
        console.print(table)
    if out != "-":
        say(console, f"Written: {out}, {len(found):,} lines")


def first_rows(found: Predictions) -> Table:
    """Lay out the first predictions, with all classes' probabilities where these are few."""
    few = len(found.names) <= NARROW and sum(len(name) + 5 for name in found.names) < WIDTH // 2
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    labelled = found.samples.labels is not None
    shown = [name for name in found.columns if few or not name.startswith("p_")]
    for place, name in enumerate(shown):
        words = place < 2 or (labelled and place == len(shown) - 1)
        table.add_column(name, justify="left" if words else "right", overflow="fold" if words else "ellipsis")
    wanted = [place for place, name in enumerate(found.columns) if name in shown]
    for count, row in enumerate(found.rows()):
        if count == SHOWN:
            table.add_row(f"... {len(found) - SHOWN:,} more")
            break
        cells = [row[place] for place in wanted]
        numbers = range(2, len(cells) - labelled)
        table.add_row(*(f"{float(cell):.3f}" if place in numbers else cell for place, cell in enumerate(cells)))
    return table


def confusion_table(matrix: Tensor, names: tuple[str, ...]) -> tuple[str, Table]:
    """Lay out the confusion matrix if it fits the screen, else the pairs of classes that are confused most often."""
    widths = [max(len(name), len(str(int(column.max())))) + 1 for name, column in zip(names, matrix.T, strict=True)]
    if max(map(len, names)) + sum(widths) + 10 <= WIDTH:
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for name, row in zip(names, matrix.tolist(), strict=True):
            table.add_row(name, *(str(count or "") for count in row))
        return "True class by row, answer by column:", table
    table = Table(box=SIMPLE)
    for column in ("true", "answered", "times", "of"):
        table.add_column(column, justify="right" if column in ("times", "of") else "left", overflow="fold")
    wrong = matrix.clone().fill_diagonal_(0)
    for place in wrong.flatten().argsort(descending=True, stable=True)[:SHOWN].tolist():
        true, answer = divmod(place, len(names))
        if wrong[true, answer]:
            table.add_row(names[true], names[answer], str(int(wrong[true, answer])), str(int(matrix[true].sum())))
    return "Classes that are confused most often:", table
