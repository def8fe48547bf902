"""The last step before an upload leaves its client: filters, and what they cost where they add noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protea.core.accounting import Budget, Event, epsilon_of
from protea.core.client import Client
from protea.core.errors import PrivacyError
from protea.core.ledger import history_of, spend
from protea.core.message import Named
from protea.core.method import Method
from protea.core.payload import Payload, places_of
from protea.core.private_sgd import PrivateTraining
from protea.core.prototypes import Prototypes
from protea.core.split_model import SplitModel
from protea.core.wrapping import Wrapper
from protea.federation.privacy import REASONS, Privacy
from protea.filters.base import Filter, Passage, leave_all
from protea.filters.noise import Noise

RELEASED = "released"  # its name in a client's memory
ENDLESS = 1e9  # an epsilon as good as infinite, which could not be sent


@dataclass(frozen=True)
class NoisyUpload(Payload):
    """An upload as it is after the noise: what depends on nothing that trains is drawn once, and sent again."""

    samples: Tensor  # that it is of
    tensors: Mapping[str, Tensor]


def noise_filter(filters: Sequence[Filter]) -> Noise | None:
    """Return the filter that adds noise, if there is one."""
    return next((each for each in filters if isinstance(each, Noise)), None)


def why_not(method: Method[Any, Any], model: SplitModel, filters: Sequence[Filter], private_training: bool) -> str:
    """Return why no formal guarantee holds for a client's uploads; an empty string where it holds."""
    ways, noise = declared(method), noise_filter(filters)
    if ways is None:
        return REASONS[1]
    if ways & {"means", "fixed means"} and noise is None:
        return REASONS[2]
    if "means" in ways and not (private_training or frozen_features(model)):
        return REASONS[3]
    if "model" in ways and not private_training:
        return REASONS[4]
    if noise is not None and filters[0] is not noise:
        return REASONS[5]
    return REASONS[0]


def reason_of(
    method: Method[Any, Any], filters: Sequence[Filter], client: Client, unguarded: str = "", *, by_counts: bool = False
) -> str:
    """Return why no formal guarantee holds for what a client sends; an empty string where it holds.

    ``by_counts``: classes are kept back by their exact numbers of samples.
    """
    why = why_not(method, client.model, filters, client.training.dp is not None)
    return why or unguarded or (REASONS[6] if by_counts else REASONS[0])


def refuse_idle_budget(noise: Noise | None, training: PrivateTraining | None, why: str, where: str) -> None:
    """Raise :class:`PrivacyError` for a privacy budget where no guarantee holds, which is what ``why`` says."""
    if why and (noise is not None or training is not None):
        budget = least_budget(noise, None if training is None else training.budget)
        if budget.epsilon is not None:
            raise PrivacyError(f"{where}: there is a privacy budget, and nothing it could be spent on: {why}.")


def declared(method: Method[Any, Any]) -> frozenset[str] | None:
    """Return what a method declares of its uploads; nothing if a subclass changed them and declares nothing itself."""
    line = type(method).__mro__
    declares = next(place for place, kind in enumerate(line) if "reveals" in vars(kind))
    changes = next(place for place, kind in enumerate(line) if "local_update" in vars(kind))
    if declares > changes:
        return None
    return declared(method.inner) if isinstance(method, Wrapper) else method.reveals


def frozen_features(model: SplitModel) -> bool:
    """Tell whether a record's features depend on no other record: nothing before the head trains or counts along."""
    before = (model.body, model.adapter)
    trains = any(p.requires_grad for part in before for p in part.parameters())
    counting = (
        module.track_running_stats and not list(module.parameters())  # one with frozen weights stays as it is
        for part in before
        for module in part.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
    )
    return not trains and not any(counting)


def leave_private(
    method: Method[Any, Any],
    filters: Sequence[Filter],
    client: Client,
    up: Named,
    at: Passage,
    before: Sequence[Event],
    withhold: Callable[[Named], Named] | None = None,
    unguarded: str = "",
) -> tuple[Named, Privacy | None]:
    """Apply all filters to an upload, and tell what a client has spent with it; nothing is told where nothing is noisy.

    ``before`` is the client's history before this round.  ``withhold`` keeps back classes by their exact
    numbers of samples, also what noise makes of them.  ``unguarded`` is why no guarantee holds for any method, if
    so.  :class:`PrivacyError` if the upload would cost more than the budget.
    """
    noise, dp = noise_filter(filters), client.training.dp
    if noise is None and dp is None:
        return leave_all(filters, up, at), None
    why = reason_of(method, filters, client, unguarded, by_counts=withhold is not None)
    budget = least_budget(noise, None if dp is None else dp.budget)
    where = f"client {client.id}, round {client.round}"
    if why:
        return _left(filters, up, at, withhold), Privacy(why=why)
    trained = history_of(client.memory)
    up = up if noise is None else _noisy(method, noise, client, up, at, budget, where)
    up = leave_all(filters if noise is None else (Filter(), *filters[1:]), up, at)
    history = history_of(client.memory)
    epsilon = min(epsilon_of(history, budget.delta), ENDLESS) if history else 0.0
    sent = _since(history, trained) if depends_on_training(method, client) else []  # what is constant costs once
    again = [*history, *_since(trained, before), *sent]
    spent = budget.epsilon is not None and bool(again) and epsilon_of(again, budget.delta) > budget.epsilon
    return up, Privacy(epsilon, budget.delta, spent)


def _left(filters: Sequence[Filter], up: Named, at: Passage, withhold: Callable[[Named], Named] | None) -> Named:
    """Apply all filters; what is kept back is so again after the noise, which makes something of nothing."""
    for number, each in enumerate(filters):
        up = leave_all((*[Filter()] * number, each), up, at)
        if withhold is not None and isinstance(each, Noise):
            up = withhold(up)
    return up


def _noisy(
    method: Method[Any, Any], noise: Noise, client: Client, up: Named, at: Passage, budget: Budget, where: str
) -> Named:
    """Return the upload with noise, and write down its cost.  One that cannot change is the same in every round."""
    kept, constant = client.memory.get(RELEASED), not depends_on_training(method, client)
    if constant and isinstance(kept, NoisyUpload) and int(kept.samples) == len(client.train):
        return dict(kept.tensors)
    spend(client.memory, noise.event(len(places_of(Prototypes, at.kind, up))), budget, where)
    up = leave_all((noise,), up, at)
    if constant:
        client.memory[RELEASED] = NoisyUpload(torch.tensor(len(client.train)), dict(up))
    return up


def depends_on_training(method: Method[Any, Any], client: Client) -> bool:
    """Tell whether an upload may differ from round to round: it is of a model, or of features that train."""
    ways = declared(method) or frozenset({"model"})
    return "model" in ways or ("means" in ways and not frozen_features(client.model))


def least_budget(noise: Noise | None, training: Budget | None) -> Budget:
    """Return the budget that keeps both that of the filter and that of ``training.dp``."""
    given = [each for each in (None if noise is None else noise.budget, training) if each is not None]
    limit = min(each.limit for each in given)
    return Budget(limit if limit < math.inf else None, min(each.delta for each in given))


def _since(history: Sequence[Event], before: Sequence[Event]) -> list[Event]:
    """Return the events that a history has more than the earlier one."""
    earlier = {(noise, rate): times for noise, rate, times in before}
    return [(noise, rate, times - earlier.get((noise, rate), 0)) for noise, rate, times in history]
