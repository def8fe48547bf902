"""From run directories to the plain values that a report draws: every number in it comes from here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import protea
from protea.config.words import MEASURES, PARTS, PROTOCOLS, RULES, WEIGHTINGS
from protea.federation.privacy import in_words
from protea.federation.record import ClientRecord
from protea.report import compared, groups, words
from protea.report.space import space
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader
from protea.runs.steps import mean_steps, steps_by_client

Plain = dict[str, Any]
Say = Callable[[str], None]

# By the names of their numbers in a record: accuracy with its two weightings, then the other measures.
SCORES = {weighting: f"{MEASURES['accuracy']}, {words}" for weighting, words in WEIGHTINGS.items()}
SCORES |= {measure: words for measure, words in MEASURES.items() if measure != "accuracy"}


def silent(message: str) -> None:
    """Say nothing of what takes long."""


def content(runs: Sequence[RunReader], say: Say = silent) -> Plain:
    """All that a report of these runs shows.

    Every run has its totals; clients, classes and prototypes are there for the first run of each group, which
    keeps the page small however many seeds there are.
    """
    found = groups.of(runs)
    drawn = [totals(run) for run in runs]
    for group in found:
        first = group["runs"][0]
        say(f"{runs[first].path}: prototypes are laid out on a map")
        drawn[first]["details"] = details(runs[first])
    differ = groups.differences(runs)
    if differ:
        say(f"Beware: {compared.apart(differ)} The page says which run has which.")
    return together(runs, found, drawn, differ, compared.comparison(runs, differ))


def together(
    runs: Sequence[RunReader],
    found: list[Plain],
    drawn: Sequence[Plain],
    differ: list[Plain],
    comparison: Plain | None,
) -> Plain:
    """The content of a page: the runs that are drawn, in their groups, and what is said of all of them."""
    for group in found:
        group |= compared.scores([runs[index] for index in group["runs"]])
    return {
        "made": {"date": datetime.now(UTC).date().isoformat(), "version": protea.__version__},
        "title": words.title(runs),
        "question": words.question(runs),
        "notices": words.notices(runs, found),
        "remarks": words.remarks(runs, found, comparison),
        "differences": differ,
        "comparison": comparison,
        "majorities": compared.majorities(runs, [run["majority"] for run in drawn]),
        "groups": found,
        "runs": [{"name": name, **run} for name, run in zip(groups.names(runs), drawn, strict=True)],
        "words": {"rules": RULES, "scores": SCORES, "protocols": PROTOCOLS, "parts": PARTS},
    }


def totals(run: RunReader) -> Plain:
    """A run's settings, headline and course over the rounds."""
    return {
        "method": run.method,
        "seed": run.seed,
        "planned": run.config.get("rounds"),
        "config": flat(run.config),
        "environment": flat(environment(run)),
        "summary": run.summary,
        "majority": majority(run),
        "rules": rules(run),
        "rounds": [record.round for record in run.rounds],
        "scores": {part: course(run, part) for part in PARTS},
        "loss": [rounded(record.loss) for record in run.rounds],
        "bytes": [record.bytes_up + record.bytes_down for record in run.rounds],
        "cost": {
            name: [rounded(record.cost.seconds.get(name)) for record in run.rounds]
            for name in dict.fromkeys(name for record in run.rounds for name in record.cost.seconds)
        },
        "steps": mean_steps(steps_by_client(run.config, run.data), run.rounds),
        "failures": sum(len(record.failures) for record in run.rounds),
        **privacy(run),
        **together_on_shared(run),
    }


def privacy(run: RunReader) -> Plain:
    """What holds for the privacy of a run's clients, in words, and epsilon by round; nothing where nothing is noisy."""
    if not run.rounds or (found := run.rounds[-1].privacy) is None:
        return {}
    spent = [record.privacy and rounded(record.privacy.epsilon) for record in run.rounds]
    return {"privacy": in_words(found), "epsilon": spent}


def together_on_shared(run: RunReader) -> Plain:
    """What clients know together, by round: their teacher on public samples; on the shared test set the server's model,
    the ensemble, and a client alone.  Nothing where a run has neither teacher nor server."""
    found = {
        "teacher": [rounded(record.values.get("teacher_accuracy")) for record in run.rounds],
        "server": [rounded(record.server.get("head")) for record in run.rounds],
    }
    if all(value is None for values in found.values() for value in values):
        return {}
    shared = [record.shared.get("method") for record in run.rounds]
    found["ensemble"] = [None if each is None else rounded(each.ensemble) for each in shared]
    found["client"] = [None if each is None else rounded(each.clients) for each in shared]
    return {"together": found}


def details(run: RunReader, tsne: bool = True) -> Plain:
    """A run's clients, classes and prototypes; t-SNE, which takes long, is left out if not asked for."""
    return {
        "classes": run.data.classes,
        "clients": [client.line() for client in run.data.clients],
        "accuracies": {part: clients(run, part) for part in PARTS},
        "losses": losses(run),
        "answers": answers(run),
        "by_class": [by_class(record.classes) for record in run.rounds],
        "geometry": [record.geometry and rounded(asdict(record.geometry)) for record in run.rounds],
        "space": space(RunDirectory(run.path).snapshots(), tsne),
    }


def rules(run: RunReader) -> list[str]:
    """Every rule that some round has, the method's own first."""
    return list(dict.fromkeys(["method", *(rule for record in run.scored for rule in record.test)]))


def course(run: RunReader, part: str) -> Plain:
    """By rule and score, a value for each round; None in rounds without evaluation."""
    by_round = [{"test": record.test, "validation": record.validation}[part] for record in run.rounds]
    return {
        rule: {
            name: [rounded(getattr(scores[rule], name)) if rule in scores else None for scores in by_round]
            for name in SCORES
        }
        for rule in rules(run)
    }


def clients(run: RunReader, part: str) -> Plain:
    """By rule, for each client its accuracy in each round."""
    by_round: list[dict[int, ClientRecord]] = [{each.client: each for each in record.clients} for record in run.rounds]

    def accuracy(found: ClientRecord | None, rule: str) -> float | None:
        return None if found is None else rounded(found.accuracy_by(rule, part))

    numbers = [client.client for client in run.data.clients]
    return {
        rule: [[accuracy(each.get(number), rule) for each in by_round] for number in numbers] for rule in rules(run)
    }


def losses(run: RunReader) -> list[list[float | None]]:
    """For each client the mean loss of its training in each round; None where it did not train."""
    by_round = [{each.client: rounded(each.loss) for each in record.clients} for record in run.rounds]
    return [[found.get(client.client) for found in by_round] for client in run.data.clients]


def answers(run: RunReader) -> Plain | None:
    """Of the latest evaluation, by class: test samples, right answers, answers, and which class was taken for which."""
    latest = next((record for record in reversed(run.rounds) if record.classes), None)
    return None if latest is None else {"round": latest.round, **latest.classes, "mistakes": latest.mistakes}


def by_class(counted: Mapping[str, Sequence[int]]) -> list[float | None] | None:
    """The accuracy on each class by the method's own rule."""
    if not counted:
        return None
    pairs = zip(counted["hits"], counted["samples"], strict=True)
    return [rounded(hits / samples) if samples else None for hits, samples in pairs]


def majority(run: RunReader) -> float | None:
    """The accuracy of always answering a client's commonest training class; also known while a run goes on."""
    if run.summary is not None:
        return None if run.summary["majority"] is None else float(run.summary["majority"])
    right = sum(client.test[commonest(client.train)] for client in run.data.clients if client.train)
    samples = sum(sum(client.test) for client in run.data.clients)
    return right / samples if samples else None


def commonest(counts: Sequence[int]) -> int:
    """The class with the most samples, the first of equals."""
    return max(range(len(counts)), key=counts.__getitem__)


def environment(run: RunReader) -> Plain:
    """Versions and machine of a run; nothing where the file is missing."""
    path = run.path / "environment.json"
    found: Plain = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> Plain:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: Plain = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def rounded(value: Any) -> Any:
    """Numbers to five digits, which no plot shows more of; None for what is not a number."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return value


def read(paths: Sequence[Path]) -> list[RunReader]:
    """The runs in these directories."""
    return [RunReader.read(path) for path in paths]
