"""The ways in which a model can answer."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from protea.config import registry, words
from protea.core.client import Client
from protea.core.errors import ClientError
from protea.core.method import Method
from protea.core.prototypes import Prototypes
from protea.core.server import Server
from protea.core.split_model import SplitModel

NAMES = tuple(words.RULES)
Answer = Callable[[Tensor], Tensor]  # from a batch x to scores (batch, classes)


@runtime_checkable
class Rule(Protocol):
    """A way to answer of the user's own: a frozen dataclass, registered in the group ``rules``.

    It gives scores ``(batch, classes)`` for a batch ``x``, higher for likelier classes and -inf for classes that are
    out of the question.  ``down`` is what the server broadcast, None before it had anything to say.
    """

    def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor: ...


def all_names(own: Sequence[Rule] = ()) -> tuple[str, ...]:
    """The names of the built-in rules and of the user's own, in the order in which they are counted and reported."""
    return NAMES + registry.plugin_names("rules", own)


def of_client(
    method: Method[Any, Any], client: Client, down: Any, local: Prototypes | None, own: Sequence[Rule] = ()
) -> dict[str, Answer]:
    """The method's own rule and every other that applies; ``_own`` ones choose among the client's classes only.

    ``local`` prototypes are those of the client's own training data, so of its own classes.
    """
    model, classes = client.model, client.own_classes
    ways: dict[str, Answer] = {
        "method": method.answering(client, down),
        "head": model,
        "head_own": lambda x: model(x).masked_fill(~classes, -torch.inf),
    }
    if (known := method.prototypes(down)) is not None:
        ways["global_prototypes"] = nearest(model, known)
        ways["global_prototypes_own"] = nearest(model, known.only(classes))
    if local is not None:
        ways["local_prototypes"] = nearest(model, local)
    for name, rule in zip(registry.plugin_names("rules", own), own, strict=True):
        ways[name] = answer_by(rule, client, down)
    return ways


def answering(answer: str, ways: Container[str], client: Client, down: Any) -> str:
    """The rule that counts as the method's own: the one asked for, or the method's own while there is nothing for it.

    Global prototypes may come with the first aggregate; :class:`ClientError` where there are none later either.
    """
    if answer in ways:
        return answer
    if down is None or client.round <= 1:
        return "method"
    raise ClientError(
        f"client {client.id}, round {client.round}: evaluation.answer is {answer!r}, which needs what this method does "
        f"not have.  Choose another rule, such as head or blend."
    )


def of_server(method: Method[Any, Any], server: Server, model: SplitModel) -> dict[str, Answer]:
    """The rules of the server's model, which has no data of its own."""
    ways: dict[str, Answer] = {"head": model}
    if (known := method.global_prototypes(server)) is not None:
        ways["global_prototypes"] = nearest(model, known)
    return ways


def nearest(model: SplitModel, prototypes: Prototypes) -> Answer:
    """Answer by the prototype that is nearest to the features."""
    return lambda x: prototypes.scores(model.features(x))


def answer_by(rule: Rule, client: Client, down: Any) -> Answer:
    """Answer by a rule of the user's own."""
    return lambda x: rule(client, x, down)
