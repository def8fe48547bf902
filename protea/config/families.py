"""Families of models: which client has which architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from pydantic import PositiveInt

from protea.config.registry import table
from protea.core.errors import ConfigError, PluginError, nearest
from protea.core.method import Needs
from protea.core.ranges import Fraction

AdapterKind = Literal["pool", "linear", "projector"]
MemberEntry = str | dict[str, Any]


@dataclass(frozen=True)
class Member:
    """An architecture with its settings, and the hidden layers of its head."""

    architecture: str
    keywords: Mapping[str, object] = field(default_factory=dict, hash=False)  # dicts have no hash
    head: tuple[int, ...] = ()

    @classmethod
    def of(cls, entry: str | Mapping[str, object]) -> Member:
        """Read a member of an experiment file: a name, or a table of a name, maybe a head, and settings.

        >>> Member.of({"name": "cnn4", "width": 256, "head": [128]})
        Member(architecture='cnn4', keywords={'width': 256}, head=(128,))
        """
        keywords = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, head = keywords.pop("name", None), keywords.pop("head", ())
        if not isinstance(name, str):
            raise ConfigError(f'{entry!r} names no architecture.  Write it as {{ name = "cnn4", ... }}.')
        if not isinstance(head, list | tuple) or not all(type(width) is int and width > 0 for width in head):
            raise ConfigError(f"{name}: head is {head!r}, but must list the sizes of hidden layers, as in [256].")
        if name not in table("architectures") and ":" not in name:
            raise PluginError(f"{name!r} is not an architecture.  {nearest(name, table('architectures'))}")
        return cls(name, keywords, tuple(cast(Sequence[int], head)))


def _family(names: str, heads: Sequence[tuple[int, ...]] = ((),)) -> tuple[Member, ...]:
    """Make a family of these architectures, with the heads in turn."""
    return tuple(Member(name, head=heads[i % len(heads)]) for i, name in enumerate(names.split()))


def _depths(encoder: str) -> tuple[Member, ...]:
    """Make a family of one encoder, of which 0, 2 or 4 layers train."""
    return tuple(Member(f"hf:{encoder}", {"train_layers": layers}) for layers in (0, 2, 4))


_HTFE8 = "cnn4 googlenet mobilenet_v2 resnet18 resnet34 resnet50 resnet101 resnet152"
_HTC4 = ((), (512,), (256,), (128,))

FAMILIES: Mapping[str, tuple[Member, ...]] = {
    "tiny5": _family("tiny_mlp tiny_cnn tiny_resnet tiny_separable tiny_mixer"),
    "htfe2": _family("cnn4 resnet18"),
    "htfe3": _family("resnet10 resnet18 resnet34"),
    "htfe4": _family("cnn4 googlenet mobilenet_v2 resnet18"),
    # As in FedSA's code; its paper gives no list, and HtFLlib's HtFE-img-5 is googlenet,
    # mobilenet_v2, resnet18, resnet34, resnet50.
    "htfe5": _family("cnn4 resnet10 resnet18 resnet34 resnet50"),
    "htfe8": _family(_HTFE8),
    "htfe9": _family("resnet4 resnet6 resnet8 resnet10 resnet18 resnet34 resnet50 resnet101 resnet152"),
    "htc4": _family("resnet34 resnet34 resnet34 resnet34", _HTC4),
    "htfe8-htc4": _family(_HTFE8, _HTC4),
    "htcnn8": _family("htcnn1 htcnn2 htcnn3 htcnn4 htcnn5 htcnn6 htcnn7 htcnn8"),
    "fedpagr5": _family("cnn mlp resnet18 googlenet mobilenet_v2"),
    # FedPAGR's clients of language: one encoder, frozen, or with two or four layers that train.
    "clinicalbert3": _depths("clinicalbert"),
    "minilm3": _depths("minilm"),
    "protonorm4": _family("resnet8 mobilenet_v2 shufflenet_v2_x1_0 efficientnet_b0"),
}


@dataclass(frozen=True)
class Models:
    """``[models]``: the models of an experiment, a family or members listed one by one."""

    family: str = "tiny5"
    members: tuple[MemberEntry, ...] = ()
    dim: PositiveInt = 512  # width of the features that all clients share
    adapter: AdapterKind = "pool"
    dropout: Fraction = 0.1  # of the projector
    server: str | None = None  # architecture of a server model, for methods that have one
    start: str | None = None  # folder with the first weights of each client, client-000.safetensors and so on
    clients: Mapping[str, MemberEntry] | None = None  # by name: clients that have another model than their number says
    channels_last: Literal["auto", "measure"] | tuple[str, ...] = "auto"  # see docs/performance.md

    @property
    def which(self) -> str:
        """The setting that names these models, for messages."""
        if self.clients:
            return "[models] with models.clients"
        return "models.members" if self.members else f"models.family={self.family}"

    def of_clients(self, names: Sequence[str | None]) -> Models:
        """Return the same models listed one by one, for clients that are called so (None: they have no names)."""
        if not self.clients:
            return self
        known = [name for name in names if name is not None]
        if strange := [name for name in self.clients if name not in known]:
            hint = nearest(strange[0], known) if known else "They have none: set data.names, or deal out by-key."
            raise ConfigError(f"models.clients has {strange[0]!r}, and no client is called so.  {hint}")
        usual: Sequence[MemberEntry] = self.members or [_entry(member) for member in members(self)]
        entries = [
            usual[place % len(usual)] if name is None else self.clients.get(name, usual[place % len(usual)])
            for place, name in enumerate(names)
        ]
        return replace(self, members=tuple(entries), clients=None)

    def check(self, needs: Needs, method: str) -> None:
        """Raise :class:`ConfigError` for models that do not exist, or that a method with these needs cannot use."""
        family = (*members(self), *map(Member.of, (self.clients or {}).values()))
        server = None if self.server is None else Member.of(self.server)
        known = {member.architecture for member in (*family, *((server,) if server else ()))}
        if not isinstance(self.channels_last, str) and (strange := sorted(set(self.channels_last) - known)):
            raise ConfigError(
                f"models.channels_last has {strange[0]!r}, which no model here is.  {nearest(strange[0], known)}"
            )
        if needs.server_model and server is None:
            raise ConfigError(f"{method} needs a model on the server.  Set, for example, models.server=resnet18.")
        if needs.same_architecture and any(member != family[0] for member in family):
            raise ConfigError(
                f"{method} needs models that are all the same; {self.which} has several kinds.  "
                f"Set models.family to one architecture, such as cnn4."
            )
        if needs.same_head and len({member.head for member in family}) > 1:
            raise ConfigError(
                f"{method} needs heads that are all the same; {self.which} has heads of different shape.  "
                f"Use a family that differs in its bodies only, such as htfe8 or tiny5."
            )


def _entry(member: Member) -> MemberEntry:
    """Write a member as an experiment file has it."""
    head = {"head": list(member.head)} if member.head else {}
    return {"name": member.architecture, **member.keywords, **head}


def members(family: str | Models, explicit: Sequence[str | Mapping[str, object]] = ()) -> tuple[Member, ...]:
    """Return the members of a family, or those listed; a single architecture is a family of one.

    Client ``i`` has member ``i`` modulo their number.
    """
    if isinstance(family, Models):
        return members(family.family, family.members)
    if explicit:
        return tuple(Member.of(entry) for entry in explicit)
    if family in FAMILIES:
        return FAMILIES[family]
    if family in table("architectures") or ":" in family:
        return (Member(family),)
    known = [*FAMILIES, *table("architectures")]
    raise PluginError(f"{family!r} is neither a family of models nor an architecture.  {nearest(family, known)}")
