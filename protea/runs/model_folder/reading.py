"""From a text to the whole numbers that a program takes: by hashing its words, or by the tokenizer of an encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from protea.core.errors import ConfigError, PluginError
from protea.core.shell import install_hint
from protea.core.split_model import PairedView, View
from protea.models.hf import FrozenView, load_encoder
from protea.models.text import WORD, HashedWords

TOKENIZER = "tokenizer.json"
LICENCE = re.compile(r"^license:\s*([\w.+-]+)\s*$", re.MULTILINE)
ODD = (  # texts on which a tokenizer that was written down must do as the original does
    "", " ", "Chest pain, 3 days; don't lie down.", "größe ÉCLAIR naïve", "急性胸痛三天",
    "👩‍⚕️ ok\t\n\r\u00a0end",
    "[CLS] [SEP] [PAD] [MASK] <s> </s>", "x" * 300, "word " * 1000, "\u0000\u200b\ufeffé",
)  # fmt: skip


@dataclass(frozen=True)
class CarriedEncoder:
    """Whose tokenizer and layers a folder carries."""

    checksum: str  # of vocabulary, settings and weights as they were before training
    licence: str = ""  # as its model card says; empty if it says none

    @classmethod
    def at(cls, place: str) -> Self:
        """Find out what is known of the encoder at a place."""
        try:
            card = (Path(place) / "README.md").read_text(encoding="utf-8", errors="replace")
        except OSError:
            card = ""
        head = card.split("---")[1] if card.startswith("---") and card.count("---") > 1 else ""
        found = LICENCE.search(head)
        return cls(load_encoder(place)[2], found[1] if found else "")


@dataclass(frozen=True)
class Reading:
    """How a text becomes ``length`` whole numbers; ``padding`` stands where the text has ended."""

    length: int
    size: int  # how many different numbers there are
    encoder: CarriedEncoder | None = None  # None where words are hashed
    tokenizer: str = ""  # content of the file TOKENIZER

    @classmethod
    def of(cls, view: View) -> Self:
        """Find out how a model reads texts; raise :class:`ConfigError` if nothing but its own code can say it."""
        own: object = view.own if isinstance(view, PairedView) else view
        if type(own) is HashedWords:
            return cls(own.length, own.buckets)
        if type(own) is not FrozenView:
            raise ConfigError(
                f"it reads texts by {type(own).__name__}, and a folder can hold hashed words (HashedWords) and "
                f"tokenizers of encoders (hf:...) only."
            )
        tokenizer = load_encoder(own.place)[0]
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"the tokenizer {type(tokenizer).__name__} has no form as a file {TOKENIZER}.")
        backend = type(backend).from_str(backend.to_str())  # a copy: the original is used by others
        backend.no_padding()
        backend.enable_truncation(own.length)
        found = cls(own.length, int(backend.get_vocab_size()), CarriedEncoder.at(own.place), backend.to_str())
        if not torch.equal(found(ODD), own.tokens(ODD)):
            raise ConfigError(f"{type(tokenizer).__name__}, written as {TOKENIZER}, reads texts in another way.")
        return found

    @property
    def padding(self) -> int:
        return 0 if self.encoder is None else -1

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the numbers of texts, int64 ``(texts, length)``."""
        if self.encoder is None:
            return HashedWords(self.size, self.length)(texts)
        if find_spec("tokenizers") is None:
            raise PluginError(f"tokenizers is not installed.  Type: {install_hint('text')}")
        found = torch.full((len(texts), self.length), self.padding)
        backend = import_module("tokenizers").Tokenizer.from_str(self.tokenizer)
        for row, coded in zip(found, backend.encode_batch(list(texts)), strict=True):
            row[: len(coded.ids)] = torch.tensor(coded.ids, dtype=torch.int64)
        return found

    def drawn(self, count: int, draw: torch.Generator) -> Tensor:
        """Draw numbers of texts of any length, none included where there may be a text without any."""
        least = 0 if self.encoder is None else 1
        sizes = torch.randint(least, self.length + 1, (count, 1), generator=draw).sort(0).values
        sizes[0], sizes[-1] = least, self.length  # the first are short, so that they are cut where that is done
        numbers = torch.randint(1 - least, self.size, (count, self.length), generator=draw)
        return numbers.masked_fill(torch.arange(self.length) >= sizes, self.padding)

    def to_table(self) -> dict[str, Any]:
        """Return the reading for JSON, without the tokenizer, which is in a file of its own."""
        told: dict[str, Any] = {"length": self.length, "padding": self.padding, "size": self.size}
        if self.encoder is not None:
            return {"kind": "tokenizer", **told, "file": TOKENIZER, "encoder": vars(self.encoder)}
        return {"kind": "words", **told, "word": WORD.pattern, "number": "1 + crc32(word in UTF-8) % (size - 1)"}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_table` wrote."""
        found = cls(int(table["length"]), int(table["size"]))
        if table["kind"] == "tokenizer":
            known = table["encoder"]
            found = replace(found, encoder=CarriedEncoder(str(known["checksum"]), str(known["licence"])))
        if found.to_table() != dict(table):
            raise ConfigError("texts are read by a rule that this version of Protea does not know.")
        if not 1 <= found.length <= 1 << 20 or found.size < 2:
            raise ConfigError(f"texts of {found.length} numbers below {found.size} make no sense.")
        return found


class Read(nn.Module):
    """What a view makes of a text's numbers, as the first layer of a program: frozen layers, if there are any."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view, self._own = view, view.own if isinstance(view, PairedView) else view
        self.layers = self._own.layers() if isinstance(self._own, FrozenView) else None

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self._own.outputs(tokens, self.layers) if isinstance(self._own, FrozenView) else tokens
        if not isinstance(self._view, PairedView):
            return seen
        rest = self._view.shape[0] - self._view.cut  # what all clients share of a text cannot be had from tokens
        return torch.cat(
            [seen.flatten(1).float(), seen.new_full((seen.shape[0], rest), torch.nan, dtype=torch.float32)], 1
        )
