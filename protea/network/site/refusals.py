"""What a site's policy refuses of a coordinator's task, before anything is trained."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast, get_args, get_origin, get_type_hints

from protea.config import registry
from protea.config.toml import to_table
from protea.core.clusters import Clusters
from protea.core.payload import Payload
from protea.core.prototypes import Prototypes
from protea.network.site.policy import PolicyFile
from protea.network.site.policy_rules import shown
from protea.network.task import Task


@dataclass(frozen=True)
class Refusal:
    """One thing that a policy forbids."""

    setting: str  # of the policy
    cited: str  # the policy's line, for this site's own eyes
    said: str  # the same without its comment and the file's path, for a coordinator
    why: str

    def __str__(self) -> str:
        return f"{self.cited}\n    {self.why}"


def refusal(file: PolicyFile, setting: str, why: str) -> Refusal:
    """Make a refusal that cites a setting of the policy."""
    return Refusal(setting, file.cite(setting), file.value(setting), why)


def refused_task(found: Sequence[Refusal]) -> str:
    """Say all that the policy forbids of a task, with the lines that say so."""
    return "The policy of this site refuses the task:\n" + "\n".join(f"  {each}" for each in found)


def refusals(
    file: PolicyFile, task: Task, counts: Mapping[str, int] | None = None, today: dt.date | None = None
) -> Iterator[Refusal]:
    """Yield what a policy forbids of a task; ``counts`` are the site's training samples by class, where known."""
    policy, name = file.policy, registry.name_of("methods", type(task.method))
    if (expired := expiry(file, today)) is not None:
        yield expired
    if name not in policy.methods:
        yield refusal(
            file,
            "methods",
            f'The task has method.name = "{name}", which sends {task.method.exchanges}.  To allow it, add "{name}" to '
            f"methods.",
        )
    if task.rounds > policy.max_rounds:
        yield refusal(file, "max_rounds", f"The task has {task.rounds} rounds.  To allow that, set max_rounds higher.")
    there = registry.plugin_names("filters", task.filters)
    for needed in policy.filters:
        if needed not in there:
            yield refusal(
                file,
                "filters",
                f'The task does not have the filter "{needed}".  Ask the coordinator for it, or take it out of '
                f"filters.",
            )
    yield from _refused_values(file, task)
    yield from _too_few(file, task, name, counts or {})


def expiry(file: PolicyFile, today: dt.date | None = None) -> Refusal | None:
    """Return the refusal of a policy that has expired; None on its last day and before."""
    last, today = file.policy.expires, today or dt.date.today()
    if last is None or today <= last:
        return None
    return refusal(file, "expires", f"Today is {today}.  Agree anew, and set another date.")


def _refused_values(file: PolicyFile, task: Task) -> Iterator[Refusal]:
    policy, values = file.policy, dict(task_settings(task))
    for setting, wrong in policy.refused.items():
        for value in values.get(setting, []):
            if value in wrong:
                yield refusal(file, f"refused.{setting}", f"The task has {setting} = {shown(value)}.")
    for kind, bounds in (("at_least", policy.at_least), ("at_most", policy.at_most)):
        for setting, bound in bounds.items():
            if not values.get(setting) and applies(setting, task):
                yield refusal(file, f"{kind}.{setting}", f"The task has no {setting}, so that it keeps no bound.")
            for value in values.get(setting, []):
                if not isinstance(value, int | float) or (value < bound if kind == "at_least" else value > bound):
                    yield refusal(file, f"{kind}.{setting}", f"The task has {setting} = {shown(value)}.")


def applies(setting: str, task: Task) -> bool:
    """Tell whether a bound is about this task: those of another method's settings are not.

    One of a filter that the task lacks is: the bound would otherwise be kept by doing without the filter.
    """
    section, _, name = setting.partition(".")
    return section != "method" or name.partition(".")[0] in {each.name for each in fields(task.method)}


def task_settings(task: Task) -> Iterator[tuple[str, list[Any]]]:
    """Yield each setting of a task by its path, with its values: ``filters.clip.norm`` may have several."""

    def inner(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, list[Any]]]:
        for name, value in table.items():
            if isinstance(value, dict):
                yield from inner(value, f"{path}{name}.")
            else:
                yield f"{path}{name}", [value]

    table = to_table(task)
    filters = [{"name": each} if isinstance(each, str) else each for each in table.pop("filters", [])]
    yield from inner(table, "")
    found: dict[str, list[Any]] = {}
    for each in filters:
        for setting, values in inner({k: v for k, v in each.items() if k != "name"}, f"filters.{each['name']}."):
            found.setdefault(setting, []).extend(values)
    yield from found.items()


def _too_few(file: PolicyFile, task: Task, name: str, counts: Mapping[str, int]) -> Iterator[Refusal]:
    """Yield what cannot be kept back of small classes."""
    least = file.policy.min_samples_per_class
    setting = "min_samples_per_class"
    behind = to_table(task.method).get("least", least)  # FedLOO's means are of a part of a class's samples
    if behind < least:
        yield refusal(file, setting, f"The task has method.least = {behind}: means of so few samples would leave.")
    small = [each for each, count in counts.items() if 0 < count < least]
    if small and not sends_class_vectors(task.method.up):
        yield refusal(
            file,
            setting,
            f"{listed(small)}: fewer training samples than that, and {name} sends {task.method.exchanges}, of which no "
            f"single class can be kept back.  Leave these samples out in data(), or ask for a method that sends "
            f"class vectors.",
        )
    if counts and not any(count >= least for count in counts.values()) and task.method.up is not type(None):
        yield refusal(file, setting, "No class has that many training samples: this site has nothing to send.")


def listed(names: Sequence[str], most: int = 5) -> str:
    """Write names as people do, the first few of many.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


def sends_class_vectors(kind: Any) -> bool:
    """Tell whether a payload is declared to hold prototypes, or clusters, and nothing that is always beside them."""
    if type(None) in (kind, *get_args(kind)):
        return True  # what is there in some tasks only is looked at when it is about to leave
    if isinstance(get_origin(kind), type) and issubclass(cast(type, get_origin(kind)), Mapping):
        return sends_class_vectors(get_args(kind)[1])
    if not isinstance(kind, type) or not issubclass(kind, Payload):
        return False  # a tensor
    hints = get_type_hints(cast(Any, kind))
    return issubclass(kind, Prototypes | Clusters) or all(
        sends_class_vectors(hints[each.name]) for each in fields(cast(Any, kind))
    )
