"""LG-FedAvg shares heads, FML a second model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy

from protea import Upload, Weights, losses
from protea.clients.worker import Worker
from protea.core.errors import PayloadError
from protea.methods.fml import FML
from protea.methods.lg_fedavg import LGFedAvg
from protea.methods.local import Local


def run(method: Any, clients: int = toy.CLIENTS, rounds: int = 3) -> Worker:
    return toy.play(method, rounds, clients)[0]


def test_lg_fedavg_with_one_client_is_local_training_to_the_bit():
    assert toy.same_models(run(LGFedAvg(), clients=1), run(Local(), clients=1))
    assert not toy.same_models(run(LGFedAvg()), run(Local()))


def test_lg_fedavg_weighs_heads_by_samples_or_equally():
    heads = [Weights({"weight": torch.tensor([[0.0]])}), Weights({"weight": torch.tensor([[4.0]])})]
    for average, expected in (("samples", 3.0), ("uniform", 2.0)):
        server = toy.server()
        uploads = [Upload(0, heads[0], 10), Upload(1, heads[1], 30)]
        LGFedAvg(average=average).aggregate(server, uploads)  # type: ignore[arg-type]
        assert server.memory["head"].tensors["weight"].item() == expected


def test_lg_fedavg_answers_with_the_average_head_or_its_own():
    client = toy.build(0, toy.Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(5))
    down = Weights({name: torch.zeros_like(t) for name, t in client.model.head.state_dict().items()})
    assert LGFedAvg().predict(client, x, down).abs().sum() == 0
    assert torch.equal(LGFedAvg(answer="own").predict(client, x, down), client.model(x))


def test_lg_fedavg_refuses_a_head_of_another_shape():
    server = toy.server()
    LGFedAvg().start_server(server)
    head = server.make("smallest").head
    LGFedAvg().check(server, Weights.of(head))
    for other in (torch.nn.Linear(toy.DIM, 2), head.double()):
        with pytest.raises(PayloadError, match="arrived, not"):
            LGFedAvg().check(server, Weights.of(other))


def test_fml_that_listens_to_labels_only_is_local_training_of_the_private_model_to_the_bit():
    """The toy's meme has dropout: its draws must not disturb the private model's."""
    assert toy.same_models(run(FML(alpha=1.0, beta=1.0)), run(Local()))
    assert not toy.same_models(run(FML()), run(Local()))


def test_fml_averages_memes_and_clients_start_from_the_average():
    worker = run(FML(), rounds=1)
    memes = [Weights.of(client.memory["meme"]) for client in worker.clients.values()]
    server = toy.server()
    FML().aggregate(server, [Upload(i, meme, 1) for i, meme in enumerate(memes)])
    mean = server.memory["meme"]
    expected = torch.stack([meme.tensors["head.bias"] for meme in memes]).mean(0)
    torch.testing.assert_close(mean.tensors["head.bias"], expected)


def test_mutual_teaching_of_one_sample():
    """Student (2, 0, 0), teacher uniform: KL 0.474265811 per sample, a third of it per class."""
    student, teacher = (
        torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64),
        torch.zeros(1, 3, dtype=torch.float64),
    )
    assert losses.teach(teacher, student).item() == pytest.approx(0.474265811)
    assert losses.teach(teacher, student, "joint").item() == pytest.approx(0.158088604)


def test_a_teacher_gets_no_gradient_unless_teaching_is_joint():
    teacher, student = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    losses.teach(teacher, student).backward()
    assert teacher.grad is None and student.grad is not None
    losses.teach(teacher, student, "joint").backward()
    assert teacher.grad is not None
