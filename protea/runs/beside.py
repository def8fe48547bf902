"""Runs that stand beside each other on one split: what each gains over training alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protea.runs.answers import RunAnswers
from protea.runs.directory import RunDirectory
from protea.runs.gain import Gain, gain, is_alone_of, is_local
from protea.runs.result import Result


def gains_beside(results: Sequence[Result]) -> list[dict[str, Gain]]:
    """Compare each run with those of Local, and with that of its own method with every client alone.

    The names are ``local`` (with its variant) and ``alone``.  Runs of Local itself have no gain.
    """
    answers = [(each.method, each.answers()) for each in results]
    return [_gains(method, ours, answers) for method, ours in answers]


def _gains(method: str, ours: RunAnswers, others: Sequence[tuple[str, RunAnswers]]) -> dict[str, Gain]:
    if is_local(method):
        return {}
    references = {name: theirs for name, theirs in others if is_local(name)}
    if alone := [theirs for name, theirs in others if is_alone_of(name, method)]:
        references["alone"] = alone[0]
    gains = {name: gain([(ours, theirs)]) for name, theirs in references.items()}
    return {name: one for name, one in gains.items() if one is not None}


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
