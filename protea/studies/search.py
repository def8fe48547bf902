"""A search for good settings: each run is proposed from the validation accuracy of those before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.config.experiment import Experiment
from protea.config.toml import override
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.core.rng import Streams
from protea.core.shell import install_hint
from protea.data import PartitionFile
from protea.evaluation.protocols import accuracy_on_validation, best_round
from protea.runs.reader import RunReader
from protea.studies.grid import NUMBER, SweepAxis, SweepRun, SweepSource, check, method_of, title
from protea.studies.sweep import Sweep, SweepBoard, SweepOutcome, play


@dataclass(frozen=True)
class RangeOf:
    """A range of a search: numbers from ``low`` to ``high``; ``whole`` if both ends are written as integers."""

    key: str
    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        """Whether the range is so wide that it is searched on a logarithmic scale."""
        return self.low > 0 and self.high / self.low > 10

    def value(self, text: str) -> float:
        """Parse a value of the setting."""
        return int(text) if self.whole else float(text)

    def text(self, value: float) -> str:
        """Write a value in four digits, which are enough for any setting and can be typed."""
        return str(round(value)) if self.whole else repr(min(max(float(f"{value:.4g}"), self.low), self.high))

    def __str__(self) -> str:
        ends = f"{self.text(self.low)}..{self.text(self.high)}"
        return f"{self.key} in {ends} ({'log-uniform' if self.log else 'uniform'}{', whole' if self.whole else ''})"


@dataclass(frozen=True)
class ChoiceOf:
    """A choice of a search: one of the values, as they are typed."""

    key: str
    values: tuple[str, ...]

    def value(self, text: str) -> str:
        """Return the text, which is the value."""
        return text

    def __str__(self) -> str:
        return f"{self.key} among {', '.join(self.values)}"


Dimension = RangeOf | ChoiceOf
TriedRun = tuple[SweepOutcome, float]  # a run and its validation accuracy


def dimension(argument: str) -> Dimension:
    """Parse an argument of ``--for`` such as ``training.lr=0.001..0.1`` or ``method.pull=1,10,100``."""
    key, _, text = argument.partition("=")
    ends = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})", text)
    if ends is None:
        axis = SweepAxis.parse(argument)
        if axis.method or len(axis.values) < 2:
            raise ConfigError(f"--for {argument}: write a range or choices, key=0.001..0.1 or key=a,b.")
        return ChoiceOf(axis.key, axis.values)
    low, high = (float(end) for end in ends.groups())
    if not key or low >= high:
        raise ConfigError(f"--for {argument}: write the setting, the smaller number, .. and the larger one.")
    return RangeOf(key, low, high, all(re.fullmatch(r"[+-]?\d+", end) for end in ends.groups()))


def prepare_search(source: SweepSource, arguments: Sequence[str], space: Sequence[str]) -> list[Dimension]:
    """Parse the dimensions of a search, and check that every choice and both ends of every range can run."""
    optuna()
    for axis in map(SweepAxis.parse, arguments):
        if axis.method or len(axis.values) > 1:
            raise ConfigError(
                f"With --search, settings outside --for have one value; {axis.key} has {', '.join(axis.values)}.  "
                f"Search it too, --for {axis.key}=..., or make a search of its own for each value."
            )
    found = [dimension(argument) for argument in space]
    if not found:
        raise ConfigError("A search needs something to search.  Write, for example, --for training.lr=0.001..0.1")
    ends = [d.values if isinstance(d, ChoiceOf) else (d.text(d.low), d.text(d.high)) for d in found]
    first = {d.key: values[0] for d, values in zip(found, ends, strict=True)}
    for d, values in zip(found, ends, strict=True):
        for value in values:
            changes = [f"{key}={text}" for key, text in {**first, d.key: value}.items()]
            each = check(source, (*arguments, *changes), [])
            if not each.data.split.validation and not isinstance(each.data.partition, PartitionFile):
                raise ConfigError(
                    "A search goes by validation samples, and data.split.validation is 0.  Set, for example, "
                    "data.split.validation=0.1; test samples are never searched by."
                )
    return found


def search(sweep: Sweep, space: Sequence[Dimension], trials: int, board: SweepBoard) -> list[TriedRun]:
    """Play ``trials`` runs, each proposed from those before it, and return them with their validation accuracy.

    A proposal depends on the settings and values of the runs before it and on the seed, and on nothing else: a search
    that was interrupted goes on as if it had not been.
    """
    found: list[TriedRun] = []
    played: dict[str, SweepOutcome] = {}
    for number in range(trials):
        if number < len(sweep.entries):
            entry = sweep.entries[number]
        else:
            history = [(chosen(outcome.entry, space), value) for outcome, value in found]
            changes = (*sweep.arguments, *propose(space, history, seed=search_seed(sweep, number)))
            each = check(sweep.source, changes, [])
            method = method_of(override(sweep.source.table, changes))
            entry = sweep.add(SweepRun(title(method, changes, {d.key for d in space}, each.seed), changes, each))
        if entry.name in played:  # the sampler may propose the same settings twice
            board.end(outcome := played[entry.name])
        else:
            outcome = played[entry.name] = play(sweep.path, entry, board)
        # A run that failed counts as the worst.
        found.append((outcome, validation(sweep.path / entry.name) if outcome.summary else 0.0))
        if best := ranking(found)[:1]:
            write_text(sweep.path / "best.toml", best[0][0].entry.key)
    return found


def ranking(trials: Sequence[TriedRun]) -> list[TriedRun]:
    """Sort the runs that finished, best first, each once; of equal ones the earlier comes first."""
    ended = {outcome.entry.name: (outcome, value) for outcome, value in trials if outcome.summary is not None}
    return sorted(ended.values(), key=lambda trial: -trial[1])


def search_seed(sweep: Sweep, number: int) -> int:
    """Derive the seed of the sampler for one proposal from the seed of the experiment."""
    seed = override(sweep.source.table, sweep.arguments).get("seed", Experiment().seed)
    return Streams(seed).at("search").seed(str(number)) % 2**32


def chosen(entry: SweepRun, space: Sequence[Dimension]) -> dict[str, Any]:
    """Return the values that a run has in the dimensions of the search."""
    texts = dict(change.split("=", 1) for change in entry.changes)
    return {d.key: d.value(texts[d.key]) for d in space}


def validation(directory: Path) -> float:
    """Return the validation accuracy of a run's best round, by the method's own rule, of the clients evaluated."""
    rounds = RunReader.read(directory, clients=False).rounds
    best = best_round(rounds, accuracy_on_validation, of_all=False)
    if best is None:
        raise ConfigError(f"{directory} has no validation samples, by which a search must go.")
    return best.validation["method"].weighted


def propose(space: Sequence[Dimension], history: Sequence[tuple[Mapping[str, Any], float]], seed: int) -> list[str]:
    """Propose the next run's changes by optuna's TPE sampler.

    ``history`` holds the values of earlier runs and their validation accuracy.
    """
    library = optuna()
    kinds = library.distributions
    ranges: dict[str, Any] = {}
    for d in space:
        if isinstance(d, ChoiceOf):
            ranges[d.key] = kinds.CategoricalDistribution(d.values)
        elif d.whole:
            ranges[d.key] = kinds.IntDistribution(int(d.low), int(d.high), log=d.log)
        else:
            ranges[d.key] = kinds.FloatDistribution(d.low, d.high, log=d.log)
    study = library.create_study(direction="maximize", sampler=library.samplers.TPESampler(seed=seed))
    for place, value in history:
        study.add_trial(library.trial.create_trial(params=dict(place), distributions=ranges, value=value))
    asked = study.ask(ranges).params
    return [f"{d.key}={asked[d.key] if isinstance(d, ChoiceOf) else d.text(asked[d.key])}" for d in space]


def optuna() -> Any:
    """Import optuna, which only a search needs."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError(f"--search needs optuna.  Install it: {install_hint('search')}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would report every study, and each proposal makes one
    return optuna
