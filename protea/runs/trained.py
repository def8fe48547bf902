"""What a run has learned: its clients' models, what they answer, and the global prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protea.clients.state_files import load_client, load_server
from protea.config.sections import Evaluation
from protea.core.client import EVALUATION_BATCH, Client
from protea.core.errors import ConfigError, DataError, nearest
from protea.core.method import Method
from protea.core.payload import pack, unpack
from protea.core.prototypes import Prototypes
from protea.core.samples import normalise
from protea.core.server import Server
from protea.core.split_model import SplitModel
from protea.data.convert import to_inputs
from protea.evaluation import rules
from protea.evaluation.client_side import blended_answer
from protea.evaluation.counts import probabilities
from protea.runs.setup import RunSetup

Inputs = Tensor | npt.NDArray[Any] | Sequence[Any]
Part = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class TrainedClient:
    """A client as it was after the last round of its run: its model, its samples, and what the server last sent it."""

    client: Client
    method: Method[Any, Any]
    down: Any  # the last broadcast; None if there was none
    evaluation: Evaluation = field(default_factory=Evaluation)  # the user's own rules, and which one answers

    @property
    def id(self) -> int:
        """The client's number."""
        return self.client.id

    @property
    def model(self) -> SplitModel:
        """The trained model, in evaluation mode."""
        model: SplitModel = self.client.model.eval()
        return model

    @torch.no_grad()
    def predict(self, x: Inputs, rule: str = "method") -> Tensor:
        """Class probabilities, float32 ``(samples, classes)``, on the CPU.

        ``x`` is as the model was trained: float32 as they are, bytes of images, or texts.  The rule ``method`` is the
        one that ``evaluation.answer`` names.
        """
        answer, batches = self.answering(rule), self._inputs(x).split(EVALUATION_BATCH)
        if not batches[0].numel():
            return torch.zeros(0, self.client.classes)
        return torch.cat([probabilities(answer(batch.to(self.client.device))).float().cpu() for batch in batches])

    def confusion(self, part: Part = "test", rule: str = "method") -> Tensor:
        """How often each class (row) was answered as each class (column), on the client's own samples."""
        if part not in get_args(Part):
            raise ConfigError(f"A client has no part {part!r}.  {nearest(part, get_args(Part))}")
        data = self.client.parts.get(part)
        if data is None:
            return torch.zeros(self.client.classes, self.client.classes, dtype=torch.int64)
        with torch.no_grad():
            answer = self.answering(rule)
            said = torch.cat([answer(x).argmax(1).cpu() for x, _ in self.client.batches(data)])
        return confusion_matrix(data.y.cpu(), said, self.client.classes)

    def answering(self, rule: str = "method") -> rules.Answer:
        """The function from a batch of the model's inputs to class scores by which a rule answers."""
        settings, client = self.evaluation, self.client
        name = settings.answer if rule == "method" else rule
        ways = self.ways(local=name == "local_prototypes" or (name == "blend" and settings.local_prototypes))
        if name == "blend":  # its weights are fitted only where it answers
            return blended_answer(client, ways)
        if rule not in ways:
            raise ConfigError(f"Client {self.id} has no rule {rule!r}.  {nearest(rule, [*ways, 'blend'])}")
        return ways[rules.answering(name, ways, client, self.down)]

    def ways(self, *, local: bool = True) -> dict[str, rules.Answer]:
        """Every rule that the client has, but for the blend; with ``local`` also its own prototypes."""
        client = self.client
        client.set_evaluation()
        prototypes = client.prototypes() if local else None
        return rules.of_client(self.method, client, self.down, prototypes, self.evaluation.rules)

    def _inputs(self, x: Inputs) -> Tensor:
        view = self.model.view
        if view is not None:
            if isinstance(x, str) or not all(isinstance(text, str) for text in x):
                raise DataError("This model reads texts: give a list of strings.")
            return view(list(x))
        found = x if isinstance(x, Tensor) else to_inputs(np.asarray(x))
        tokens = self.client.train.dataset.x.dtype == torch.int64
        found = normalise(found) if found.dtype == torch.uint8 else found.to(torch.int64 if tokens else torch.float32)
        expected = self.client.train.shape
        if expected == (1, *found.shape[1:]):
            found = found.unsqueeze(1)  # grey images without an axis of channels
        if tuple(found.shape[1:]) != expected:
            raise DataError(
                f"Samples of shape {tuple(found.shape[1:])} were given; the clients of this run have {expected}.  "
                f"Give an array of shape (samples, {', '.join(map(str, expected))})."
            )
        return found


def confusion_matrix(labels: Tensor, answers: Tensor, classes: int) -> Tensor:
    """Count how often each class (row) was answered as each class (column).

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 0],
            [1, 1]])
    """
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    return matrix.index_put_((labels, answers), torch.ones(len(labels), dtype=torch.int64), accumulate=True)


@dataclass(frozen=True)
class TrainedState:
    """A folder with the state of server and clients after ``round``."""

    setup: RunSetup
    folder: Path
    round: int

    def server(self) -> Server:
        """The server as it was."""
        server, method = self.setup.new_server(), self.setup.method
        server.rounds = self.setup.rounds
        with server.rng.at("round", 0).default("start"):
            method.start_server(server)
        load_server(server, self.folder)
        server.round = self.round
        return server

    def prototypes(self) -> Prototypes | None:
        """The global prototypes; ``None`` for methods that have none."""
        server, method = self.server(), self.setup.method
        with server.rng.at("round", self.round).default("look"):
            return method.global_prototypes(server)

    def client(self, id: int) -> TrainedClient:
        """A client as it was, with the broadcast that it would get now."""
        client, server, method = self.setup.new_client(id), self.server(), self.setup.method
        load_client(client, self.folder)
        client.begin(self.round, client.rng.at("round", self.round))
        with server.rng.at("round", self.round).default("broadcast"):
            sent = pack(method.broadcast(server, id))
        down = unpack(method.down, {name: tensor.to(client.device) for name, tensor in sent.items()})
        return TrainedClient(client, method, down, self.setup.evaluation)
