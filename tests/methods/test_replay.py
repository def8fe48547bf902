"""Reference runs, replayed: each method as a plain loop, written from its description, beside the method itself.

Both begin with the same weights (``models.start``), take the same batches (``training.order = "fixed"``) and make the
same random draws on the server.  After three rounds every tensor of every client and of the server is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import protea
from protea import Data, Experiment, Method, SplitModel
from protea.config.families import Models
from protea.config.sections import Checkpoint, Engine, Evaluation
from protea.core.errors import ConfigError
from protea.core.rng import Streams
from protea.core.training import Training
from protea.data import Dirichlet, Split
from protea.engines.inline import Inline
from protea.federation.jobs import ignore
from protea.methods.feddistill import FedDistill
from protea.methods.fedgen import FedGen
from protea.methods.fedgh import FedGH
from protea.methods.fedkd import FedKD
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.methods.fml import FML
from protea.methods.lg_fedavg import LGFedAvg
from protea.runs.simulation import Simulation

ROUNDS, CLIENTS, CLASSES, DIM, BATCH, LR, SEED = 3, 3, 10, 8, 10, 0.05, 5
MEMBERS = tuple({"name": "mlp", "hidden": list(hidden)} for hidden in ((16,), (12,), (20, 12)))
Vectors = dict[int, Tensor]  # one for each class that there is
Named = dict[str, Tensor]


def experiment(method: Method[Any, Any], start: Path, **changes: Any) -> Experiment:
    """Three clients with some 40 digits each, of which some classes are missing, and nothing shuffled."""
    return Experiment(
        rounds=ROUNDS,
        clients=CLIENTS,
        seed=SEED,
        method=method,
        data=Data(samples=180, partition=Dirichlet(alpha=0.3), split=Split(0.2, 0.0, stratify=False)),
        models=Models(members=MEMBERS, dim=DIM, start=str(start)),
        training=Training(batch=BATCH, lr=LR, order="fixed", last="drop", **changes),
        evaluation=Evaluation(every=ROUNDS, shared="never", local_prototypes=False),
        engine=Engine("inline"),
    )


class Reference:
    """What a plain program has: networks, samples in their own order, and what its server keeps."""

    def __init__(self, method: Method[Any, Any], folder: Path, **changes: Any) -> None:
        folder.mkdir()
        torch.manual_seed(1)
        self.ours = Simulation(experiment(method, folder, **changes))
        factory = Simulation(replace(self.ours.experiment, models=Models(members=MEMBERS, dim=DIM))).factory
        self.make: Callable[[str], SplitModel] = factory.make
        self.nets = [factory.make(member) for member in factory.members]
        for net in self.nets[1:]:
            net.head.load_state_dict(self.nets[0].head.state_dict())  # as after a first broadcast
        shares = [factory.samples(share.train) for share in factory.data.shares]
        self.samples = [each.batch(torch.arange(len(each))) for each in shares]
        self.server: Named = {}  # what the server's memory holds at first, by the names of a checkpoint
        self.kept: list[Named] = [{} for _ in self.nets]  # the same of each client
        self.folder = folder

    def loader(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Full batches in the order of the samples; what is left over is never used."""
        x, y = self.samples[client]
        for at in range(0, len(y) - BATCH + 1, BATCH):
            yield x[at : at + BATCH], y[at : at + BATCH]

    def on_server(self, round: int) -> Any:
        """Draw as the server of a round draws."""
        return Streams(SEED).at("server").at("round", round).default("aggregate")

    def play(self) -> tuple[Simulation, Any]:
        """Write the first weights of all, and play our run to its end; return it, and its server's memory."""
        for number, (net, kept) in enumerate(zip(self.nets, self.kept, strict=True)):
            own = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            save_file(own | {f"memory/{name}": t.clone() for name, t in kept.items()}, self.path(number))
        if self.server:
            server = {f"memory/{name}": tensor.clone() for name, tensor in self.server.items()}
            save_file(server, self.folder / "server.safetensors")
        self.ours.prepare(None)
        loop = self.ours.federation(ignore)
        list(loop.run())
        return self.ours, loop.server.memory

    def path(self, client: int) -> Path:
        return self.folder / f"client-{client:03d}.safetensors"

    def compare(self, ours: Simulation) -> None:
        """Hold every tensor of every client to the reference's, and see that training moved them."""
        assert isinstance(ours.engine, Inline)
        for client, net in enumerate(self.nets):
            found, expected = ours.engine.worker.clients[client].model.state_dict(), net.state_dict()
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-5, msg=f"client {client}, {name}")


def step(loss: Tensor, *modules: nn.Module, clip: float = 0.0, lr: float = LR) -> None:
    """One step of plain SGD; the gradient of each module is clipped by itself."""
    for module in modules:
        module.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for module in modules:
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p -= lr * p.grad


def means(pairs: Sequence[tuple[Tensor, Tensor]]) -> Vectors:
    """The mean vector of each class."""
    vectors, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return {int(c): vectors[labels == c].mean(0) for c in labels.unique()}


def average(uploads: Sequence[Vectors]) -> Vectors:
    """The mean over clients, of each class over those that have it."""
    known = sorted({c for upload in uploads for c in upload})
    return {c: torch.stack([upload[c] for upload in uploads if c in upload]).mean(0) for c in known}


def targets(z: Tensor, y: Tensor, known: Vectors) -> Tensor:
    """The vector of each sample's class; the sample's own where there is none."""
    return torch.stack([known.get(int(c), own) for c, own in zip(y, z.detach(), strict=True)])


def mean_weights(parts: Sequence[Named], shares: Sequence[float]) -> Named:
    return {
        name: sum((share * part[name] for share, part in zip(shares, parts, strict=True)), torch.zeros(()))
        for name in parts[0]
    }


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    """The divergence, a mean over samples and classes; nothing is detached."""
    return F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean") / CLASSES


def state(module: nn.Module) -> Named:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(found: Named, expected: Named) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-5, msg=name)


def test_fedproto(tmp_path: Path):
    """Prototypes are means of the features seen while training; the server's are means of these."""
    run = Reference(FedProto(**FedProto.variants["htfllib"]), tmp_path / "start")
    ours, memory = run.play()
    known: Vectors = {}
    for _ in range(ROUNDS):
        uploads = []
        for client, net in enumerate(run.nets):
            seen = []
            for x, y in run.loader(client):
                z = net.features(x)
                loss = F.cross_entropy(net.head(z), y)
                if known:
                    loss = loss + 10 * F.mse_loss(z, targets(z, y, known))
                step(loss, net)
                seen.append((z.detach(), y))
            uploads.append(means(seen))
        known = average(uploads)
    run.compare(ours)
    assert memory["prototypes"].present.nonzero().squeeze(1).tolist() == list(known)
    torch.testing.assert_close(memory["prototypes"].vectors[list(known)], torch.stack(list(known.values())))


def test_fedtgp(tmp_path: Path):
    """Prototypes are taken before training; the server trains a vector per class and a network behind them."""
    method = FedTGP(server_epochs=5, server_batch=BATCH, server_lr=LR, **FedTGP.variants["code"])
    run = Reference(method, tmp_path / "start")
    table = nn.Parameter(torch.randn(CLASSES, DIM))
    mlp = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
    trainable = nn.ParameterDict({"vectors": table})
    run.server = {"trainable/vectors": table.detach(), **{f"trainable/mlp.{k}": t for k, t in state(mlp).items()}}
    ours, memory = run.play()
    known: Vectors = {}
    for round in range(1, ROUNDS + 1):
        uploads = []
        for client, net in enumerate(run.nets):
            with torch.no_grad():
                uploads.append(means([(net.features(x), y) for x, y in run.loader(client)]))
            for x, y in run.loader(client):
                z = net.features(x)
                loss = F.cross_entropy(net.head(z), y)
                if known:
                    loss = loss + 10 * F.mse_loss(z, targets(z, y, known))
                step(loss, net)
        centres = torch.stack(list(average(uploads).values()))
        gaps = torch.cdist(centres, centres) + torch.diag(torch.full((len(centres),), torch.inf))
        margin = min(gaps.amin(1).max().item(), 100.0)
        points = torch.stack([vector for upload in uploads for vector in upload.values()])
        labels = torch.tensor([c for upload in uploads for c in upload])
        with run.on_server(round):
            for _ in range(5):
                for rows in torch.randperm(len(points)).split(BATCH):
                    away = torch.cdist(points[rows], mlp(table), compute_mode="donot_use_mm_for_euclid_dist")
                    away = away + margin * F.one_hot(labels[rows], CLASSES)
                    step(F.cross_entropy(-away, labels[rows]), trainable, mlp)
        known = dict(enumerate(mlp(table).detach()))
    run.compare(ours)
    same(state(memory["trainable"]), {"vectors": table.detach(), **{f"mlp.{k}": t for k, t in state(mlp).items()}})


def test_lg_fedavg(tmp_path: Path):
    """Heads are averaged by the number of samples, and sent to all before they train."""
    run = Reference(LGFedAvg(**LGFedAvg.variants["htfllib"]), tmp_path / "start")
    ours, memory = run.play()
    sizes = [len(y) for _, y in run.samples]
    head = state(run.nets[0].head)
    for _ in range(ROUNDS):
        for client, net in enumerate(run.nets):
            net.head.load_state_dict(head)
            for x, y in run.loader(client):
                step(F.cross_entropy(net(x), y), net)
        head = mean_weights([state(net.head) for net in run.nets], [n / sum(sizes) for n in sizes])
    run.compare(ours)
    same(dict(memory["head"].tensors), head)


@pytest.mark.parametrize("kind", ["softmax", "raw"])
def test_feddistill(kind: Any, tmp_path: Path):
    """Mean scores while training; their means over clients are targets, since November 2025 without a softmax."""
    run = Reference(FedDistill(targets=kind, **FedDistill.variants["htfllib"]), tmp_path / "start")
    ours, _ = run.play()
    known: Vectors = {}
    for _ in range(ROUNDS):
        uploads = []
        for client, net in enumerate(run.nets):
            seen = []
            for x, y in run.loader(client):
                scores = net(x)
                loss = F.cross_entropy(scores, y)
                if known:
                    wanted = targets(scores, y, known)
                    loss = loss + F.cross_entropy(scores, wanted.softmax(1) if kind == "softmax" else wanted)
                step(loss, net)
                seen.append((scores.detach(), y))
            uploads.append(means(seen))
        known = average(uploads)
    run.compare(ours)


def test_fml(tmp_path: Path):
    """Two models teach each other, each gets the gradient of both losses, and the shared one is averaged."""
    run = Reference(FML(**FML.variants["htfllib"]), tmp_path / "start", clip=10.0)
    shared = run.make("smallest")
    run.server = {f"meme/tensors.{name}": tensor for name, tensor in state(shared).items()}
    ours, memory = run.play()
    for _ in range(ROUNDS):
        memes = []
        for client, net in enumerate(run.nets):
            meme = deepcopy(shared)
            for x, y in run.loader(client):
                own, other = net(x), meme(x)
                loss = 0.5 * F.cross_entropy(own, y) + 0.5 * kl(own, other)
                loss = loss + 0.5 * F.cross_entropy(other, y) + 0.5 * kl(other, own)
                step(loss, net, meme, clip=10.0)
            memes.append(state(meme))
        shared.load_state_dict(mean_weights(memes, [1 / CLIENTS] * CLIENTS))
    run.compare(ours)
    same(dict(memory["meme"].tensors), state(shared))


def cut(weights: Named, energy: float) -> Named:
    """Each matrix by its largest singular values: as many as have more than this share, but never all of them."""
    found = dict(weights)
    for name, matrix in weights.items():
        if matrix.ndim > 1:
            u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
            squares = sigma.square()
            enough = [n for n in range(len(sigma)) if squares[:n].sum() > energy * squares.sum()]
            rank = enough[0] if enough else 0
            found[name] = u[:, :rank] @ torch.diag(sigma[:rank]) @ v[:rank]
    return found


def test_fedkd(tmp_path: Path):
    """A small model travels as thin matrices; both models teach each other, the more the surer they are."""
    run = Reference(FedKD(**FedKD.variants["htfllib"]), tmp_path / "start", clip=10.0)
    server = run.make("smallest")
    maps = [nn.Linear(DIM, DIM, bias=False) for _ in run.nets]
    run.server = {f"mentee/{name}": tensor for name, tensor in state(server).items()}
    run.kept = [{f"map/{name}": tensor for name, tensor in state(each).items()} for each in maps]
    ours, memory = run.play()
    for round in range(1, ROUNDS + 1):
        energy = 0.95 + round / ROUNDS * 0.03
        sent, replies = cut(state(server), energy), []
        for client, (net, onto) in enumerate(zip(run.nets, maps, strict=True)):
            small = run.make("smallest")
            small.load_state_dict(sent)
            for x, y in run.loader(client):
                z, other = net.features(x), small.features(x)
                own, shared = net.head(z), small.head(other)
                labels = F.cross_entropy(own, y) + F.cross_entropy(shared, y)
                apart = F.mse_loss(z, onto(other)) / labels
                step(labels + (kl(own, shared) + kl(shared, own)) / labels + 2 * apart, net, small, onto, clip=10.0)
            replies.append(cut(state(small), energy))
        server.load_state_dict(mean_weights(replies, [1 / CLIENTS] * CLIENTS))
    run.compare(ours)
    same(state(memory["mentee"]), state(server))


def test_fedgh(tmp_path: Path):
    """The server trains a head on prototypes as if they were samples; all clients go on from it."""
    run = Reference(FedGH(server_lr=LR, **FedGH.variants["htfllib"]), tmp_path / "start")
    head = deepcopy(run.nets[0].head)
    run.server = {f"head/{name}": tensor for name, tensor in state(head).items()}
    ours, memory = run.play()
    for round in range(1, ROUNDS + 1):
        uploads = []
        for client, net in enumerate(run.nets):
            net.head.load_state_dict(head.state_dict())
            for x, y in run.loader(client):
                step(F.cross_entropy(net(x), y), net)
            with torch.no_grad():
                uploads.append(means([(net.features(x), y) for x, y in run.loader(client)]))
        points = torch.stack([vector for upload in uploads for vector in upload.values()])
        labels = torch.tensor([c for upload in uploads for c in upload])
        with run.on_server(round):
            for rows in torch.randperm(len(points)).split(BATCH):
                step(F.cross_entropy(head(points[rows]), labels[rows]), head)
    run.compare(ours)
    same(state(memory["head"]), state(head))


def test_fedgen(tmp_path: Path):
    """A generator makes features; it is trained on the server and thrown away, as their code does."""
    noise, steps = 4, 6
    method = FedGen(noise=noise, server_steps=steps, server_lr=0.01, **FedGen.variants["htfllib"])
    run = Reference(method, tmp_path / "start")
    layers = nn.Sequential(nn.Linear(noise + CLASSES, DIM), nn.BatchNorm1d(DIM), nn.ReLU(), nn.Linear(DIM, DIM))
    counts = [torch.bincount(y, minlength=CLASSES).float() for _, y in run.samples]
    head = deepcopy(run.nets[0].head)
    run.server = {f"head/{name}": tensor for name, tensor in state(head).items()}
    run.server |= {f"generator/layers.{name}": tensor for name, tensor in state(layers).items()}
    run.server |= {f"labels/of.{client}": each for client, each in enumerate(counts)}
    ours, memory = run.play()

    def generated(generator: nn.Module, labels: Tensor) -> Tensor:
        features: Tensor = generator(torch.cat([torch.rand(len(labels), noise), F.one_hot(labels, CLASSES)], 1))
        return features

    pooled, sizes = torch.stack(counts).sum(0), torch.tensor([float(len(y)) for _, y in run.samples])
    for round in range(1, ROUNDS + 1):
        heads = []
        for client, net in enumerate(run.nets):
            net.head.load_state_dict(head.state_dict())
            with Streams(SEED).at("client", client).at("round", round).default("aside/generator"):
                for x, y in run.loader(client):
                    labels = pooled.multinomial(len(y), replacement=True)
                    made = generated(layers, labels).detach()
                    step(F.cross_entropy(net(x), y) + F.cross_entropy(net.head(made), labels), net)
            heads.append(deepcopy(net.head))
        trained = deepcopy(layers)
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
        with run.on_server(round):
            labels = pooled.multinomial(steps * BATCH, replacement=True)
            for rows in torch.randperm(len(labels)).split(BATCH):
                made = generated(trained, labels[rows])
                shares = sizes / sizes.sum()
                answers = torch.stack([share * h(made) for share, h in zip(shares, heads, strict=True)]).sum(0)
                optimizer.zero_grad()
                F.cross_entropy(answers, labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        head.load_state_dict(mean_weights([state(h) for h in heads], (sizes / sizes.sum()).tolist()))
    run.compare(ours)
    same(state(memory["head"]), state(head))


# Other orders and other first weights give other numbers, so the tests above test something


def last_weights(simulation: Simulation) -> dict[str, Tensor]:
    simulation.prepare(None)
    loop = simulation.federation(ignore)
    list(loop.run())
    assert isinstance(simulation.engine, Inline)
    clients = simulation.engine.worker.clients
    return {f"{id}/{name}": t for id, client in clients.items() for name, t in client.model.state_dict().items()}


def test_order_and_first_weights_matter(tmp_path: Path):
    run = Reference(FedProto(), tmp_path / "start")
    run.play()
    given = run.ours.experiment
    found = last_weights(Simulation(given))
    again = last_weights(Simulation(given))
    assert all(torch.equal(found[name], again[name]) for name in found)
    shuffled = replace(given, training=replace(given.training, order="shuffled"))
    drawn = replace(given, models=replace(given.models, start=None))
    for other in (shuffled, drawn):
        weights = last_weights(Simulation(other))
        assert not all(torch.allclose(found[name], weights[name], atol=1e-3) for name in found)


def test_an_order_that_is_drawn_once_is_the_fixed_one_of_samples_that_were_shuffled_before(tmp_path: Path):
    """As HtFLlib's generator shuffles a client's samples before it writes them, and its loader never."""
    run = Reference(FedProto(), tmp_path / "start")
    run.play()
    given = run.ours.experiment
    once = replace(given, training=replace(given.training, order="once"))
    fixed, drawn = Simulation(given), Simulation(once)
    for number, share in enumerate(fixed.factory.data.shares):
        streams = Streams(SEED).at("client", number)
        client = drawn.factory(number, streams)
        assert torch.equal(drawn.factory(number, streams).train.y, client.train.y)  # in every process, at any time
        order = torch.randperm(len(share.train), generator=streams.generator("order"))
        assert not torch.equal(order, torch.arange(len(order)))
        share.train.copy_(share.train[order])  # what a loader that never shuffles would then read
    found, same = last_weights(drawn), last_weights(fixed)
    assert all(torch.equal(found[name], same[name]) for name in found)
    plain = last_weights(Simulation(given))
    assert not all(torch.allclose(found[name], plain[name], atol=1e-3) for name in found)


def test_a_run_with_given_weights_is_the_same_in_other_processes_and_goes_on_where_it_stopped(tmp_path: Path):
    run = Reference(FedGH(), tmp_path / "start")
    run.server = {f"head/{name}": tensor for name, tensor in state(run.nets[0].head).items()}
    run.play()
    given = replace(run.ours.experiment, checkpoint=Checkpoint(every=1))

    def stop(record: Any) -> None:
        if record.round == 2:
            raise InterruptedError

    whole = protea.run(given, tmp_path / "whole")
    many = protea.run(replace(given, engine=Engine("processes", workers=2)), tmp_path / "many")
    with pytest.raises(InterruptedError):
        protea.run(given, tmp_path / "parts", observers=[stop])
    parts = protea.resume(tmp_path / "parts")
    for other in (many, parts):
        assert [record.loss for record in other.records] == [record.loss for record in whole.records]
    for path in sorted((tmp_path / "whole/checkpoints/000003").glob("*.safetensors")):
        for other in ("many", "parts"):
            assert path.read_bytes() == (tmp_path / other / "checkpoints/000003" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], "client-000.safetensors does not exist"),
        (lambda folder: (folder / "client-002.safetensors").unlink(), "client-002.safetensors does not exist"),
        (
            lambda folder: (folder / "client-001.safetensors").write_bytes(b"no"),
            "client-001.safetensors cannot be read",
        ),
        (
            lambda folder: (
                (folder / "client-000.safetensors").rename(folder / "client-001.safetensors")
                and save_file({"body": torch.zeros(1)}, folder / "client-000.safetensors")
            ),
            "client-000.safetensors does not fit mlp.  Weights 'body': .* arrived, not nothing",
        ),
        (
            lambda folder: save_file({"memory/head/weight": torch.zeros(1)}, folder / "server.safetensors"),
            "server.safetensors, memory/head: the method keeps nothing of this name, but nothing at all",
        ),
    ],
    ids=["empty", "one is missing", "no safetensors", "other weights", "other memory"],
)
def test_first_weights_that_do_not_fit_are_refused_before_any_work(
    spoil: Callable[[Path], object], complaint: str, tmp_path: Path
):
    run = Reference(FedProto(), tmp_path / "start")
    run.play()
    spoil(tmp_path / "start")
    with pytest.raises(ConfigError, match=complaint):
        protea.run(run.ours.experiment, tmp_path / "run")
    with pytest.raises(ConfigError, match="there is no such folder"):
        protea.run(experiment(FedProto(), tmp_path / "nowhere"), tmp_path / "run")
