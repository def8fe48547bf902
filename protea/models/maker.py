"""The models of an experiment, made for samples of one shape."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from protea.config.families import Member, Models, members
from protea.core.errors import ConfigError
from protea.core.files import cache_folder
from protea.core.split_model import PairedBody, SplitModel, View
from protea.core.steps.memory_format import CHANNELS_LAST, GAIN, SMALL, time_both
from protea.models.adapters import make_adapter, make_head
from protea.models.architectures import count_parameters, is_body, make_architecture, takes_no_texts
from protea.models.common_texts import common_view
from protea.models.split_any import body_of, probe


@dataclass(frozen=True)
class ModelMaker:
    """A maker of the models of an experiment; first weights are drawn from torch's default generator."""

    models: Models
    shape: tuple[int, ...]  # of one sample; empty for texts
    classes: int
    device: str = "cpu"
    common_view: str | None = None  # of texts, beside that of each model, for methods that need one

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The members of the family; client ``i`` has member ``i`` modulo their number."""
        return members(self.models)

    def __call__(self, which: str | Member) -> SplitModel:
        """Make a model on the device: of a named architecture, of the family's ``smallest``, or of the ``server``'s."""
        if which == "smallest":
            which = self._smallest
        elif which == "server":
            if self.models.server is None:
                raise ConfigError("No server model is set.  Set, for example, models.server=resnet18.")
            which = self.models.server
        member = Member.of(which) if isinstance(which, str) else which
        model = self.build(member)
        if not isinstance(self.models.channels_last, str) and member.architecture in self.models.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(self.device)

    def build(self, member: Member) -> SplitModel:
        """Make a member of a family as a model of three parts, on the CPU.

        The width of the body's features is found by a forward pass that leaves no trace.
        """
        return self.split(member, make_architecture(member, self.shape, self.classes))

    def split(self, member: Member, model: nn.Module) -> SplitModel:
        """Turn a body, a whole classifier, or a ``SplitModel`` into a model of three parts."""
        found = self._split(member, model)
        if found.view is not None and self.common_view is not None:
            found.body = PairedBody(found.body, found.view, common_view(self.common_view))
        return found

    def _split(self, member: Member, model: nn.Module) -> SplitModel:
        name, models = member.architecture, self.models
        view: View | None = getattr(model.body if isinstance(model, SplitModel) else model, "view", None)
        if view is None and not self.shape:
            raise takes_no_texts(name)
        x = torch.zeros(2, *(self.shape if view is None else view.shape))
        if isinstance(model, SplitModel):
            if member.head:
                raise ConfigError(
                    f"architecture {name!r} brings its own head; head = {list(member.head)} has no effect."
                )
            model.name = name
            self._verify(model, x)
            return model
        if not is_body(name):
            model = body_of(name, model, x, None if name.startswith("torchvision:") else self.classes)
        width = probe(name, model, x).shape[1]  # what follows is as wide as it should be by its making
        adapter = make_adapter(models.adapter, width, models.dim, models.dropout)
        return SplitModel(model, adapter, make_head(models.dim, member.head, self.classes), name)

    def _verify(self, model: SplitModel, x: torch.Tensor) -> None:
        """Raise :class:`ConfigError` for a user's model whose features or scores have the wrong width."""
        with model.reuse_features():
            features = probe(model.name, model, x, model.features)
            scores = probe(model.name, model, x)
        for what, found, expected in (("features", features, self.models.dim), ("scores", scores, self.classes)):
            if found.shape[1] != expected:
                raise ConfigError(
                    f"architecture {model.name!r} gives {found.shape[1]} {what}; expected are {expected}.\n"
                    f"  Change what its factory returns"
                    + (f", or set models.dim={found.shape[1]}." if what == "features" else ".")
                )

    @cached_property
    def _smallest(self) -> Member:
        """The member with the fewest parameters, the first of these if there are several."""

        def count(member: Member) -> int:
            with torch.random.fork_rng(devices=[]):
                try:
                    with torch.device("meta"):  # shapes without numbers: no time, no memory
                        return sum(count_parameters(self.build(member)).values())
                except Exception:  # an own model may do what only real tensors can
                    return sum(count_parameters(self.build(member)).values())

        return min(self.members, key=count)

    def channels_last(self, batch: int) -> tuple[str, ...]:
        """Return the architectures whose weights have the channels last, as ``models.channels_last`` says."""
        setting = self.models.channels_last
        if not isinstance(setting, str):
            return setting
        if self.device != "cpu" or len(self.shape) != 3 or math.prod(self.shape) < SMALL:
            return ()
        further = () if self.models.server is None else (Member.of(self.models.server),)
        kinds: dict[str, Member] = {}
        for member in (*self.members, *further):
            kinds.setdefault(member.architecture, member)
        if setting == "auto":
            return tuple(sorted(name for name in kinds if name in CHANNELS_LAST))
        plain = replace(self, models=replace(self.models, channels_last=()))
        return tuple(sorted(name for name, member in kinds.items() if plain._measured(member, batch)))

    def _measured(self, member: Member, batch: int) -> bool:
        """Tell whether channels last is faster, as measured now or earlier on this machine."""
        what = [member.architecture, dict(member.keywords), self.shape, self.models.dim, batch]
        where = [torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.node()]
        name = hashlib.blake2b(json.dumps([what, where], default=str).encode(), digest_size=16).hexdigest()
        path = memory_format_folder() / name
        with suppress(OSError):
            return path.read_text() == "channels last"
        found = self._faster(member, batch)
        with suppress(OSError):  # a folder that cannot be written: the answer holds for this run
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:  # another process may have been sooner, and then its answer holds
                file.write("channels last" if found else "plain")
        with suppress(OSError):
            return path.read_text() == "channels last"
        return found

    def _faster(self, member: Member, batch: int) -> bool:
        """Measure whether channels last is faster."""
        x = torch.randn(max(2, batch), *self.shape, generator=torch.Generator().manual_seed(0))
        y = torch.zeros(max(2, batch), dtype=torch.int64)
        seconds = time_both(lambda last: self.with_memory_format(member, channels_last=last), x, y)
        return seconds is not None and seconds[0] > GAIN * seconds[1]

    def with_memory_format(self, member: Member, *, channels_last: bool) -> SplitModel:
        """Make a model whose weights have the channels last, or torch's own format."""
        chosen = (member.architecture,) if channels_last else ()
        return replace(self, models=replace(self.models, channels_last=chosen))(member)


def memory_format_folder() -> Path:
    """Return the folder of measurements on this machine; ``$PROTEA_MEMORY_FORMATS`` names another."""
    return cache_folder("PROTEA_MEMORY_FORMATS", "memory-formats")
