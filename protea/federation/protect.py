"""Nobody is worse off: a client answers by its own model where that is better than what the federation made.

Beside the federated model each client trains a second one alone, the very model that it would have without a
federation.  At every evaluation it answers by whichever does best on the samples that it holds out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protea.config.words import PROTECTED
from protea.core.client import Client
from protea.core.errors import ConfigError
from protea.core.memory import Memory
from protea.core.method import Method, Reveals
from protea.core.split_model import SplitModel
from protea.core.wrapping import Wrapper
from protea.methods.local import Local

OWN = "own_model"  # its name in a client's memory


@dataclass(frozen=True)
class Protect(Wrapper):
    """The same method, and each client is protected from answers that are worse than its own.

    What is trained, sent and aggregated by the inner method stays as it is, to the bit.
    """

    word = PROTECTED

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        """Declare what the inner method does: the second model never leaves."""
        return self.inner.reveals

    def start_client(self, client: Client) -> None:
        if client.validation is None or not len(client.validation):
            raise ConfigError(
                f"client {client.id} holds out no samples, by which protect = true chooses its answer.  Set "
                f"data.split.validation higher, at a site split.validation in site.toml; or give it more samples."
            )
        view = client.model.view  # tokens and frozen layers need no copy
        own = copy.deepcopy(client.model, {} if view is None else {id(view): view})
        self.inner.start_client(client)  # after the copy: it may change the model
        client.memory[OWN] = own

    def local_update(self, client: Client, down: Any) -> Any:
        up = self.inner.local_update(client, down)
        twin = replace(client, model=client.memory[OWN], memory=Memory(), losses=[], _cached=None, _draw_states={})
        with client.rng.default("train"):  # all that it draws is what a run of Local draws
            Local().local_update(twin, None)
        return up

    def answering(self, client: Client, down: Any) -> Callable[[Tensor], Tensor]:
        """Answer by whichever of the client's answers is best on the samples that it holds out."""
        return self.answers(client, down)[self.choice(client, down)]

    def choice(self, client: Client, down: Any) -> str:
        """Return which answer is best: the most right, then the highest likelihood, then the first of ``answers``."""
        found: dict[str, tuple[int, float]] = {}
        client.set_evaluation()
        with torch.no_grad():
            for name, answer in self.answers(client, down).items():
                scores, labels = zip(*((answer(x), y) for x, y in client.batches(client.validation)), strict=True)
                found[name] = quality(torch.cat(scores), torch.cat(labels))
        return max(found, key=lambda name: found[name])

    def answers(self, client: Client, down: Any) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return the answers that a client has: ``alone``, ``federated``, and the mean of their log-probabilities."""
        own: SplitModel = client.memory[OWN]
        federated = self.inner.answering(client, down)
        return {
            "alone": own,
            "federated": federated,
            "both": lambda x: (log_probabilities(own(x)) + log_probabilities(federated(x))) / 2,
        }


def log_probabilities(scores: Tensor) -> Tensor:
    """Return log-probabilities ``(batch, classes)``; 0 for all classes of a sample that has no answer (all -inf)."""
    return scores.log_softmax(1).masked_fill(scores.isneginf().all(1, keepdim=True), 0.0)


def quality(scores: Tensor, labels: Tensor) -> tuple[int, float]:
    """Return how many answers are right, and the mean log-likelihood of the labels; a model that diverged has least.

    >>> quality(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))[0]
    1
    """
    if scores.isnan().any() or scores.isposinf().any():
        return -1, -torch.inf
    given = ~scores.isneginf().all(1)
    right = (scores.argmax(1) == labels) & given
    likelihood = log_probabilities(scores).gather(1, labels[:, None]).squeeze(1).masked_fill(~given, -torch.inf)
    return int(right.sum()), float(likelihood.cpu().double().mean())


@dataclass(frozen=True)
class Unfederated:
    """A rule of evaluation beside a protected answer: the model that the client trains alone."""

    def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor:
        scores: Tensor = client.memory[OWN](x)
        return scores


@dataclass(frozen=True)
class Unprotected:
    """A rule of evaluation beside a protected answer: what the client would answer without protection."""

    inner: Method[Any, Any]

    def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor:
        return self.inner.predict(client, x, down)
