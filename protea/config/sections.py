"""The sections of an experiment file, each a frozen dataclass that says what it needs of the others.

A comment after a field is its documentation; ``docs/settings.md`` has the same with examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from protea.config import registry, words
from protea.config.units import Size
from protea.config.words import Protocol
from protea.core.augment import Augment
from protea.core.choices import choice_of, list_of
from protea.core.errors import ConfigError, nearest
from protea.core.method import Method, Needs
from protea.core.prototypes import Prototypes
from protea.core.ranges import Fraction, Proportion


@dataclass(frozen=True)
class Split:
    """``[data.split]``: how large the parts of each client's samples are; what is left is for training.

    ``stratify`` gives every part its share of every class; without it the samples are just
    shuffled, as in the reference codes, and a class may be in the test part only.  ``by_key``
    keeps all samples of a key in one part, for sources that have keys; classes then fall as
    they may.
    """

    test: Fraction = 0.2
    validation: Fraction = 0.1
    stratify: bool = True
    by_key: bool = False

    def __post_init__(self) -> None:
        if min(self.test, self.validation) < 0 or self.test + self.validation >= 1:
            raise ConfigError(
                f"split: test = {self.test} and validation = {self.validation} leave nothing to train on.\n"
                f"  Both must be 0 or more, and their sum less than 1."
            )


@dataclass(frozen=True)
class Data:
    """``[data]``: which samples there are, and who has which."""

    source: Any = choice_of("sources", "kind", registry.default("sources", "digits"))
    partition: Any = choice_of("partitions", "kind", registry.default("partitions", "dirichlet"))
    pool: Literal["train", "all"] = "train"  # of the source; "all" merges its test part in, as HtFLlib does
    samples: PositiveInt | None = None  # that are used of the pool, drawn at random; all if not given
    public: NonNegativeInt = 0  # samples set aside, seen by all
    split: Split = field(default_factory=Split)  # of each client's samples
    augment: Augment = field(default_factory=Augment)
    seed: int | None = None  # of partition and split; the run's seed if not given
    names: tuple[str, ...] | None = None  # of the clients, in their order; their keys if not given and they have such

    @property
    def from_file(self) -> bool:
        """Whether a partition file says which client has which samples, public ones included."""
        return registry.name_of("partitions", type(self.partition)) == "file"

    def check(self, needs: Needs, method: str) -> None:
        """Raise :class:`ConfigError` if the method needs public samples and none are set aside."""
        if needs.public_data and not self.public and not self.from_file:
            raise ConfigError(f"{method} needs public data, and data.public is 0.  Set, for example, data.public=500.")


@dataclass(frozen=True)
class Evaluation:
    """``[evaluation]``: when clients are evaluated, by which rules, and which round's numbers are reported."""

    every: PositiveInt = 1  # rounds; the last round is always evaluated
    when: Literal["after", "before"] = "after"  # the round's training
    clients: Literal["all", "participants"] = "all"
    shared: Literal["never", "last"] | PositiveInt = "last"  # every n rounds, clients on the shared test set
    local_prototypes: bool = True  # as one more rule; needs a look at the training data
    train: bool = False  # also on the samples that clients train on, by the method's own rule; in simulations
    snapshots: NonNegativeInt = 20  # of all prototypes, over the run, for its report
    features: NonNegativeInt = 1  # clients whose test samples' features each snapshot holds too
    protocol: Protocol = "validation"  # the round whose numbers are reported; final where nothing is held out
    rules: tuple[Any, ...] = list_of("rules", "name")  # own answering rules, beside the built-in ones
    answer: str = "method"  # the rule that counts as the method's own, such as blend
    metrics: tuple[Any, ...] = list_of("metrics", "name")  # own metrics of the method's answers

    def __post_init__(self) -> None:
        """Refuse own rules and metrics whose numbers would stand under a name that others have."""
        taken = {"rules": {*words.RULES, "samples", "classes", "metrics", "right"}, "metrics": {*words.MEASURES}}
        for group, plugins in (("rules", self.rules), ("metrics", self.metrics)):
            names = registry.plugin_names(group, plugins)
            for place, name in enumerate(names):
                if name in taken[group] or name in names[:place]:
                    whose = "that of another one" if name in names[:place] else "a name of Protea's own"
                    raise ConfigError(
                        f"evaluation.{group}: {name!r} is {whose}.  Give its class, or its entry point, another name."
                    )
        known = (*words.RULES, *registry.plugin_names("rules", self.rules))
        if self.answer not in known:
            raise ConfigError(f"evaluation.answer: there is no rule {self.answer!r}.  {nearest(self.answer, known)}")
        if self.answer == "local_prototypes" and not self.local_prototypes:
            raise ConfigError(
                "evaluation.answer is local_prototypes, and evaluation.local_prototypes is false.  Set it to true."
            )

    def check(self, method: Method[Any, Any], name: str) -> None:
        """Raise :class:`ConfigError` if the rule that should answer needs prototypes that the method does not have."""
        kind = type(method)
        if kind.prototypes is Method.prototypes:
            sends = issubclass(kind.down, Prototypes)
        else:  # declared to return None where what is sent lies in another space, as FedLOO's does
            sends = kind.prototypes.__annotations__.get("return", "") not in (None, "None")
        if self.answer.startswith("global_prototypes") and not sends:
            raise ConfigError(
                f"evaluation.answer is {self.answer}, and {name} has no global prototypes.  Choose another rule, such "
                f"as head, local_prototypes or blend."
            )

    def due(self, round: int, rounds: int) -> bool:
        """Tell whether clients are evaluated on their own samples in this round."""
        return round % self.every == 0 or round == rounds

    def shared_due(self, round: int, rounds: int) -> bool:
        """Tell whether clients also answer the shared test set in this round."""
        if isinstance(self.shared, str):
            return self.shared == "last" and round == rounds
        return round % self.shared == 0 or round == rounds

    def snapshot_due(self, round: int, rounds: int) -> bool:
        """Tell whether prototypes are kept in this round: spread evenly over the run, the last round always."""
        if not self.snapshots:
            return False
        return round * self.snapshots // rounds > (round - 1) * self.snapshots // rounds


@dataclass(frozen=True)
class Engine:
    """``[engine]``: where clients run.  Nothing here but ``threads`` changes a number."""

    name: str = "auto"  # processes, inline, ray, flower; auto: processes, but inline for what a notebook defines
    workers: NonNegativeInt = 0  # processes or actors; 0 for one per core
    threads: PositiveInt = 1  # of torch, in each worker and on the server
    limit: NonNegativeFloat = 0.0  # seconds that a client may take for a job; 0 for as long as it takes
    retries: NonNegativeInt = 1  # for a job whose process was killed or took too long
    memory: Size | None = None  # of all workers together; clients beyond it wait on disk
    address: str = ""  # of a Ray cluster, such as 10.0.0.1:6379; empty for one on this machine
    gpus: NonNegativeInt = 0  # of the Ray cluster, shared out evenly among the workers

    def check(self) -> None:
        """Raise :class:`PluginError` for an engine that does not exist, or needs what is not installed."""
        if self.name != "auto":
            registry.find("engines", self.name)

    def refuse_cluster(self) -> None:
        """Raise :class:`ConfigError` if settings of a Ray cluster are set, for engines that have no use for them."""
        for setting in ("address", "gpus"):
            if getattr(self, setting):
                raise ConfigError(
                    f"engine.{setting} is set, and engine.name={self.name} has no use for it.  Set engine.name=ray."
                )


@dataclass(frozen=True)
class Faults:
    """``[faults]``: what goes wrong by chance, to study methods under it.

    Rates are of one round: one for all clients, or a list with one for each.
    """

    dropout: Proportion | tuple[Proportion, ...] = 0.0  # hears nothing of the round, and does not train
    late: Proportion | tuple[Proportion, ...] = 0.0  # trains, and its upload comes when the round is over

    def check(self, clients: int) -> None:
        """Raise :class:`ConfigError` for lists of rates that do not have one for each client."""
        for name in ("dropout", "late"):
            rates = getattr(self, name)
            if isinstance(rates, tuple | list) and len(rates) != clients:
                raise ConfigError(
                    f"faults.{name} has {len(rates)} rates for {clients} clients.  Give one each, or a single number "
                    f"for all."
                )

    def rates(self, client: int) -> tuple[float, float]:
        """Return the client's probabilities of dropping out and of being late.

        >>> Faults(dropout=(0.1, 0.2)).rates(1)
        (0.2, 0.0)
        """
        return _rate_of(self.dropout, client), _rate_of(self.late, client)


def _rate_of(rate: float | Sequence[float], client: int) -> float:
    """Return one client's rate, of a list or of one number for all."""
    return rate[client] if isinstance(rate, Sequence) else rate


@dataclass(frozen=True)
class Limits:
    """``[limits]``: uploads beyond these are refused, or ``bound``."""

    upload: Size = "256MB"
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e6  # of a prototype, or any other vector, not of counts
    samples: PositiveInt = 1_000_000_000  # of a class, or in all, that a client may claim: means may be weighed by them
    bound: bool = True  # class vectors out of proportion to the others' are pulled in: the filter bound, unless named
    quarantine: NonNegativeInt = 3  # refusals in a row, after which a client is not asked any more; 0 for never


@dataclass(frozen=True)
class Checkpoint:
    """``[checkpoint]``: when the state of server and clients is written to the run directory."""

    every: PositiveInt = 10  # rounds; the last round always
    keep: PositiveInt = 2  # the newest; with one, there is none to go back to if it is damaged


def participants(clients: int, fraction: float) -> int:
    """Return how many of the clients take part in a round: at least one.

    >>> participants(10, 0.25), participants(3, 0.1)
    (2, 1)
    """
    return max(1, round(fraction * clients))
