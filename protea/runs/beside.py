"""Runs that stand beside each other on one split: what each gains over training alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protea.runs.directory import RunDirectory
from protea.runs.gain import Gain, gain
from protea.runs.result import Result

ALONE = " alone"  # ends the name of a method whose every client is in a federation of one


def is_local(method: str) -> bool:
    """Whether a method's name, with or without a variant, is that of training without any federation."""
    return method.partition("@")[0] == "local"


def gains_beside(results: Sequence[Result]) -> list[dict[str, Gain]]:
    """Compare each run with those of Local, and with that of its own method with every client alone.

    The names are ``local`` (with its variant) and ``alone``.  Runs of Local itself have no gain.
    """
    answers = {each.method: each.answers() for each in results}
    found: list[dict[str, Gain]] = []
    for each in results:
        references = {name: name for name in answers if is_local(name)}
        if each.method + ALONE in answers:
            references["alone"] = each.method + ALONE
        every = {} if is_local(each.method) else references
        gains = {name: gain([(answers[each.method], answers[other])]) for name, other in every.items()}
        found.append({name: one for name, one in gains.items() if one is not None})
    return found


def keep_gains(results: Sequence[Result]) -> list[Result]:
    """Write the gains of runs that have ended on one split into their summaries; give the runs with them."""
    kept = []
    for each, gains in zip(results, gains_beside(results), strict=True):
        plain = {name: one.plain() for name, one in gains.items()}
        if plain and each.summary.get("gain") != plain:
            each = replace(each, summary={**each.summary, "gain": plain})
            if each.directory is not None:
                directory = RunDirectory(each.directory)
                with directory.held(), directory.writing():
                    directory.finish(each.summary)
        kept.append(each)
    return kept
