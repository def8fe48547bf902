"""One round at a site, with nobody listening: does it work, and what would leave?"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from protea.clients.durable import DurableWorker
from protea.clients.privacy import depends_on_training, least_budget, noise_filter
from protea.config.units import format_bytes, in_bytes
from protea.core.accounting import epsilon_of
from protea.core.client import Client
from protea.core.errors import ClientError, ConfigError, PayloadError, PolicyError
from protea.core.ledger import history_of
from protea.core.method import Upload
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.engines.messages import job_to_bytes
from protea.federation.jobs import Job, JobKind, Reply
from protea.federation.privacy import Privacy
from protea.federation.uploads import Inspection
from protea.filters.secure_sum import SecureSum, secure_sum_of, without_secure_sum
from protea.models.architectures import count_parameters
from protea.network.site.directory import Site
from protea.network.site.refusals import refusal, refusals, refused_task
from protea.network.site.service import discreet, leaving
from protea.network.task import started_server


@dataclass(frozen=True)
class Leaving:
    """One tensor of a message that would leave the site."""

    task: str
    name: str
    shape: str
    dtype: str
    bytes: int
    norms: str


@dataclass(frozen=True)
class Trial:
    """What a trial round at a site showed."""

    site: str
    id: int
    task: str
    model: str
    parameters: int
    train: int
    validation: int
    test: int
    leaving: list[Leaving]
    sizes: dict[str, int]  # bytes of each message
    classes: list[str]  # whose prototypes leave
    beside: str  # what is said beside the tensors
    told: dict[str, int]  # by class, the count beside its prototype; empty if the method sends no prototypes
    samples: int  # number of training samples, as it is told
    privacy: Privacy | None  # what noise guarantees of one round's upload; None where there is none
    cost: float | None  # epsilon of all rounds; None without a guarantee
    fixed: bool  # model() gives the same first weights whatever is drawn
    summed: int | None  # sites in a secure sum, at least; None without one: what leaves can be read by itself


def trial(path: Path | Site) -> Trial:
    """Train the first round from nothing and evaluate, in a folder that is thrown away.

    :class:`PolicyError` for a task that the site's policy refuses.
    """
    site = path if isinstance(path, Site) else Site(path)
    task = site.task
    if refused := list(refusals(site.policy, task, site.class_counts)):
        raise PolicyError(refused_task(refused))
    if task.method.needs.public_data and site.bundle.public is None:
        raise ConfigError("The method needs public data, and the bundle has none.  Ask the coordinator.")
    leaves: list[Leaving] = []
    sizes: dict[str, int] = {}
    replies: list[Reply] = []  # as they would leave

    def encode(reply: Reply) -> bytes:
        if site.release.refusals:
            raise PolicyError(f"What this site would send is refused by its policy:\n  {site.release.refusals.pop()}")
        if reply.error is not None:
            raise ClientError(f"The trial round failed: {reply.error}")
        replies.append(discreet(reply))
        return leaving(replies[-1])

    with tempfile.TemporaryDirectory() as folder:
        plan = replace(site.plan(), filters=without_secure_sum(task.filters))  # one site alone has no sum
        durable = DurableWorker(plan, Path(folder), encode)
        server = started_server(task, site.public())
        server.round = 1
        asked: list[JobKind] = ["train"] if site.report == "none" else ["train", "evaluate"]
        for what in asked:
            job = Job(what, 1, site.id, pack(task.played.broadcast(server, site.id)))
            sizes[what] = len(durable.answer(job, job_to_bytes(job)))
            leaves += [describe(what, name, tensor) for name, tensor in sorted(replies[-1].up.items())]
            if what == "train":
                aggregate_alone(site, server, replies[-1])
    trained, client = replies[0], durable.worker.client(site.id)
    secure = secure_sum_of(task.filters)
    if secure is not None:
        sizes = {"masked": masked_size(site, secure, trained, len(client.train)), **sizes}
        del sizes["train"]  # two keys leave then, and the upload under its mask
    counts = class_counts(trained, len(task.classes))
    told = {name: count for name, count in zip(task.classes, counts, strict=True) if count}
    privacy = Privacy.read(trained.metrics)
    hidden = [f"number of training samples ({trained.samples})"] + ["mean loss"] * ("loss" in trained.metrics)
    said = [*hidden, *["what noise guarantees"] * (privacy is not None), "seconds"]
    if secure is not None:
        said = [f"under the mask the {' and the '.join(hidden)}; in the clear {', '.join(said[len(hidden) :])}"]
    return Trial(
        site=site.name,
        id=site.id,
        task=f"{type(task.method).__name__}, {task.rounds} rounds, {len(task.classes)} classes",
        model=client.model.name,
        parameters=sum(count_parameters(client.model).values()),
        train=len(client.train),
        validation=len(client.validation or ()),
        test=len(client.test or ()),
        leaving=leaves,
        sizes=sizes,
        classes=list(told),
        beside=f"{', '.join(said)}; and once, at the beginning, the names of the site and of its model "
        f"({site.model_name})",
        told=told,
        samples=trained.samples,
        privacy=privacy,
        cost=None if privacy is None or not privacy.formal else cost_of_all(site, client, privacy),
        fixed=begins_alike(site),
        summed=None if secure is None else secure.least,
    )


def masked_size(site: Site, secure: SecureSum, reply: Reply, samples: int) -> int:
    """Return the bytes of an upload under its mask; :class:`PolicyError` if they are more than the policy allows."""
    sums = secure.sums_of(site.task.played.up, reply.up, site.task.method.needs.sums, samples, 0.0)
    size = sum(tensor.numel() for tensor in sums.values()) * secure.bits // 8
    if size > in_bytes(site.policy.policy.max_upload):
        why = f"Under the mask of secure_sum the upload has {format_bytes(size)}."
        raise PolicyError(refused_task([refusal(site.policy, "max_upload", why)]))
    return size


def cost_of_all(site: Site, client: Client, privacy: Privacy) -> float:
    """Return the epsilon of all rounds of the task, by what one of them cost; no more than a budget allows."""
    history, task = history_of(client.memory), site.task
    often = task.rounds if depends_on_training(task.played, client) else 1  # what is constant is sent again as it was
    known = [(noise, rate, times * often) for noise, rate, times in history]
    budget = least_budget(noise_filter(task.filters), None if client.training.dp is None else client.training.dp.budget)
    return min(epsilon_of(known, privacy.delta or budget.delta), budget.limit) if known else 0.0


def aggregate_alone(site: Site, server: Server, reply: Reply) -> None:
    """Do what the coordinator would do if this site were the only one."""
    task = site.task
    try:
        filters = without_secure_sum(task.filters)
        payload = Inspection(task.played, server, task.limits, filters).payload(reply)
    except PayloadError as error:
        raise ClientError(f"The coordinator would refuse what this site sends: {error}") from error
    with server.rng.at("round", 1).default("aggregate"):
        task.played.aggregate(server, [Upload(site.id, payload, reply.samples)])


def describe(task: str, name: str, tensor: Tensor) -> Leaving:
    """Give name, shape and bytes of a tensor, and the smallest and largest norm of its rows."""
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim > 1 else tensor.reshape(1, -1)
    norms = ""
    if tensor.is_floating_point() and tensor.numel():
        lengths = torch.linalg.vector_norm(rows.double(), dim=1)
        norms = f"{lengths.min():.3g} to {lengths.max():.3g}"
    shape = " x ".join(map(str, tensor.shape)) or "1"
    return Leaving(
        task, name, shape, str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size(), norms
    )


def class_counts(reply: Reply, classes: int) -> list[int]:
    """Give the count that is told beside the prototype of each class; 0 for a class without one."""
    for name, tensor in reply.up.items():
        if name.rpartition(".")[2] == "counts" and tensor.shape == (classes,):
            return [int(count) for count in tensor]
    return [0] * classes


def begins_alike(site: Site) -> bool:
    """Tell whether ``model()`` gives the same weights twice: pretrained ones, or by a seed of its own."""
    drawn = []
    for purpose in ("one", "other"):
        with Streams(site.seed).at("alike").default(purpose):
            drawn.append([p for p in site.model().body.parameters() if p.ndim > 1])  # biases may all be 0
    return bool(drawn[0]) and all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
