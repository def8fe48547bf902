"""What can go wrong, by whose doing.

ProteaError
    ConfigError       the experiment as written cannot run
    PluginError       a method, source, model or engine that is named cannot be found or loaded
    DataError         a data file is missing, damaged, or not what it should be
    PayloadError      what a client or the server sent is not what was declared
    ClientError       a client failed while it worked
    CheckpointError   a checkpoint cannot be written or read

A message says what was found, where, what was expected, and what to type instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ProteaError(Exception):
    """Anything that Protea itself reports."""


class ConfigError(ProteaError):
    """The experiment as written cannot run."""


class PluginError(ConfigError):
    """Something named in the experiment cannot be found or loaded."""


class DataError(ProteaError):
    """A data file is missing, damaged, or not what it should be."""


class PayloadError(ProteaError):
    """What was sent is not what was declared."""


class ClientError(ProteaError):
    """A client failed while it worked."""


class CheckpointError(ProteaError):
    """A checkpoint cannot be written or read."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest known one, or all of them.

    >>> nearest("fedprto", ["local", "fedproto"])
    'Did you mean fedproto?'
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"There is: {', '.join(known) or 'none'}."
