"""Models of torchvision and timm (extra ``vision``)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from protea.core.errors import ConfigError, PluginError, nearest
from protea.core.shell import install_hint
from protea.models.shapes import image_shape
from protea.models.split_any import replace_module

# Both train with auxiliary heads otherwise, and warn unless told that their slow first weights are wanted.
PLAIN = {name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")}

_definitions: list[torch.library.Library] = []  # torch forgets what a library object defined once it is gone


def import_quietly(package: str) -> ModuleType:
    """Import torchvision or timm without its warnings; raise :class:`PluginError` if it is not installed."""
    if find_spec(package) is None:
        raise PluginError(f"{package} is not installed.  Type: {install_hint('vision')}")
    if "torchvision" not in sys.modules:  # timm imports it too
        define_missing_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(package)


def define_missing_operators() -> None:
    """Let torchvision be imported beside a torch that its compiled operators do not fit.

    A torchvision built for CUDA next to a torch for the CPU stops at its import, for want of two
    operators that no classifier uses.  Their names are enough to pass; called, they raise.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent
    if sys.platform == "win32":
        os.add_dll_directory(str(folder))
    for compiled in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(compiled)
        except OSError:  # built for another torch
            continue
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)
        _definitions.append(library)


def torchvision_model(name: str, shape: tuple[int, ...], classes: int, **keywords: object) -> nn.Module:
    """Make a whole classifier of torchvision; with ``weights`` it has the outputs these were trained for."""
    models = import_quietly("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise PluginError(f"torchvision has no classifier {name!r}.  {nearest(name, known)}")
    channels, height, _ = image_shape(shape)
    settings: dict[str, object] = {}
    if not keywords.get("weights"):
        settings = {"num_classes": classes, **PLAIN.get(name, {})}
        if name.startswith("vit_"):
            settings["image_size"] = height
    model = create(models.get_model, name, {**settings, **keywords})
    take_channels(model, channels)
    return model


def timm_model(name: str, shape: tuple[int, ...], **keywords: object) -> nn.Module:
    """Make the body of a timm model."""
    timm = import_quietly("timm")
    if not timm.is_model(name):
        raise PluginError(f"timm has no model {name!r}.  {nearest(name, timm.list_models())}")
    channels, height, width = image_shape(shape)
    settings: dict[str, object] = {"num_classes": 0, "in_chans": channels}
    known = timm.get_pretrained_cfg(name)
    if known is not None and known.fixed_input_size:  # transformers that are built for one size
        settings["img_size"] = (height, width)
    return create(timm.create_model, name, {**settings, **keywords})


def create(function: Callable[..., nn.Module], name: str, settings: Mapping[str, object]) -> nn.Module:
    """Make a model without warnings; raise :class:`ConfigError` for settings that it does not take."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(name, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"it cannot be made with {dict(settings)}: {error}") from error


def take_channels(model: nn.Module, channels: int) -> None:
    """Change the first convolution to take images of that many channels.

    Its filters are kept, so that trained ones stay of use: for one channel they are summed over
    the old channels, for more these are taken in turn, scaled so that sums stay as large.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.in_channels == channels:
        return
    old = first.weight.detach()
    turn = torch.arange(channels) % first.in_channels
    new = old.sum(1, keepdim=True) if channels == 1 else old[:, turn] * (first.in_channels / channels)
    first.weight, first.in_channels = nn.Parameter(new), channels


def torchvision_body(name: str, shape: tuple[int, ...], **keywords: object) -> nn.Module:
    """Make a torchvision classifier without its last layer; dropout before that layer stays in the features."""
    model = torchvision_model(name, shape, 2, **keywords)
    *_, head = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    return replace_module(model, head, nn.Identity())


googlenet = partial(torchvision_body, "googlenet")
mobilenet_v2 = partial(torchvision_body, "mobilenet_v2")
shufflenet_v2_x1_0 = partial(torchvision_body, "shufflenet_v2_x1_0")
efficientnet_b0 = partial(torchvision_body, "efficientnet_b0")  # ProtoNorm's code has its dropout in the head instead
