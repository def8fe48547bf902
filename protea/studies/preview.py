"""Estimates of what a round of an experiment would cost, in bytes and seconds, without running it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.clients.factory import ClientFactory
from protea.clients.plan import WorkerPlan
from protea.config.experiment import Experiment
from protea.config.sections import participants
from protea.core.devices import torch_threads
from protea.core.rng import Streams
from protea.core.split_model import SplitModel
from protea.data import Federated, Share
from protea.engines.inline import Inline
from protea.engines.processes.pool import cores
from protea.federation.played import method_of
from protea.runs.simulation import federation

FEW = 10  # samples of a class; of one that has fewer, a method may send nothing in some rounds


@dataclass(frozen=True)
class RoundBytes:
    """Bytes of a round that all clients send (up) and are sent (down), once the server has something to send."""

    up: float
    down: float


def traffic(experiment: Experiment, factory: ClientFactory) -> RoundBytes:
    """Measure the bytes of a round, by two rounds in which every client has few samples of each of its classes."""
    small = replace(experiment, rounds=2, fraction=1.0, failures="stop", protect=False)  # which changes no bytes
    tiny = replace(factory, source=miniature(factory.data), rounds=2)
    engine = Inline(WorkerPlan(method_of(small), tiny, experiment.seed, experiment.engine.threads))
    *_, last = federation(small, tiny, engine).run()
    part = participants(experiment.clients, experiment.fraction) / experiment.clients
    return RoundBytes(part * last.bytes_up, part * last.bytes_down)


def miniature(data: Federated) -> Federated:
    """Reduce the data to a few training samples for each class of each client: uploads keep their size."""

    def few_of_each(rows: Tensor) -> Tensor:
        labels = data.dataset.y[rows]
        return torch.cat([rows[labels == label][:FEW] for label in labels.unique()])

    nothing = torch.empty(0, dtype=torch.int64)
    shares = tuple(Share(few_of_each(share.train), nothing, nothing) for share in data.shares)
    return replace(data, shares=shares, test=nothing)


def seconds(experiment: Experiment, factory: ClientFactory, models: list[SplitModel]) -> float:
    """Estimate the seconds of a round, from one timed training step of each architecture."""
    plan, each = experiment.training, []
    rows = torch.arange(max(2, plan.batch)) % len(factory.data.dataset)
    with torch_threads(experiment.engine.threads), Streams(experiment.seed).default("preview"):
        for model in models:
            x, y = factory.samples(rows, model.view).batch(torch.arange(len(rows)))
            optimizer = plan.make_optimizer(model.parameters(), plan.lr)
            for _ in range(3):  # the last one counts: the first pays for set-up
                started = time.perf_counter()
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            each.append((time.perf_counter() - started) / len(rows))
    workers = 1 if experiment.engine_name == "inline" else experiment.engine.workers or cores()
    total, rounds, settings = 0.0, experiment.rounds, experiment.evaluation
    shared = len(factory.data.test) * sum(settings.shared_due(r + 1, rounds) for r in range(rounds)) / rounds
    for client, share in enumerate(factory.data.shares):
        trained = experiment.fraction * plan.epochs * len(share.train) * (2 if experiment.protect else 1)
        looked_at = len(share.train) + (len(share.test) + len(share.validation)) / settings.every + shared
        # A forward pass takes about a third of a training step.
        total += each[client % len(each)] * (trained + looked_at / 3)
    return total / workers
