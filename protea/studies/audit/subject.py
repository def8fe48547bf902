"""What an audit attacks: a client's records, what left it, and how it is built anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from protea.clients.plan import WorkerPlan
from protea.core.client import Client
from protea.core.clusters import Clusters
from protea.core.errors import PayloadError
from protea.core.message import Named
from protea.core.method import Method
from protea.core.payload import places_of
from protea.core.prototypes import Prototypes
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.wrapping import Wrapper
from protea.evaluation.counts import Counts
from protea.evaluation.examination import Examination
from protea.evaluation.rules import all_names
from protea.filters.base import Filter, Passage, arrive_all
from protea.filters.secure_sum import secure_sum_of
from protea.studies.audit.recorder import Departure

DRAWS = Streams(22).at("audit")  # of all attacks: the same subject has the same findings


@dataclass(frozen=True)
class Subject:
    """A client under audit.  ``records`` are its training samples first, then others of the same kind."""

    name: str  # such as "client 3"
    names: tuple[str, ...]  # of the classes
    records: Samples  # as the client's model sees them
    members: int  # how many of the records the client trained on
    plan: WorkerPlan  # builds the client anew
    client: int
    departures: Sequence[Departure]  # oldest first; the last has weights
    replies: Sequence[Examination] = ()  # to the question how accurate it is
    rounds: int = 1  # that the client has trained until the last departure
    seed_known: bool = True  # others know the seed of its first weights
    attacked: tuple[str, ...] = ()  # sentences: what exactly is attacked
    text: Callable[[int], str] | None = None  # of a record, where records are texts
    settings: dict[str, Any] = field(default_factory=dict)  # for the page: method, model, samples

    @property
    def method(self) -> Method[Any, Any]:
        """The method whose uploads leave; what protects answers only is left out."""
        found = self.plan.method
        while isinstance(found, Wrapper):
            found = found.inner
        return found

    @property
    def filters(self) -> Sequence[Filter]:
        """The filters that every upload passes."""
        return self.plan.filters

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.names)

    def answered(self, part: str) -> Counts | None:
        """What the newest reply says by class of its own rule, on test or validation samples; None if it does not."""
        found = self.replies[-1].of(part, all_names(self.plan.rules)).get("method") if self.replies else None
        return found if isinstance(found, Counts) else None

    @cached_property
    def labels(self) -> Tensor:
        """The labels of all records, on the CPU."""
        return self.records.y.cpu()

    @cached_property
    def inside(self) -> Tensor:
        """Which records the client trained on: a bool each."""
        return torch.arange(len(self.records)) < self.members

    @cached_property
    def counts(self) -> Tensor:
        """How many training samples the client has of each class, ``(classes,)``."""
        return self.labels[self.inside].bincount(minlength=self.classes)

    @cached_property
    def reference(self) -> Tensor:
        """Which records an attacker has to train on: half of those that are not the client's, a bool each."""
        order = torch.rand(len(self.records), generator=DRAWS.generator("reference"))
        found = torch.zeros(len(self.records), dtype=torch.bool)
        for label in range(self.classes):
            rows = (~self.inside & (self.labels == label)).nonzero().squeeze(1)
            found[rows[order[rows].argsort()][: len(rows) // 2]] = True
        return found

    @cached_property
    def compared(self) -> Tensor:
        """Which records stand beside the members as others: those that no attacker trained on."""
        return ~self.inside & ~self.reference

    def fresh(self, seed: int | None = None) -> Client:
        """Build the client as it is before its first round; with a ``seed``, with other first weights and draws."""
        plan = replace(self.plan, method=self.method, seed=self.plan.seed if seed is None else seed)
        client = plan.make_client(self.client)
        client.begin(1, plan.streams(self.client).at("round", 1))
        return client

    def with_weights(self, weights: Named) -> Client:
        """Build the client with these weights of its model."""
        client = self.fresh()
        client.model.load_state_dict(weights)
        client.set_evaluation()
        return client

    def sent(self, up: Named, round: int) -> Prototypes | None:
        """Return the class vectors in an upload, as who receives it reads them; None if there are none.

        Of clusters it is the mean of each class.  :class:`PayloadError` for what cannot be read by itself.
        """
        if secure_sum_of(self.filters) is not None:
            raise PayloadError("secure_sum: it leaves under a mask, and only the sum over several clients can be read.")
        rng = DRAWS.at("arrive", round)
        named = arrive_all(self.filters, up, Passage(self.client, round, self.method.up, self.classes, self.dim, rng))
        for place in places_of(Prototypes, self.method.up, named)[:1]:
            prefix = f"{place}." if place else ""
            part = {name.removeprefix(prefix): t for name, t in named.items() if name.startswith(prefix)}
            return Prototypes.from_flat({name: part[name] for name in ("vectors", "counts")})
        for place in places_of(Clusters, self.method.up, named)[:1]:
            prefix = f"{place}." if place else ""
            rows = Clusters.from_flat({name: named[prefix + name] for name in ("vectors", "classes", "counts")})
            return rows.means(self.classes, by_count=True)
        return None

    @cached_property
    def dim(self) -> int:
        """The width of the features that all clients share."""
        return self.fresh().dim
