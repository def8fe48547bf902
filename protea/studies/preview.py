"""What an experiment would do, without doing it: who has which data, models, bytes, time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from protea.clients.factory import ClientFactory
from protea.clients.worker import Worker
from protea.config.experiment import Experiment, experiment_to_toml, method_label
from protea.config.sections import participants
from protea.config.units import format_bytes, percent
from protea.core.devices import torch_threads
from protea.core.rng import Streams
from protea.core.split_model import SplitModel
from protea.data.federated import Federated
from protea.data.partition.split import Share
from protea.engines.inline import Inline
from protea.engines.processes.pool import cores
from protea.models.architectures import count_parameters
from protea.runs.setup import federation, prepare

SHOWN = 20  # clients and classes; more are summed up


@dataclass(frozen=True)
class Traffic:
    """Bytes of one round, once the server has something to say."""

    up: float
    down: float


def traffic(experiment: Experiment, recipe: ClientFactory) -> Traffic:
    """Found by playing two rounds in which every client has one sample of each of its classes."""
    small = replace(experiment, rounds=2, fraction=1.0, failures="stop")
    tiny = replace(recipe, source=miniature(recipe.data), rounds=2)
    engine = Inline(Worker(experiment.method, tiny, experiment.seed, experiment.engine.threads))
    *_, last = federation(small, tiny, engine).run()
    part = participants(experiment.clients, experiment.fraction) / experiment.clients
    return Traffic(part * last.bytes_up, part * last.bytes_down)


def miniature(data: Federated) -> Federated:
    """The same federation in small: what a client sends of it has the same size."""

    def one_of_each(rows: Tensor) -> Tensor:
        labels = data.dataset.y[rows]
        return torch.stack([rows[labels == label][0] for label in labels.unique()])

    nothing = torch.empty(0, dtype=torch.int64)
    shares = tuple(Share(one_of_each(share.train), nothing, nothing) for share in data.shares)
    return replace(data, shares=shares, test=nothing)


def seconds(experiment: Experiment, recipe: ClientFactory, models: list[SplitModel]) -> float:
    """About how long a round takes: one training step of each architecture is timed."""
    plan, each = experiment.training, []
    rows = torch.arange(max(2, plan.batch)) % len(recipe.data.dataset)
    with torch_threads(experiment.engine.threads), Streams(experiment.seed).default("preview"):
        for model in models:
            x, y = recipe.samples(rows, model.view).batch(torch.arange(len(rows)))
            optimizer = plan.make_optimizer(model.parameters(), plan.lr)
            for _ in range(3):  # the first pays for set-up
                started = time.perf_counter()
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            each.append((time.perf_counter() - started) / len(rows))
    workers = 1 if experiment.engine_name == "inline" else experiment.engine.workers or cores()
    total, rounds, settings = 0.0, experiment.rounds, experiment.evaluation
    shared = len(recipe.data.test) * sum(settings.shared_due(r + 1, rounds) for r in range(rounds)) / rounds
    for client, share in enumerate(recipe.data.shares):
        trained = experiment.fraction * plan.epochs * len(share.train)
        looked_at = len(share.train) + (len(share.test) + len(share.validation)) / settings.every + shared
        total += each[client % len(each)] * (trained + looked_at / 3)  # looking is a third of a step
    return total / workers


def show(console: Console, experiment: Experiment) -> None:
    recipe = prepare(experiment)
    console.rule("Settings")
    console.print(experiment_to_toml(experiment), highlight=False, markup=False)
    console.rule("Clients")
    console.print(clients(recipe))
    console.print(f"Always answering a client's commonest class: {percent(recipe.data.majority())} % accuracy.")
    console.rule("Models")
    with Streams(experiment.seed).default("preview"):
        models = [recipe.make(member) for member in recipe.members]
    console.print(architectures(recipe, models))
    console.rule("Cost")
    sent, took, name = traffic(experiment, recipe), seconds(experiment, recipe, models), method_label(experiment.method)
    both = sent.up + sent.down
    console.print(
        f"{name}: about {format_bytes(sent.up)} up and {format_bytes(sent.down)} down per round "
        f"({both / 4e6:.2f} million numbers), "
        f"{format_bytes(both * experiment.rounds)} in all.\n"
        f"About {took:.1f} s per round here, {took * experiment.rounds / 60:.1f} min for {experiment.rounds} rounds.",
        highlight=False,
    )


def clients(recipe: ClientFactory) -> Table:
    """Samples and classes of each client."""
    data, names = recipe.data, recipe.data.dataset.names
    counts = data.class_counts()
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
        table.add_row(str(client), recipe.members[client % len(recipe.members)].architecture, *parts, *classes)
    if len(data.shares) > SHOWN:
        table.add_row(f"... {len(data.shares) - SHOWN} more")
    return table


def architectures(recipe: ClientFactory, models: list[SplitModel]) -> Table:
    """Parameters of each architecture, and how many clients have it."""
    table = Table(box=SIMPLE, title="Parameters", title_justify="left")
    table.add_column("architecture")
    for column in ("body", "adapter", "head", "clients"):
        table.add_column(column, justify="right")
    held = len(recipe.data.shares)
    for index, (member, model) in enumerate(zip(recipe.members, models, strict=True)):
        users = len(range(index, held, len(models)))
        table.add_row(member.architecture, *(f"{n:,}" for n in count_parameters(model).values()), str(users))
    return table
