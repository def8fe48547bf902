"""The errors that Protea raises, by what has to be mended.

ProteaError
    ConfigError       the experiment as written cannot run
    PluginError       a method, source, model or engine that is named cannot be found or loaded
    DataError         a data file is missing, damaged, or not what it should be
    PayloadError      what a client or the server sent is not what was declared
    ClientError       a client failed while it worked
    CheckpointError   a checkpoint cannot be written or read
    PolicyError       a site's policy forbids what it was asked
    PrivacyError      what was asked would cost more than a client's privacy budget, or has no guarantee to spend it on

A message says what was found, where, what was expected, and what to type instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ProteaError(Exception):
    """Base of all errors that Protea raises on purpose."""


class ConfigError(ProteaError):
    """The experiment as written cannot run."""


class PluginError(ConfigError):
    """A method, source, model or engine that the experiment names cannot be found or loaded."""


class DataError(ProteaError):
    """A data file is missing, damaged, or not what it should be."""


class PayloadError(ProteaError):
    """What a client or the server sent is not what was declared."""


class ClientError(ProteaError):
    """A client failed while it worked."""


class CheckpointError(ProteaError):
    """A checkpoint cannot be written or read."""


class PolicyError(ProteaError):
    """A site's own policy forbids what it was asked to do or to send."""


class PrivacyError(ProteaError):
    """What was asked would cost more than a client's privacy budget, or has no guarantee to spend it on."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: the nearest known one, or all of them.

    >>> nearest("fedprto", ["local", "fedproto"])
    'Did you mean fedproto?'
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"There is: {', '.join(known) or 'none'}."
