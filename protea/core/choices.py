"""Settings whose value is a plug-in: a method, a data source, an optimizer, a filter.

Such a field holds an object.  In an experiment file it is a word, ``optimizer = "adam"``, or a table that also has the
settings of that object, ``partition = { kind = "dirichlet", alpha = 0.3 }``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any


def choice_of(group: str, tag: str, default: Callable[[], Any], *, word: bool = False) -> Any:
    """Declare a field that holds one plug-in of a group; ``tag`` is the setting that names which one.

    With ``word``, a plug-in that has no settings of its own is written to files as just its name.
    """
    return field(default_factory=default, metadata={"group": group, "tag": tag, "word": word, "many": False})


def table_or_none(kind: type[Any]) -> Any:
    """Declare a field that holds settings of one kind, a table in a file, or ``None``, which it is by default."""
    return field(default=None, metadata={"table": kind})


def list_of(group: str, tag: str) -> Any:
    """Declare a field that holds any number of plug-ins of a group, in order; none by default."""
    return field(default=(), metadata={"group": group, "tag": tag, "word": True, "many": True})
