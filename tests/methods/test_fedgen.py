from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, Server, SplitModel, Upload, Weights
from protea.clients.worker import Worker
from protea.core.errors import PayloadError
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedgen import FedGen, Generator, HeadAndGenerator, HeadAndLabels, likeness
from protea.methods.lg_fedavg import LGFedAvg


def small(classes: int = 2, dim: int = 1) -> Server:
    return Server(
        classes, dim, Streams(0), make=lambda name: SplitModel(nn.Identity(), nn.Identity(), nn.Linear(dim, classes))
    )


def sure(*bias: float) -> Weights:
    """A head that always answers the same."""
    return Weights({"weight": torch.zeros(len(bias), 1), "bias": torch.tensor(bias)})


def aggregated(method: FedGen, *uploads: Upload[HeadAndLabels]) -> Server:
    server = small(len(uploads[0].payload.labels))
    with Streams(5).default("start"):
        method.start_server(server)
    with Streams(5).default("aggregate"):
        method.aggregate(server, uploads)
    return server


def two(first: Weights, second: Weights, labels: Any = ((10.0, 0.0), (30.0, 0.0))) -> tuple[Upload[HeadAndLabels], ...]:
    counts = [torch.tensor(each) for each in labels]
    return tuple(
        Upload(i, HeadAndLabels(head, each), int(each.sum()))
        for i, (head, each) in enumerate(zip((first, second), counts, strict=True))
    )


def test_likeness_of_two_samples():
    """Features 2 apart, noise 1 apart in each number: 2 in two of four pairs, so exp(-1)."""
    features, noise = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    assert likeness(features, noise).item() == pytest.approx(0.367879, abs=1e-6)
    assert likeness(torch.ones(2, 1), noise).item() == 1  # equal, though their noise is not
    assert likeness(features, torch.zeros(2, 2)).item() == 1


def test_the_slope_of_likeness():
    g = Streams(2).generator("features")
    features = torch.randn(4, 3, dtype=torch.float64, generator=g).requires_grad_()
    noise = torch.rand(4, 5, dtype=torch.float64, generator=g)
    assert torch.autograd.gradcheck(lambda z: likeness(z, noise), (features,))
    (slope,) = torch.autograd.grad(likeness(features, noise), features)
    moved = likeness(features - 0.1 * slope, noise)
    assert moved < likeness(features, noise)  # down is apart


def test_heads_are_weighted_by_samples_or_equally():
    for average, expected in (("samples", 3.0), ("uniform", 2.0)):
        method = FedGen(average=average, server_steps=1)  # type: ignore[arg-type]
        server = aggregated(method, *two(sure(0.0, 0.0), sure(4.0, 0.0)))
        assert server.memory["head"].bias.tolist() == [expected, 0.0]


def test_what_the_generator_is_judged_by():
    """Of 40 samples of class 0, 10 are at a client that answers (0, 0), 30 at one that answers (4, 0).

    Together (3, 0): log(1 + e^-3).  Apart 0.25 log 2 + 0.75 log(1 + e^-4).
    """
    for judges, expected in (("together", 0.048587), ("apart", 0.186899)):
        server = aggregated(FedGen(judges=judges, server_steps=3), *two(sure(0.0, 0.0), sure(4.0, 0.0)))  # type: ignore[arg-type]
        assert server.memory["generator_loss"] == pytest.approx(expected, abs=1e-6)


def test_apart_a_head_judges_only_features_of_classes_that_its_client_has():
    """Each answers its own class with (0, 0) and the other's as wrongly as can be: log 2."""
    uploads = two(sure(0.0, 0.0), sure(0.0, 0.0), ((5.0, 0.0), (0.0, 9.0)))
    server = aggregated(FedGen(judges="apart", server_steps=3), *uploads)
    assert server.memory["generator_loss"] == pytest.approx(0.693147, abs=1e-6)
    wrong = two(sure(50.0, 0.0), sure(0.0, 50.0), ((5.0, 0.0), (0.0, 9.0)))
    assert aggregated(FedGen(judges="apart", server_steps=3), *wrong).memory["generator_loss"] == pytest.approx(
        0.0, abs=1e-6
    )
    assert aggregated(FedGen(judges="together", server_steps=3), *wrong).memory["generator_loss"] > 1


def test_diversity_is_added_with_its_weight():
    """Where heads answer always the same, it is all that the generator can change; likeness is 1 at most."""
    uploads = two(sure(0.0, 0.0), sure(0.0, 0.0))
    values = [
        aggregated(FedGen(diversity=weight, server_steps=1), *uploads).memory["generator_loss"]
        for weight in (0.0, 1.0, 2.0)
    ]
    assert values[0] == pytest.approx(0.693147, abs=1e-6)
    assert 0.5 < values[1] - values[0] < 1
    assert values[2] - values[0] == pytest.approx(2 * (values[1] - values[0]), rel=1e-5)


def features_of(server: Server, label: int, count: int = 200) -> Tensor:
    generator: Generator = server.memory["generator"]
    with Streams(6).default("look"), torch.no_grad():
        made: Tensor = generator.eval()(torch.full((count,), label))
    return made


def test_a_trained_generator_makes_features_that_the_heads_take_for_their_class():
    """The heads take positive features for class 0, negative ones for class 1."""
    head = Weights({"weight": torch.tensor([[3.0], [-3.0]]), "bias": torch.zeros(2)})
    server = aggregated(FedGen(), *two(head, head, ((20.0, 20.0), (20.0, 20.0))))
    assert (features_of(server, 0) > 0).float().mean() > 0.95
    assert (features_of(server, 1) < 0).float().mean() > 0.95
    assert server.memory["generator_loss"] < 0.6


@pytest.mark.parametrize("variant", ["htfllib", "paper"])
def test_only_the_generator_that_is_kept_changes(variant: str):
    head = Weights({"weight": torch.tensor([[3.0], [-3.0]]), "bias": torch.zeros(2)})
    method, uploads = FedGen(**FedGen.variants[variant]), two(head, head, ((20.0, 20.0), (20.0, 20.0)))
    server, first = aggregated(method, *uploads), small()
    with Streams(5).default("start"):
        method.start_server(first)
    pairs = [
        (t, first.memory["generator"].state_dict()[name]) for name, t in server.memory["generator"].state_dict().items()
    ]
    assert all(torch.equal(a, b) for a, b in pairs) == (variant == "htfllib")


@pytest.mark.parametrize(
    "changed",
    [
        {"server_steps": 9},
        {"server_batch": 20},
        {"server_lr": 0.05},
        {"server_decay": 0.1},
        {"diversity": 1.0},
        {"judges": "apart"},
    ],
)
def test_each_setting_of_the_server_counts(changed: dict[str, Any]):
    head = Weights({"weight": torch.tensor([[3.0], [-3.0]]), "bias": torch.zeros(2)})
    other = Weights({"weight": torch.tensor([[1.0], [0.0]]), "bias": torch.ones(2)})
    uploads = two(head, other, ((20.0, 5.0), (5.0, 20.0)))
    base = {"server_steps": 8}
    methods = (FedGen(**base), FedGen(**{**base, **changed}))
    default, found = (features_of(aggregated(method, *uploads), 0) for method in methods)
    assert not torch.equal(default, found)


def test_labels_are_added_up_and_a_class_that_nobody_has_is_never_made():
    uploads = two(sure(0.0, 0.0, 0.0), sure(0.0, 0.0, 0.0), ((3.0, 0.0, 1.0), (1.0, 0.0, 0.0)))
    server = aggregated(FedGen(server_steps=1), *uploads)
    labels = FedGen().broadcast(server, 0).labels
    assert labels.tolist() == [4, 0, 1]
    with Streams(1).default("draw"):
        assert set(labels.multinomial(500, replacement=True).tolist()) == {0, 2}


def test_labels_of_clients_that_were_heard_before_still_count_and_count_once():
    """What is drawn are the labels of all clients, also where only some take part in a round."""
    server, method = small(), FedGen(server_steps=1)
    method.start_server(server)
    first, second = two(sure(0.0, 0.0), sure(0.0, 0.0), ((3.0, 0.0), (0.0, 5.0)))
    for upload in (first, second, first):
        method.aggregate(server, [upload])
    assert method.broadcast(server, 0).labels.tolist() == [3, 5]


def test_a_generator_of_single_features_can_be_trained():
    server = aggregated(FedGen(server_batch=1, server_steps=3), *two(sure(0.0, 0.0), sure(4.0, 0.0)))
    assert all(p.isfinite().all() for p in server.memory["generator"].parameters())


def test_features_depend_on_noise_and_class():
    with Streams(3).default("generator"):
        generator = Generator(classes=3, noise=4, hidden=5, dim=6).eval()
        z, noise = generator.both(torch.tensor([0, 0, 2]))
    assert z.shape == (3, 6) and noise.shape == (3, 4)
    assert noise.min() >= 0 and noise.max() < 1
    assert not torch.equal(z[0], z[1])
    columns = generator.layers[0].weight[:, 4:]
    assert not torch.equal(columns[:, 0], columns[:, 2])


def run(method: Any, rounds: int = 2, start: Any = None) -> tuple[Worker, Server]:
    worker, server = toy.worker(method, toy.build, seed=7), toy.server()
    loop = Federation(method, Inline(worker), server, FederationPlan(clients=toy.CLIENTS, rounds=rounds))
    loop.start()
    if start:
        start(server)
    list(loop.run())
    return worker, server


def test_without_generated_features_it_is_lg_fedavg_from_the_same_head_to_the_bit():
    def same_head(server: Server) -> None:
        server.memory["head"] = server.memory["expected"]  # made by the same draws

    averaged, server = run(LGFedAvg(), start=same_head)
    alone, other = run(FedGen(weight=0.0, server_steps=2))
    assert toy.same_models(alone, averaged)
    assert torch.equal(other.memory["head"].weight, server.memory["head"].tensors["weight"])
    assert not toy.same_models(run(FedGen(server_steps=2))[0], averaged)


def test_a_weight_too_small_to_count_changes_nothing_as_the_generator_draws_from_a_stream_of_its_own():
    """The toy's client 1 has dropout."""
    assert toy.same_models(
        run(FedGen(weight=1e-30, match=1e-30, server_steps=2))[0], run(FedGen(weight=0.0, server_steps=2))[0]
    )


def test_a_generator_that_begins_in_the_second_round_is_not_heard_in_the_first():
    without = run(FedGen(weight=0.0, server_steps=2), rounds=1)[0]
    assert toy.same_models(run(FedGen(begin="second", server_steps=2), rounds=1)[0], without)
    assert not toy.same_models(run(FedGen(begin="first", server_steps=2), rounds=1)[0], without)


def client_and_server(method: FedGen, round: int = 1, id: int = 2, **how: Any) -> tuple[Client, HeadAndGenerator]:
    client, server = toy.build(id, Streams(1), **how), toy.server()
    with Streams(1).default("start"):
        method.start_client(client)
        method.start_server(server)
    client.begin(round, Streams(1))
    return client, method.broadcast(server, id)


def test_both_weights_fade_by_round():
    """A quarter in the third round, if by half each."""
    found = []
    for method in (
        FedGen(weight=4.0, match=8.0, fade=0.5),
        FedGen(weight=1.0, match=2.0),
        FedGen(weight=4.0, match=8.0),
    ):
        client, down = client_and_server(method, round=3)
        found.append(method.local_update(client, down).head.tensors["weight"])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def made(client: Client, labels: Tensor) -> Tensor:
    """Answers of the client's head to generated features."""
    with Streams(8).default("made"), torch.no_grad():
        scores: Tensor = client.model.head(client.memory["generator"].train()(labels))
    return scores


def test_clients_learn_generated_features_of_classes_that_they_do_not_have():
    """Client 2 has classes 2, 3 and 4."""
    labels = torch.tensor([0, 1, 5]).repeat(40)
    costs = []
    for weight in (0.0, 3.0):
        method = FedGen(weight=weight, noise=1)
        client, down = client_and_server(method, training=Training(epochs=10, batch=16, lr=0.1))
        method.local_update(client, down)
        costs.append(F.cross_entropy(made(client, labels), labels).item())
    assert costs[1] < costs[0] - 0.5


def test_matched_clients_answer_own_samples_as_generated_features_of_their_class():
    found = []
    for match in (0.0, 10.0):
        method = FedGen(weight=0.0, match=match)
        client, down = client_and_server(method, training=Training(epochs=5, batch=16, lr=0.05))
        method.local_update(client, down)
        scores, y = client.outputs(client.model)
        target = made(client, y).softmax(1)
        found.append((target * (target.log() - scores.log_softmax(1))).sum(1).mean().item())
    assert found[1] < found[0] / 2


def test_the_generator_is_not_trained_by_clients():
    method = FedGen(match=1.0)
    client, down = client_and_server(method)
    method.local_update(client, down)
    for name, tensor in client.memory["generator"].named_parameters():
        assert torch.equal(tensor, down.generator.tensors[name])


def test_a_single_sample_has_no_generated_features_beside_it():
    """BatchNorm needs two."""
    share = toy.SHARES[2]
    one = type(share)(share.train[:1], share.validation, share.test)
    sent = []
    for method in (FedGen(match=1.0), FedGen(weight=0.0)):
        client, down = client_and_server(method, share=one)
        sent.append(method.local_update(client, down))
    assert torch.equal(sent[0].head.tensors["weight"], sent[1].head.tensors["weight"])
    assert sent[0].labels.sum() == 1


def test_clients_say_how_many_samples_of_each_class_they_have():
    client, down = client_and_server(FedGen())
    assert torch.equal(FedGen().local_update(client, down).labels, client.train.counts(toy.CLASSES).float())


def test_a_client_answers_with_the_averaged_head():
    client, down = client_and_server(FedGen())
    client.model.eval()
    x, _ = client.train.batch(torch.arange(5))
    zeros = Weights({name: torch.zeros_like(t) for name, t in down.head.tensors.items()})
    assert FedGen().predict(client, x, HeadAndGenerator(zeros, down.generator, down.labels)).abs().sum() == 0
    assert torch.equal(FedGen().predict(client, x, None), client.model(x))


def test_what_travels():
    """100 classes, 512 dimensions: 51,300 numbers of a head, 331,776 of the generator.

    Twenty clients exchange 8,687,520, as FedTGP's Table 5 has it, and 100 label counts each way.
    """
    server = small(100, 512)
    FedGen().start_server(server)
    down = FedGen().broadcast(server, 0)
    up = HeadAndLabels(down.head, down.labels)
    assert sum(t.numel() for t in down.generator.tensors.values()) == 331_776
    assert sum(t.numel() for t in pack(down).values()) == 51_300 + 331_776 + 100
    assert sum(t.numel() for t in pack(up).values()) == 51_300 + 100
    both = sum(t.numel() for part in (up, down) for t in pack(part).values())
    assert 20 * (both - 200) == 8_687_520


@pytest.mark.parametrize(("changed", "numbers"), [({}, 2 * 3 + 2 * 1), ({"noise": 4}, 14), ({"hidden": 5}, 20)])
def test_the_size_of_the_generator(changed: dict[str, int], numbers: int):
    """Weights of its two linear layers: two classes, one number of noise and one dimension, two hidden units."""
    method = FedGen(**{"noise": 1, "hidden": 2, **changed})
    server = small()
    method.start_server(server)
    layers = [part for part in server.memory["generator"].modules() if isinstance(part, nn.Linear)]
    assert sum(layer.weight.numel() for layer in layers) == numbers


def test_uploads_that_are_not_as_declared_are_refused():
    server = toy.server()
    FedGen().start_server(server)
    head, labels = Weights.of(server.memory["head"]), torch.ones(toy.CLASSES)
    good = HeadAndLabels(head, labels)
    good.check(toy.CLASSES, toy.DIM)
    FedGen().check(server, good)
    for sent, why in [
        (HeadAndLabels(head, torch.ones(5)), "Label counts"),
        (HeadAndLabels(head, torch.ones(6, 1)), "Label counts"),
        (HeadAndLabels(head, torch.ones(6).double()), "Label counts"),
        (HeadAndLabels(head, torch.ones(6).long()), "Label counts"),
        (HeadAndLabels(head, -labels), "Label counts"),
        (HeadAndLabels(head, torch.nan * labels), "not finite"),
        (HeadAndLabels(Weights.of(nn.Linear(toy.DIM, 2)), labels), "arrived, not"),
        (HeadAndLabels(Weights.of(nn.Linear(toy.DIM, 6).double()), labels), "arrived, not"),
        (HeadAndLabels(Weights.of(nn.Linear(toy.DIM, 6, bias=False)), labels), "nothing arrived"),
        (HeadAndLabels(Weights({**head.tensors, "more": labels}), labels), "'more'"),
    ]:
        with pytest.raises(PayloadError, match=why):
            sent.check(toy.CLASSES, toy.DIM)
            FedGen().check(server, sent)


def test_label_counts_of_nothing_are_refused():
    """No label can be drawn from them."""
    server = toy.server()
    FedGen().start_server(server)
    sent = HeadAndLabels(Weights.of(server.memory["head"]), torch.zeros(toy.CLASSES))
    with pytest.raises(PayloadError, match="Label counts"):
        sent.check(toy.CLASSES, toy.DIM)
        FedGen().check(server, sent)
