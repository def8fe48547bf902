"""``protea show``: what an experiment would do, without doing it."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from protea.clients.factory import ClientFactory
from protea.config.experiment import Experiment, experiment_to_toml, load_experiment
from protea.config.units import format_bytes, format_duration, percent
from protea.core.rng import Streams
from protea.core.split_model import SplitModel
from protea.data import Csv
from protea.models.architectures import count_parameters
from protea.runs.prepare import prepare
from protea.studies.preview import seconds, traffic
from protea.studies.reference import differences, follows_reference

SHOWN = 20  # at most so many clients and classes; the others are summed up


def show(config_file: Path, changes: list[str] | None) -> None:
    """Show what an experiment would do: settings, who has which data, models, bytes, time.  Trains nothing."""
    show_experiment(Console(), load_experiment(config_file, changes or []))


def show_experiment(console: Console, experiment: Experiment) -> None:
    """Print the settings of an experiment, its data and models, and the estimated bytes and time of a round."""
    factory = prepare(experiment)
    console.rule("Settings")
    console.print(experiment_to_toml(experiment), highlight=False, markup=False)
    if isinstance(experiment.data.source, Csv):
        console.print(experiment.data.source.how_read(), highlight=False, markup=False, soft_wrap=True)
    console.rule("Clients")
    console.print(clients(factory))
    console.print(f"Always answering a client's commonest class: {percent(factory.data.majority())} % accuracy.")
    console.rule("Models")
    with Streams(experiment.seed).default("preview"):
        models = [factory.make(member) for member in factory.members]
    console.print(architectures(factory, models))
    if (reference := follows_reference(experiment)) is not None:
        console.rule("Reference")
        console.print(beside_reference(reference, differences(experiment)), highlight=False, markup=False)
    console.rule("Cost")
    sent, took, name = (
        traffic(experiment, factory),
        seconds(experiment, factory, models),
        experiment.label,
    )
    both = sent.up + sent.down
    console.print(
        f"{name}: about {format_bytes(sent.up)} up and {format_bytes(sent.down)} down per round "
        f"({both / 4:,.0f} numbers), {format_bytes(both * experiment.rounds)} in all.\n"
        f"About {took:.1f} s per round here, {format_duration(took * experiment.rounds)} for all {experiment.rounds}.",
        highlight=False,
    )


def beside_reference(variant: str, found: list[str]) -> str:
    """Say what still differs from a run of the code whose variant this is."""
    if not found:
        return f"{variant}: batches, weights, data and evaluation are as in the reference code."
    lines = "".join(f"\n  {line}" for line in found)
    return f"{variant}: these settings are not those of the reference code (docs/from-htfllib.md):{lines}"


def clients(factory: ClientFactory) -> Table:
    """Lay out the samples and classes of each client."""
    data, names = factory.data, factory.data.dataset.names
    counts, called = data.class_counts(), data.client_names()
    table = Table(
        box=SIMPLE,
        padding=0,
        title="Samples by part, and by class over all parts",
        title_justify="left",
    )
    for column in ("#", "architecture"):
        table.add_column(column, no_wrap=True)
    few = len(names) <= SHOWN
    for column in ("train", "val.", "test", *(names if few else ("classes", "largest class"))):
        table.add_column(column, justify="right")
    for client, share in enumerate(data.shares[:SHOWN]):
        row = counts[client].tolist()
        classes = [str(n or "") for n in row] if few else [str(sum(n > 0 for n in row)), names[row.index(max(row))]]
        parts = (str(len(part)) for part in (share.train, share.validation, share.test))
        table.add_row(
            called[client] or str(client), factory.members[client % len(factory.members)].architecture, *parts, *classes
        )
    if len(data.shares) > SHOWN:
        table.add_row(f"... {len(data.shares) - SHOWN} more")
    return table


def architectures(factory: ClientFactory, models: list[SplitModel]) -> Table:
    """Lay out the parameters of each architecture, and how many clients have it."""
    table = Table(box=SIMPLE, title="Parameters", title_justify="left")
    table.add_column("architecture")
    for column in ("body", "adapter", "head", "clients"):
        table.add_column(column, justify="right")
    held = len(factory.data.shares)
    for index, (member, model) in enumerate(zip(factory.members, models, strict=True)):
        users = len(range(index, held, len(models)))
        table.add_row(member.architecture, *(f"{n:,}" for n in count_parameters(model).values()), str(users))
    return table
