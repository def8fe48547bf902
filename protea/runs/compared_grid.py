"""Methods by the values of one setting, such as data sets: the usual table of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError, nearest
from protea.runs.compare import Comparison, compare
from protea.runs.reader import RunReader, find
from protea.runs.settings_diff import flat
from protea.runs.settings_diff import shown as shown_setting
from protea.runs.spread import Spread


@dataclass(frozen=True)
class ComparedGrid:
    """A comparison for each value of a setting."""

    key: str  # the setting, such as data.source
    columns: dict[str, Comparison]  # by the value, in the order in which runs were found

    @property
    def methods(self) -> list[str]:
        """All methods, the one with the best mean over its columns first; those that lack a column come last."""
        lower = next(iter(self.columns.values())).choice.lower_is_better

        def order(label: str) -> tuple[int, float, str]:
            known = [self.score(label, column) for column in self.columns]
            means = [each.mean for each in known if each is not None]
            mean = sum(means) / len(means)
            return len(known) - len(means), mean if lower else -mean, label

        return sorted({row.label for found in self.columns.values() for row in found.rows}, key=order)

    def score(self, label: str, column: str) -> Spread | None:
        """Return a method's number for a value of the setting; ``None`` where it has no run."""
        return next((row.score for row in self.columns[column].rows if row.label == label), None)

    def place(self, label: str, column: str) -> int | None:
        """Return 1 for the best mean of a column, 2 for the next one, and so on; equal means share a place."""
        own = self.score(label, column)
        if own is None:
            return None
        found = self.columns[column]
        better = {row.score.mean for row in found.rows if is_better(row.score.mean, own.mean, found)}
        return 1 + len(better)


def is_better(one: float, other: float, found: Comparison) -> bool:
    """Whether a mean is better than another, by what is compared."""
    return one < other if found.choice.lower_is_better else one > other


def compare_grid(paths: Iterable[Path | str], key: str, **options: Any) -> ComparedGrid:
    """Compare the runs in ``paths`` for each value of the setting ``key``; ``options`` are those of :func:`compare`."""
    groups: dict[str, list[Path]] = {}
    names: set[str] = set()
    for path in find(paths):
        config = RunReader.read(path, clients=False).config
        names |= {name for known in flat(config) for name in above(known)}
        groups.setdefault(value_of(config, key), []).append(path)
    if key not in names:
        raise ConfigError(f"--grid {key} is not a setting of these runs.  {nearest(key, sorted(names))}")
    return ComparedGrid(key, {value: compare(some, **options) for value, some in groups.items()})


def above(name: str) -> list[str]:
    """Return a setting and the tables that it is in.

    >>> above("data.split.test")
    ['data', 'data.split', 'data.split.test']
    """
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def value_of(config: Mapping[str, Any], key: str) -> str:
    """Return a setting as it is shown; of a table, such as a data source, its kind and the name of its file."""
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, Mapping):
        rest = {name: value for name, value in found.items() if name not in ("kind", "name", "path")}
        named = [found.get("kind") or found.get("name"), found.get("path") and Path(str(found["path"])).name]
        settings = [f"{name}={shown_setting(value)}" for name, value in rest.items() if name in ("alpha", "classes")]
        return " ".join(map(str, [*filter(None, named), *settings])) or shown_setting(rest)
    return shown_setting(found)
