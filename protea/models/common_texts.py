"""Views of texts that all clients can share, whatever their own models read."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from protea.core.split_model import View
from protea.models.hf import FrozenView, load_encoder, locate_encoder
from protea.models.text import WORD

BUCKETS = 4096
TOKENS = 128  # of a text that a frozen encoder reads


class HashedCounts:
    """A view that counts words and pairs of neighbouring words, in buckets by their checksum.

    Each counts by ``log(1 + n)`` and, by another bit of its checksum, with a sign, so that what falls into one bucket
    by chance cancels out on average.  The squares of a text's numbers have the mean 1.
    """

    key: str = f"counts/1/{BUCKETS}"
    shape: tuple[int, ...] = (BUCKETS,)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        found = torch.zeros(len(texts), BUCKETS)
        for row, text in enumerate(texts):
            words = WORD.findall(text.lower())
            counts = Counter([*words, *map(" ".join, pairwise(words))])
            for term, count in counts.items():
                number = zlib.crc32(term.encode("utf-8", "surrogatepass"))
                found[row, number % BUCKETS] += math.log1p(count) * (1 if number >> 31 else -1)
        return of_one_length(found)


class FrozenEncoder(FrozenView):
    """A view by all layers of a public encoder, pooled over the tokens of a text; of one length, as counts are."""

    def __init__(self, place: str) -> None:
        _, model, _ = load_encoder(place)
        super().__init__(place, model.config.num_hidden_layers, "mean", TOKENS)
        self.key = f"{self.key}/one-length"

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return of_one_length(super().__call__(texts))


def of_one_length(x: Tensor) -> Tensor:
    """Return rows whose squares have the mean 1; a zero row stays."""
    return x / x.square().mean(1, keepdim=True).clamp(min=1e-12).sqrt()


def common_view(name: str) -> View:
    """Return the common view of this name: ``words``, or that of a frozen encoder, such as ``minilm``."""
    return HashedCounts() if name == "words" else FrozenEncoder(locate_encoder(name))
