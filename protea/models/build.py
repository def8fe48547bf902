"""From a member of a family to a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature

import torch
from torch import nn

from protea.data.views import View
from protea.errors import ConfigError
from protea.models import hf, vision
from protea.models.families import Member
from protea.models.split import Adapter, SplitModel, make_adapter, make_head
from protea.models.whole import body_of, look
from protea.plugins import BUILT_IN, find

OF_TEXTS = ("bag", "textcnn", "bilstm")


def build(
    member: Member,
    *,
    shape: tuple[int, ...],
    classes: int,
    dim: int,
    adapter: Adapter = "pool",
    dropout: float = 0.1,
) -> SplitModel:
    """A model for samples of that shape, with weights from torch's default generator.

    How wide the body's features are is measured, by a forward that leaves no trace.
    """
    model = make(member, shape, classes)
    return split(member, model, shape=shape, classes=classes, dim=dim, adapter=adapter, dropout=dropout)


def split(
    member: Member,
    model: nn.Module,
    *,
    shape: tuple[int, ...],
    classes: int,
    dim: int,
    adapter: Adapter = "pool",
    dropout: float = 0.1,
) -> SplitModel:
    """The same for a model that is there already: a body, a whole classifier, or a ``SplitModel``."""
    name = member.architecture
    view: View | None = getattr(model.body if isinstance(model, SplitModel) else model, "view", None)
    if view is None and not shape:
        raise texts_refused(name)
    x = torch.zeros(2, *(shape if view is None else view.shape))
    if isinstance(model, SplitModel):
        if member.head:
            raise ConfigError(f"architecture {name!r} brings its own head; head = {list(member.head)} has no effect.")
        model.name = name
        verify(model, x, dim, classes)
        return model
    if not is_body(name):
        model = body_of(name, model, x, None if name.startswith("torchvision:") else classes)
    width = look(name, model, x).shape[1]  # what follows is as wide as it should be by its making
    return SplitModel(model, make_adapter(adapter, width, dim, dropout), make_head(dim, member.head, classes), name)


def is_body(name: str) -> bool:
    """Whether what the name stands for has no head, whatever its width."""
    return name in BUILT_IN["architectures"] or name.startswith(("timm:", "hf:"))


def make(member: Member, shape: tuple[int, ...], classes: int) -> nn.Module:
    """What the architecture's name stands for: a body, a whole classifier, or a ``SplitModel``."""
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
            raise texts_refused(name) from error
        raise type(error)(f"architecture {name!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"architecture {name!r} gives a {type(model).__name__}, not an nn.Module.")
    return model


def texts_refused(name: str) -> ConfigError:
    return ConfigError(
        f"the samples are texts, and architecture {name!r} takes numbers.  Choose models for texts: textcnn, "
        f"hf:minilm, ... (protea list architectures)."
    )


def verify(model: SplitModel, x: torch.Tensor, dim: int, classes: int) -> None:
    """Features and scores are as wide as all clients agreed."""
    with model.remembering():
        features = look(model.name, model, x, model.features)
        scores = look(model.name, model, x)
    for what, found, expected in (("features", features, dim), ("scores", scores, classes)):
        if found.shape[1] != expected:
            raise ConfigError(
                f"architecture {model.name!r} gives {found.shape[1]} {what}; expected are {expected}.\n"
                f"  Change what its factory returns"
                + (f", or set models.dim={found.shape[1]}." if what == "features" else ".")
            )


def size(model: SplitModel) -> dict[str, int]:
    """The number of parameters of each part."""
    parts = {"body": model.body, "adapter": model.adapter, "head": model.head}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def smallest(
    members: Sequence[Member],
    *,
    shape: tuple[int, ...],
    classes: int,
    dim: int,
    adapter: Adapter = "pool",
    dropout: float = 0.1,
) -> Member:
    """The member with the fewest parameters, the first of these if there are several."""

    def parameters(member: Member) -> int:
        def built() -> SplitModel:
            return build(member, shape=shape, classes=classes, dim=dim, adapter=adapter, dropout=dropout)

        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"):  # shapes without numbers: no time, no memory
                    return sum(size(built()).values())
            except Exception:  # an own model may do what only real tensors can
                return sum(size(built()).values())

    return min(members, key=parameters)
