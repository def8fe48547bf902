from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from protea import Prototypes, Upload
from protea.config.experiment import experiment_from_table
from protea.core.errors import ClientError, ConfigError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.data.dataset import Dataset
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedpagr import FedPAGR


def prototypes(vectors: list[list[float]], counts: list[float] | None = None) -> Prototypes:
    rows = torch.tensor(vectors, dtype=torch.float64)
    return Prototypes(rows, torch.tensor(counts or [1.0] * len(rows), dtype=torch.float64))


def directions(classes: int = toy.CLASSES, dim: int = toy.DIM, seed: int = 0) -> Prototypes:
    generator = torch.Generator().manual_seed(seed)
    return Prototypes(F.normalize(torch.randn(classes, dim, generator=generator), dim=1), torch.ones(classes))


def together(method: FedPAGR, before: Prototypes, *parts: Prototypes) -> Tensor:
    """What the server makes of these uploads."""
    server = toy.server()
    server.memory["prototypes"] = before
    method.aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    found = server.memory["prototypes"]
    assert found.present.all()
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(len(found.vectors), dtype=found.vectors.dtype))
    return found.vectors


AXES = prototypes([[1, 0], [0, 1]])
AT_60 = prototypes([[1, 0], [0.5, math.sqrt(0.75)]])


# The server


def test_it_starts_from_random_directions():
    server = toy.server()
    FedPAGR().start_server(server)
    sent = FedPAGR().broadcast(server, 0)
    assert sent is not None and sent.present.all() and sent.vectors.shape == (toy.CLASSES, toy.DIM)
    torch.testing.assert_close(sent.vectors.norm(dim=1), torch.ones(toy.CLASSES))


@pytest.mark.parametrize("pairs", ["dense", "sparse"])
def test_two_classes_at_60_degrees_after_five_steps(pairs: str):
    found = together(FedPAGR(pairs=pairs), AXES, AT_60)  # type: ignore[arg-type]
    assert (found[0] @ found[1]).item() == pytest.approx(0.292662718, abs=1e-8)
    assert found[0].tolist() == pytest.approx([0.993589069, -0.113052028], abs=1e-8)


def test_without_separation_the_number_of_steps_does_not_matter_to_the_bit():
    parts = [directions(seed=1), directions(seed=2), directions(seed=3)]
    found = [together(FedPAGR(separation=0.0, steps=steps), directions(), *parts) for steps in (0, 1, 5, 50)]
    assert all(torch.equal(found[0], other) for other in found)
    torch.testing.assert_close(found[0], F.normalize(sum(part.vectors for part in parts), dim=1))  # type: ignore[arg-type]


def test_classes_far_enough_apart_are_left_alone():
    parts = [prototypes([[0.8, 0.6], [-0.8, 0.6]]), prototypes([[0.6, 0.8], [-0.6, 0.8]])]
    mean = F.normalize(parts[0].vectors + parts[1].vectors, dim=1)  # their cosine is -0.02
    torch.testing.assert_close(together(FedPAGR(margin=0.0), AXES, *parts), mean)


def test_a_class_that_nobody_reported_keeps_its_prototype_unless_another_comes_near():
    far = prototypes([[-0.6, -0.8], [0, 0]], [1, 0])
    torch.testing.assert_close(together(FedPAGR(), AXES, far)[1], AXES.vectors[1])
    near = prototypes([[0.6, 0.8], [0, 0]], [1, 0])
    assert together(FedPAGR(), AXES, near)[1, 0] < 0  # pushed away, and nothing holds it


def test_uploads_that_cancel_out_say_nothing():
    found = together(FedPAGR(), AXES, prototypes([[0.6, 0.8], [0, 1]]), prototypes([[-0.6, -0.8], [0, 1]]))
    torch.testing.assert_close(found, AXES.vectors)


def test_only_directions_of_uploads_count():
    long = Prototypes(7 * AT_60.vectors, AT_60.counts)
    torch.testing.assert_close(together(FedPAGR(), AXES, long), together(FedPAGR(), AXES, AT_60))


def test_one_class_equal_classes_and_equal_uploads_give_no_nan():
    one = prototypes([[0.6, 0.8]])
    torch.testing.assert_close(together(FedPAGR(), one, one), one.vectors)
    equal = prototypes([[0.6, 0.8], [0.6, 0.8]])
    torch.testing.assert_close(together(FedPAGR(), AXES, equal), equal.vectors)
    torch.testing.assert_close(together(FedPAGR(steps=0), AXES, AT_60, AT_60), AT_60.vectors)
    torch.testing.assert_close(together(FedPAGR(), AXES, prototypes([[0, 0], [0, 0]], [0, 0])), AXES.vectors)


# The loss


@settings(max_examples=15, deadline=None)
@given(classes=st.integers(1, 8), entropy=st.floats(0, 2), seed=st.integers(0, 99))
def test_the_alignment_terms_are_label_smoothing(classes: int, entropy: float, seed: int):
    down, z = directions(classes, 5, seed), directions(4, 5, seed + 1).vectors
    y, method = torch.arange(4) % classes, FedPAGR(entropy=entropy)
    smooth = F.cross_entropy(method.nearness(z, down), y, label_smoothing=entropy / (1 + entropy))
    torch.testing.assert_close(method.align(z, y, down), (1 + entropy) * smooth, atol=1e-5, rtol=1e-5)


def test_entropy_of_one_tenth_smooths_labels_by_one_eleventh():
    down, z, y = directions(), directions(seed=1).vectors, torch.arange(6)
    smooth = F.cross_entropy(10 * z @ down.vectors.T, y, label_smoothing=1 / 11)
    torch.testing.assert_close(FedPAGR().align(z, y, down), 1.1 * smooth)


def test_where_all_classes_are_equally_near_both_terms_are_log_c():
    z, down = torch.tensor([[0.0, 0.0, 1.0]]), Prototypes(torch.eye(2, 3), torch.ones(2))
    assert FedPAGR(entropy=0.5).align(z, torch.tensor([1]), down).item() == pytest.approx(1.5 * math.log(2))


def test_cross_entropy_of_an_anchored_classifier_is_never_small():
    """Scores lie in [-1, 1]: with 10 classes at least log(1 + 9 / e^2) = 0.797."""
    scores = torch.full((1, 10), -1.0)
    scores[0, 3] = 1.0
    assert F.cross_entropy(scores, torch.tensor([3])).item() == pytest.approx(0.796614, abs=1e-6)


def test_the_gradient_of_the_loss_at_a_prototype_is_finite():
    down = directions()
    z = down.vectors.clone().requires_grad_()
    (slope,) = torch.autograd.grad(FedPAGR().align(F.normalize(z, dim=1), torch.arange(6), down), z)
    assert torch.isfinite(slope).all()


# The client


def test_the_classifier_becomes_the_prototypes_in_place_before_training():
    client, down, seen = toy.build(0, Streams(1)), directions(), []
    head = client.model.head
    assert isinstance(head, nn.Linear)
    weight, bias = head.weight, head.bias

    def watched(loss: object) -> float:
        seen.append((head.weight.detach().clone(), head.bias.detach().clone()))
        return type(client).fit(client, loss)  # type: ignore[arg-type]

    client.fit = watched  # type: ignore[method-assign, assignment]
    FedPAGR().local_update(client, down)
    assert torch.equal(seen[0][0], down.vectors) and not seen[0][1].any()
    assert head.weight is weight and head.bias is bias
    assert not torch.equal(weight, down.vectors)  # trained since


def test_a_fixed_classifier_stays_where_it_was_anchored():
    client, down = toy.build(0, Streams(1)), directions()
    client.model.head = nn.Linear(toy.DIM, toy.CLASSES, bias=False)
    FedPAGR(classifier="fixed").local_update(client, down)
    assert torch.equal(client.model.head.weight, down.vectors)


def test_uploads_have_unit_length_and_no_counts():
    client = toy.build(0, Streams(1))
    sent = FedPAGR().local_update(client, directions())
    torch.testing.assert_close(sent.vectors.norm(dim=1), client.own_classes.float())
    assert torch.equal(sent.counts, client.own_classes.float())


def test_a_prototype_is_the_mean_of_unit_features_not_of_features():
    client = toy.build(0, Streams(1))
    sent = FedPAGR().local_update(client, directions())
    z, y = client.features()
    expected = F.normalize(F.normalize(z[y == 0], dim=1).mean(0), dim=0)
    torch.testing.assert_close(sent.vectors[0], expected)


def test_a_class_whose_features_are_all_zero_is_not_reported():
    client = toy.build(0, Streams(1))
    client.model.adapter = Zero()
    assert not FedPAGR().local_update(client, directions()).present.any()


class Zero(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return 0.0 * z


class Longer(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return 8.0 * z


class Unit(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1)


def test_scores_are_cosines_over_the_temperature_whatever_the_length_of_features():
    client, down = toy.build(0, Streams(1)), directions()
    client.model.eval()
    x, _ = client.train.batch(torch.arange(20))
    cosines = F.normalize(client.model.features(x), dim=1) @ down.vectors.T
    torch.testing.assert_close(FedPAGR().predict(client, x, down), 10 * cosines)
    torch.testing.assert_close(FedPAGR(temperature=0.5).predict(client, x, down), 2 * cosines)
    client.model.adapter = Longer()
    torch.testing.assert_close(FedPAGR().predict(client, x, down), 10 * cosines)


def played(adapter: nn.Module, double: bool = False) -> tuple[list[dict[str, Tensor]], Tensor]:
    """All clients' weights and the server's prototypes after three rounds with this adapter, which has no weights."""
    method, server = FedPAGR(), toy.server()
    kind = torch.float64 if double else torch.float32
    with server.rng.default("start"):
        method.start_server(server)
    start = server.memory["prototypes"]
    server.memory["prototypes"] = Prototypes(start.vectors.to(kind), start.counts.to(kind))
    clients = [toy.build(id, Streams(7).at("client", id)) for id in range(toy.CLIENTS)]
    data = Dataset(toy.BLOBS.x.to(kind), toy.BLOBS.y, toy.BLOBS.names)
    for client in clients:
        client.model.adapter = adapter
        client.model.to(kind)
        client.train = Samples(data, client.train.index)
    for number in (1, 2, 3):
        uploads = []
        for client in clients:
            client.begin(number, Streams(7).at("client", client.id).at("round", number))
            with client.rng.default("train"):
                uploads.append(Upload(client.id, method.local_update(client, method.broadcast(server, client.id)), 1))
        method.aggregate(server, uploads)
    return [client.model.state_dict() for client in clients], server.memory["prototypes"].vectors


def test_features_eight_times_as_long_change_nothing_to_the_bit():
    """Every formula has unit features (Eq. 1), and dividing by a power of two rounds nothing."""
    models, vectors = played(nn.Identity())
    longer, same = played(Longer())
    assert torch.equal(vectors, same)
    assert all(toy.same(a, b) for a, b in zip(models, longer, strict=True))


def test_an_adapter_that_ends_at_unit_length_changes_nothing_but_rounding():
    """Normalising twice is normalising once: in double precision, nine digits after three rounds."""
    models, vectors = played(nn.Identity(), double=True)
    unit_models, same = played(Unit(), double=True)
    torch.testing.assert_close(vectors, same, atol=1e-9, rtol=0)
    for a, b in zip(models, unit_models, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-9, rtol=1e-9)


def test_a_head_of_several_layers_is_refused_by_name():
    client = toy.build(0, Streams(1))
    client.model.head = nn.Sequential(nn.Linear(toy.DIM, 8), nn.ReLU(), nn.Linear(8, toy.CLASSES))
    with pytest.raises(
        ClientError, match=r"client 0: .* must be one Linear\(16, 6\); that of own model is a Sequential"
    ):
        FedPAGR().local_update(client, directions())


def test_families_whose_heads_differ_are_refused_before_the_start():
    with pytest.raises(ConfigError, match="heads of different shape"):
        experiment_from_table({"method": "fedpagr", "models": {"family": "htc4"}})


def test_one_client_alone_learns_too():
    worker = toy.worker(FedPAGR(), toy.build, seed=7)
    records = list(Federation(worker.method, Inline(worker), toy.server(), FederationPlan(clients=1, rounds=4)).run())
    assert records[-1].accuracy is not None and records[-1].accuracy > 0.8


def test_without_the_alignment_terms_only_the_anchored_classifier_teaches():
    """Its temperature then plays no part in training."""
    plain, other = (toy.play(FedPAGR(alignment=0.0, temperature=t), 1)[0] for t in (0.1, 0.5))
    assert toy.same_models(plain, other)
    assert not toy.same_models(plain, toy.play(FedPAGR(), 1)[0])
