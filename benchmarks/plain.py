"""The plain loop: five methods in one process, with autograd and nothing of Protea's engine or clients.

    python benchmarks/plain.py [methods] [rounds] [samples]

All that is cheap to do well is done: inputs lie in memory and are cut by a permutation, SGD updates all weights in one
call, targets are rows of the prototypes, features are computed once per evaluation and serve every rule, in chunks of
128 without gradients.  A round is local training of all clients, their prototypes, the server's step, and the
evaluation of every client on its own test samples by the six rules of Protea's records: the method's own, the head,
the head among the client's classes, global prototypes, these among its classes, and local prototypes.  Of each rule
hits are counted; Protea also counts answers by class and certainties, and looks at margins, so it does a little more.

Data, models, first weights, the order of samples and the server's step are Protea's, and so the numbers must agree.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protea import Experiment, Prototypes, Upload
from protea.clients.factory import ClientFactory
from protea.config.experiment import method_label
from protea.core.devices import torch_threads
from protea.core.rng import Streams
from protea.core.training import SGD
from protea.methods.fedpagr import unit
from protea.methods.fedsa import average_margin
from protea.runs.prepare import prepare

CHUNK = 128
METHODS = ("fedproto", "fedtgp", "protonorm", "fedsa", "fedpagr")


@dataclass
class Party:
    """A client: tensors and a model."""

    model: Any
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    own: Tensor  # a bool per class
    rng: Streams
    margin: float = 0.0  # FedSA's


@dataclass(frozen=True)
class Round:
    loss: float
    accuracy: dict[str, float]  # by rule, every test sample counting once


class FedProto:
    """Also FedTGP and ProtoNorm: these differ on the server only."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def begin(self, party: Party, down: Any) -> None: ...

    def loss(self, party: Party, z: Tensor, y: Tensor, down: Any) -> Tensor:
        value = F.cross_entropy(party.model.head(z), y)
        if down is None:
            return value
        scale = getattr(self.settings, "scale", 1.0)
        return value + self.settings.pull * pull(z, scale * down.vectors[y], down.present[y])

    def upload(self, party: Party, z: Tensor, local: Prototypes) -> Prototypes:
        return local

    def known(self, down: Any) -> Prototypes:
        found: Prototypes = down
        return found

    def scores(self, z: Tensor, near: Tensor, down: Any) -> Tensor:
        return near


class FedSA(FedProto):
    def begin(self, party: Party, down: Any) -> None:
        party.margin = max(party.margin, average_margin(down.anchors, self.settings.margin))

    def loss(self, party: Party, z: Tensor, y: Tensor, down: Any) -> Tensor:
        anchors, own = down.anchors.vectors, F.one_hot(y, len(down.anchors.vectors))
        away = torch.cdist(z, anchors) + party.margin * own
        value = F.cross_entropy(party.model.head(z), y)
        value = (
            value + self.settings.pull * F.mse_loss(z, anchors[y]) + self.settings.contrast * F.cross_entropy(-away, y)
        )
        every = torch.arange(len(anchors))
        return value + self.settings.calibration * F.cross_entropy(party.model.head(anchors), every)

    def upload(self, party: Party, z: Tensor, local: Prototypes) -> Prototypes:
        party.margin = average_margin(local, self.settings.margin)
        return local

    def known(self, down: Any) -> Prototypes:
        found: Prototypes = down.means
        return found


class FedPAGR(FedProto):
    @torch.no_grad()
    def begin(self, party: Party, down: Any) -> None:
        party.model.head.weight.copy_(down.vectors)
        party.model.head.bias.zero_()

    def loss(self, party: Party, z: Tensor, y: Tensor, down: Any) -> Tensor:
        z = F.normalize(z, dim=1)
        near = z @ down.vectors.T / self.settings.temperature
        value = F.cross_entropy(party.model.head(z), y) + F.cross_entropy(near, y)
        return value - self.settings.entropy * near.log_softmax(1).mean()

    def upload(self, party: Party, z: Tensor, local: Prototypes) -> Prototypes:
        return unit(Prototypes.of(F.normalize(z, dim=1), party.y, len(party.own)))

    def scores(self, z: Tensor, near: Tensor, down: Any) -> Tensor:
        return F.normalize(z, dim=1) @ down.vectors.T


KINDS = {"fedsa": FedSA, "fedpagr": FedPAGR}


def rounds(experiment: Experiment, factory: ClientFactory, cores: int = 2) -> Iterator[Round]:
    """Each ``next`` is a round in one process with so many threads."""
    plan, settings, root = experiment.training, experiment.method, Streams(experiment.seed)
    assert plan.optimizer == SGD() and plan.schedule == "constant" and not plan.clip  # all that this loop can do
    method = KINDS.get(method_label(settings), FedProto)(settings)
    parties = [enter(factory, id, root.at("client", id)) for id in range(experiment.clients)]
    server = factory.server(experiment.seed)
    with root.at("server", "round", 0).default("start"):
        settings.start_server(server)
    for number in range(1, experiment.rounds + 1):
        with torch_threads(cores):
            server.round, down = number, settings.broadcast(server, 0)
            losses, uploads, locals_ = [], [], []
            for id, party in enumerate(parties):
                rng = party.rng.at("round", number)
                with rng.default("train"):
                    losses.append(train(party, method, down, plan, rng.at("fit", 0)))
                z = features(party.model, party.x)
                locals_.append(Prototypes.of(z, party.y, len(party.own)))
                uploads.append(Upload(id, method.upload(party, z, locals_[-1]), len(party.y)))
            with root.at("server", "round", number).default("aggregate"):
                settings.aggregate(server, uploads)
            down = settings.broadcast(server, 0)
            hits = [evaluate(party, method, down, local) for party, local in zip(parties, locals_, strict=True)]
            total = sum(len(party.y_test) for party in parties)
            accuracy = {rule: int(sum(each[rule] for each in hits)) / total for rule in hits[0]}
            result = Round(sum(losses) / len(losses), accuracy)
        yield result


def enter(factory: ClientFactory, id: int, rng: Streams) -> Party:
    client = factory(id, rng)
    assert client.test is not None and client.augment is None
    x, y = client.train.batch(torch.arange(len(client.train)))
    x_test, y_test = client.test.batch(torch.arange(len(client.test)))
    return Party(client.model, x, y, x_test, y_test, y.bincount(minlength=client.classes) > 0, rng)


def train(party: Party, method: FedProto, down: Any, plan: Any, rng: Streams) -> float:
    """Local SGD; the mean loss over batches."""
    method.begin(party, down)
    model, x, y = party.model, party.x, party.y
    ready(model, single=plan.batch == 1 or len(y) == 1)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(
        trained, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay, foreach=True
    )
    losses = []
    for epoch in range(plan.epochs):
        for rows in batches(torch.randperm(len(y), generator=rng.generator(f"batches/{epoch}")), plan):
            labels = y[rows]
            value = method.loss(party, model.features(x.index_select(0, rows)), labels, down)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.detach())
    model.eval()
    return float(torch.stack(losses).mean())


def batches(order: Tensor, plan: Any) -> list[Tensor]:
    """A last batch of one, which BatchNorm cannot train on, joins the one before."""
    parts = list(order.split(plan.batch))
    if len(parts) > 1 and plan.last == "drop" and len(parts[-1]) < plan.batch:
        parts.pop()
    elif len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def ready(model: nn.Module, single: bool) -> None:
    """Training mode, but for what is frozen, and for BatchNorm on single samples."""
    model.train()
    for part in model.modules():
        weights = list(part.parameters())
        frozen = weights and not any(p.requires_grad for p in weights)
        if frozen or (single and isinstance(part, nn.modules.batchnorm._BatchNorm)):
            part.eval()


@torch.no_grad()
def features(model: Any, x: Tensor) -> Tensor:
    return torch.cat([model.features(part) for part in x.split(CHUNK)])


@torch.no_grad()
def evaluate(party: Party, method: FedProto, down: Any, local: Prototypes) -> dict[str, Tensor]:
    """How many test samples each rule answers right."""
    z, other = features(party.model, party.x_test), ~party.own
    head, near = party.model.head(z), method.known(down).scores(z)
    said = {
        "method": method.scores(z, near, down),
        "head": head,
        "head_own": head.masked_fill(other, -torch.inf),
        "global_prototypes": near,
        "global_prototypes_own": near.masked_fill(other, -torch.inf),
        "local_prototypes": local.scores(z),
    }
    return {rule: (scores.argmax(1) == party.y_test).sum() for rule, scores in said.items()}


def pull(z: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance to the prototype of the class; a class without one adds nothing."""
    return ((z - target) * known.unsqueeze(1)).square().mean()


def main(methods: str = ",".join(METHODS), count: str = "2", samples: str = "2000") -> None:
    from target import setting

    for name in methods.split(","):
        experiment = setting(name, rounds=int(count), samples=int(samples))
        with closing(rounds(experiment, prepare(experiment))) as loop:  # type: ignore[type-var]
            started = time.perf_counter()
            for found in loop:
                took, started = time.perf_counter() - started, time.perf_counter()
                print(f"{name:<12}{took:8.2f} s  loss {found.loss:.4f}  accuracy {found.accuracy['method']:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
