"""The last rounds of a run, played again: every draw has a name, so what left then leaves again, bit by bit."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protea.clients.state_files import load_client, path_of
from protea.config.experiment import Experiment
from protea.core.errors import ConfigError
from protea.core.payload import pack, unpack
from protea.core.samples import Samples
from protea.data import Texts
from protea.data.views import view_samples
from protea.evaluation.examination import Examination
from protea.federation.jobs import Job
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory
from protea.runs.run import Run
from protea.runs.simulation import Simulation, federation, worker_plan
from protea.studies.audit.recorder import Recorder
from protea.studies.audit.shadows import Told
from protea.studies.audit.subject import DRAWS, Subject

CANDIDATES = 2000  # records at most that stand beside the client's own


def subject_of_run(
    path: Path, client: int | None, rounds: int, told: Told, experiment: Experiment | None = None
) -> Subject:
    """Play the last ``rounds`` of a run again, and return what left a client in them.

    Without a ``client``, it is the one with the smallest class.
    """
    directory = RunDirectory.open(path)
    refuse_elsewhere(directory, experiment)
    run = Run(experiment, path)
    setup = run.setup
    assert isinstance(setup, Simulation)
    done = checkpoint.complete(directory.checkpoints)
    if not done:
        raise ConfigError(
            f"{path} has no checkpoint, so nobody knows what left in it.  They are written every "
            f"{setup.checkpoint.every} rounds (checkpoint.every) and at the end."
        )
    checkpoint.verify(done[-1])
    setup.prepare(directory)
    audited = most_exposed(setup) if client is None else client
    setup.new_client(audited)  # raises if there is none
    last = int(done[-1].name)
    begin = next((each for each in reversed(done) if int(each.name) <= last - rounds), None)
    recorder = replayed(setup, audited, begin, last, told)
    if not recorder.departures:
        raise ConfigError(
            f"Client {audited} sent nothing in the rounds {last - rounds + 1} to {last}.  Look further back: --rounds "
            f"{last}; or at another client: --client N."
        )
    return made(setup, audited, recorder, done[-1], last)


def refuse_elsewhere(directory: RunDirectory, experiment: Experiment | None) -> None:
    """Refuse runs whose records are not here, and say where they can be audited."""
    config = tomllib.loads(directory.config_path.read_text("utf-8"))
    if "quorum" in config:
        raise ConfigError(
            f"{directory.path} is of a federation over a network, whose records and models are at its sites.  "
            f"There: protea audit SITE"
        )
    source = config.get("data", {}).get("source")
    if experiment is None and isinstance(source, dict) and source.get("kind") == "arrays":
        raise ConfigError(
            f"{directory.path} was trained on arrays of a script, which are not kept in it.  Audit in that script: "
            f"protea.studies.audit.subject_of_run(path, client, rounds, told, experiment)"
        )


def most_exposed(setup: Simulation) -> int:
    """Return the client that has the smallest class."""
    counts = setup.factory.data.class_counts("train")
    return int(torch.where(counts > 0, counts, counts.max() + 1).amin(1).argmin())


def replayed(setup: Simulation, client: int, begin: Path | None, last: int, told: Told) -> Recorder:
    """Play from a checkpoint, or from the beginning, until the last round, without evaluation in between."""
    silent = replace(setup.experiment.evaluation, every=setup.rounds, shared="never", when="after")
    recorder = Recorder(worker_plan(setup.experiment, setup.factory), client)
    loop = federation(replace(setup.experiment, evaluation=silent), setup.factory, recorder)
    if begin is not None:
        checkpoint.verify(begin)
        checkpoint.load(begin, loop)
    first = loop.server.round
    while loop.server.round < last:
        told(f"round {loop.server.round + 1} again", loop.server.round - first, last - first)
        loop.play_round()
    told("rounds played again", last - first, last - first)
    if not recorder.replies:
        with loop.server.rng.at("round", last).default("broadcast"):
            down = pack(setup.method.broadcast(loop.server, client))
        recorder.map([Job("evaluate", last, client, down)])
    return recorder


def made(setup: Simulation, client: int, recorder: Recorder, newest: Path, last: int) -> Subject:
    """Put together what is attacked."""
    data, plan = setup.factory.data, recorder.worker.plan
    own = data.shares[client].train
    others = torch.ones(len(data.dataset), dtype=torch.bool)
    others[own] = False
    rest = others.nonzero().squeeze(1)
    rest = rest[torch.randperm(len(rest), generator=DRAWS.generator("candidates"))[:CANDIDATES]].sort().values
    rows = torch.cat([own, rest])
    model = recorder.worker.client(client).model
    records: Samples = view_samples(data.dataset, rows, model.view, device=setup.factory.device)
    texts = data.dataset.x
    played = [each.round for each in recorder.departures]
    return Subject(
        f"client {client}",
        data.dataset.names,
        records,
        len(own),
        plan,
        client,
        recorder.departures,
        [found for reply in recorder.replies if (found := unpack(Examination, reply.up)) is not None],
        last,
        attacked=attacked(played, exactly(setup, client, recorder, newest)),
        text=(lambda row: next(iter(texts.take(rows[row : row + 1])))) if isinstance(texts, Texts) else None,
        settings={"method": setup.experiment.label, "model": model.name},
    )


def exactly(setup: Simulation, client: int, recorder: Recorder, newest: Path) -> bool:
    """Whether the client ended, when played again, with the very weights of the run's checkpoint."""
    if not path_of(client, newest).exists():
        return False
    kept: Any = setup.new_client(client)
    load_client(kept, newest)
    here = recorder.weights()
    return all(torch.equal(here[name], tensor) for name, tensor in kept.model.state_dict().items())


def attacked(rounds: list[int], exact: bool) -> tuple[str, ...]:
    """Say what is attacked."""
    span = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return (
        f"Attacked is what the client sent in {span}, after all filters.  A run keeps no uploads: these rounds were "
        f"played again, with the same draws.",
        "The model ended with the very weights of the run's checkpoint, so this is what left, bit by bit."
        if exact
        else "The model ended with other weights than the run's checkpoint has (another machine, or other versions): "
        "what left then was slightly different.",
    )
