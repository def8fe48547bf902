"""A site's policy: ``policy.toml``, which the site owns and no coordinator's task can weaken.

Every refusal names the line of the file that says so.  A file that is missing, or silent about something, stands for
the safe defaults below.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from protea.config import registry
from protea.config.toml import Table, refuse_huge, settings_from_table
from protea.config.units import Size
from protea.core.errors import ConfigError, nearest
from protea.network.site.policy_rules import refuse_bad_rule, refuse_contradictions, shown
from protea.network.trust.signatures import fingerprint_of

NAME = "policy.toml"
# Their uploads are class vectors alone, of which a class can be kept back, by trained models; Local sends nothing.
CLASS_VECTORS = (
    "local", "fedproto", "fedtgp", "fedpagr", "fedsa", "protonorm", "feddistill", "fedgh", "fedhp", "fedproc", "fedloo",
    "fedorgp", "fedsaf",
)  # fmt: skip

Counting = Literal["exact", "rounded", "hidden"]
Report = Literal["none", "accuracy", "full"]


def _refused() -> dict[str, Any]:
    return {"method.taken": ["before"]}


@dataclass(frozen=True)
class Policy:
    """The content of ``policy.toml``: what may leave a site, and what a coordinator may ask of it."""

    min_samples_per_class: PositiveInt = 5  # a class with fewer training samples is not sent
    counts: Counting = "rounded"  # how the number of samples behind a vector, and of all, is told
    report: Report = "accuracy"  # what evaluation replies contain
    methods: tuple[str, ...] = CLASS_VECTORS  # that a task may have
    max_rounds: PositiveInt = 100  # that a task may have
    max_upload: Size = "10MB"  # in one round
    filters: tuple[str, ...] = ()  # that a task must have
    expires: dt.date | None = None  # the last day of taking part; None: never
    peers: tuple[str, ...] = ()  # fingerprints of other sites' keys: a secure sum is made with these only
    gain: bool = False  # how much better than training alone may be told, to a tenth of a point; nothing else of it
    prepared_alone: bool = False  # data() looks at one record at a time; without that no epsilon is claimed
    refused: dict[str, Any] = field(default_factory=_refused)  # by setting of the task: values it may not have
    at_least: dict[str, Any] = field(default_factory=dict)  # by setting of the task: the smallest value
    at_most: dict[str, Any] = field(default_factory=dict)  # by setting of the task: the largest value


@dataclass(frozen=True)
class PolicyLine:
    """Where a policy says something: a line of the file, or one of the safe defaults."""

    number: int | None  # counted from 1; None for a default
    text: str

    def __str__(self) -> str:
        return f"safe default: {self.text}" if self.number is None else f"line {self.number}: {self.text}"


@dataclass(frozen=True)
class PolicyFile:
    """A policy, and the lines of the file that it was read from."""

    path: Path
    policy: Policy
    lines: Mapping[str, PolicyLine]  # by setting, such as ``counts`` or ``refused.method.taken``
    exists: bool

    def line(self, setting: str) -> PolicyLine:
        """Give the line that sets something, or the safe default where there is none."""
        return self.lines.get(setting) or PolicyLine(None, self.value(setting))

    def cite(self, setting: str) -> str:
        """Name file, line and text, for messages that stay at this site."""
        missing = "" if self.exists else " (there is no such file)"
        return f"{self.path}{missing}, {self.line(setting)}"

    def value(self, setting: str) -> str:
        """Give a setting as it would be written, without the file's comments, which are nobody else's business."""
        name, _, inner = setting.partition(".")
        value = getattr(self.policy, name)
        return f"{setting} = {shown(value[inner] if inner else value)}"


def read_policy(path: Path) -> PolicyFile:
    """Read a policy; raise :class:`ConfigError`, which names the line, for what is no policy."""
    if not path.exists():
        return PolicyFile(path, Policy(), {}, exists=False)
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # no text, no TOML, or nested too deep
        raise ConfigError(f"{path} cannot be read: {error}") from error
    refuse_huge(table, str(path))
    lines = dict(setting_lines(text))
    values: Table = {}
    for name, value in table.items():
        where = f"{path}, {lines[name]}" if name in lines else str(path)
        values[name] = getattr(settings_from_table(Policy, {name: value}, where), name)
        for setting in value if name in ("refused", "at_least", "at_most") else ():
            refuse_bad_rule(name, setting, value[setting], f"{path}, {lines.get(f'{name}.{setting}', lines[name])}")
    if "refused" in values:
        values["refused"] = {
            **_refused(),
            **values["refused"],
        }  # the default is lifted by name only: "method.taken" = []
    found = PolicyFile(path, Policy(**values), lines, exists=True)
    check_policy(found)
    return found


def setting_lines(text: str) -> Iterator[tuple[str, PolicyLine]]:
    """Yield each setting of a TOML text with the line where it begins.

    The text is read line by line: a beginning of it that is whole TOML, and has a setting more than the last one, shows
    where that setting is.
    """
    rows, known, start = text.splitlines(), dict[str, str](), None
    for number, row in enumerate(rows, 1):
        if start is None and (not row.strip() or row.strip().startswith("#")):
            continue
        start = number if start is None else start
        try:
            found = dict(_settings(tomllib.loads("\n".join(rows[:number]))))
        except tomllib.TOMLDecodeError:
            continue  # a list or text that goes on in the next line
        for name in found.keys() - known.keys():
            yield name, PolicyLine(start, rows[start - 1].strip())
        known, start = found, None


def _settings(table: Table, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of all settings in a table, those of inner tables with a dot."""
    for name, value in table.items():
        yield f"{path}{name}", repr(value)
        if isinstance(value, dict):
            yield from _settings(value, f"{path}{name}.")


def check_policy(file: PolicyFile) -> None:
    """Raise :class:`ConfigError` for a policy that contradicts itself, or names what does not exist."""
    policy = file.policy
    for setting, group, names in (("methods", "methods", policy.methods), ("filters", "filters", policy.filters)):
        for name in names:
            if name not in (known := registry.table(group)):
                raise ConfigError(f"{file.cite(setting)}: there is no {group[:-1]} {name!r}.  {nearest(name, known)}")
    for peer in policy.peers:
        try:
            fingerprint_of(peer)
        except ConfigError as error:
            raise ConfigError(f"{file.cite('peers')}: {error}") from error
    if not policy.methods:
        raise ConfigError(f'{file.cite("methods")}: no method is allowed at all.  Name one, such as "fedproto".')
    if policy.report == "full" and policy.counts != "exact":
        raise ConfigError(
            f"{file.cite('report')}: a full report tells how many test samples each class has, and counts = "
            f'"{policy.counts}" says that nobody may know.  Set report = "accuracy", or counts = "exact".'
        )
    refuse_contradictions(policy.at_least, policy.at_most, file.cite)
