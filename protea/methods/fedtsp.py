"""FedTSP: prototypes from texts about the classes, so that they lie as the meanings of these do.

Wu, Niu, Liu, Zhu, Zhang, Tang.  CVPR 2026, https://arxiv.org/abs/2503.13543

Prototypes that are only pushed apart forget that a cat is more like a dog than like a truck.  Here the server makes
them from the names or descriptions of classes, by a frozen language model.  Trainable vectors among the words, the
prompts, bring them near to what clients send.  Clients turn their features toward the text of their class.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, losses
from protea.core.errors import ConfigError, PayloadError
from protea.core.method import Reveals
from protea.core.prototypes import Weighting
from protea.core.training import Training
from protea.models.prompted import Place, PromptedTexts, PromptEncoder, prompt_encoder

MOST_PROMPTS = 64


@dataclass(frozen=True)
class TextPrototypes(Payload):
    """What clients get: the vector of each class's texts, and the factor of cosines."""

    texts: Prototypes
    scale: Tensor  # one number above 0

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        if self.scale.shape != () or self.scale.dtype != torch.float32 or not self.scale > 0:
            raise PayloadError("TextPrototypes hold a scale, one number above 0 in float32; something else arrived.")


@dataclass(frozen=True)
class FedTSP(Method[TextPrototypes, Prototypes]):
    """The loss of a client is cross entropy + ``weight`` * cross entropy of scaled cosines to the texts."""

    weight: NonNegativeFloat = 6.0  # lambda
    encoder: str = "minilm"  # of texts: a pretrained one (extra text), or words: hashed, without meanings
    template: str = "A photo of a {}."  # {} is the name of a class
    descriptions: str = ""  # a JSON file on the server: for each name a list of texts; empty: names alone
    prompts: Annotated[int, Field(ge=1, le=MOST_PROMPTS)] = 5  # trainable vectors in a text
    shared: bool = False  # the same prompts for all classes
    place: Place = "before"  # the words of a text, or instead of the first ones
    scale: PositiveFloat = 14.3  # of cosines, at first: a temperature of 0.07
    scale_learns: bool = True
    average: Weighting = "uniform"  # of prototypes over clients
    server_epochs: PositiveInt = 10
    server_lr: PositiveFloat = 0.01
    answer: Literal["head", "texts"] = "head"  # texts: the class whose text is at the smallest angle

    family = "class vectors"
    exchanges = "prototypes; vectors of texts down"
    variants = {"code": {"place": "instead", "prompts": 20, "scale": 100.0}, "words": {"encoder": "words"}}

    def __post_init__(self) -> None:
        if self.template.count("{}") != 1:
            raise ConfigError(
                f"method.template is {self.template!r}; it must have {{}} once, where the name of a class belongs."
            )

    @property
    def needs(self) -> Needs:
        return Needs(sums=self.average, text_encoder=self.encoder)

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        return frozenset({"means"})

    def start_server(self, server: Server) -> None:
        names = server.names or tuple(map(str, range(server.classes)))
        texts = texts_of(names, self.template, self.descriptions)
        of = [label for label, each in enumerate(texts) for _ in each]
        flat = [text for each in texts for text in each]
        made = PromptedTexts(self.reader, flat, of, self.prompts, self.shared, server.dim).to(server.device)
        made.set_scale(self.scale, self.scale_learns)
        server.memory["texts"] = made
        server.memory["means"] = Prototypes.absent(server.classes, server.dim).to(server.device)
        self.write(server)

    @property
    def reader(self) -> PromptEncoder:
        """The encoder of texts."""
        return prompt_encoder(self.encoder)

    @torch.no_grad()
    def write(self, server: Server) -> None:
        """Keep the vectors of texts as they are with the prompts of now."""
        vectors = server.memory["texts"].vectors(self.reader, self.place)
        server.memory["prototypes"] = Prototypes(vectors, torch.ones_like(vectors[:, 0]))

    def broadcast(self, server: Server, client: int) -> TextPrototypes:
        return TextPrototypes(server.memory["prototypes"], server.memory["texts"].log_scale.detach().exp())

    def local_update(self, client: Client, down: TextPrototypes | None) -> Prototypes:
        assert down is not None  # there are texts from the start
        temperature = 1 / float(down.scale)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            return value + self.weight * losses.contrast(z, y, down.texts, temperature)

        client.fit(loss)
        return client.prototypes()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        means = Prototypes.mean([u.payload for u in uploads], self.average).filled(server.memory["means"])
        server.memory["means"] = means
        known = means.present.nonzero().squeeze(1)
        if not len(known):
            return
        texts: PromptedTexts = server.memory["texts"]
        sent = F.normalize(means.vectors, dim=1)

        def loss(rows: Tensor) -> Tensor:
            cosines = sent[rows] @ texts.vectors(self.reader, self.place).T
            return F.cross_entropy(texts.log_scale.exp() * cosines, rows)

        plan = Training(epochs=self.server_epochs, batch=len(known), lr=self.server_lr)
        server.memory["server_loss"] = server.fit(loss, texts, rows=known, plan=plan)
        self.write(server)

    def predict(self, client: Client, x: Tensor, down: TextPrototypes | None) -> Tensor:
        if self.answer == "head" or down is None:
            return super().predict(client, x, down)
        return down.texts.scores(client.model.features(x), "cosine")

    def prototypes(self, down: TextPrototypes | None) -> Prototypes | None:
        return None if down is None else down.texts


def texts_of(names: Sequence[str], template: str, descriptions: str) -> list[list[str]]:
    """Return the texts of each class: its name in the template, and if there are descriptions, each of them after it.

    >>> texts_of(["polar_bear"], "A photo of a {}.", "")
    [['A photo of a polar bear.']]
    """
    named = [template.replace("{}", name.replace("_", " ")) for name in names]
    if not descriptions:
        return [[text] for text in named]
    told = read_descriptions(Path(descriptions), names)
    return [[f"{text.rstrip('.')}: {each}" for each in told[name]] for name, text in zip(names, named, strict=True)]


def read_descriptions(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Read descriptions of all classes; raise :class:`ConfigError` if the file is not what it should be."""
    try:
        told = json.loads(path.expanduser().read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"method.descriptions: {path} cannot be read: {error}.\n"
            f'  Expected JSON with a list of texts for each class: {{"{names[0]}": ["...", "..."], ...}}'
        ) from error
    for name in names:
        texts = told.get(name) if isinstance(told, dict) else None
        if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
            raise ConfigError(
                f"method.descriptions: {path} has no list of texts for the class {name!r}.\n"
                f'  Add, for example: "{name}": ["what one looks like"]'
            )
    return {name: told[name] for name in names}
