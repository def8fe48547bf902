"""Where the model of a run's client comes from, for its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protea.config.experiment import Experiment, method_label
from protea.config.toml import to_table
from protea.core.errors import ConfigError
from protea.core.shell import quoted
from protea.federation.privacy import in_words
from protea.runs.directory import RunDirectory
from protea.runs.model_folder.contents import Contents, Origin, contents_of
from protea.runs.model_folder.preparation import Preparation
from protea.runs.reader import client_words
from protea.runs.run import Run, load


def on_cpu(directory: Path) -> Run:
    """Open a run so that its models are on the CPU."""
    run = load(directory)
    return run if run.experiment.device == "cpu" else load(directory, replace(run.experiment, device="cpu"))


def contents_of_run(
    directory: Path, client: int, round: int | None = None, rule: str | None = None, *, onnx: bool = False
) -> Contents:
    """Make what the folder of a client's model holds, as it was after a round, or after the last one."""
    run = on_cpu(directory)
    experiment = run.experiment
    trained = run.client(client, round)
    data = trained.client.train.dataset
    origin = Origin(
        who=f"{client_words(directory, client)} of {directory.name or directory.absolute().name}",
        method=method_label(run.setup.method),
        classes=tuple(next(iter(RunDirectory.open(directory).metrics()))["classes"]),
        preparation=Preparation.of(experiment.data.source, data.shape, data.x.dtype, fill=run.setup.fill(client)),
        settings=settings_of(experiment),
        privacy=privacy_of(run, client, trained.client.round),
        instead=f"Use it by Protea: protea predict {quoted(directory)} DATA --client {client}",
    )
    return contents_of(trained, origin, rule, onnx=onnx)


def settings_of(experiment: Experiment) -> dict[str, object]:
    """Return the settings that a reader of the card asks for."""
    training = {f"training.{name}": value for name, value in to_table(experiment.training).items()}
    return {"rounds": experiment.rounds, "clients": experiment.clients, "seed": experiment.seed, **training}


def privacy_of(run: Run, client: int, round: int) -> list[str]:
    """Say by what filters the client's uploads went, and what the records say was guaranteed."""
    experiment = run.experiment
    found = [f"Uploads went through the filter `{to_words(each)}`." for each in experiment.filters]
    if not found:
        found.append("Uploads went through no filter.")
    if experiment.training.dp is not None:
        found.append(f"The model was trained with noise: `{to_words(experiment.training.dp)}`.")
    known = [
        each.privacy
        for record in run.records
        if record.round <= round
        for each in record.clients
        if each.client == client and each.privacy is not None
    ]
    if known:
        found.append(f"Of its uploads up to round {round}: {in_words(known[-1])}.")
    return found


def to_words(part: object) -> str:
    """Return a part of an experiment with its settings in one line."""
    table = to_table(part)
    if not isinstance(table, dict):
        raise ConfigError(f"{part!r} has no settings.")
    return ", ".join(f"{name} = {value}" for name, value in table.items()) or type(part).__name__
