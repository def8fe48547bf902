"""Small models for texts, without pretraining: they learn words from their client's texts alone."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protea.core.errors import ConfigError

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")


class HashedWords:
    """A view that numbers words by their checksum, so that clients need no common vocabulary.

    0 stands for no word; two words may share one of the ``buckets`` numbers.  A text has up to ``length`` words.
    """

    def __init__(self, buckets: int, length: int) -> None:
        if buckets < 2 or length < 1:
            raise ConfigError(f"{buckets} buckets and {length} words: at least 2 and 1 are needed.")
        self.buckets, self.length = buckets, length
        self.key, self.shape = f"words/1/{buckets}/{length}", (length,)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        found = torch.zeros(len(texts), self.length, dtype=torch.int64)
        for row, text in enumerate(texts):
            words = WORD.findall(text.lower())[: self.length]
            if words:
                found[row, : len(words)] = torch.tensor([self.number(word) for word in words])
        return found

    def number(self, word: str) -> int:
        """Return the number of a word, from 1 on."""
        return 1 + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (self.buckets - 1)


class TextBody(nn.Module):
    """Base class of text models: word vectors, which subclasses turn into features."""

    def __init__(self, buckets: int, width: int, length: int) -> None:
        super().__init__()
        self.view = HashedWords(buckets, length)
        self.words = nn.Embedding(buckets, width, padding_idx=0)
        with torch.no_grad():
            self.words.weight.mul_(0.1)  # so that words which were never trained say little

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        if not torch.compiler.is_exporting():  # a program's steps cannot depend on where texts end
            tokens = trim_padding(tokens)
        return self.read(self.words(tokens), tokens > 0)

    def read(self, words: Tensor, there: Tensor) -> Tensor:
        """Return features from word vectors ``(batch, words, width)``; ``there`` is false where a text has ended."""
        raise NotImplementedError


class Bag(TextBody):
    """A layer on the mean of the word vectors."""

    def __init__(self, buckets: int, width: int, length: int) -> None:
        super().__init__(buckets, width, length)
        self.layer = nn.Linear(width, width)

    def read(self, words: Tensor, there: Tensor) -> Tensor:
        return F.relu(self.layer(mean_of_words(words, there)))


class TextCNN(TextBody):
    """Filters over three, four and five words, each with its largest answer (Kim, EMNLP 2014)."""

    def __init__(self, buckets: int, width: int, length: int, filters: int, dropout: float) -> None:
        super().__init__(buckets, width, length)
        # Padded so far that each text has a place without words, whatever longer ones are beside it.
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, size, padding=size) for size in (3, 4, 5))
        self.dropout = nn.Dropout(dropout)

    def read(self, words: Tensor, there: Tensor) -> Tensor:
        words = (words * there.unsqueeze(2)).transpose(1, 2)
        found: Tensor = self.dropout(torch.cat([F.relu(layer(words)).amax(2) for layer in self.filters], 1))
        return found


class BiLSTM(TextBody):
    """Two LSTMs, one from either end; the mean of what they say at each word."""

    def __init__(self, buckets: int, width: int, length: int, hidden: int) -> None:
        super().__init__(buckets, width, length)
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)

    def read(self, words: Tensor, there: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return mean_of_words(self._unpacked(words, there), there)
        sizes = there.sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(words, sizes, batch_first=True, enforce_sorted=False)
        said, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])
        return mean_of_words(said, there)

    def _unpacked(self, words: Tensor, there: Tensor) -> Tensor:
        """Say the same at each word without packing, which no program can hold: each text is turned round by itself."""
        size, places = there.sum(1, keepdim=True), torch.arange(words.shape[1])
        turned = torch.where(places < size, size - 1 - places, places).unsqueeze(2)
        start = words.new_zeros(1, words.shape[0], self.lstm.hidden_size)
        said = []
        for weights, x in zip(self.lstm.all_weights, (words, words.gather(1, turned.expand_as(words))), strict=True):
            said.append(torch.lstm(x, (start, start), list[Tensor](weights), True, 1, 0.0, False, False, True)[0])
        return torch.cat([said[0], said[1].gather(1, turned.expand_as(said[1]))], 2)


def bag(shape: tuple[int, ...], buckets: int = 20_000, width: int = 128, length: int = 256) -> Bag:
    """A bag of word vectors; for texts."""
    return Bag(buckets, width, length)


def textcnn(
    shape: tuple[int, ...],
    buckets: int = 20_000,
    width: int = 128,
    length: int = 256,
    filters: int = 100,
    dropout: float = 0.1,
) -> TextCNN:
    """Convolutions over words; for texts."""
    return TextCNN(buckets, width, length, filters, dropout)


def bilstm(
    shape: tuple[int, ...], buckets: int = 20_000, width: int = 128, length: int = 256, hidden: int = 128
) -> BiLSTM:
    """An LSTM from either end; for texts."""
    return BiLSTM(buckets, width, length, hidden)


def mean_of_words(vectors: Tensor, there: Tensor) -> Tensor:
    """Return the mean of vectors ``(batch, words, width)`` over the words of each text; 0 for a text without any."""
    weights = there.to(vectors.dtype).unsqueeze(2)
    return (vectors * weights).sum(1) / weights.sum(1).clamp(min=1)


def trim_padding(tokens: Tensor) -> Tensor:
    """Cut off the columns at the end in which no text of the batch has a word; leave at least one."""
    used = (tokens > 0).any(0).nonzero()
    return tokens[:, : int(used[-1]) + 1 if len(used) else 1]
