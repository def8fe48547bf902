"""Models of many architectures, each split into body, adapter and head."""

from protea.models.build import build, size, smallest
from protea.models.families import FAMILIES, Member, Models, members
from protea.models.split import SplitModel

__all__ = ["FAMILIES", "Member", "Models", "SplitModel", "build", "members", "size", "smallest"]
