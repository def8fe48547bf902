from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor

from protea import Prototypes, Server, Upload
from protea.clients.state_files import load_server, save_server
from protea.clients.worker import Worker
from protea.core.errors import PayloadError
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.training import Training
from protea.methods.feddistill import ClassScores, FedDistill
from protea.methods.local import Local


def scores_of(vectors: Any, counts: Any = None) -> ClassScores:
    rows = torch.as_tensor(vectors)
    return ClassScores(Prototypes(rows, torch.ones(len(rows)) if counts is None else torch.tensor(counts)))


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def run(method: Any, rounds: int = 2) -> Worker:
    return toy.play(method, rounds)[0]


def test_a_sample_taught_by_its_own_answer_has_no_slope():
    o = double([1.0, 2.0, -1.0]).requires_grad_()
    known = Prototypes(o.detach().repeat(3, 1), torch.ones(3))
    value = FedDistill().distil(o, torch.tensor([1]), known)
    (slope,) = torch.autograd.grad(value, o)
    p = o.detach().softmax(1)
    assert value.item() == pytest.approx(-(p * p.log()).sum().item())  # the entropy
    torch.testing.assert_close(slope, torch.zeros_like(slope))


def test_raw_scores_as_targets_are_no_distribution():
    """The loss is negative, and a sample that answers just as its target has a slope: what HtFLlib does."""
    o = double([1.0, 2.0, -1.0]).requires_grad_()
    known = Prototypes(o.detach().repeat(3, 1), torch.ones(3))
    value = FedDistill(targets="raw").distil(o, torch.tensor([1]), known)
    (slope,) = torch.autograd.grad(value, o)
    assert value.item() == pytest.approx(-1.301976, abs=1e-6)
    assert slope[0].tolist() == pytest.approx([-0.481007, -0.589231, 1.070238], abs=1e-6)


def test_the_slope_is_the_difference_of_two_distributions():
    g = Streams(2).generator("scores")
    o = torch.randn(5, 3, dtype=torch.float64, generator=g).requires_grad_()
    known, y = (
        Prototypes(torch.randn(3, 3, dtype=torch.float64, generator=g), torch.ones(3)),
        torch.tensor([0, 1, 2, 1, 0]),
    )
    (slope,) = torch.autograd.grad(FedDistill().distil(o, y, known), o)
    torch.testing.assert_close(slope, (o.detach().softmax(1) - known.vectors[y].softmax(1)) / 5)
    for targets in ("softmax", "raw"):
        method = FedDistill(targets=targets)  # type: ignore[arg-type]
        assert torch.autograd.gradcheck(lambda o, method=method: method.distil(o, y, known), (o,))


def test_a_class_that_nobody_reported_teaches_nothing_but_counts_in_the_value():
    """Uniform answers of three classes: entropy log 3 for the sample of class 2, half of it in the mean."""
    o = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    known = Prototypes(double([100.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0]))
    value = FedDistill().distil(o, torch.tensor([0, 2]), known)
    (slope,) = torch.autograd.grad(value, o)
    assert value.item() == pytest.approx(1.098612)  # log 3 for either
    assert slope[1].tolist() == pytest.approx([0, 0, 0])
    assert slope[0].tolist() == pytest.approx([-1 / 3, 1 / 6, 1 / 6])


def test_the_server_averages_the_clients_that_have_a_class_each_once():
    server = Server(2, 5, Streams(0))
    one = scores_of([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    two = scores_of([[8.0, 2.0], [1.0, 5.0]], [99.0, 1.0])
    FedDistill().aggregate(server, [Upload(0, one, 1), Upload(3, two, 100)])
    down = FedDistill().broadcast(server, 0)
    assert down is not None
    assert down.mean.vectors.tolist() == [[5.0, 1.0], [1.0, 5.0]]
    assert down.mean.counts.tolist() == [100, 1]


def test_in_the_paper_a_client_is_taught_by_the_others_only():
    server, method = Server(2, 5, Streams(0)), FedDistill(**FedDistill.variants["paper"])
    one = scores_of([[2.0, 0.0], [7.0, 7.0]])
    two = scores_of([[8.0, 2.0], [0.0, 0.0]], [1.0, 0.0])
    method.aggregate(server, [Upload(0, one, 1), Upload(3, two, 1)])
    heard = [method.broadcast(server, client) for client in (0, 3, 5)]
    assert [down.mean.vectors[0].tolist() for down in heard if down] == [[8.0, 2.0], [2.0, 0.0], [5.0, 1.0]]
    assert heard[0] is not None and heard[0].mean.present.tolist() == [True, False]


def test_who_was_alone_hears_nothing_of_others():
    server, method = Server(2, 5, Streams(0)), FedDistill(others=True)
    method.aggregate(server, [Upload(3, scores_of([[2.0, 0.0], [7.0, 7.0]]), 1)])
    assert method.broadcast(server, 3) is None
    assert method.broadcast(server, 0) is not None


def test_before_the_first_round_there_is_nothing_to_send():
    assert FedDistill().broadcast(Server(2, 5, Streams(0)), 0) is None


def test_without_weight_it_is_local_training_to_the_bit_and_so_is_its_first_round():
    assert toy.same_models(run(FedDistill(weight=0.0)), run(Local()))
    assert toy.same_models(run(FedDistill(), rounds=1), run(Local(), rounds=1))
    assert not toy.same_models(run(FedDistill(), rounds=2), run(Local(), rounds=2))


@pytest.mark.parametrize("changed", [{"weight": 0.5}, {"taken": "after"}, {"others": True}, {"targets": "raw"}])
def test_each_setting_counts(changed: dict[str, Any]):
    assert not toy.same_models(run(FedDistill(), rounds=2), run(FedDistill(**changed), rounds=2))


def test_scores_are_those_while_training_or_those_afterwards():
    """In one step on all samples the first are the answers of the model before it."""
    for taken in ("during", "after"):
        client = toy.build(2, Streams(1), training=Training(batch=1000, lr=0.1))
        client.begin(1, Streams(1))
        before = Prototypes.of(*client.outputs(client.model), toy.CLASSES)
        sent = FedDistill(taken=taken).local_update(client, None)  # type: ignore[arg-type]
        after = Prototypes.of(*client.outputs(client.model), toy.CLASSES)
        torch.testing.assert_close(sent.mean.vectors, before.vectors if taken == "during" else after.vectors)
        assert not torch.allclose(before.vectors, after.vectors)
        assert torch.equal(sent.mean.counts, after.counts)


def test_several_epochs_count_all_their_answers():
    client = toy.build(2, Streams(1), training=Training(epochs=3))
    client.begin(1, Streams(1))
    assert torch.equal(FedDistill().local_update(client, None).mean.counts, 3 * client.train.counts(toy.CLASSES))


def test_clients_learn_to_answer_as_they_are_taught():
    """Told that samples of class 0 look like class 5, a client comes to answer so."""
    told = torch.zeros(6, 6)
    told[0, 5] = 20.0
    shares = []
    for weight in (0.0, 10.0):
        client = toy.build(0, Streams(1), training=Training(epochs=5, batch=16, lr=0.05))
        client.begin(2, Streams(1))
        FedDistill(weight=weight).local_update(client, scores_of(told))
        scores, y = client.outputs(client.model)
        shares.append((scores[y == 0].argmax(1) == 5).float().mean().item())
    assert shares[0] == 0 and shares[1] > 0.9


def test_it_answers_with_its_own_head_and_scores_are_not_prototypes_of_features():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(5))
    down = scores_of(torch.ones(6, 6))
    assert torch.equal(FedDistill().predict(client, x, down), client.model(x))
    assert FedDistill().prototypes(down) is None


def test_a_single_sample_is_enough():
    share = toy.SHARES[0]
    client = toy.build(1, Streams(1), share=type(share)(share.train[:1], share.validation, share.test))
    client.begin(2, Streams(1))
    sent = FedDistill().local_update(client, scores_of(torch.zeros(6, 6)))
    assert sent.mean.present.sum() == 1 and sent.mean.vectors.isfinite().all()


def test_what_travels():
    """100 classes of which ten clients have 44, ten have 45: 890 rows up, 2,000 down, and 100 counts each time.

    Without counts these are the 0.29 million numbers of FedTGP's Table 5.
    """
    ups = [scores_of(torch.ones(100, 100), (torch.arange(100) < 44 + i % 2).float().tolist()) for i in range(20)]
    assert sum(t.numel() for t in pack(ups[0]).values()) == 44 * 100 + 100
    server = Server(100, 512, Streams(0))
    FedDistill().aggregate(server, [Upload(20, scores_of(torch.ones(100, 100)), 1)])
    downs = [FedDistill().broadcast(server, i) for i in range(20)]
    assert sum(t.numel() for part in (*ups, *downs) for t in pack(part).values()) == 289_000 + 40 * 100


def test_a_server_that_was_saved_sends_the_same_to_the_bit(tmp_path: Path):
    """With twelve clients: the order in which a file has them is not that of their numbers, and sums depend on it."""
    server, again = Server(40, 5, Streams(0)), Server(40, 5, Streams(0))
    g = Streams(2).generator("scores")
    uploads = [Upload(i, scores_of(torch.randn(40, 40, generator=g)), 1) for i in range(12)]
    FedDistill().aggregate(server, uploads)
    save_server(server, tmp_path)
    load_server(again, tmp_path)
    for others in (False, True):
        for client in range(12):
            sent, later = (FedDistill(others=others).broadcast(each, client) for each in (server, again))
            assert sent is not None and later is not None
            assert torch.equal(sent.mean.vectors, later.mean.vectors), (others, client)


def test_uploads_that_are_not_as_declared_are_refused():
    scores_of(torch.ones(6, 6)).check(6, 16)
    for sent, why in [
        (scores_of(torch.ones(6, 16)), "in 6 dimensions"),
        (scores_of(torch.ones(5, 6)), "6 classes"),
        (scores_of(torch.ones(6, 6).double()), "float64"),
        (scores_of(torch.ones(6, 6), [1] * 6), "int64"),
        (scores_of(torch.full((6, 6), torch.inf)), "not finite"),
        (scores_of(torch.ones(6, 6), [-1.0] * 6), "negative"),
        (scores_of(torch.ones(6, 6), [0.5] * 6), "no whole number"),
    ]:
        with pytest.raises(PayloadError, match=why):
            sent.check(6, 16)
    with pytest.raises(PayloadError, match="vectors and counts"):
        ClassScores.from_flat({"mean.vectors": torch.ones(6, 6)})


def test_rows_of_scores_are_taught_by_the_label_not_by_the_answer():
    o, y = double([0.0, 5.0]), torch.tensor([0])
    known = Prototypes(double([3.0, 0.0], [0.0, 3.0]), torch.ones(2))
    expected = F.cross_entropy(o, double([3.0, 0.0]).softmax(1))
    assert FedDistill().distil(o, y, known).item() == pytest.approx(expected.item())
