"""Models by name, for samples of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from protea.errors import ConfigError
from protea.models.build import build, smallest
from protea.models.families import Member, Models, members
from protea.models.split import SplitModel


@dataclass(frozen=True)
class Maker:
    """Makes the models of an experiment; weights come from torch's default generator."""

    models: Models
    shape: tuple[int, ...]
    classes: int
    device: str = "cpu"

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return members(self.models)

    def __call__(self, which: str | Member) -> SplitModel:
        """A model of an architecture; of the family's ``smallest``, or of the ``server``'s, by these names."""
        models = self.models
        if which == "smallest":
            which = self._smallest
        elif which == "server":
            if models.server is None:
                raise ConfigError("No server model is set.  Set, for example, models.server=resnet18.")
            which = models.server
        member = Member.of(which) if isinstance(which, str) else which
        model = build(
            member,
            shape=self.shape,
            classes=self.classes,
            dim=models.dim,
            adapter=models.adapter,
            dropout=models.dropout,
        )
        if models.channels_last != "auto" and member.architecture in models.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(self.device)

    @cached_property
    def _smallest(self) -> Member:
        models = self.models
        return smallest(
            self.members,
            shape=self.shape,
            classes=self.classes,
            dim=models.dim,
            adapter=models.adapter,
            dropout=models.dropout,
        )
