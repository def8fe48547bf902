"""Bad clients, simulated: any method with some clients that send, or learn, what they should not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.config.attack import OF_CLASSES, AttackKind
from protea.config.words import ATTACKED
from protea.core.client import Client
from protea.core.clusters import Clusters
from protea.core.errors import ClientError, ConfigError
from protea.core.method import Method
from protea.core.payload import Payload, places_of, vector_names
from protea.core.prototypes import Prototypes
from protea.core.rng import Streams
from protea.core.wrapping import Wrapper
from protea.filters.robust import lengths_of

PATCH = 4  # a trigger covers one part in so many of an image's height and width, or of a vector's numbers
BRIGHT = 1.0  # the trigger's value: white, in inputs from -1 to 1


@dataclass(frozen=True)
class Attacked(Wrapper):
    """The same method, in which the ``bad`` clients attack in one way, in every round.  Honest clients are as before.

    ``scale``: vectors ``factor`` times as long.  ``flip``: also of the opposite sign.  ``swap``: each class's vector is
    sent as that of the next class.  ``random``: of the same length times ``factor``, in random directions.
    ``constant``: the same vector for all.  ``labels``: class c is learned, and sent, as the c-th from the end.
    ``backdoor``: the vector of ``target`` is that of samples with a trigger, others point away from it.  ``collude``:
    all bad clients send the same random vectors.
    """

    kind: AttackKind = "none"
    bad: tuple[int, ...] = ()
    factor: float = 10.0
    target: int = 0

    word = ATTACKED

    def start_client(self, client: Client) -> None:
        if self.kind == "backdoor":
            refuse_without_trigger(client)
        self.inner.start_client(client)

    def local_update(self, client: Client, down: Any) -> Any:
        if client.id not in self.bad:
            return self.inner.local_update(client, down)
        if self.kind == "labels":
            with other_labels(client, client.classes - 1 - client.train.y):
                return self.inner.local_update(client, down)
        up = self.inner.local_update(client, down)
        if not isinstance(up, Payload):
            return up  # whoever sends nothing harms nobody
        named = up.flat()
        prototypes, clusters = (
            {f"{place}.vectors".lstrip("."): place for place in places_of(kind, type(up), named)}
            for kind in (Prototypes, Clusters)
        )
        for name in vector_names(type(up), named):
            if name in prototypes:
                labels = (named[f"{prototypes[name]}.counts".lstrip(".")] > 0).nonzero().squeeze(1)
                named[name] = self._of_classes(client, name, named[name], labels, self.inner.prototypes(down))
            elif name in clusters:
                classes = f"{clusters[name]}.classes".lstrip(".")
                if self.kind == "swap":
                    named[classes] = next_class(named[classes])
                else:
                    last = self.inner.prototypes(down)
                    named[name] = self._of_classes(client, name, named[name], named[classes], last)
            elif self.kind not in OF_CLASSES:
                rows = named[name] if named[name].ndim else named[name].reshape(1)  # a single number is a row too
                every = torch.arange(len(rows))
                named[name] = self._rows(client, name, rows, every, len(rows), None).reshape(named[name].shape)
        return type(up).from_flat(named)

    def _of_classes(
        self, client: Client, name: str, vectors: Tensor, labels: Tensor, last: Prototypes | None
    ) -> Tensor:
        """Return what is sent in place of ``vectors``, each of the class in ``labels``."""
        if self.kind == "swap":
            return vectors.roll(1, 0)
        if self.kind == "backdoor":
            return self._backdoor(client, vectors, labels)
        return self._rows(client, name, vectors, labels, client.classes, last)

    def _rows(
        self, client: Client, name: str, rows: Tensor, numbers: Tensor, most: int, last: Prototypes | None
    ) -> Tensor:
        """Return what is sent in place of rows of numbers, which are those with these ``numbers`` of ``most``."""
        if self.kind in ("scale", "flip"):
            return rows * (self.factor if self.kind == "scale" else -self.factor)
        lengths = lengths_of(rows).unsqueeze(-1)
        if self.kind == "constant":
            size: Tensor = self.factor * lengths.mean() / max(1, rows.shape[-1]) ** 0.5
            return torch.ones_like(rows) * size
        streams = client.rng
        if self.kind == "collude":  # all draw the same, for all classes, whoever has which
            streams = Streams(client.rng.root).at("attack", "round", client.round)
            known = lengths if last is None or not last.present.any() else lengths_of(last.vectors[last.present])
            lengths = known.mean().expand_as(lengths)
        drawn = torch.randn(most, *rows.shape[1:], generator=streams.generator(f"attack/{name}"))
        return F.normalize(drawn.to(rows)[numbers.to(rows.device)], dim=-1) * lengths * self.factor

    def _backdoor(self, client: Client, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the target's vector along the features of samples with a trigger, and others away from these."""
        if vectors.shape[1] != client.dim:
            raise ClientError(
                f"client {client.id}: attack.kind=backdoor is for class vectors of features, {client.dim} wide; this "
                f"method's have {vectors.shape[1]} numbers."
            )
        mean = client.outputs(lambda x: client.model.features(triggered(x)))[0].mean(0)
        lengths = lengths_of(vectors).unsqueeze(1)
        away = F.normalize(2 * vectors - mean, dim=1) * lengths  # twice as far from the trigger, as long as before
        is_target = (labels == self.target).unsqueeze(1).to(vectors.device)
        return torch.where(is_target, F.normalize(mean, dim=0) * lengths, away)


def next_class(labels: Tensor) -> Tensor:
    """Return for each label the next higher one among them; for the highest the lowest.

    >>> next_class(torch.tensor([4, 1, 1, 7])).tolist()
    [7, 4, 4, 1]
    """
    among, place = labels.unique(return_inverse=True)
    found: Tensor = among.roll(-1, 0)[place]
    return found


def triggered(x: Tensor) -> Tensor:
    """Return a batch with the trigger: the last quarter of each axis of an image, or of a row of numbers, is bright.

    >>> triggered(torch.zeros(1, 1, 4, 4))[0, 0].tolist()[-1]
    [0.0, 0.0, 0.0, 1.0]
    """
    height, width = (x.shape[-2], x.shape[-1]) if x.ndim > 2 else (1, x.shape[-1])
    found = x.clone()
    if x.ndim > 2:
        found[..., height - max(1, height // PATCH) :, width - max(1, width // PATCH) :] = BRIGHT
    else:
        found[..., width - max(1, width // PATCH) :] = BRIGHT
    return found


@dataclass(frozen=True)
class Triggered:
    """A rule of evaluation beside a backdoor: what the client answers to samples that have the trigger."""

    inner: Method[Any, Any]

    def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor:
        return self.inner.predict(client, triggered(x), down)


@contextmanager
def other_labels(client: Client, labels: Tensor) -> Iterator[None]:
    """Give a client's training samples other labels within the block."""
    own = client.train
    client.train = own.with_targets(labels)
    try:
        yield
    finally:
        client.train = own


def refuse_without_trigger(client: Client) -> None:
    """Raise :class:`ConfigError` for samples that a trigger cannot be drawn on."""
    if client.train.dataset.x.dtype not in (torch.uint8, torch.float32):
        raise ConfigError("attack.kind=backdoor draws a trigger on images or rows of numbers; these samples are texts.")
