"""FedLOO: leave-one-client-out discriminants in a common feature map.

Protea's own method; docs/methods/fedloo.md has the derivation.

Clients map their samples by random features that are the same everywhere, and send the class means of disjoint parts
of these.  The scatter of such means tells how samples scatter, so the server can make a linear discriminant; for each
client it makes one from all means but that client's own.  It has never seen the client's samples, so the client
finds by these, honestly, how far to trust it beside its own network, which trains as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Prototypes, Server, Upload
from protea.core.common_map import common_map
from protea.core.discriminant import Moments, calibrate, discriminant, each_without, likelihoods, likelihoods_by
from protea.core.method import Reveals
from protea.core.ranges import Proportion

FOLDS = 5
EVERYBODY = -1  # the receiver of what is made from all clients' means, for one that has sent none
TABLE = ("means", "labels", "counts", "parts", "owners")  # one row for each mean that the server keeps


@dataclass(frozen=True)
class FedLOO(Method[Prototypes, Prototypes]):
    """The answer is (1 - own) log p_network + own (log p_own + log prior) + scale log p_others, up to a constant."""

    map_seed: NonNegativeInt = 7  # of the common map
    texts: str = "words"  # what the map reads of texts: hashed words, or the outputs of a frozen encoder such as minilm
    parts: PositiveInt = 8  # disjoint ones of a class's samples, one of which is sent in a round
    least: PositiveInt = 5  # samples behind a mean; a class that has fewer is not sent
    own: Proportion = 0.5  # weight of the client's own discriminant beside its network

    family = "class vectors"
    exchanges = "class means of a common map; a discriminant down"
    public_map = True

    @property
    def needs(self) -> Needs:
        return Needs(common_view=self.texts)

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        """Declare class means if they are of all samples: how samples fall into parts depends on all others."""
        return frozenset({"fixed means"}) if self.parts == self.least == 1 else None

    def start_server(self, server: Server) -> None:
        server.memory.update(rows_of([Upload(0, Prototypes.absent(server.classes, server.dim), 0)], 0))

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        if "receivers" not in server.memory:
            return None
        receivers = server.memory["receivers"].tolist()
        place = receivers.index(client if client in receivers else EVERYBODY)
        made = Prototypes(server.memory["discriminants"][place], server.memory["known"][place])
        return made if made.present.any() else None

    def prototypes(self, down: Prototypes | None) -> None:
        """There are none in the space of the models' features."""

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        self.train(client, down)
        z, y = client.outputs(self.phi(client))
        memory = client.memory
        if "held" not in memory or len(memory["held"]) != len(y):
            self.learn_alone(client, z, y)
        memory["scale"] = 0.0 if down is None else calibrate([(z, y, down, memory["held"])])
        now = memory["parts"] == part_of(client.round, self.parts)
        return Prototypes.of(client.bounded(z[now]), y[now], client.classes)

    def train(self, client: Client, down: Prototypes | None) -> None:
        """Train the network as Local does; what else was tried overrides this (docs/results/fedloo_ablations.py)."""
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))

    def learn_alone(self, client: Client, z: Tensor, y: Tensor) -> None:
        """Fill the memory: parts, own discriminant, its scale, and what it says of samples that it has not seen."""
        memory, prior = client.memory, log_prior(client)
        memory["parts"] = disjoint_parts(y, self.parts, self.least, client.rng.generator("parts"))
        folds = (torch.randperm(len(y), generator=client.rng.generator("folds")) % FOLDS).to(y.device)
        held = [
            (folds == fold, of_samples(z[folds != fold], y[folds != fold], client.classes)) for fold in folds.unique()
        ]
        memory["own"] = of_samples(z, y, client.classes)
        memory["own_scale"] = calibrate([(z[rows], y[rows], made, prior) for rows, made in held])
        memory["held"] = z.new_zeros(len(y), client.classes)
        for rows, made in held:
            memory["held"][rows] = likelihoods(z[rows], made, memory["own_scale"]) + prior

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        part, memory = part_of(server.round, self.parts), server.memory
        again = torch.isin(memory["owners"], torch.tensor([u.client for u in uploads])) & (memory["parts"] == part)
        sent = rows_of(uploads, part)
        table = {name: torch.cat([memory[name][~again], sent[name]]) for name in TABLE}

        def moments(owners: Sequence[int]) -> Moments:
            of = torch.isin(table["owners"], torch.tensor(owners))
            return Moments.of(table["means"][of], table["labels"][of], table["counts"][of], server.classes)

        receivers = [*table["owners"].unique().tolist(), EVERYBODY]
        nothing = moments([EVERYBODY])
        made = [discriminant(others) for _, others in each_without(receivers, moments, nothing)]
        memory.update(table)
        memory["receivers"] = torch.tensor(receivers)
        memory["discriminants"] = torch.stack([each.vectors.float() for each in made])
        memory["known"] = torch.stack([each.counts.float() for each in made])

    def answering(self, client: Client, down: Prototypes | None) -> Callable[[Tensor], Tensor]:
        """What the network, the client's own discriminant and the others' say of a sample, added up."""
        model, memory = client.model, client.memory
        if "own" not in memory:
            return model
        phi, prior = self.phi(client), log_prior(client)
        by_own = likelihoods_by(memory["own"], memory["own_scale"])
        by_others = None if down is None else likelihoods_by(down, memory["scale"])

        def answer(x: Tensor) -> Tensor:
            network: Tensor = model(x)
            z = phi(x)
            scores = (1 - self.own) * network.log_softmax(1) + self.own * (by_own(z) + prior)
            return scores if by_others is None else scores + by_others(z)

        return answer

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return self.answering(client, down)(x)

    def phi(self, client: Client) -> Callable[[Tensor], Tensor]:
        """Return the map that is the same at all clients, of a batch as the client's model gets it."""

        def features(x: Tensor) -> Tensor:
            seen = client.model.common(x)
            found: Tensor = common_map(tuple(seen.shape[1:]), client.dim, self.map_seed, x.device)(seen)
            return found

        return features


def part_of(round: int, parts: int) -> int:
    """Return the part whose means are sent in a round, which count from 1."""
    return (round - 1) % parts


def disjoint_parts(labels: Tensor, parts: int, least: int, generator: torch.Generator) -> Tensor:
    """Share out the samples of each class to ``parts`` at most, of ``least`` samples at least; -1 for none.

    >>> disjoint_parts(torch.tensor([0, 0, 0, 0, 0, 1]), parts=8, least=2, generator=torch.Generator()).sort().values
    tensor([-1,  0,  0,  0,  1,  1])
    """
    found = torch.full_like(labels, -1)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        if len(rows) >= least:
            order = torch.randperm(len(rows), generator=generator).to(labels.device)
            found[rows] = order % min(parts, len(rows) // least)
    return found


def rows_of(uploads: Sequence[Upload[Prototypes]], part: int) -> dict[str, Tensor]:
    """Return the means of a round as rows of the server's table, without the constant of the map, on the CPU."""
    parts = [u.payload.to("cpu") for u in uploads]
    means, labels = Prototypes.points(parts)
    owners = torch.tensor([u.client for u in uploads]).repeat_interleave(
        torch.tensor([int(each.present.sum()) for each in parts])
    )
    counts = torch.cat([each.counts[each.present] for each in parts])
    return dict(zip(TABLE, (means[:, :-1], labels, counts, torch.full_like(labels, part), owners), strict=True))


def of_samples(z: Tensor, y: Tensor, classes: int) -> Prototypes:
    """Return the discriminant of samples as they are mapped; computed on the CPU, as not all devices have float64."""
    made = discriminant(Moments.of_samples(z[:, :-1].cpu(), y.cpu(), classes))
    return Prototypes(made.vectors.float(), made.counts.float()).to(z.device)


def log_prior(client: Client) -> Tensor:
    """Return how likely each class is at this client, ``(classes,)``: as often as in training, half a sample more."""
    counts = client.train.counts(client.classes) + 0.5
    return (counts / counts.sum()).log()
