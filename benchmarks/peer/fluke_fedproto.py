"""FedProto by fluke, on clients that are given; every client has the same network, since fluke has it so."""

from __future__ import annotations

from typing import Any

import torch
from common import CLASSES, htcnn, samples, serve, settings


def stand_in() -> None:
    """torchvision's operators do not load beside a CPU build of torch; fluke needs none, but imports it."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


KEPT: list[Any] = []
stand_in()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedproto import FedProto, FedProtoClient, FedProtoServer  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402
from fluke.utils import ClientObserver  # noqa: E402
from torchmetrics import Accuracy  # noqa: E402


class Rounds(FedProto):  # type: ignore[misc]
    def finalize(self) -> None:
        """No further training at the end: rounds go on."""


class Seen(ClientObserver):  # type: ignore[misc]
    """Accuracy of each client after its training in this round."""

    def __init__(self) -> None:
        self.accuracy: dict[int, float] = {}

    def client_evaluation(self, round: int, client_id: int, phase: str, evals: dict[str, float], **more: Any) -> None:
        self.accuracy[client_id] = evals["accuracy"]


def main() -> None:
    given = settings()
    torch.set_num_threads(given["threads"])
    env = FlukeENV()
    env.set_seed(1)
    env.set_device("cpu")
    env.set_eval_cfg(pre_fit=False, post_fit=True, locals=False, server=False)
    # fluke has seven measures; accuracy is all that is asked for here
    accuracy = Accuracy(task="multiclass", num_classes=CLASSES, top_k=1, average="micro")
    env.set_evaluator(ClassificationEval(1, CLASSES, accuracy=accuracy))
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=given["lr"]), DDict(name="StepLR", step_size=1, gamma=1))
    clients, tests = [], []
    for client in range(given["clients"]):
        own = samples(given["data"], client)
        tests.append(len(own["y_test"]))
        train = FastDataLoader(own["x"], own["y"], num_labels=CLASSES, batch_size=given["batch"], shuffle=True)
        test = FastDataLoader(own["x_test"], own["y_test"], num_labels=CLASSES, batch_size=128)
        clients.append(
            FedProtoClient(
                index=client, model=EncoderHeadNet(*htcnn(2)), train_set=train, test_set=test, optimizer_cfg=optimizer,
                loss_fn=torch.nn.CrossEntropyLoss(), local_epochs=1, n_protos=CLASSES, lam=given["pull"],
            )
        )  # fmt: skip
    server = FedProtoServer(model=None, test_set=None, clients=clients, n_protos=CLASSES)
    federation = Rounds(len(clients), None, None, clients=clients, server=server)
    seen = Seen()
    federation.set_callbacks([seen])

    def play() -> float:
        federation.run(1, 1.0)
        return sum(seen.accuracy[client] * tests[client] for client in seen.accuracy) / sum(tests)

    serve(play)


if __name__ == "__main__":
    main()
