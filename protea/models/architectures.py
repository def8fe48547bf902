"""Architectures by name: built-in ones, those of torchvision, timm and transformers, and users' own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature

from torch import nn

from protea.config.families import Member
from protea.config.registry import BUILT_IN, find
from protea.core.errors import ConfigError
from protea.core.split_model import SplitModel
from protea.models import hf, vision

OF_TEXTS = ("bag", "textcnn", "bilstm")  # architectures whose inputs are texts, besides hf:...


def is_body(name: str) -> bool:
    """Tell whether an architecture is a body without a head; others are looked at to find out."""
    return name in BUILT_IN["architectures"] or name.startswith(("timm:", "hf:"))


def make_architecture(member: Member, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make the module of an architecture: a body, a whole classifier, or a ``SplitModel``."""
    name, keywords = member.architecture, member.keywords
    source, _, rest = name.partition(":")
    function: Callable[..., object]
    if source == "torchvision":
        function = partial(vision.torchvision_model, rest)
    elif source == "timm":
        function = partial(vision.timm_model, rest)
    elif source == "hf":
        function = partial(hf.encoder, rest)
    else:
        function = find("architectures", name)
    given: dict[str, object] = {"shape": shape} if is_body(name) else {"shape": shape, "classes": classes}
    try:
        signature(function).bind(**given, **keywords)
    except TypeError as error:
        settings = [key for key in signature(function).parameters if key not in ("shape", "classes")]
        raise ConfigError(
            f"architecture {name!r} cannot be called with {', '.join([*given, *keywords])}: {error}.\n"
            f"  Its settings are: {', '.join(settings) or 'none'}."
        ) from error
    try:
        model = function(**given, **keywords)
    except ConfigError as error:
        if not shape and name not in OF_TEXTS and not name.startswith("hf:"):
            raise takes_no_texts(name) from error
        raise type(error)(f"architecture {name!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"architecture {name!r} gives a {type(model).__name__}, not an nn.Module.")
    return model


def takes_no_texts(name: str) -> ConfigError:
    """Make the error for an architecture that takes numbers where the samples are texts."""
    return ConfigError(
        f"the samples are texts, and architecture {name!r} takes numbers.  Choose models for texts: textcnn, "
        f"hf:minilm, ... (protea list architectures)."
    )


def count_parameters(model: SplitModel) -> dict[str, int]:
    """Return the number of parameters of each part: ``body``, ``adapter``, ``head``."""
    parts = {"body": model.body, "adapter": model.adapter, "head": model.head}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
