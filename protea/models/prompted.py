"""Encoders of short texts that read trainable vectors, called prompts, among the words of a text."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protea.core.errors import ConfigError
from protea.models.hf import load_encoder, locate_encoder
from protea.models.text import WORD, mean_of_words

Place = Literal["before", "instead"]

TOKENS = 128  # of a text that an encoder reads
WIDTH = 384  # of hashed words: that of minilm
SPREAD = 0.05  # of the numbers of a hashed word: about that of word vectors in pretrained encoders
START = 0.02  # of the numbers of a prompt before training, as in the code of FedTSP


class PromptEncoder(Protocol):
    """From word vectors ``(texts, length, width)`` to one vector for each text, with gradients."""

    width: int
    lead: int  # words at the beginning that stay there: a mark of the beginning, or none

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the word vectors of texts, and where there is a word, ``(texts, length)``."""
        ...

    def encode(self, words: Tensor, there: Tensor) -> Tensor:
        """Return the vectors of texts, ``(texts, width)``."""
        ...


class HashedWordVectors:
    """An encoder without meanings: each word is a fixed random vector by its checksum, a text the mean of its words.

    Two texts are alike only as far as they share words.
    """

    width, lead = WIDTH, 0

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        split = [WORD.findall(text.lower())[:TOKENS] for text in texts]
        words = torch.zeros(len(texts), max(1, *(len(each) for each in split)), self.width)
        there = torch.zeros(words.shape[:2], dtype=torch.bool)
        for row, each in enumerate(split):
            for place, word in enumerate(each):
                words[row, place] = SPREAD * word_vector(word, self.width)
            there[row, : len(each)] = True
        return words, there

    def encode(self, words: Tensor, there: Tensor) -> Tensor:
        return mean_of_words(words, there)


class PretrainedEncoder:
    """A frozen language model of BERT's kind; a text is the mean of what the last layer says at its words."""

    lead = 1  # the mark of a beginning

    def __init__(self, place: str) -> None:
        self.tokenizer, self.model, _ = load_encoder(place)
        self.width: int = self.model.config.hidden_size

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        coded = self.tokenizer(list(texts), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
        with torch.no_grad():
            words: Tensor = self.model.get_input_embeddings()(coded["input_ids"])
        return words, coded["attention_mask"] > 0

    def encode(self, words: Tensor, there: Tensor) -> Tensor:
        model: Any = self.model  # others use it too, so it stays where it is
        said = model(inputs_embeds=words.to(model.device), attention_mask=there.to(model.device).long())
        return mean_of_words(said.last_hidden_state.to(words.device), there)


@cache
def prompt_encoder(name: str) -> PromptEncoder:
    """Return the encoder of this name: ``words`` (hashed), or a pretrained one, such as ``minilm`` (extra ``text``)."""
    if name == "words":
        return HashedWordVectors()
    found = PretrainedEncoder(locate_encoder(name))
    most = getattr(found.model.config, "max_position_embeddings", 0)
    if most < 2 * TOKENS:
        raise ConfigError(f"{name} reads {most} words; {2 * TOKENS} are needed, for texts and prompts.")
    return found


def word_vector(word: str, width: int) -> Tensor:
    """Return the vector of a word: standard normal numbers that depend on the word alone."""
    number = zlib.crc32(word.encode("utf-8", "surrogatepass"))
    return torch.randn(width, generator=torch.Generator().manual_seed(number))


class PromptedTexts(nn.Module):
    """Texts of classes, prompts that train, and a map from the encoder's width to that of features.

    ``of`` is the class of each text.  The encoder itself is not part of it: it never changes, and need not be saved.
    """

    words: Tensor
    there: Tensor
    of: Tensor
    projection: Tensor

    def __init__(
        self, encoder: PromptEncoder, texts: Sequence[str], of: Sequence[int], prompts: int, shared: bool, dim: int
    ) -> None:
        super().__init__()
        words, there = encoder.read(texts)
        classes = max(of) + 1
        self.register_buffer("words", words)
        self.register_buffer("there", there)
        self.register_buffer("of", torch.tensor(list(of)))
        self.prompts = nn.Parameter(START * torch.randn(1 if shared else classes, prompts, encoder.width))
        self.log_scale = nn.Parameter(torch.zeros(()))
        with torch.no_grad():
            first = class_means(encoder.encode(words, there), self.of)
        self.register_buffer("projection", keeping_angles(first, dim))

    def vectors(self, encoder: PromptEncoder, place: Place) -> Tensor:
        """Return the vector of each class, ``(classes, dim)``, of length 1: the mean over its texts, projected."""
        prompts = self.prompts.expand(int(self.of.max()) + 1, -1, -1)[self.of]
        words, there = with_prompts(self.words, self.there, prompts, place, encoder.lead)
        means = class_means(encoder.encode(words, there), self.of)
        return F.normalize(means @ self.projection, dim=1)

    def set_scale(self, scale: float, learns: bool) -> None:
        """Set the factor of cosines, and whether it trains."""
        with torch.no_grad():
            self.log_scale.fill_(math.log(scale))
        self.log_scale.requires_grad_(learns)


def with_prompts(words: Tensor, there: Tensor, prompts: Tensor, place: Place, lead: int) -> tuple[Tensor, Tensor]:
    """Put prompts ``(texts, n, width)`` before the words of each text, after its ``lead``, or in place of the first n.

    >>> words, prompts = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[9.0]]])
    >>> with_prompts(words, torch.ones(1, 2) > 0, prompts, "before", 1)[0].flatten().tolist()
    [1.0, 9.0, 2.0]
    >>> with_prompts(words, torch.ones(1, 2) > 0, prompts, "instead", 1)[0].flatten().tolist()
    [9.0, 2.0]
    """
    count = prompts.shape[1]
    here = torch.ones(prompts.shape[:2], dtype=torch.bool, device=there.device)
    start, rest = (lead, lead) if place == "before" else (0, count)
    return (
        torch.cat([words[:, :start], prompts, words[:, rest:]], 1),
        torch.cat([there[:, :start], here, there[:, rest:]], 1),
    )


def class_means(vectors: Tensor, of: Tensor) -> Tensor:
    """Return the mean of the vectors of each class, with gradients."""
    counts = torch.bincount(of).to(vectors.dtype).unsqueeze(1)
    return vectors.new_zeros(len(counts), vectors.shape[1]).index_add(0, of, vectors) / counts


def keeping_angles(vectors: Tensor, dim: int) -> Tensor:
    """Return a random linear map ``(width, dim)`` that keeps lengths and angles of these vectors, if dim is enough.

    There must be no more vectors than ``dim``; of further ones the later lose something.

    >>> map = keeping_angles(torch.eye(3, 8), 4)
    >>> torch.allclose(torch.eye(3, 8) @ map @ (torch.eye(3, 8) @ map).T, torch.eye(3), atol=1e-5)
    True
    """
    width = vectors.shape[1]
    turned: Tensor = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0]
    if dim >= width:
        return turned[:width].to(vectors.dtype)
    spanning = torch.cat([vectors.double().T, torch.randn(width, width, dtype=torch.float64)], 1)
    axes: Tensor = torch.linalg.qr(spanning)[0][:, :dim]
    return (axes @ turned).to(vectors.dtype)
