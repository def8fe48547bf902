"""A sweep that looks for good settings: each run is proposed from the ones before it, by validation accuracy."""

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
from protea.data import PartitionFile
from protea.evaluation.protocols import accuracy_on_validation, best_round
from protea.runs.reader import RunReader
from protea.studies.grid import NUMBER, SweepAxis, SweepRun, SweepSource, check, method_of, title
from protea.studies.sweep import Sweep, SweepBoard, SweepOutcome, play


@dataclass(frozen=True)
class RangeOf:
    """Numbers from ``low`` to ``high``; ``whole`` if both ends are written as whole numbers."""

    key: str
    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high / self.low > 10

    def value(self, text: str) -> float:
        return int(text) if self.whole else float(text)

    def text(self, value: float) -> str:
        """Four digits are enough for any setting, and can be typed."""
        return str(round(value)) if self.whole else repr(min(max(float(f"{value:.4g}"), self.low), self.high))

    def __str__(self) -> str:
        ends = f"{self.text(self.low)}..{self.text(self.high)}"
        return f"{self.key} in {ends} ({'log-uniform' if self.log else 'uniform'}{', whole' if self.whole else ''})"


@dataclass(frozen=True)
class ChoiceOf:
    key: str
    values: tuple[str, ...]

    def value(self, text: str) -> str:
        return text

    def __str__(self) -> str:
        return f"{self.key} among {', '.join(self.values)}"


Dimension = RangeOf | ChoiceOf
TriedRun = tuple[SweepOutcome, float]  # and its validation accuracy


def dimension(argument: str) -> Dimension:
    """``training.lr=0.001..0.1`` or ``method.pull=1,10,100``."""
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
    """The dimensions; every choice and both ends of every range are checked."""
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
    """Play ``trials`` runs, each proposed from the ones before it; every one with its validation accuracy.

    A proposal follows from the settings and values of the runs before it and from the seed, and from nothing else:
    a search that was interrupted proposes what it would have proposed.
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
        if entry.name in played:  # the sampler may propose what it has proposed
            board.end(outcome := played[entry.name])
        else:
            outcome = played[entry.name] = play(sweep.path, entry, board)
        found.append((outcome, validation(sweep.path / entry.name) if outcome.summary else 0.0))  # a failure is worst
        if best := ranking(found)[:1]:
            write_text(sweep.path / "best.toml", best[0][0].entry.key)
    return found


def ranking(trials: Sequence[TriedRun]) -> list[TriedRun]:
    """Those that came to their end, best first, each once; of equals the first."""
    ended = {outcome.entry.name: (outcome, value) for outcome, value in trials if outcome.summary is not None}
    return sorted(ended.values(), key=lambda trial: -trial[1])


def search_seed(sweep: Sweep, number: int) -> int:
    seed = override(sweep.source.table, sweep.arguments).get("seed", Experiment().seed)
    return Streams(seed).at("search").seed(str(number)) % 2**32


def chosen(entry: SweepRun, space: Sequence[Dimension]) -> dict[str, Any]:
    """The run's place in the space."""
    texts = dict(change.split("=", 1) for change in entry.changes)
    return {d.key: d.value(texts[d.key]) for d in space}


def validation(directory: Path) -> float:
    """The best round's accuracy on validation samples, by the method's own rule, of whichever clients it evaluated."""
    rounds = RunReader.read(directory, clients=False).rounds
    best = best_round(rounds, accuracy_on_validation, of_all=False)
    if best is None:
        raise ConfigError(f"{directory} has no validation samples, by which a search must go.")
    return best.validation["method"].weighted


def propose(space: Sequence[Dimension], history: Sequence[tuple[Mapping[str, Any], float]], seed: int) -> list[str]:
    """The next run's changes, by optuna's TPE sampler."""
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
    """The library, which only a search needs."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError("--search needs optuna.  Install it: pip install -e '.[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study is made for every proposal
    return optuna
