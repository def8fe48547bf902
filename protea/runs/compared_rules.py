"""One number by every answering rule, so that nobody mistakes a rule for a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.runs.compared_number import ComparedNumber
from protea.runs.reader import RunReader
from protea.runs.spread import Spread

RuleMeans = dict[str, dict[str, Spread]]  # by rule, then by the label of a row that has the rule


def rule_means(rows: Mapping[str, Sequence[RunReader]], choice: ComparedNumber) -> RuleMeans:
    """Give the mean over seeds of each row by every rule that all runs of the row have; built-in rules come first."""
    if not choice.built_in:
        raise ConfigError(f"--measure {choice.measure} is of the method's own answers.  Leave out --rules.")
    found: RuleMeans = {}
    for rule in _names(rows.values(), choice):
        number = replace(choice, rule=rule)
        for label, runs in rows.items():
            values = [value for run in runs if (value := number.reported(run)) is not None]
            if values and len(values) == len(runs):
                found.setdefault(rule, {})[label] = Spread.of(values)
    return found


def _names(rows: Iterable[Sequence[RunReader]], choice: ComparedNumber) -> list[str]:
    there = dict.fromkeys(rule for runs in rows for run in runs for each in run.rounds for rule in choice.rules(each))
    return [*(rule for rule in RULES if rule in there), *(rule for rule in there if rule not in RULES)]
